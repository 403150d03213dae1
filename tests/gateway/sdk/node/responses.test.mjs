// The Responses API by openai-node, unmodified.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import OpenAI from 'openai';
import { zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import { client, collect, models, saysHello, take, until } from './support.mjs';

const Weather = z.strictObject({ city: z.enum(['Paris', 'Oslo']), degrees: z.number().int().min(-30).max(40) });
const tool = {
  type: 'function',
  name: 'get_weather',
  description: 'The weather of a city.',
  parameters: z.toJSONSchema(Weather),
  strict: true,
};

test('a text is answered', async () => {
  const response = await client.responses.create({
    model: models.chat,
    input: 'say hello',
    instructions: 'you are friendly',
    metadata: { tenant: 'acme' },
    ...saysHello,
  });

  assert.equal(response.status, 'completed');
  assert.equal(response.output_text, 'hello, world');
  assert.deepEqual(response.metadata, { tenant: 'acme' });
  assert.equal(response.usage.total_tokens, response.usage.input_tokens + response.usage.output_tokens);
});

test('a response is retrieved, its input listed, and it is deleted', async () => {
  const created = await client.responses.create({
    model: models.echo,
    input: ['a', 'b', 'c'].map((content) => ({ role: 'user', content })),
    max_output_tokens: 2,
  });
  assert.equal(created.status, 'incomplete');

  const retrieved = await client.responses.retrieve(created.id);
  const items = await collect(client.responses.inputItems.list(created.id, { limit: 2, order: 'asc' }));

  assert.deepEqual(retrieved, created);
  assert.deepEqual(items.map((item) => item.content[0].text), ['a', 'b', 'c']);

  await client.responses.delete(created.id);
  await assert.rejects(client.responses.retrieve(created.id), OpenAI.NotFoundError);
});

test('a stream has every event in order', async () => {
  const stream = await client.responses.create({ model: models.chat, input: 'hi', stream: true, ...saysHello });
  const events = await collect(stream);

  assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, number) => number));
  assert.equal(events[0].type, 'response.created');
  assert.equal(events.at(-1).type, 'response.completed');
  const deltas = events.filter((event) => event.type === 'response.output_text.delta');
  assert.equal(deltas.map((event) => event.delta).join(''), 'hello, world');
});

test('the stream helper accumulates', async () => {
  const stream = client.responses.stream({ model: models.chat, input: 'hi', ...saysHello });
  const snapshots = [];
  stream.on('response.output_text.delta', (event) => snapshots.push(event.snapshot));

  const final = await stream.finalResponse();

  assert.equal(final.output_text, 'hello, world');
  assert.equal(snapshots.at(-1), 'hello, world');
});

test('a background stream is resumed at a cursor', async () => {
  const stream = await client.responses.create({
    model: models.slow,
    input: 'abc',
    background: true,
    stream: true,
    max_output_tokens: 40,
  });
  const begun = await take(stream, 12); // breaking off closes the connection
  const { id } = begun[0].response;
  const cursor = begun.at(-1).sequence_number;

  const rest = await collect(await client.responses.retrieve(id, { stream: true, starting_after: cursor }));
  const whole = await collect(await client.responses.retrieve(id, { stream: true }));

  assert.equal(rest[0].sequence_number, cursor + 1);
  assert.deepEqual([...begun, ...rest], whole);
  assert.equal(whole.at(-1).type, 'response.incomplete');
});

test('the stream helper resumes at a cursor', async () => {
  const response = await client.responses.create({
    model: models.chat,
    input: 'hi',
    background: true,
    ...saysHello,
  });

  const stream = client.responses.stream({ response_id: response.id, starting_after: 4 });
  const events = await collect(stream);
  const final = await stream.finalResponse();

  assert.equal(events[0].sequence_number, 5);
  assert.equal(final.output_text, 'hello, world');
});

test('a background response is cancelled', async () => {
  const response = await client.responses.create({
    model: models.slow,
    input: 'abc',
    background: true,
    max_output_tokens: 100_000,
  });

  const cancelled = await client.responses.cancel(response.id);

  assert.equal(cancelled.status, 'cancelled');
  await until(async () => (await client.responses.retrieve(response.id)).status === 'cancelled');
});

test('structured output is parsed', async () => {
  const response = await client.responses.parse({
    model: models.chat,
    input: 'the weather?',
    text: { format: zodTextFormat(Weather, 'weather') },
  });

  assert.ok(Weather.safeParse(response.output_parsed).success, response.output_text);
});

for (const choice of ['required', { type: 'function', name: 'get_weather' }]) {
  test(`a function must be called: ${JSON.stringify(choice)}`, async () => {
    const stream = client.responses.stream({
      model: models.chat,
      input: 'the weather in Paris?',
      tools: [tool],
      tool_choice: choice,
      parallel_tool_calls: false,
    });
    const { id, output: [call] } = await stream.finalResponse();
    assert.equal(call.type, 'function_call');
    assert.equal(call.name, 'get_weather');
    Weather.parse(JSON.parse(call.arguments));

    const answer = await client.responses.create({
      model: models.chat,
      previous_response_id: id,
      input: [{ type: 'function_call_output', call_id: call.call_id, output: 'sunny' }],
      ...saysHello,
    });
    assert.equal(answer.output_text, 'hello, world');
  });
}

test('a model may call a function by itself', async () => {
  const says = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "degrees": 3}}\n</tool_call>';

  const response = await client.responses.create({
    model: models.chat,
    input: 'the weather in Oslo?',
    tools: [tool],
    grammar: `start: ${JSON.stringify(says)}`,
  });

  const [call] = response.output;
  assert.equal(call.type, 'function_call');
  assert.deepEqual(JSON.parse(call.arguments), { city: 'Oslo', degrees: 3 });
});

