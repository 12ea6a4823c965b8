// Talking to the server: the key, errors, streams.

import { EventReader } from './sse.js';

const KEY = 'quern.key';

export class ApiError extends Error {
  constructor(status, body, retryAfter) {
    const error = body && typeof body.error === 'object' && body.error ? body.error : {};
    super(typeof error.message === 'string' ? error.message : `The server answered ${status}.`);
    this.status = status;
    this.type = typeof error.type === 'string' ? error.type : '';
    this.promptTokens = Number(error.n_prompt_tokens) || 0;
    this.contextSize = Number(error.n_ctx) || 0;
    this.retryAfter = retryAfter;
  }
}

// The server cannot be reached, or the connection broke.
export class GoneError extends Error {}

// Storage can be switched off in a browser; then the key lives as long as the page.
let heldKey = '';

function apiKey() {
  try {
    return sessionStorage.getItem(KEY) || localStorage.getItem(KEY) || heldKey;
  } catch {
    return heldKey;
  }
}

export function setApiKey(key, remember) {
  heldKey = key;
  try {
    sessionStorage.setItem(KEY, key);
    if (remember) localStorage.setItem(KEY, key);
    else localStorage.removeItem(KEY);
  } catch {
    // kept in memory
  }
}

// Asked for a key when the server wants one; resolves to false when the user gives none.
let askForKey = async () => false;
export const onKeyNeeded = call => (askForKey = call);

async function request(path, options = {}) {
  for (;;) {
    const key = apiKey();
    const headers = { ...options.headers };
    if (key) headers.Authorization = `Bearer ${key}`;
    let response;
    try {
      response = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === 'AbortError') throw error;
      throw new GoneError('The server does not answer.');
    }
    if (response.ok) return response;
    const error = await errorOf(response);
    if (response.status !== 401 || !(await askForKey(key !== ''))) throw error;
  }
}

async function errorOf(response) {
  let body = null;
  try {
    body = JSON.parse((await response.text()).slice(0, 1 << 20));
  } catch {
    // not JSON: the status says it
  }
  const wait = Number(response.headers.get('Retry-After'));
  return new ApiError(response.status, body, Number.isFinite(wait) && wait > 0 ? Math.min(wait, 600) : 0);
}

async function getJson(path) {
  return (await request(path, { cache: 'no-store' })).json();
}

// Why the model cannot be opened, or ''.
const problemOf = model => (typeof model.meta?.error === 'string' ? model.meta.error : '');

export async function listModels() {
  const list = await getJson('v1/models');
  const data = Array.isArray(list.data) ? list.data : [];
  return data
    .filter(m => m && typeof m.id === 'string')
    .map(m => ({ id: m.id, meta: m.meta || {}, problem: problemOf(m) }));
}

export const modelProps = id => getJson(`props?model=${encodeURIComponent(id)}`);

// Whether the server is there; never asks for a key.
export async function isAlive() {
  try {
    return (await fetch('health', { cache: 'no-store' })).status < 500;
  } catch {
    return false;
  }
}

// Sends a chat request and calls `take(chunk)` for every chunk of its stream.
export async function streamChat(body, signal, take) {
  const response = await request('v1/chat/completions', {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(body),
    signal
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const events = new EventReader();
  for (;;) {
    let piece;
    try {
      piece = await reader.read();
    } catch (error) {
      if (error.name === 'AbortError') throw error;
      throw new GoneError('The connection broke before the answer was complete.');
    }
    if (piece.done) throw new GoneError('The server ended the answer early.');
    for (const data of events.push(piece.value)) {
      if (data === '[DONE]') {
        reader.cancel().catch(() => {});
        return;
      }
      takeChunk(data, take);
    }
  }
}

function takeChunk(data, take) {
  let chunk;
  try {
    chunk = JSON.parse(data);
  } catch {
    throw new ApiError(500, { error: { message: 'The stream holds a chunk that is not JSON.' } }, 0);
  }
  if (chunk.error) throw new ApiError(Number(chunk.error.code) || 500, chunk, 0);
  take(chunk);
}
