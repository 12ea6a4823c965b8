// What the page remembers about how to ask, and the body of a chat request. Pure.

import { messagesOf } from './chat.js';

// An empty field is not sent, so that the model's own value holds.
export const SAMPLING = [
  {
    name: 'temperature',
    label: 'Temperature',
    min: 0,
    max: 10,
    step: 0.05,
    note: '0 always takes the likeliest token'
  },
  { name: 'top_k', label: 'Top-k', min: 0, max: 1000000, step: 1, note: '0 switches it off' },
  { name: 'top_p', label: 'Top-p', min: 0, max: 1, step: 0.01, note: '1 switches it off' },
  { name: 'min_p', label: 'Min-p', min: 0, max: 1, step: 0.01, note: '0 switches it off' },
  { name: 'repeat_penalty', label: 'Repeat penalty', min: 0, max: 10, step: 0.05, note: '1 switches it off' },
  { name: 'presence_penalty', label: 'Presence penalty', min: -2, max: 2, step: 0.1, note: '-2 to 2' },
  { name: 'frequency_penalty', label: 'Frequency penalty', min: -2, max: 2, step: 0.1, note: '-2 to 2' },
  { name: 'max_tokens', label: 'Max tokens', min: 1, max: 10000000, step: 1, note: 'of an answer' },
  { name: 'seed', label: 'Seed', min: 0, max: Number.MAX_SAFE_INTEGER, step: 1, note: 'repeats an answer exactly' }
];

// The number in a field, null when it is empty, undefined when it is none or out of range.
export function readSampling(field, text) {
  if (text.trim() === '') return null;
  const value = Number(text);
  const fits = Number.isFinite(value) && value >= field.min && value <= field.max;
  return fits && (field.step < 1 || Number.isInteger(value)) ? value : undefined;
}

// {value} of a JSON text, {problem} when it is none, {} when it is empty.
export function readJson(text, check) {
  if (!text.trim()) return {};
  try {
    const value = JSON.parse(text);
    const problem = check(value);
    return problem ? { problem } : { value };
  } catch (error) {
    return { problem: `Not JSON yet: ${error.message}` };
  }
}

const isObject = value => typeof value === 'object' && value !== null && !Array.isArray(value);

export const checkSchema = value => (isObject(value) ? '' : 'A schema is an object, such as {"type": "object"}');

export function checkTools(value) {
  if (!Array.isArray(value)) return 'A list is needed: [{"name": ..., "parameters": {...}}]';
  const bad = value.findIndex(tool => !isObject(tool) || typeof (tool.function || tool).name !== 'string');
  return bad < 0 ? '' : `Tool ${bad + 1} has no "name"`;
}

// Tools may be written without the {"type": "function"} around them.
const wrapTool = tool => (tool.function ? tool : { type: 'function', function: tool });

export function requestBody(chat, path, prefs, model) {
  const body = {
    model,
    messages: messagesOf(chat, path),
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true
  };
  for (const field of SAMPLING) {
    const value = readSampling(field, String(prefs.sampling[field.name] ?? ''));
    if (value !== null && value !== undefined) body[field.name] = value;
  }
  if (prefs.thinking === 'on' || prefs.thinking === 'off')
    body.chat_template_kwargs = { enable_thinking: prefs.thinking === 'on' };
  if (prefs.probs) Object.assign(body, { logprobs: true, top_logprobs: 5 });
  const schema = readJson(chat.schema, checkSchema).value;
  if (schema) body.response_format = { type: 'json_schema', json_schema: { name: 'answer', schema, strict: true } };
  const tools = readJson(chat.tools, checkTools).value;
  if (tools?.length) body.tools = tools.map(wrapTool);
  return body;
}
