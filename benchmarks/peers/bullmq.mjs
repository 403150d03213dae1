// BullMQ: addBulk, one worker of 64 jobs at once, completed jobs kept (its default).
//
//   PEER_REDIS_URL=... BULLMQ_DIR=<folder with node_modules> node bullmq.mjs COMMAND [NUMBER]

import { createRequire } from "node:module";
import path from "node:path";
import { performance } from "node:perf_hooks";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(path.join(process.env.BULLMQ_DIR, "anchor.js"));
const { Queue, QueueEvents, Worker } = require("bullmq");
const { Redis } = require("ioredis");

const CHUNK = 500;
const SLEEP_MS = 5000;
const { hostname: host, port } = new URL(process.env.PEER_REDIS_URL ?? "redis://127.0.0.1:6379");
const connection = { host, port: Number(port), maxRetriesPerRequest: null };
const [command, number] = [process.argv[2], Number(process.argv[3] ?? 0)];

async function withQueue(use) {
  const queue = new Queue("bench", { connection });
  try {
    await queue.waitUntilReady();
    return await use(queue);
  } finally {
    await queue.close();
  }
}

async function addMany(queue, jobs) {
  for (let start = 0; start < jobs; start += CHUNK) {
    const count = Math.min(CHUNK, jobs - start);
    await queue.addBulk(Array.from({ length: count }, () => ({ name: "noop", data: {} })));
  }
}

async function submit(queue) {
  await addMany(queue, CHUNK);
  const began = performance.now();
  await addMany(queue, number);
  return (performance.now() - began) / 1000;
}

async function latencies(queue) {
  const events = new QueueEvents("bench", { connection });
  await events.waitUntilReady();
  const taken = [];
  for (let i = 0; i < number; i++) {
    const began = performance.now();
    const job = await queue.add("noop", {});
    await job.waitUntilFinished(events, 30_000);
    taken.push((performance.now() - began) / 1000);
  }
  await events.close();
  return taken;
}

// The score of a completed job is when it ended.
async function finishTimes() {
  const client = new Redis(connection);
  const completed = "bull:bench:completed";
  while ((await client.zcard(completed)) < number) await sleep(100);
  const scores = await client.zrange(completed, 0, -1, "WITHSCORES");
  await client.quit();
  return scores.filter((_, i) => i % 2 === 1).map((ms) => Number(ms) / 1000);
}

async function addSleepers(queue) {
  for (let i = 0; i < number; i++) await queue.add("sleep", { number: i });
}

function serve(slots) {
  const client = new Redis(connection);
  const run = async (job) => {
    if (job.name === "sleep") {
      await client.sadd("bench:started", job.data.number);
      await sleep(SLEEP_MS);
      await client.zadd("bench:slept", "NX", Date.now() / 1000, job.data.number);
    }
    return Date.now();
  };
  new Worker("bench", run, { connection, concurrency: slots || 64 });
}

const answers = {
  version: () => ({ bullmq: require("bullmq/package.json").version }),
  submit: () => withQueue(submit),
  enqueue: () => withQueue((queue) => addMany(queue, number)),
  latencies: () => withQueue(latencies),
  finish_times: finishTimes,
  sleepers: () => withQueue(addSleepers),
};

if (command === "worker") {
  serve(number);
} else {
  console.log(JSON.stringify((await answers[command]()) ?? null));
}
