// Anthropic's own client: messages, streams, tools, counting, errors.
import assert from 'node:assert/strict';
import test from 'node:test';
import { answer, failure, key, load, question, schema, url } from './rig.mjs';

const { Anthropic } = load('@anthropic-ai/sdk');
const client = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 });
const ask = { model: 'any', max_tokens: 64, messages: [{ role: 'user', content: question }] };
const tools = [{ name: 'set_color', description: 'Sets the color of a lamp.', input_schema: schema }];

test('an answer', async () => {
  const a = await client.messages.create(ask);
  assert.equal(a.type, 'message');
  assert.equal(a.role, 'assistant');
  assert.deepEqual(a.content.map((block) => [block.type, block.text]), [['text', answer]]);
  assert.equal(a.stop_reason, 'end_turn');
  assert.equal(a.stop_sequence, null);
  assert.equal(a.usage.output_tokens, 5);
  assert.equal(typeof a._request_id, 'string');
});

test('what is cached is not among the input tokens', async () => {
  await client.messages.create(ask);
  const a = await client.messages.create(ask);
  const { input_tokens } = await client.messages.countTokens({ model: 'any', messages: ask.messages });
  assert.ok(a.usage.cache_read_input_tokens > 0);
  assert.equal(a.usage.input_tokens + a.usage.cache_read_input_tokens, input_tokens);
});

test('ends', async () => {
  const cut = await client.messages.create({ ...ask, max_tokens: 2 });
  assert.equal(cut.stop_reason, 'max_tokens');
  const stopped = await client.messages.create({ ...ask, stop_sequences: [' yellow'] });
  assert.equal(stopped.stop_reason, 'stop_sequence');
  assert.equal(stopped.stop_sequence, ' yellow');
  assert.equal(stopped.content[0].text, 'A lemon is');
});

test('a stream', async () => {
  const stream = await client.messages.create({ ...ask, stream: true });
  const types = [];
  let text = '';
  for await (const event of stream) {
    types.push(event.type);
    if (event.type === 'content_block_delta') text += event.delta.text;
  }
  assert.equal(text, answer);
  assert.equal(types[0], 'message_start');
  assert.equal(types.at(-1), 'message_stop');
});

test('the stream helper', async () => {
  const stream = client.messages.stream(ask);
  let text = '';
  stream.on('text', (delta) => (text += delta));
  const whole = await stream.finalMessage();
  assert.equal(text, answer);
  assert.equal(whole.content[0].text, answer);
  assert.equal(whole.stop_reason, 'end_turn');
  assert.equal(whole.usage.output_tokens, 5);
});

test('a stream that is aborted ends, and the server goes on', async () => {
  const stream = client.messages.stream({ ...ask, max_tokens: 1500, min_tokens: 1000 });
  let n = 0;
  stream.on('text', () => {
    if (++n === 3) stream.abort();
  });
  assert.ok((await failure(stream.finalMessage())) instanceof Anthropic.APIUserAbortError);
  assert.ok(n < 1000, `${n} deltas came`);
  assert.equal((await client.messages.create(ask)).content[0].text, answer);
});

test('a tool that must be called', async () => {
  const a = await client.messages.create({ ...ask, tools, tool_choice: { type: 'any' } });
  const call = a.content.find((block) => block.type === 'tool_use');
  assert.equal(a.stop_reason, 'tool_use');
  assert.equal(call.name, 'set_color');
  assert.ok(['yellow', 'blue'].includes(call.input.color));
  const after = await client.messages.create({
    ...ask,
    max_tokens: 8,
    messages: [
      ...ask.messages,
      { role: 'assistant', content: a.content },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: call.id, content: 'done' }] },
    ],
    tools,
    tool_choice: { type: 'none' },
  });
  assert.ok(after.content.every((block) => block.type !== 'tool_use'));
});

test('a tool by name, in a stream', async () => {
  const stream = client.messages.stream({
    ...ask,
    tools,
    tool_choice: { type: 'tool', name: 'set_color', disable_parallel_tool_use: true },
  });
  const whole = await stream.finalMessage();
  const calls = whole.content.filter((block) => block.type === 'tool_use');
  assert.equal(calls.length, 1);
  assert.equal(calls[0].name, 'set_color');
  assert.ok(['yellow', 'blue'].includes(calls[0].input.color));
});

test('an answer by a schema', async () => {
  const a = await client.messages.create({ ...ask, output_config: { format: { type: 'json_schema', schema } } });
  assert.ok(['yellow', 'blue'].includes(JSON.parse(a.content[0].text).color));
});

test('tokens are counted', async () => {
  const short = await client.messages.countTokens({ model: 'any', messages: ask.messages });
  const long = await client.messages.countTokens({ model: 'any', messages: ask.messages, system: 'Be kind.', tools });
  assert.ok(short.input_tokens > 0);
  assert.ok(long.input_tokens > short.input_tokens);
});

test('errors are of the classes that clients catch', async () => {
  const bad = await failure(client.messages.create({ ...ask, messages: [] }));
  assert.ok(bad instanceof Anthropic.BadRequestError);
  assert.equal(bad.error.error.type, 'invalid_request_error');
  assert.equal(typeof bad.requestID, 'string');
  const unlimited = await failure(client.messages.create({ model: 'any', messages: ask.messages }));
  assert.ok(unlimited instanceof Anthropic.BadRequestError);
  const stranger = new Anthropic({ baseURL: url, apiKey: 'wrong', maxRetries: 0 });
  assert.ok((await failure(stranger.messages.create(ask))) instanceof Anthropic.AuthenticationError);
  const long = await failure(
    client.messages.create({ ...ask, messages: [{ role: 'user', content: 'lemon '.repeat(5000) }] }),
  );
  assert.match(long.message, /prompt is too long/);
});
