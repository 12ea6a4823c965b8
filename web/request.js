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

// What is wrong with the text of a field, or ''.
export function samplingProblem(field, text) {
  if (readSampling(field, text) !== undefined) return '';
  return `A ${field.step < 1 ? 'number' : 'whole number'} from ${field.min} to ${field.max.toLocaleString('en-US')}`;
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

// The settings of a conversation that are JSON.
export const JSON_FIELDS = [
  { name: 'schema', label: 'JSON schema', check: checkSchema },
  { name: 'tools', label: 'Tools', check: checkTools }
];

// The settings that cannot be sent as they are: [{name, label, problem}]. As long as there are any nothing is
// asked, since an answer without them would look like one with them.
export function wrongSettings(chat, prefs) {
  const texts = JSON_FIELDS.map(f => ({ ...f, problem: readJson(chat[f.name], f.check).problem }));
  const numbers = SAMPLING.map(f => ({ ...f, problem: samplingProblem(f, String(prefs.sampling[f.name] ?? '')) }));
  return [...texts, ...numbers].filter(f => f.problem).map(({ name, label, problem }) => ({ name, label, problem }));
}

// Why the same request would get the same answer: {text, label, change}, or null. `own` are the model's settings,
// `change` what to send instead for once (null: leave the field out).
export function whySame(prefs, own) {
  const now = name => Number(prefs.sampling[name] || (own[name] ?? NaN));
  if (now('temperature') === 0)
    return {
      text: 'At temperature 0 the same question always gets the same answer.',
      label: 'Answer at temperature 0.8',
      change: { temperature: 0.8, seed: null }
    };
  if (now('top_k') === 1)
    return {
      text: 'With top-k 1 the same question always gets the same answer.',
      label: 'Answer with top-k 40',
      change: { top_k: 40, seed: null }
    };
  const seed = prefs.sampling.seed;
  return seed
    ? {
        text: `With the seed ${seed} the same question always gets the same answer.`,
        label: 'Answer with another seed',
        change: { seed: null }
      }
    : null;
}

// Tools may be written without the {"type": "function"} around them.
const wrapTool = tool => (tool.function ? tool : { type: 'function', function: tool });

// `change` replaces fields for this request alone, see whySame.
export function requestBody(chat, path, prefs, model, change = {}) {
  const body = {
    model,
    messages: messagesOf(chat, path),
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true
  };
  for (const field of SAMPLING) {
    const value = readSampling(field, String(prefs.sampling[field.name] ?? ''));
    const sent = field.name in change ? change[field.name] : value;
    if (sent !== null && sent !== undefined) body[field.name] = sent;
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
