// One answer on its way: sends the request, puts what comes into the node, and tells about it.

import { ApiError, GoneError, streamChat } from './api.js';

const MAX_WAITS = 20;

export class Turn {
  // `changed()` is called after every change of the node or of the fields below.
  constructor(chat, node, changed) {
    this.chat = chat;
    this.node = node;
    this.changed = changed;
    this.started = performance.now();
    this.first = 0; // when the first token came
    this.pieces = 0; // chunks with text, for the speed while it runs
    this.progress = null; // {processed, total} while the prompt is read
    this.prompt = 0; // tokens of the prompt, once the server has told
    this.waiting = 0; // seconds until the next try when the server is full
    this.thinkingSince = 0;
    this.abort = new AbortController();
  }

  stop() {
    this.abort.abort();
  }

  async run(body) {
    const { node } = this;
    node.model = body.model;
    node.stats = {};
    try {
      await this.ask(body);
      if (!node.finish) node.finish = 'stop';
    } catch (error) {
      if (error.name === 'AbortError') node.finish = 'stopped';
      else node.error = problemOf(error, node);
    }
    this.endThinking();
    this.progress = null;
    if (!node.stats.prompt && this.prompt) Object.assign(node.stats, { prompt: this.prompt, tokens: this.pieces });
    node.stats.first = node.stats.first || Math.round(this.first ? this.first - this.started : 0);
    this.changed();
  }

  // A full server says when to come again; anything else is the caller's.
  async ask(body) {
    for (let tries = 0; ; tries++) {
      try {
        return await streamChat(body, this.abort.signal, chunk => this.take(chunk));
      } catch (error) {
        const full = KINDS[error.status] === 'full';
        if (!full || this.first || tries >= MAX_WAITS) throw error;
        await this.waitFor(error.retryAfter || 2);
      }
    }
  }

  async waitFor(seconds) {
    for (this.waiting = Math.ceil(seconds); this.waiting > 0; this.waiting--) {
      this.changed();
      await new Promise(resolve => {
        setTimeout(resolve, 1000);
        this.abort.signal.addEventListener('abort', resolve, { once: true });
      });
      this.abort.signal.throwIfAborted();
    }
    this.changed();
  }

  take(chunk) {
    const { node } = this;
    if (Number.isFinite(chunk.seed)) node.stats.seed = chunk.seed;
    if (chunk.prompt_progress) {
      this.progress = chunk.prompt_progress;
      this.prompt = Number(this.progress.total) || this.prompt;
    }
    const choice = Array.isArray(chunk.choices) ? chunk.choices[0] : null;
    if (choice) this.takeChoice(choice);
    if (chunk.usage) takeUsage(node.stats, chunk.usage);
    if (chunk.timings) takeTimings(node.stats, chunk.timings);
    this.changed();
  }

  takeChoice(choice) {
    const { node } = this;
    const delta = choice.delta || {};
    const thought = delta.reasoning_content || delta.reasoning;
    if (typeof thought === 'string' && thought) {
      this.piece();
      this.thinkingSince = this.thinkingSince || performance.now();
      node.reasoning = (node.reasoning || '') + thought;
    }
    if (typeof delta.content === 'string' && delta.content) {
      this.piece();
      this.endThinking();
      node.text += delta.content;
      this.takeProbs(choice.logprobs);
    }
    if (Array.isArray(delta.tool_calls)) delta.tool_calls.forEach(call => this.takeCall(call));
    if (typeof choice.finish_reason === 'string') node.finish = choice.finish_reason;
  }

  piece() {
    this.progress = null;
    this.pieces++;
    if (!this.first) this.first = performance.now();
  }

  endThinking() {
    if (this.thinkingSince)
      this.node.thought = Math.round((this.node.thought || 0) + performance.now() - this.thinkingSince);
    this.thinkingSince = 0;
  }

  takeCall(delta) {
    this.piece();
    this.endThinking();
    const calls = (this.node.calls = this.node.calls || []);
    const index = Number.isInteger(delta.index) && delta.index >= 0 && delta.index < 64 ? delta.index : calls.length;
    const call = (calls[index] = calls[index] || { id: '', name: '', arguments: '' });
    for (let i = 0; i < calls.length; i++) calls[i] = calls[i] || { id: '', name: '', arguments: '' };
    const fn = delta.function || {};
    if (typeof delta.id === 'string') call.id = call.id || delta.id;
    if (typeof fn.name === 'string') call.name = call.name || fn.name;
    if (typeof fn.arguments === 'string') call.arguments += fn.arguments;
  }

  takeProbs(logprobs) {
    if (!logprobs || !Array.isArray(logprobs.content)) return;
    this.node.probs = this.node.probs || [];
    const pair = p => [String(p.token), Number(p.logprob) || 0];
    for (const entry of logprobs.content) this.node.probs.push([...pair(entry), (entry.top_logprobs || []).map(pair)]);
  }

  // Tokens of the context that are filled so far, 0 when the server has not told; chunks stand for tokens.
  filled() {
    return this.prompt && this.prompt + this.pieces;
  }

  // Tokens per second so far; chunks stand for tokens until the server's own numbers come.
  speed() {
    const seconds = (performance.now() - this.first) / 1000;
    return this.first && seconds > 0.3 ? (this.pieces - 1) / seconds : 0;
  }
}

function takeUsage(stats, usage) {
  stats.prompt = Number(usage.prompt_tokens) || 0;
  stats.tokens = Number(usage.completion_tokens) || 0;
  stats.cached = Number(usage.prompt_tokens_details?.cached_tokens) || 0;
  stats.thinking = Number(usage.completion_tokens_details?.reasoning_tokens) || 0;
}

function takeTimings(stats, timings) {
  stats.speed = Number(timings.predicted_per_second) || 0;
  if (Number.isFinite(timings.seed)) stats.seed = timings.seed;
}

const KINDS = { 401: 'key', 429: 'full', 503: 'full' };

// What went wrong, as kept in the conversation.
function problemOf(error, node) {
  if (error instanceof GoneError)
    return { kind: node.text || node.reasoning ? 'broken' : 'gone', message: error.message };
  if (!(error instanceof ApiError)) return { kind: 'other', message: String(error.message || error) };
  const overflow = error.type === 'exceed_context_size_error';
  const kind = overflow ? 'overflow' : KINDS[error.status] || (error.status >= 500 ? 'failed' : 'refused');
  return { kind, message: error.message, used: error.promptTokens, room: error.contextSize };
}
