// Requests to this server's own /v1, with the key that the user has typed.

const NAME = "rose-api-key";

export class ApiError extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
    /** the key that was sent */
    this.key = "";
  }
}

/** The key of this tab, or the one that this browser remembers. */
export function savedKey() {
  return sessionStorage.getItem(NAME) ?? localStorage.getItem(NAME) ?? "";
}

export function saveKey(secret, everywhere) {
  sessionStorage.removeItem(NAME);
  localStorage.removeItem(NAME);
  if (secret) (everywhere ? localStorage : sessionStorage).setItem(NAME, secret);
}

/**
 * A good answer, whose body may still be on its way.
 * Throws ApiError for any other answer, TypeError where there is none.
 */
export async function ask(path, { method = "GET", body, headers = {}, signal } = {}) {
  const sent = { ...headers };
  const key = savedKey();
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

/** The same request again, after a lost reply, brings the same job. */
export function newIdempotencyKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
