// Files by openai-node, unmodified.
import assert from 'node:assert/strict';
import { createReadStream, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import OpenAI, { toFile } from 'openai';
import { client, collect } from './support.mjs';

const lines = '{"custom_id": "a"}\n{"custom_id": "b"}\n';
const made = [];

async function upload(fields = {}) {
  const file = await client.files.create({
    file: await toFile(Buffer.from(lines), 'in.jsonl'),
    purpose: 'batch',
    ...fields,
  });
  made.push(file.id);
  return file;
}

after(async () => {
  for (const id of made) await client.files.delete(id).catch((error) => assert.ok(error instanceof OpenAI.NotFoundError));
});

test('a file is uploaded and read', async () => {
  const file = await upload({ expires_after: { anchor: 'created_at', seconds: 7200 } });

  assert.equal(file.filename, 'in.jsonl');
  assert.equal(file.bytes, lines.length);
  assert.equal(file.expires_at, file.created_at + 7200);
  assert.equal((await client.files.waitForProcessing(file.id)).status, 'processed');
  assert.equal(await (await client.files.content(file.id)).text(), lines);
});

test('a stream of the disk is a file', async () => {
  const path = join(tmpdir(), `rose-${process.pid}.jsonl`);
  writeFileSync(path, lines);

  const file = await upload({ file: createReadStream(path), purpose: 'user_data' });

  assert.equal(file.filename, `rose-${process.pid}.jsonl`);
  assert.equal(await (await client.files.content(file.id)).text(), lines);
});

test('files are listed page by page', async () => {
  const ids = [];
  for (let number = 0; number < 3; number++) ids.push((await upload()).id);

  const listed = await collect(client.files.list({ limit: 1, order: 'asc', purpose: 'batch' }));

  const found = listed.map((file) => file.id);
  assert.deepEqual(found.filter((id) => ids.includes(id)), ids);
});

test('a deleted file is not found', async () => {
  const file = await upload();

  assert.ok((await client.files.delete(file.id)).deleted);
  await assert.rejects(client.files.retrieve(file.id), OpenAI.NotFoundError);
  await assert.rejects(client.files.content(file.id), OpenAI.NotFoundError);
});

test('an unknown purpose is refused', async () => {
  await assert.rejects(
    upload({ purpose: 'vision' }),
    (error) => error instanceof OpenAI.BadRequestError && error.param === 'purpose',
  );
});
