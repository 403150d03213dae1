import assert from "node:assert/strict";
import { test } from "node:test";
import { chatMessages, RoseChatTransport } from "roseinfer/ai";

const STREAM = { "content-type": "text/event-stream" };

function memory() {
  const kept = new Map();
  return {
    kept,
    getItem: (key) => kept.get(key) ?? null,
    setItem: (key, value) => kept.set(key, value),
    removeItem: (key) => kept.delete(key),
  };
}

/** What a chat becomes whose job streams these choices. */
async function answered(choices, messages = [user("hi")]) {
  const store = memory();
  const sent = [];
  const events = choices.map(
    (choice, n) => `id: ${n}-0\ndata: ${JSON.stringify({ choices: [{ index: 0, ...choice }] })}\n\n`,
  );
  const transport = new RoseChatTransport({
    model: "m",
    parameters: { temperature: 0.5 },
    store,
    fetch: async (url, init) => {
      sent.push({ url, body: init.body && JSON.parse(init.body) });
      if (init.method === "POST") return new Response("", { headers: { "x-rose-job-id": "j" } });
      return new Response(`${events.join("")}id: 99-0\ndata: [DONE]\n\n`, { headers: STREAM });
    },
  });
  const stream = await transport.sendMessages({
    trigger: "submit-message",
    chatId: "c",
    messageId: undefined,
    messages,
    abortSignal: undefined,
    body: { seed: 7 },
  });
  assert.equal(store.kept.get("roseinfer:job:c"), "j");
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  assert.equal(store.kept.size, 0);
  return { chunks, sent, transport };
}

const user = (text) => ({ id: "u", role: "user", parts: [{ type: "text", text }] });

test("thought, text and call are parts, one after another", async () => {
  const call = (index, fields) => ({ delta: { tool_calls: [{ index, ...fields }] } });
  const { chunks, sent } = await answered([
    { delta: { role: "assistant", content: "" } },
    { delta: { reasoning_content: "Hm" } },
    { delta: { reasoning_content: "." } },
    { delta: { content: "Let me see" } },
    call(0, { id: "call_1", function: { name: "add", arguments: '{"a":' } }),
    call(0, { function: { arguments: "1}" } }),
    call(1, { id: "call_2", function: { name: "now", arguments: "" } }),
    { delta: {}, finish_reason: "tool_calls" },
  ]);
  assert.deepEqual(chunks, [
    { type: "start", messageId: "msg-j" },
    { type: "start-step" },
    { type: "reasoning-start", id: "reasoning-0" },
    { type: "reasoning-delta", id: "reasoning-0", delta: "Hm" },
    { type: "reasoning-delta", id: "reasoning-0", delta: "." },
    { type: "reasoning-end", id: "reasoning-0" },
    { type: "text-start", id: "text-1" },
    { type: "text-delta", id: "text-1", delta: "Let me see" },
    { type: "text-end", id: "text-1" },
    { type: "tool-input-start", toolCallId: "call_1", toolName: "add" },
    { type: "tool-input-delta", toolCallId: "call_1", inputTextDelta: '{"a":' },
    { type: "tool-input-delta", toolCallId: "call_1", inputTextDelta: "1}" },
    { type: "tool-input-start", toolCallId: "call_2", toolName: "now" },
    { type: "tool-input-available", toolCallId: "call_1", toolName: "add", input: { a: 1 } },
    { type: "tool-input-available", toolCallId: "call_2", toolName: "now", input: {} },
    { type: "finish-step" },
    { type: "finish", finishReason: "tool-calls" },
  ]);
  const { model, temperature, seed, stream } = sent[0].body;
  assert.deepEqual({ model, temperature, seed, stream }, { model: "m", temperature: 0.5, seed: 7, stream: true });
});

test("a call that is cut off is an error of its own", async () => {
  const { chunks } = await answered([
    { delta: { tool_calls: [{ index: 0, id: "c", function: { name: "f", arguments: '{"a' } }] } },
    { delta: {}, finish_reason: "length" },
  ]);
  const [failed] = chunks.filter(({ type }) => type === "tool-input-error");
  assert.equal(failed.input, '{"a');
  assert.equal(chunks.at(-1).finishReason, "length");
});

test("a chat without a job has nothing to reconnect to", async () => {
  const { transport } = await answered([]);
  assert.equal(await transport.reconnectToStream({ chatId: "c" }), null);
});

test("a conversation with tools is sent step by step", () => {
  const assistant = {
    id: "a",
    role: "assistant",
    parts: [
      { type: "step-start" },
      { type: "reasoning", text: "Hm." },
      { type: "text", text: "Let me see" },
      {
        type: "tool-add",
        toolCallId: "call_1",
        state: "output-available",
        input: { a: 1 },
        output: { sum: 2 },
      },
      {
        type: "dynamic-tool",
        toolName: "now",
        toolCallId: "call_2",
        state: "output-error",
        input: {},
        errorText: "no clock",
      },
      { type: "step-start" },
      { type: "text", text: "It is 2." },
    ],
  };
  assert.deepEqual(chatMessages([user("1 + 1?"), assistant, user("thanks")]), [
    { role: "user", content: "1 + 1?" },
    {
      role: "assistant",
      reasoning_content: "Hm.",
      content: "Let me see",
      tool_calls: [
        { id: "call_1", type: "function", function: { name: "add", arguments: '{"a":1}' } },
        { id: "call_2", type: "function", function: { name: "now", arguments: "{}" } },
      ],
    },
    { role: "tool", tool_call_id: "call_1", content: '{"sum":2}' },
    { role: "tool", tool_call_id: "call_2", content: "Error: no clock" },
    { role: "assistant", content: "It is 2." },
    { role: "user", content: "thanks" },
  ]);
});

test("a file that a model cannot read is named", () => {
  const picture = { type: "file", mediaType: "image/png", url: "data:," };
  const message = { id: "u", role: "user", parts: [picture] };
  assert.throws(() => chatMessages([message]), /image\/png/);
});
