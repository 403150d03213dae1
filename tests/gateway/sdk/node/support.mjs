// What every file of these tests uses: the gateway that pytest has started, named in the environment.
import assert from 'node:assert/strict';
import OpenAI from 'openai';

export const models = JSON.parse(process.env.GATEWAY_MODELS);
export const client = new OpenAI({ baseURL: process.env.GATEWAY_URL, apiKey: 'none' });

// With these the random model says this text, and ends. Fields that OpenAI does not know go along.
export const saysHello = { regex: 'hello, world' };
export const hi = [{ role: 'user', content: 'hi' }];

export async function collect(events) {
  const all = [];
  for await (const event of events) all.push(event);
  return all;
}

export async function take(events, count) {
  const some = [];
  for await (const event of events) {
    some.push(event);
    if (some.length === count) break;
  }
  return some;
}

// Waits for a condition, with a limit.
export async function until(condition) {
  const deadline = Date.now() + 90_000;
  while (!(await condition())) {
    assert.ok(Date.now() < deadline, 'it never happened');
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
