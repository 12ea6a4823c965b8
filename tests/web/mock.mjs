// A stand-in for the server's part that the page sees: the files of web/ under the same policy, and
// a model that does what the last message says. For tests, and to work on the page without a model:
//
//   node tests/web/mock.mjs [PORT]
//
// Messages: "say TEXT" (\n for a line end), "slow TEXT" (a word every 30 ms), "long N" (N words), "think", "tool",
// "overflow [N]" (unless fewer than N, 4, messages come), "broke" (500), "busy" (full twice), "refuse", "drop" (the
// connection breaks), "fail" (an error inside the stream), "request" (the request's JSON).
// Anything else gets a tour of Markdown.

import { readFile } from 'node:fs/promises';
import http from 'node:http';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const WEB = path.join(path.dirname(fileURLToPath(import.meta.url)), '../../web');
const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; " +
  "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const TYPES = { html: 'text/html; charset=utf-8', js: 'text/javascript', css: 'text/css', svg: 'image/svg+xml' };

const TOUR = `## The stones of a quern

A quern is a **hand mill**: two stones, one *resting*, one *turning*. Grain goes in at the eye, flour comes out at the edge; see [the long story](https://example.org/quern) or \`quern --help\`.

1. The lower stone, the *bedstone*, does not move.
2. The upper one, the *runner*, is turned by a handle:
   - a wooden peg, or
   - a crank of iron
3. The gap decides how fine the flour is.

| Grain | Protein | Best for       |
| :---- | ------: | :------------- |
| Wheat |  12.6 % | bread, noodles |
| Rye   |  10.3 % | dark bread     |
| Oats  |  16.9 % | porridge       |

> Grind slowly, and the meal stays cool.

\`\`\`c
/* One turn of the runner. */
static int turn(const struct quern *q, double grams) {
    if (grams <= 0.0) return -1;  // nothing to mill
    return printf("%.1f g per turn\\n", grams * q->gap);
}
\`\`\`

The flow at the radius $r$ is $\\\\rho * v_r * h$, which for a gap \\\\(h\\\\) gives

$$
Q = 2 \\\\pi r h \\\\int_0^1 v(z)\\\\,dz
$$

- [x] sharpen the furrows
- [ ] oil the handle`.replaceAll('\\\\', '\\');

export async function startMock({
  port = 0,
  key = '',
  vision = true,
  models = ['grain-4b', 'husk-1b'],
  bad = [],
  params = PARAMS
} = {}) {
  // `bad` models cannot be opened; `loaded` ones are open. Of one that is not, the settings are not known.
  const state = { key, vision, models, bad, params, loaded: [models[0]], requests: [], open: 0, busy: 2, down: false };
  const server = http.createServer((request, response) => {
    if (state.down) return request.socket.destroy();
    return handle(state, request, response).catch(error => response.destroy(error));
  });
  await new Promise(resolve => server.listen(port, '127.0.0.1', resolve));
  state.url = `http://127.0.0.1:${server.address().port}/`;
  state.close = () => {
    server.closeAllConnections();
    return new Promise(resolve => server.close(resolve));
  };
  return state;
}

async function handle(state, request, response) {
  const url = new URL(request.url, 'http://mock');
  if (url.pathname === '/' || url.pathname.startsWith('/page/')) return sendFile(url.pathname, response);
  if (url.pathname === '/health') return sendJson(response, 200, { status: 'ok' });
  if (state.key && request.headers.authorization !== `Bearer ${state.key}`) {
    return sendError(response, 401, 'authentication_error', 'Invalid API key');
  }
  if (url.pathname === '/v1/models')
    return sendJson(response, 200, {
      object: 'list',
      data: [...state.bad, ...state.models].map(id => modelOf(state, id))
    });
  if (url.pathname === '/props') return sendJson(response, 200, propsOf(state, url.searchParams.get('model')));
  if (url.pathname === '/v1/chat/completions' && request.method === 'POST') return chat(state, request, response);
  return sendError(response, 404, 'not_found_error', 'File Not Found');
}

async function sendFile(pathname, response) {
  const name = pathname === '/' ? 'index.html' : path.basename(pathname);
  try {
    const text = await readFile(path.join(WEB, name));
    response.writeHead(200, {
      'Content-Type': TYPES[name.split('.').pop()],
      'Content-Security-Policy': POLICY,
      'X-Content-Type-Options': 'nosniff'
    });
    response.end(text);
  } catch {
    sendError(response, 404, 'not_found_error', `no file ${name}`);
  }
}

function sendJson(response, status, value, headers = {}) {
  response.writeHead(status, { 'Content-Type': 'application/json', ...headers });
  response.end(JSON.stringify(value));
}

const sendError = (response, code, type, message, more = {}, headers = {}) =>
  sendJson(response, code, { error: { code, message, type, ...more } }, headers);

const modelOf = (state, id) => ({
  id,
  object: 'model',
  created: 0,
  owned_by: 'quern',
  meta: state.bad.includes(id)
    ? { loaded: false, size: 2e5, error: `${id}.gguf: the file ends too early (incomplete download?)` }
    : {
        n_ctx: 4096,
        n_ctx_train: 32768,
        n_vocab: 32000,
        n_params: 4e9,
        size: 2e9,
        vision: state.vision,
        loaded: state.loaded.includes(id)
      }
});

const PARAMS = { temperature: 0.7, top_k: 20, top_p: 0.8, min_p: 0, repeat_penalty: 1 };

const propsOf = (state, id) => ({
  default_generation_settings: { params: state.loaded.includes(id) ? state.params : {} },
  total_slots: 4,
  modalities: { vision: state.vision },
  chat_template_caps: { tools: true, thinking: true },
  n_ctx: 4096,
  build_info: 'quern mock',
  needs_key: Boolean(state.key)
});

async function chat(state, request, response) {
  let text = '';
  for await (const piece of request) text += piece;
  const body = JSON.parse(text);
  state.requests.push(body);
  const last = body.messages[body.messages.length - 1];
  const said =
    typeof last.content === 'string'
      ? last.content
      : (last.content.find(part => part.type === 'text') || {}).text || '';
  const [word, rest] = [said.split(' ', 1)[0], said.slice(said.indexOf(' ') + 1)];
  if (word === 'overflow' && body.messages.length >= (Number(rest) || 4)) {
    const message =
      'the request exceeds the available context size (5000 tokens, context 4096), context_length_exceeded';
    return sendError(response, 400, 'exceed_context_size_error', message, { n_prompt_tokens: 5000, n_ctx: 4096 });
  }
  if (word === 'busy' && state.busy-- > 0)
    return sendError(response, 503, 'unavailable_error', 'the queue is full', {}, { 'Retry-After': '1' });
  if (word === 'refuse')
    return sendError(response, 400, 'invalid_request_error', 'temperature is 99; it must be at most 10', {
      param: 'temperature'
    });
  if (word === 'broke') return sendError(response, 500, 'server_error', 'the file ends too early');
  if (!state.loaded.includes(body.model)) state.loaded.push(body.model);
  state.open++;
  response.on('close', () => state.open--);
  return stream(state, body, { word, rest, role: last.role }, response);
}

async function stream(state, body, { word, rest, role }, response) {
  response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-cache' });
  const send = value => response.write(`data: ${JSON.stringify(value)}\n\n`);
  const chunk = (delta, more = {}, finish = null) =>
    send({
      id: 'chatcmpl-1',
      object: 'chat.completion.chunk',
      created: 0,
      model: body.model,
      choices: [{ index: 0, delta, finish_reason: finish, ...more }]
    });
  const pause = ms => new Promise(resolve => setTimeout(resolve, ms));
  send({
    object: 'chat.completion.chunk',
    seed: 4711,
    choices: [{ index: 0, delta: { role: 'assistant', content: null }, finish_reason: null }]
  });
  if (body.return_progress) {
    send({ choices: [], prompt_progress: { total: 900, cache: 0, processed: 450, time_ms: 40 } });
    await pause(word === 'slow' ? 150 : 10);
  }
  let tokens = 0;
  const pace = word === 'slow' ? 30 : 0;
  const say = async (text, name = 'content') => {
    for (const token of text.match(/\s*\S+|\s+$/g) || []) {
      if (response.destroyed) return;
      chunk(
        { [name]: token },
        body.logprobs && name === 'content' ? { logprobs: { content: [probsOf(token, tokens)] } } : {}
      );
      if (pace) await pause(pace);
      else if (++tokens % 64 === 0) await pause(1);
      tokens += pace ? 1 : 0;
    }
  };
  const done = await ACTIONS_FOR(word, role)({ say, chunk, rest, body, pause, send, response });
  if (done === 'broken' || response.destroyed) return;
  chunk({}, {}, done || 'stop');
  send({
    choices: [],
    usage: {
      prompt_tokens: 900,
      completion_tokens: tokens,
      total_tokens: 900 + tokens,
      prompt_tokens_details: { cached_tokens: 512 },
      completion_tokens_details: { reasoning_tokens: word === 'think' ? 12 : 0 }
    },
    timings: {
      prompt_n: 388,
      prompt_ms: 100,
      prompt_per_second: 3880,
      predicted_n: tokens,
      predicted_ms: 500,
      predicted_per_second: 41.6,
      cache_n: 512,
      seed: 4711
    }
  });
  response.end('data: [DONE]\n\n');
}

const unescape = text => text.replaceAll('\\n', '\n');

const ACTIONS = {
  say: ({ say, rest }) => say(unescape(rest)),
  slow: ({ say, rest }) => say(unescape(rest)),
  long: ({ say, rest }) =>
    say(Array.from({ length: Number(rest) }, (_, i) => (i % 40 ? `word${i}` : `\n\nPart ${i}`)).join(' ')),
  request: ({ say, body }) => say(`\`\`\`json\n${JSON.stringify(body, null, 1)}\n\`\`\``),
  async think({ say }) {
    await say('Three switches and one trip. A lamp gives light, and it gives warmth.', 'reasoning_content');
    await say('Feel whether the lamp is **warm**.');
  },
  async tool({ chunk }) {
    chunk({ tool_calls: [{ index: 0, id: 'call_1', type: 'function', function: { name: 'weather' } }] });
    for (const piece of ['{"city": "', 'Ghent', '"}'])
      chunk({ tool_calls: [{ index: 0, function: { arguments: piece } }] });
    return 'tool_calls';
  },
  async drop({ say, pause, response }) {
    await say('The connection will');
    await pause(50);
    response.destroy();
    return 'broken';
  },
  async fail({ say, send, response }) {
    await say('Half of it');
    send({ error: { code: 500, message: 'the device was lost', type: 'server_error' } });
    response.end();
    return 'broken';
  }
};

function ACTIONS_FOR(word, role) {
  if (role === 'tool') return ({ say }) => say('The tool has answered.');
  return Object.hasOwn(ACTIONS, word) ? ACTIONS[word] : ({ say }) => say(TOUR);
}

function probsOf(token, at) {
  const logprob = -[0.02, 0.3, 0.9, 2, 4][at % 5];
  const other = (text, chance) => ({ token: text, logprob: chance, bytes: [...Buffer.from(text)] });
  return {
    ...other(token, logprob),
    top_logprobs: [other(token, logprob), other(' other', logprob - 1), other('\n', -9)]
  };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const mock = await startMock({ port: Number(process.argv[2] || 8099), key: process.env.MOCK_KEY || '' });
  console.log(`${mock.url}`);
}
