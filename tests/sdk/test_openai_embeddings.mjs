// OpenAI's own client: embeddings. It asks for base64 by itself, and decodes that.
import assert from 'node:assert/strict';
import test from 'node:test';
import { failure, key, load, url } from './rig.mjs';

const OpenAI = load('openai');
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);

test('embeddings of several texts', async () => {
  const a = await client.embeddings.create({ model: 'any', input: ['a cat sleeps', 'the cat is asleep'] });
  assert.equal(a.data.length, 2);
  a.data.forEach((item, i) => {
    assert.equal(item.index, i);
    assert.ok(Math.abs(dot(item.embedding, item.embedding) - 1) < 1e-4);
  });
  assert.ok(a.usage.prompt_tokens > 0);
});

test('base64 and numbers are the same', async () => {
  const ask = { model: 'any', input: 'a cat sleeps' };
  const decoded = (await client.embeddings.create(ask)).data[0].embedding;
  const plain = (await client.embeddings.create({ ...ask, encoding_format: 'float' })).data[0].embedding;
  assert.deepEqual(plain.map(Math.fround), Array.from(decoded, Math.fround));
});

test('fewer dimensions', async () => {
  const a = await client.embeddings.create({ model: 'any', input: 'a cat sleeps', dimensions: 16 });
  assert.equal(a.data[0].embedding.length, 16);
});

test('errors', async () => {
  assert.ok((await failure(client.embeddings.create({ model: 'any', input: [] }))) instanceof OpenAI.BadRequestError);
});
