// Embeddings by openai-node, unmodified. The null encoder's vectors are digests.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';
import { client, hi, models } from './support.mjs';

const digest = (text, width = 8) =>
  [...createHash('sha256').update(text).digest().subarray(0, width)].map((byte) => byte / 256);

test('each input has a vector, however it is asked for', async () => {
  const input = ['a', 'a hare'];
  for (const form of [{}, { encoding_format: 'float' }]) {
    const answer = await client.embeddings.create({ model: models.embed, input, ...form });
    assert.deepEqual(answer.data.map((one) => [...one.embedding]), input.map((text) => digest(text)));
    assert.deepEqual(answer.usage, { prompt_tokens: 7, total_tokens: 7 });
  }
});

test('vectors may have fewer dimensions', async () => {
  const answer = await client.embeddings.create({ model: models.embed, input: 'a', dimensions: 3 });
  assert.deepEqual([...answer.data[0].embedding], digest('a', 3));
});

test('a model does what it is for, and nothing else', async () => {
  const refused = { status: 400, code: 'model_not_supported' };
  await assert.rejects(client.embeddings.create({ model: models.echo, input: 'a' }), refused);
  await assert.rejects(
    client.chat.completions.create({ model: models.embed, messages: hi }),
    refused,
  );
});
