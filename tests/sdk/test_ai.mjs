// The AI SDK with its provider for servers that speak OpenAI's API.
import assert from 'node:assert/strict';
import test from 'node:test';
import { answer, failure, key, load, question, schema, url } from './rig.mjs';

const { generateObject, generateText, jsonSchema, stepCountIs, streamText, tool } = load('ai');
const { createOpenAICompatible } = load('@ai-sdk/openai-compatible');
const provider = createOpenAICompatible({
  name: 'quern',
  baseURL: `${url}/v1`,
  apiKey: key,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const model = provider('quern-mini-Q8_0');

test('a text', async () => {
  const a = await generateText({ model, prompt: question, temperature: 0 });
  assert.equal(a.text, answer);
  assert.equal(a.finishReason, 'stop');
  assert.equal(a.usage.outputTokens, 5);
});

test('a stream', async () => {
  const a = streamText({ model, prompt: question, temperature: 0 });
  let text = '';
  for await (const piece of a.textStream) text += piece;
  assert.equal(text, answer);
  assert.equal(await a.finishReason, 'stop');
  assert.equal((await a.usage).outputTokens, 5);
});

test('an object', async () => {
  const a = await generateObject({ model, prompt: 'What color is a lemon?', schema: jsonSchema(schema) });
  assert.ok(schema.properties.color.enum.includes(a.object.color));
});

test('tools, and the answer after them', async () => {
  const calls = [];
  const light = tool({
    description: 'Turn a light on or off',
    inputSchema: jsonSchema({
      type: 'object',
      properties: { room: { type: 'string' }, power: { type: 'string' } },
      required: ['room', 'power'],
    }),
    execute: async (input) => {
      calls.push(input);
      return { status: 'ok' };
    },
  });
  const ask = { model, tools: { light }, temperature: 0, prompt: 'Turn on the light in the bedroom.' };
  const a = await generateText({ ...ask, stopWhen: stepCountIs(2) });
  assert.deepEqual(calls, [{ room: 'bedroom', power: 'on' }]);
  assert.equal(a.steps.length, 2);
  assert.equal(a.text, 'The light in the bedroom is now on.');
  const b = streamText({ ...ask, stopWhen: stepCountIs(1) });
  await b.consumeStream();
  assert.equal((await b.toolCalls)[0].toolName, 'light');
  assert.equal(await b.finishReason, 'tool-calls');
});

test('an error', async () => {
  const e = await failure(generateText({ model, prompt: question, temperature: -1, maxRetries: 0 }));
  assert.equal(e.statusCode, 400);
  assert.match(e.message, /temperature/);
});
