// OpenAI's own client: responses.
import assert from 'node:assert/strict';
import test from 'node:test';
import { answer, failure, key, load, question, schema, url } from './rig.mjs';

const OpenAI = load('openai');
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const tools = [{ type: 'function', name: 'set_color', description: 'Sets the color of a lamp.', parameters: schema, strict: true }];

test('an answer', async () => {
  const a = await client.responses.create({ model: 'any', input: question, temperature: 0 });
  assert.equal(a.output_text, answer);
  assert.equal(a.status, 'completed');
  assert.equal(a.object, 'response');
  assert.equal(a.output[0].type, 'message');
  assert.equal(a.usage.output_tokens, 5);
  assert.equal(a.usage.total_tokens, a.usage.input_tokens + 5);
});

test('an answer that is cut', async () => {
  const a = await client.responses.create({ model: 'any', input: question, max_output_tokens: 2 });
  assert.equal(a.status, 'incomplete');
  assert.equal(a.incomplete_details.reason, 'max_output_tokens');
});

test('a stream', async () => {
  const stream = await client.responses.create({ model: 'any', input: question, stream: true });
  let text = '';
  let next = 0;
  const types = [];
  for await (const event of stream) {
    assert.equal(event.sequence_number, next++);
    types.push(event.type);
    if (event.type === 'response.output_text.delta') text += event.delta;
  }
  assert.equal(text, answer);
  assert.equal(types[0], 'response.created');
  assert.equal(types.at(-1), 'response.completed');
});

test('the stream helper', async () => {
  const stream = client.responses.stream({ model: 'any', input: question });
  let snapshot = '';
  stream.on('response.output_text.delta', (event) => (snapshot = event.snapshot));
  const whole = await stream.finalResponse();
  assert.equal(snapshot, answer);
  assert.equal(whole.output_text, answer);
  assert.equal(whole.status, 'completed');
});

test('a conversation is sent again with each question', async () => {
  const first = await client.responses.create({ model: 'any', input: question });
  const second = await client.responses.create({
    model: 'any',
    instructions: 'Be kind.',
    input: [{ role: 'user', content: question }, ...first.output, { role: 'user', content: question }],
    max_output_tokens: 8,
  });
  assert.ok(second.usage.input_tokens > first.usage.input_tokens);
});

test('an answer by a schema', async () => {
  const a = await client.responses.parse({
    model: 'any',
    input: question,
    text: { format: { type: 'json_schema', name: 'color', strict: true, schema } },
  });
  assert.ok(['yellow', 'blue'].includes(JSON.parse(a.output_text).color));
});

test('log-probabilities', async () => {
  const a = await client.responses.create({
    model: 'any',
    input: question,
    include: ['message.output_text.logprobs'],
    top_logprobs: 2,
  });
  const { logprobs, text } = a.output[0].content[0];
  assert.equal(logprobs.map((entry) => entry.token).join('').slice(0, text.length), text);
  for (const entry of logprobs) assert.equal(entry.top_logprobs.length, 2);
});

test('a tool that must be called', async () => {
  const a = await client.responses.create({ model: 'any', input: question, tools, tool_choice: 'required' });
  const call = a.output.find((item) => item.type === 'function_call');
  assert.equal(call.name, 'set_color');
  assert.ok(['yellow', 'blue'].includes(JSON.parse(call.arguments).color));
  const after = await client.responses.create({
    model: 'any',
    input: [
      { role: 'user', content: question },
      ...a.output,
      { type: 'function_call_output', call_id: call.call_id, output: 'done' },
    ],
    tools,
    tool_choice: 'none',
    max_output_tokens: 8,
  });
  assert.ok(after.output.every((item) => item.type !== 'function_call'));
});

test('a tool by name, in a stream', async () => {
  const stream = client.responses.stream({
    model: 'any',
    input: question,
    tools,
    tool_choice: { type: 'function', name: 'set_color' },
    parallel_tool_calls: false,
  });
  let deltas = '';
  stream.on('response.function_call_arguments.delta', (event) => (deltas += event.delta));
  const whole = await stream.finalResponse();
  const [call] = whole.output.filter((item) => item.type === 'function_call');
  assert.equal(call.name, 'set_color');
  assert.equal(call.arguments, deltas);
  assert.ok(['yellow', 'blue'].includes(JSON.parse(call.arguments).color));
});

test('a stream that is aborted ends', async () => {
  const stream = await client.responses.create({
    model: 'any',
    input: 'Tell me a long story.',
    min_tokens: 1000,
    max_output_tokens: 1500,
    stream: true,
  });
  let n = 0;
  for await (const event of stream) {
    if (event.type === 'response.output_text.delta' && ++n === 3) stream.controller.abort();
  }
  assert.ok(n < 1000, `${n} events came`);
});

test('tokens are counted', async () => {
  const { input_tokens } = await client.responses.inputTokens.count({ model: 'any', input: question });
  const a = await client.responses.create({ model: 'any', input: question, max_output_tokens: 1 });
  assert.equal(input_tokens, a.usage.input_tokens);
});

test('what needs stored state is refused', async () => {
  for (const extra of [{ previous_response_id: 'resp_1' }, { conversation: 'conv_1' }, { background: true }]) {
    const error = await failure(client.responses.create({ model: 'any', input: question, ...extra }));
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, Object.keys(extra)[0]);
  }
});
