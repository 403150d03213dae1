// Requests to this server's own /v1, with the key that the user has typed.

import { usedKey } from "./keys.js";

const REPEATS = 4;

export class ApiError extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
    /** the key that was sent */
    this.key = "";
  }
}

/**
 * A good answer, whose body may still be on its way.
 * Throws ApiError for any other answer, TypeError where there is none.
 */
export async function ask(path, { method = "GET", body, headers = {}, signal } = {}) {
  const sent = { ...headers };
  const key = usedKey();
  if (key) sent.authorization = `Bearer ${key}`;
  if (body !== undefined) sent["content-type"] = "application/json";
  const answer = await fetch(`v1/${path}`, {
    method,
    headers: sent,
    body: body === undefined ? undefined : JSON.stringify(body),
    signal,
    cache: "no-store",
  });
  if (answer.ok) return answer;
  const text = await answer.text();
  throw Object.assign(refusal(answer.status, text), { key });
}

function refusal(status, text) {
  try {
    const { message, code } = JSON.parse(text).error;
    return new ApiError(status, message, code);
  } catch {
    return new ApiError(status, `the server answered with status ${status}`, null);
  }
}

export async function askJson(path, options) {
  return (await ask(path, options)).json();
}

/** The id of the job. A reply that was lost is asked for again: by its key the job is there once. */
export async function submit(path, body, more = {}) {
  const headers = { ...more, "idempotency-key": newIdempotencyKey() };
  for (let failures = 0; ; failures++) {
    try {
      const answer = await ask(path, { method: "POST", body, headers });
      await answer.body.cancel(); // it is followed as any other job
      return answer.headers.get("x-rose-job-id");
    } catch (error) {
      const passing = !(error instanceof ApiError) || error.status === 503;
      if (!passing || failures >= REPEATS) throw error;
      await new Promise((resolve) => setTimeout(resolve, 250 * 2 ** failures));
    }
  }
}

function newIdempotencyKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** All items of a list, page by page. */
export async function all(path) {
  const items = [];
  for (let after = "", more = true; more; after = `&after=${items.at(-1)?.id}`) {
    const page = await askJson(`${path}?order=asc&limit=100${after}`);
    items.push(...page.data);
    more = page.has_more;
  }
  return items;
}
