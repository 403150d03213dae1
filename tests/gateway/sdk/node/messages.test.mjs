// Messages by Anthropic's library for TypeScript, unmodified.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import { hi, models, saysHello } from './support.mjs';

const claude = new Anthropic({ baseURL: process.env.GATEWAY_URL.replace(/\/v1$/, ''), apiKey: 'none', maxRetries: 0 });
const tool = {
  name: 'get_weather',
  input_schema: { type: 'object', properties: { city: { enum: ['Paris', 'Oslo'] } }, required: ['city'], additionalProperties: false },
};

test('a message is answered', async () => {
  const message = await claude.messages.create({ model: models.chat, max_tokens: 100, messages: hi, ...saysHello });

  assert.deepEqual(message.content, [{ type: 'text', text: 'hello, world' }]);
  assert.equal(message.stop_reason, 'end_turn');
  assert.ok(message._request_id);
});

test('a stream calls a tool, and its result is answered', async () => {
  const stream = claude.messages.stream({
    model: models.chat,
    max_tokens: 500,
    messages: hi,
    tools: [tool],
    tool_choice: { type: 'any', disable_parallel_tool_use: true },
  });
  const asked = await stream.finalMessage();

  const [call] = asked.content;
  assert.equal(asked.stop_reason, 'tool_use');
  assert.ok(['Paris', 'Oslo'].includes(call.input.city));
  const answered = await claude.messages.create({
    model: models.chat,
    max_tokens: 100,
    messages: [
      ...hi,
      { role: 'assistant', content: asked.content },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: call.id, content: 'rain' }] },
    ],
    tools: [tool],
    tool_choice: { type: 'none' },
    ...saysHello,
  });
  assert.equal(answered.content[0].text, 'hello, world');
});

test('tokens are counted, and errors are of its own kinds', async () => {
  const { input_tokens: count } = await claude.messages.countTokens({ model: models.echo, messages: hi });

  assert.equal(count, 2);
  await assert.rejects(
    claude.messages.create({ model: 'claude-opus-9', max_tokens: 1, messages: hi }),
    (error) => error instanceof Anthropic.NotFoundError && error.requestID.startsWith('req_'),
  );
  await assert.rejects(
    claude.messages.create({ model: models.echo, max_tokens: 0, messages: hi }),
    Anthropic.BadRequestError,
  );
});
