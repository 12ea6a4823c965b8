// OpenAI's own client: chat completions, models, errors.
import assert from 'node:assert/strict';
import test from 'node:test';
import { answer, failure, key, load, question, schema, url } from './rig.mjs';

const OpenAI = load('openai');
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const messages = [{ role: 'user', content: question }];
const tools = [
  {
    type: 'function',
    function: { name: 'set_color', description: 'Sets the color of a lamp.', parameters: schema, strict: true },
  },
];

test('an answer', async () => {
  const a = await client.chat.completions.create({ model: 'any', messages, temperature: 0 });
  assert.equal(a.choices[0].message.content, answer);
  assert.equal(a.choices[0].message.role, 'assistant');
  assert.equal(a.choices[0].finish_reason, 'stop');
  assert.equal(a.usage.completion_tokens, 5);
  assert.equal(a.usage.total_tokens, a.usage.prompt_tokens + 5);
  assert.equal(typeof a._request_id, 'string');
});

test('a stream', async () => {
  const stream = await client.chat.completions.create({
    model: 'any',
    messages,
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = '';
  let usage = null;
  let finish = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? '';
    finish = chunk.choices[0]?.finish_reason ?? finish;
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, answer);
  assert.equal(finish, 'stop');
  assert.equal(usage.completion_tokens, 5);
});

test('the stream helper', async () => {
  const stream = client.chat.completions.stream({ model: 'any', messages });
  const deltas = [];
  stream.on('content', (delta) => deltas.push(delta));
  const whole = await stream.finalChatCompletion();
  assert.equal(whole.choices[0].message.content, answer);
  assert.equal(deltas.join(''), answer);
});

test('a stream that is aborted ends, and the server goes on', async () => {
  const stream = await client.chat.completions.create({
    model: 'any',
    messages: [{ role: 'user', content: 'Tell me a long story.' }],
    stream: true,
    ignore_eos: true,
    max_tokens: 1500,
  });
  let n = 0;
  for await (const chunk of stream) {
    if (chunk.choices[0]?.delta?.content && ++n === 3) stream.controller.abort();
  }
  assert.ok(n < 1000, `${n} chunks came`);
  const a = await client.chat.completions.create({ model: 'any', messages });
  assert.equal(a.choices[0].message.content, answer);
});

test('a seed repeats an answer', async () => {
  const ask = { model: 'any', messages: [{ role: 'user', content: 'Tell me a story.' }], temperature: 1.5, max_tokens: 20 };
  const first = await client.chat.completions.create(ask);
  const again = await client.chat.completions.create({ ...ask, seed: first.seed });
  assert.equal(again.choices[0].message.content, first.choices[0].message.content);
});

test('log-probabilities', async () => {
  const a = await client.chat.completions.create({ model: 'any', messages, logprobs: true, top_logprobs: 3 });
  const content = a.choices[0].logprobs.content;
  assert.ok(content.length >= 5);
  for (const entry of content) {
    assert.equal(entry.top_logprobs.length, 3);
    assert.ok(entry.logprob <= 0);
    assert.equal(Buffer.from(entry.bytes).toString(), entry.token);
  }
  assert.equal(content.map((entry) => entry.token).join('').slice(0, answer.length), answer);
});

test('an answer by a schema', async () => {
  const a = await client.chat.completions.parse({
    model: 'any',
    messages,
    response_format: { type: 'json_schema', json_schema: { name: 'color', strict: true, schema } },
  });
  const { color } = JSON.parse(a.choices[0].message.content);
  assert.ok(['yellow', 'blue'].includes(color));
});

test('an answer that is any JSON', async () => {
  const a = await client.chat.completions.create({
    model: 'any',
    messages,
    max_tokens: 400,
    response_format: { type: 'json_object' },
  });
  if (a.choices[0].finish_reason === 'stop') assert.equal(typeof JSON.parse(a.choices[0].message.content), 'object');
  else assert.equal(a.choices[0].message.content.trimStart()[0], '{');
});

test('a tool that must be called', async () => {
  const a = await client.chat.completions.create({ model: 'any', messages, tools, tool_choice: 'required' });
  const [call] = a.choices[0].message.tool_calls;
  assert.equal(a.choices[0].finish_reason, 'tool_calls');
  assert.equal(call.type, 'function');
  assert.equal(call.function.name, 'set_color');
  assert.ok(['yellow', 'blue'].includes(JSON.parse(call.function.arguments).color));

  const after = await client.chat.completions.create({
    model: 'any',
    messages: [...messages, a.choices[0].message, { role: 'tool', tool_call_id: call.id, content: 'done' }],
    tools,
    tool_choice: 'none',
    max_tokens: 8,
  });
  assert.equal(after.choices[0].message.tool_calls, undefined);
});

test('a tool by name, in a stream', async () => {
  const stream = client.chat.completions.stream({
    model: 'any',
    messages,
    tools,
    tool_choice: { type: 'function', function: { name: 'set_color' } },
    parallel_tool_calls: false,
  });
  const a = await stream.finalChatCompletion();
  assert.equal(a.choices[0].message.tool_calls.length, 1);
  const [call] = a.choices[0].message.tool_calls;
  assert.equal(call.function.name, 'set_color');
  assert.ok(['yellow', 'blue'].includes(JSON.parse(call.function.arguments).color));
});

test('the models', async () => {
  const { data } = await client.models.list();
  assert.deepEqual(data.map((model) => model.id), ['quern-mini-Q8_0']);
});

test('errors are of the classes that clients catch', async () => {
  const bad = await failure(client.chat.completions.create({ model: 'any', messages: [] }));
  assert.ok(bad instanceof OpenAI.BadRequestError);
  assert.equal(bad.param, 'messages');
  assert.equal(bad.type, 'invalid_request_error');
  assert.equal(typeof bad.requestID, 'string');
  const stranger = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'wrong', maxRetries: 0 });
  const refused = await failure(stranger.chat.completions.create({ model: 'any', messages }));
  assert.ok(refused instanceof OpenAI.AuthenticationError);
  const missing = await failure(client.get('/nothing'));
  assert.ok(missing instanceof OpenAI.NotFoundError);
  const long = await failure(
    client.chat.completions.create({ model: 'any', messages: [{ role: 'user', content: 'lemon '.repeat(5000) }] }),
  );
  assert.ok(long instanceof OpenAI.BadRequestError);
  assert.equal(long.code, 'context_length_exceeded');
});
