import { type ErrorFields, GatewayUnreachable, RequestFailed } from "./errors.js";

/** Where the gateways of one deployment are, and how long to wait for one. */
export interface GatewayOptions {
  /** One URL or several, without `/v1`. If one does not answer, the next is asked. */
  baseURL?: string | readonly string[];
  apiKey?: string;
  /** How long requests are repeated while no gateway answers; 60,000 by default. */
  patienceMs?: number;
  /** In place of the global one. */
  fetch?: typeof fetch;
}

export interface Call {
  method?: "GET" | "POST";
  headers?: Record<string, string>;
  body?: unknown;
  signal?: AbortSignal | undefined;
}

const FIRST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 5_000;
const REPEATABLE = new Set([429, 502, 503, 504]);

/** Repeats what may be repeated, at one gateway after the other. */
export class Gateways {
  readonly #urls: readonly string[];
  readonly #headers: Record<string, string>;
  readonly #patienceMs: number;
  readonly #fetch: typeof fetch;
  #current = 0;

  constructor(options: GatewayOptions) {
    const urls = [options.baseURL ?? "http://127.0.0.1:8080"].flat();
    this.#urls = urls.map((url) => url.replace(/\/+$/, "").replace(/\/v1$/, ""));
    this.#headers = options.apiKey ? { authorization: `Bearer ${options.apiKey}` } : {};
    this.#patienceMs = options.patienceMs ?? 60_000;
    const given = options.fetch;
    this.#fetch = given ?? ((input, init) => globalThis.fetch(input, init));
  }

  /**
   * The answer to a request that may be sent twice.
   *
   * @throws RequestFailed a gateway has refused it
   * @throws GatewayUnreachable none has answered in time
   */
  async call(path: string, call: Call = {}): Promise<Response> {
    const pauses = new Pauses(this.#patienceMs);
    for (;;) {
      const outcome = await this.#try(path, call);
      if (outcome instanceof Response) return outcome;
      this.#current = (this.#current + 1) % this.#urls.length;
      if (!(await pauses.next(outcome.afterMs, call.signal))) throw outcome.error;
    }
  }

  async #try(path: string, call: Call): Promise<Response | Refusal> {
    const headers: Record<string, string> = { ...this.#headers, ...call.headers };
    const init: RequestInit = { method: call.method ?? "GET", headers, cache: "no-store" };
    if (call.body !== undefined) {
      headers["content-type"] = "application/json";
      init.body = JSON.stringify(call.body);
    }
    if (call.signal) init.signal = call.signal;
    const url = this.#urls[this.#current] ?? "";
    let response: Response;
    try {
      response = await this.#fetch(url + path, init);
    } catch (error) {
      call.signal?.throwIfAborted();
      const reason = error instanceof Error ? error.message : String(error);
      return { error: new GatewayUnreachable(`no answer from ${url}: ${reason}`, { cause: error }) };
    }
    if (response.ok) return response;
    const error = await refusalOf(response);
    const says = response.headers.get("x-should-retry");
    if (says === "false" || (says !== "true" && !REPEATABLE.has(response.status))) throw error;
    return { error, afterMs: retryAfterMs(response.headers) };
  }
}

interface Refusal {
  error: Error;
  afterMs?: number | undefined;
}

/** Pauses that grow, until they have taken too long. */
export class Pauses {
  #pauseMs = FIRST_PAUSE_MS;
  readonly #until: number;

  constructor(patienceMs: number) {
    this.#until = Date.now() + patienceMs;
  }

  /** Pause, for `leastMs` at least. False: there is no time left. */
  async next(leastMs = 0, signal?: AbortSignal): Promise<boolean> {
    const jittered = this.#pauseMs * (0.5 + Math.random() / 2);
    const pauseMs = Math.max(jittered, leastMs);
    if (Date.now() + pauseMs > this.#until) return false;
    this.#pauseMs = Math.min(2 * this.#pauseMs, LONGEST_PAUSE_MS);
    await sleep(pauseMs, signal);
    return true;
  }
}

function sleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const onAbort = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", onAbort);
      resolve();
    }, milliseconds);
    signal?.addEventListener("abort", onAbort, { once: true });
  });
}

async function refusalOf(response: Response): Promise<RequestFailed> {
  const text = await response.text().catch(() => "");
  let fields: ErrorFields = { message: text.slice(0, 500) || `HTTP ${response.status}` };
  try {
    const { error } = JSON.parse(text) as { error?: ErrorFields };
    if (typeof error?.message === "string") fields = error;
  } catch {
    // a proxy's page, say: its beginning is the message
  }
  const id = response.headers.get("x-request-id") ?? undefined;
  return new RequestFailed(response.status, fields, id);
}

function retryAfterMs(headers: Headers): number | undefined {
  const milliseconds = Number.parseFloat(headers.get("retry-after-ms") ?? "");
  if (Number.isFinite(milliseconds)) return milliseconds;
  const seconds = Number.parseFloat(headers.get("retry-after") ?? "");
  return Number.isFinite(seconds) ? 1000 * seconds : undefined;
}
