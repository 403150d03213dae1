// What openai-node throws and repeats by itself, unmodified.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import OpenAI from 'openai';
import { client, collect, hi, models } from './support.mjs';

const wrong = [
  [{ temperature: 3 }, 'temperature'],
  [{ colour: 'red' }, 'colour'],
  [{ messages: [{ role: 'user', content: 3 }] }, 'messages[0].content'],
  [{ tool_choice: 'required' }, 'tool_choice'],
];
for (const [fields, param] of wrong) {
  test(`a wrong ${param} is refused with the field`, async () => {
    await assert.rejects(
      client.chat.completions.create({ model: models.chat, messages: hi, ...fields }),
      (error) => {
        assert.ok(error instanceof OpenAI.BadRequestError, error);
        assert.equal(error.param, param);
        assert.equal(error.type, 'invalid_request_error');
        assert.ok(error.requestID);
        return true;
      },
    );
  });
}

test('an unknown model is not found', async () => {
  await assert.rejects(
    client.chat.completions.create({ model: 'gpt-9', messages: hi }),
    (error) => error instanceof OpenAI.NotFoundError && error.code === 'model_not_found',
  );
});

test('the same key with another body is a conflict', async () => {
  const ask = (input) =>
    client.responses.create(
      { model: models.echo, input, max_output_tokens: 1 },
      { headers: { 'Idempotency-Key': 'of-node' } },
    );

  const first = await ask('a');

  assert.equal((await ask('a')).id, first.id);
  await assert.rejects(ask('b'), OpenAI.ConflictError);
});

test('a full queue is a limit, and the client waits for room', async () => {
  const holdsTheQueue = await client.responses.create({
    model: models.full,
    input: 'hi',
    background: true,
    max_output_tokens: 100_000,
  });
  const ask = { model: models.full, messages: hi, max_tokens: 1 };

  await assert.rejects(client.chat.completions.create(ask, { maxRetries: 0 }), (error) => {
    assert.ok(error instanceof OpenAI.RateLimitError, error);
    assert.ok(Number(error.headers.get('retry-after')) >= 1);
    return true;
  });

  const waits = client.chat.completions.create(ask, { maxRetries: 50 });
  await new Promise((resolve) => setTimeout(resolve, 500));
  await client.responses.cancel(holdsTheQueue.id);
  assert.equal((await waits).choices[0].message.content, '104 ');
});

test('a job that dies in a stream throws', async () => {
  const stream = await client.chat.completions.create({
    model: models.slow,
    messages: hi,
    stream: true,
    max_tokens: 100_000,
    deadline_s: 1,
  });

  await assert.rejects(collect(stream), (error) => {
    assert.ok(error instanceof OpenAI.APIError, error);
    assert.equal(error.code, 'deadline_exceeded');
    return true;
  });
});

