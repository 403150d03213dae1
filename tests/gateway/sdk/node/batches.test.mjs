// Batches by openai-node, unmodified: upload, create, wait, read.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import OpenAI, { toFile } from 'openai';
import { client, hi, models, until } from './support.mjs';

const url = '/v1/chat/completions';

const line = (customId, body = {}) =>
  JSON.stringify({
    custom_id: customId,
    method: 'POST',
    url,
    body: { model: models.echo, messages: hi, max_completion_tokens: 2, ...body },
  });

async function created(lines) {
  const content = Buffer.from(lines.map((one) => one + '\n').join(''));
  const file = await client.files.create({ file: await toFile(content, 'in.jsonl'), purpose: 'batch' });
  return client.batches.create({ input_file_id: file.id, endpoint: url, completion_window: '24h' });
}

async function ended(batch) {
  await until(async () => {
    batch = await client.batches.retrieve(batch.id);
    return ['completed', 'failed', 'expired', 'cancelled'].includes(batch.status);
  });
  return batch;
}

async function said(fileId) {
  const text = await (await client.files.content(fileId)).text();
  return text.trimEnd().split('\n').map((one) => JSON.parse(one));
}

test('every line of a batch is answered, a wrong one in the error file', async () => {
  const batch = await ended(await created([line('a'), '{', line('b')]));
  assert.equal(batch.status, 'completed');
  assert.deepEqual(batch.request_counts, { total: 3, completed: 2, failed: 1 });
  const output = await said(batch.output_file_id);
  assert.deepEqual(output.map((one) => one.custom_id), ['a', 'b']);
  assert.ok(output.every((one) => one.response.body.object === 'chat.completion'));
  const errors = await said(batch.error_file_id);
  assert.deepEqual(errors.map((one) => one.line), [2]);
});

test('a batch is cancelled', async () => {
  const long = { model: models.slow, max_completion_tokens: 5000 };
  const batch = await created([line('a', long), line('b', long)]);
  await client.batches.cancel(batch.id);
  assert.equal((await ended(batch)).status, 'cancelled');
});

test('batches are listed page by page', async () => {
  const batches = [];
  for (let n = 0; n < 3; n++) batches.push(await created([line('a')]));
  const listed = [];
  for await (const batch of client.batches.list({ limit: 2 })) {
    listed.push(batch.id);
    if (listed.length === 3) break;
  }
  assert.deepEqual(listed, batches.map((batch) => batch.id).reverse());
  for (const batch of batches) await ended(batch);
});

test('a batch that is not there is not found', async () => {
  await assert.rejects(client.batches.retrieve('batch_none'), OpenAI.NotFoundError);
});
