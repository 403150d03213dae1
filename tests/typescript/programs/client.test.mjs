import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";
import { GatewayUnreachable, JobFailed, RequestFailed, Rose } from "roseinfer";

const { URLS, MODEL } = process.env;
const rose = new Rose({ baseURL: URLS.split(",") });
const request = (text, tokens) => ({
  model: MODEL,
  messages: [{ role: "user", content: text }],
  max_completion_tokens: tokens,
});

/** A gateway that answers as it is told, one answer after another. */
async function standIn(answers) {
  const seen = [];
  const server = createServer((incoming, outgoing) => {
    seen.push({ path: incoming.url, headers: incoming.headers });
    const [status, headers, body] = answers.shift() ?? [500, {}, "no answer is left"];
    outgoing.writeHead(status, headers);
    outgoing.write(body);
    if (headers["x-break-off"]) incoming.socket.destroySoon();
    else outgoing.end();
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  const url = `http://127.0.0.1:${server.address().port}`;
  return { url, seen, close: () => server.close() };
}

const event = (id, text) =>
  `id: ${id}\ndata: ${JSON.stringify({ choices: [{ index: 0, delta: { content: text } }] })}\n\n`;
const STREAM = { "content-type": "text/event-stream" };

test("an answer is whole, and counted", async () => {
  const job = await rose.submit(request("ab", 3));
  const answer = await job.answer();
  assert.equal(answer.finishReason, "length");
  assert.equal(answer.usage.completion_tokens, 3);
  assert.equal(answer.text.trim().split(" ").length, 3);
});

test("two readers of a job get the same", async () => {
  const job = await rose.submit(request("the same", 20));
  const [one, other] = await Promise.all([job.answer(), rose.job(job.id).answer()]);
  assert.deepEqual(one, other);
});

test("the same idempotency key names the same job", async () => {
  const first = await rose.submit(request("once", 2), { idempotencyKey: "once" });
  const again = await rose.submit(request("once", 2), { idempotencyKey: "once" });
  assert.equal(again.id, first.id);
  await assert.rejects(rose.submit(request("twice", 2), { idempotencyKey: "once" }), {
    name: "RequestFailed",
    status: 409,
  });
});

test("a cancelled job ends for who reads it", async () => {
  const job = await rose.submit(request("without an end", 4000));
  const reading = (async () => {
    let seen = 0;
    for await (const _ of job) if (++seen === 3) await rose.job(job.id).cancel();
  })();
  await assert.rejects(reading, JobFailed);
  const { choices } = await job.status();
  assert.equal(choices[0].status, "cancelled");
});

test("a reader that is told to stop stops, and the job goes on", async () => {
  const job = await rose.submit(request("go on", 40));
  const stopping = new AbortController();
  const reading = (async () => {
    for await (const _ of job.events({ signal: stopping.signal })) stopping.abort();
  })();
  await assert.rejects(reading, { name: "AbortError" });
  assert.equal((await job.answer()).usage.completion_tokens, 40);
});

test("what a gateway refuses is said with its code", async () => {
  await assert.rejects(rose.submit({ ...request("hi", 1), model: "no-such" }), (error) => {
    assert.ok(error instanceof RequestFailed);
    assert.equal(error.status, 404);
    assert.equal(error.code, "model_not_found");
    assert.match(error.message, /no-such/);
    assert.ok(error.requestId);
    return true;
  });
  await assert.rejects(rose.job("no-such-job").answer(), { name: "RequestFailed", status: 404 });
});

test("where nobody answers it says so, when its patience ends", async () => {
  const nobody = new Rose({ baseURL: "http://127.0.0.1:1", patienceMs: 300 });
  await assert.rejects(nobody.models(), (error) => {
    assert.ok(error instanceof GatewayUnreachable);
    assert.match(error.message, /127\.0\.0\.1:1/);
    return true;
  });
});

test("the next gateway is asked where one does not answer", async () => {
  const both = new Rose({ baseURL: ["http://127.0.0.1:1", ...URLS.split(",")] });
  assert.ok((await both.models()).includes(MODEL));
});

test("a stream that breaks off goes on behind its last event", async () => {
  const gateway = await standIn([
    [200, { ...STREAM, "x-break-off": "1" }, event("1-0", "a") + 'id: 2-0\ndata: {"cho'],
    [503, { "retry-after-ms": "1" }, "<html>busy</html>"],
    [200, STREAM, `: keep-alive\n${event("2-0", "b")}id: 3-0\ndata: [DONE]\n\n`],
  ]);
  const job = new Rose({ baseURL: gateway.url }).job("j");
  assert.equal((await job.answer()).text, "ab");
  const cursors = gateway.seen.map(({ headers }) => headers["last-event-id"]);
  assert.deepEqual(cursors, [undefined, "1-0", "1-0"]);
  gateway.close();
});

test("an error of the reading alone is no error of the job", async () => {
  const running = JSON.stringify({ choices: [{ status: "running" }] });
  const failure = 'data: {"error":{"message":"Redis is away","type":"server_error"}}\n\n';
  const gateway = await standIn([
    [200, STREAM, event("1-0", "a") + failure],
    [200, { "content-type": "application/json" }, running],
    [200, STREAM, `${event("2-0", "b")}id: 3-0\ndata: [DONE]\n\n`],
  ]);
  assert.equal((await new Rose({ baseURL: gateway.url }).job("j").answer()).text, "ab");
  gateway.close();
});

test("a refusal that a repeat cannot help is not repeated", async () => {
  const refusal = '{"error":{"message":"the model has failed","code":"server_error"}}';
  const gateway = await standIn([[503, { "x-should-retry": "false" }, refusal]]);
  await assert.rejects(new Rose({ baseURL: gateway.url }).models(), /the model has failed/);
  assert.equal(gateway.seen.length, 1);
  gateway.close();
});

test("events are read alike, however their bytes are cut", async () => {
  const bytes = new TextEncoder().encode(
    `${event("1-0", "für 犬 🦊")}: comment\r\n\r\ndata: {"choices":\rdata: []}\r\rid: 9\ndata: [DONE]\n\n`,
  );
  for (let cut = 0; cut <= bytes.length; cut++) {
    const body = new ReadableStream({
      start(controller) {
        controller.enqueue(bytes.slice(0, cut));
        controller.enqueue(bytes.slice(cut));
        controller.close();
      },
    });
    const one = new Rose({ fetch: async () => new Response(body) });
    const events = [];
    for await (const event of one.job("j").events()) events.push(event);
    assert.deepEqual(
      events.map(({ id, data }) => [id, data.choices[0]?.delta.content ?? ""]),
      [["1-0", "für 犬 🦊"], ["1-0", ""]],
      `cut at ${cut}`,
    );
  }
});
