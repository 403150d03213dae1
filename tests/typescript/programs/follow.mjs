// Follows a job, and says what came, a line an event: {"id", "text"}. With CURSOR it goes on behind
// that event, else it submits PROMPT first, and says which job it is.
import { Rose } from "roseinfer";

const { URLS, MODEL, PROMPT, TOKENS, JOB, CURSOR } = process.env;
const rose = new Rose({ baseURL: URLS.split(",") });
const job = JOB
  ? rose.job(JOB)
  : await rose.submit({
      model: MODEL,
      messages: [{ role: "user", content: PROMPT }],
      max_completion_tokens: Number(TOKENS),
    });
console.log(JSON.stringify({ job: job.id }));
for await (const { id, data } of job.events({ after: CURSOR })) {
  const text = data.choices.map(({ delta }) => delta.content ?? "").join("");
  console.log(JSON.stringify({ id, text, reason: data.choices[0]?.finish_reason ?? null }));
}
