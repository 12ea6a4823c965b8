// Ollama's own client: chat, generate, models, embeddings, errors.
import assert from 'node:assert/strict';
import test from 'node:test';
import { answer, failure, key, load, question, schema, url } from './rig.mjs';

const { Ollama } = load('ollama');
const client = new Ollama({ host: url, headers: { Authorization: `Bearer ${key}` } });
const model = 'quern-mini-Q8_0';
const messages = [{ role: 'user', content: question }];
const light = {
  type: 'function',
  function: {
    name: 'light',
    description: 'Turn a light on or off',
    parameters: {
      type: 'object',
      properties: { room: { type: 'string' }, power: { type: 'string' } },
      required: ['room', 'power'],
    },
  },
};

test('chat', async () => {
  const a = await client.chat({ model, messages });
  assert.equal(a.message.role, 'assistant');
  assert.equal(a.message.content, answer);
  assert.equal(a.done, true);
  assert.equal(a.done_reason, 'stop');
  assert.equal(a.eval_count, 5);
  assert.ok(a.total_duration >= a.eval_duration);
  assert.ok(!Number.isNaN(new Date(a.created_at).valueOf()));
});

test('chat as a stream', async () => {
  let text = '';
  let last = null;
  for await (const part of await client.chat({ model: `${model}:latest`, messages, stream: true })) {
    text += part.message.content;
    last = part;
  }
  assert.equal(text, answer);
  assert.equal(last.done, true);
  assert.equal(last.eval_count, 5);
});

test('a stream that is given up', async () => {
  const own = new Ollama({ host: url, headers: { Authorization: `Bearer ${key}` } });
  const stream = await own.chat({ model, messages: [{ role: 'user', content: 'Tell me a story.' }], stream: true });
  const error = await failure(
    (async () => {
      for await (const part of stream) {
        assert.ok(part.message);
        own.abort();
      }
    })(),
  );
  assert.equal(error.name, 'AbortError');
});

test('tools', async () => {
  const ask = [{ role: 'user', content: 'Turn on the light in the bedroom.' }];
  const options = { temperature: 0 };
  const a = await client.chat({ model, messages: ask, tools: [light], options });
  assert.deepEqual(
    a.message.tool_calls.map((call) => call.function),
    [{ name: 'light', arguments: { room: 'bedroom', power: 'on' } }],
  );
  const b = await client.chat({
    model,
    messages: [...ask, a.message, { role: 'tool', tool_name: 'light', content: '{"status": "ok"}' }],
    tools: [light],
    options,
  });
  assert.equal(b.message.content, 'The light in the bedroom is now on.');
});

test('generate', async () => {
  const a = await client.generate({ model, prompt: question, options: { temperature: 0, num_predict: 2 } });
  assert.equal(a.response, 'A lemon');
  assert.equal(a.done_reason, 'length');
  const b = await client.generate({ model, prompt: question, format: schema });
  assert.ok(schema.properties.color.enum.includes(JSON.parse(b.response).color));
  const c = await client.generate({ model, prompt: '' });
  assert.equal(c.done_reason, 'load');
});

test('generate as a stream', async () => {
  let text = '';
  for await (const part of await client.generate({ model, prompt: question, stream: true })) text += part.response;
  assert.equal(text, answer);
});

test('models', async () => {
  const { models } = await client.list();
  assert.deepEqual(
    models.map((m) => m.name),
    [model],
  );
  assert.equal(models[0].details.quantization_level, 'Q8_0');
  const show = await client.show({ model });
  assert.ok(show.capabilities.includes('completion'));
  assert.ok(show.capabilities.includes('tools'));
  assert.equal(show.model_info['qwen3.context_length'], 2048);
  const ps = await client.ps();
  assert.equal(ps.models[0].name, model);
  assert.equal(typeof (await client.version()).version, 'string');
});

test('embeddings', async () => {
  const { embeddings } = await client.embed({ model, input: ['a red fox', 'hello'] });
  assert.equal(embeddings.length, 2);
  assert.equal(embeddings[0].length, 256);
  const { embedding } = await client.embeddings({ model, prompt: 'hello' });
  assert.equal(embedding.length, 256);
});

test('errors', async () => {
  const a = await failure(client.chat({ model, messages, options: { temperature: -1 } }));
  assert.equal(a.status_code, 400);
  assert.match(a.message, /'temperature' is -1/);
  const b = await failure(client.pull({ model: 'llama3' }));
  assert.equal(b.status_code, 501);
  const c = await failure(new Ollama({ host: url }).list());
  assert.equal(c.status_code, 401);
});
