// Right and wrong calls, as an editor and `tsc --strict` judge them.
import { type Answer, GatewayUnreachable, type Job, JobFailed, RequestFailed, Rose } from "roseinfer";

const rose = new Rose({ baseURL: ["http://a", "http://b"], apiKey: "k", patienceMs: 5, fetch });
new Rose();
new Rose({ baseURL: "http://a" });
// @ts-expect-error a URL is a text
new Rose({ baseURL: 8080 });
// @ts-expect-error no such option
new Rose({ baseUrl: "http://a" });
// @ts-expect-error milliseconds are a number
new Rose({ patienceMs: "5" });

const messages = [{ role: "user", content: "hi" }] as const;
const job: Job = await rose.submit({ model: "m", messages });
await rose.submit({ model: "m", messages, temperature: 0.5, stop: ["a"], top_k: 5, seed: 1 });
await rose.submit({ model: "m", messages, regex: "[a-z]+" });
await rose.submit({ model: "m", messages }, { idempotencyKey: "k", signal: AbortSignal.timeout(5) });
// @ts-expect-error a request names its model
await rose.submit({ messages });
// @ts-expect-error a request has messages
await rose.submit({ model: "m" });
// @ts-expect-error a temperature is a number
await rose.submit({ model: "m", messages, temperature: "hot" });
// @ts-expect-error nobody plays this role
await rose.submit({ model: "m", messages: [{ role: "robot", content: "hi" }] });
// @ts-expect-error no such tier
await rose.submit({ model: "m", messages, service_tier: "now" });
// @ts-expect-error a key is a text
await rose.submit({ model: "m", messages }, { idempotencyKey: 7 });

for await (const chunk of job) chunk.choices[0]?.delta.content?.toUpperCase();
for await (const { id, data } of job.events({ after: "12-0" })) id.concat(String(data.usage));
// @ts-expect-error a cursor is a text
job.events({ after: 12 });
// @ts-expect-error a delta may have no content
for await (const chunk of job) chunk.choices[0].delta.content.toUpperCase();

const answer: Answer = await job.answer();
answer.text satisfies string;
answer.toolCalls[0]?.arguments satisfies string | undefined;
// @ts-expect-error JSON is a text
answer.toolCalls[0].arguments.city;
const { choices } = await job.cancel();
choices[0]?.status satisfies "queued" | "running" | "finished" | "failed" | "cancelled" | undefined;
// @ts-expect-error an id is a text
rose.job(7);
for await (const event of rose.job<{ token_ids: number[] }>("j")) event.token_ids satisfies number[];

try {
  await job.status();
} catch (error) {
  if (error instanceof RequestFailed) error.status satisfies number;
  if (error instanceof JobFailed) error.jobId satisfies string;
  if (error instanceof GatewayUnreachable) error.message satisfies string;
}
