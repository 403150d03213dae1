// Models, chat completions and completions by openai-node, unmodified.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import OpenAI from 'openai';
import { zodFunction, zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import { client, collect, hi, models, saysHello, take } from './support.mjs';

const Weather = z.strictObject({ city: z.enum(['Paris', 'Oslo']), degrees: z.number().int().min(-30).max(40) });
const tool = zodFunction({ name: 'get_weather', parameters: Weather });

test('the models are listed', async () => {
  const listed = await collect(client.models.list());

  const ids = listed.map((model) => model.id);
  for (const model of Object.values(models)) assert.ok(ids.includes(model), `${model} of ${ids}`);
  assert.equal((await client.models.retrieve(models.echo)).id, models.echo);
  await assert.rejects(client.models.retrieve('gpt-9'), OpenAI.NotFoundError);
});

test('a chat is answered', async () => {
  const { data, response } = await client.chat.completions
    .create({
      model: models.chat,
      messages: [
        { role: 'developer', content: 'be friendly' },
        { role: 'user', content: [{ type: 'text', text: 'say hello' }] },
      ],
      ...saysHello,
    })
    .withResponse();

  const [choice] = data.choices;
  assert.equal(choice.message.content, 'hello, world');
  assert.equal(choice.finish_reason, 'stop');
  assert.equal(data.usage.total_tokens, data.usage.prompt_tokens + data.usage.completion_tokens);
  assert.equal(data.id, `chatcmpl-${response.headers.get('x-rose-job-id')}`);
  assert.ok(data._request_id);
});

test('a chat streams', async () => {
  const stream = await client.chat.completions.create({
    model: models.chat,
    messages: hi,
    stream: true,
    stream_options: { include_usage: true },
    ...saysHello,
  });
  const chunks = await collect(stream);

  const last = chunks.pop();
  assert.equal(chunks.map((chunk) => chunk.choices[0].delta.content ?? '').join(''), 'hello, world');
  assert.equal(chunks.at(-1).choices[0].finish_reason, 'stop');
  assert.deepEqual(last.choices, []);
  assert.equal(last.usage.total_tokens, last.usage.prompt_tokens + last.usage.completion_tokens);
});

test('the stream helper accumulates', async () => {
  const stream = client.chat.completions.stream({ model: models.chat, messages: hi, ...saysHello });
  let text = '';
  stream.on('content', (delta) => (text += delta));

  const final = await stream.finalChatCompletion();

  assert.equal(final.choices[0].message.content, 'hello, world');
  assert.equal(text, 'hello, world');
});

test('several choices, each with a seed of its own', async () => {
  const ask = { model: models.chat, messages: hi, n: 3, seed: 7, temperature: 1, max_tokens: 8 };

  const completion = await client.chat.completions.create(ask);
  const again = await client.chat.completions.stream(ask).finalChatCompletion();

  const texts = completion.choices.map((choice) => choice.message.content);
  assert.deepEqual(again.choices.map((choice) => choice.message.content), texts);
  assert.ok(new Set(texts).size > 1);
});

test('structured output is parsed', async () => {
  const completion = await client.chat.completions.parse({
    model: models.chat,
    messages: hi,
    response_format: zodResponseFormat(Weather, 'weather'),
  });

  assert.ok(Weather.safeParse(completion.choices[0].message.parsed).success);
});

for (const choice of ['required', { type: 'function', function: { name: 'get_weather' } }]) {
  test(`a function must be called: ${JSON.stringify(choice)}`, async () => {
    const stream = client.chat.completions.stream({
      model: models.chat,
      messages: hi,
      tools: [tool],
      tool_choice: choice,
      parallel_tool_calls: false,
    });
    const { choices: [{ message }] } = await stream.finalChatCompletion();
    const [call] = message.tool_calls;
    assert.equal(call.function.name, 'get_weather');
    Weather.parse(JSON.parse(call.function.arguments));

    const answer = await client.chat.completions.create({
      model: models.chat,
      messages: [...hi, message, { role: 'tool', tool_call_id: call.id, content: 'sunny' }],
      ...saysHello,
    });
    assert.equal(answer.choices[0].message.content, 'hello, world');
  });
}

test('a model may call a function by itself', async () => {
  const says = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "degrees": 3}}\n</tool_call>';

  const completion = await client.chat.completions.parse({
    model: models.chat,
    messages: hi,
    tools: [tool],
    grammar: `start: ${JSON.stringify(says)}`,
  });

  const [choice] = completion.choices;
  assert.equal(choice.finish_reason, 'tool_calls');
  assert.deepEqual(choice.message.tool_calls[0].function.parsed_arguments, { city: 'Oslo', degrees: 3 });
});

test('a completion streams', async () => {
  const stream = await client.completions.create({ model: models.echo, prompt: 'ab', max_tokens: 3, stream: true });

  const chunks = await collect(stream);

  assert.equal(chunks.map((chunk) => chunk.choices[0].text).join(''), '97 98 97 ');
  assert.equal(chunks.at(-1).choices[0].finish_reason, 'length');
});

test('whoever stops listening frees the slot', async () => {
  const { data: stream, response } = await client.chat.completions
    .create({ model: models.slow, messages: hi, stream: true, max_tokens: 100_000 })
    .withResponse();

  await take(stream, 2);

  // What is left of it: the job's own stream, which ends.
  const job = response.headers.get('x-rose-job-id');
  const rest = await fetch(`${client.baseURL}/jobs/${job}/events`);
  assert.match(await rest.text(), /cancelled/);
});
