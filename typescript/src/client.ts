import { Gateways, type GatewayOptions } from "./gateways.js";
import { type ChatChunk, Job } from "./job.js";

export interface ChatMessage {
  role: "system" | "developer" | "user" | "assistant" | "tool";
  content?: string | null;
  reasoning_content?: string;
  tool_calls?: {
    id: string;
    type: "function";
    function: { name: string; arguments: string };
  }[];
  tool_call_id?: string;
  name?: string;
}

export interface Tool {
  type: "function";
  function: {
    name: string;
    description?: string;
    parameters?: Record<string, unknown>;
    strict?: boolean;
  };
}

/** A chat completion, as `POST /v1/chat/completions` takes it; the gateway's pages list all fields. */
export interface ChatRequest {
  model: string;
  messages: readonly ChatMessage[];
  max_completion_tokens?: number;
  temperature?: number;
  top_p?: number;
  top_k?: number;
  min_p?: number;
  seed?: number;
  stop?: string | readonly string[];
  presence_penalty?: number;
  frequency_penalty?: number;
  response_format?: Record<string, unknown>;
  tools?: readonly Tool[];
  tool_choice?: "none" | "auto" | "required" | { type: "function"; function: { name: string } };
  parallel_tool_calls?: boolean;
  reasoning_effort?: string;
  service_tier?: "auto" | "default" | "flex" | "scale" | "priority" | "fast";
  deadline_s?: number;
  metadata?: Record<string, string>;
  [parameter: string]: unknown;
}

export interface SubmitOptions {
  /** The same one with the same request names the same job, however often it is submitted. */
  idempotencyKey?: string;
  signal?: AbortSignal | undefined;
}

/** A client of the gateways of one deployment. It holds no connection open by itself. */
export class Rose {
  readonly #gateways: Gateways;
  readonly #patienceMs: number;

  constructor(options: GatewayOptions = {}) {
    this.#gateways = new Gateways(options);
    this.#patienceMs = options.patienceMs ?? 60_000;
  }

  /**
   * Put a chat into the queue. The job exists when this returns, once, however often the request
   * had to be repeated; it goes on without this client.
   *
   * @throws RequestFailed the request is wrong, or a limit is reached
   * @throws GatewayUnreachable no gateway has answered in time
   */
  async submit(request: ChatRequest, options: SubmitOptions = {}): Promise<Job> {
    const response = await this.#gateways.call("/v1/chat/completions", {
      method: "POST",
      headers: { "idempotency-key": options.idempotencyKey ?? randomKey() },
      body: { stream_options: { include_usage: true }, ...request, stream: true },
      signal: options.signal,
    });
    // Who follows the job, and when, is not known here.
    await response.body?.cancel();
    const id = response.headers.get("x-rose-job-id");
    if (!id) throw new TypeError("the answer names no job: is this a gateway of roseinfer?");
    return this.job(id);
  }

  /** A job that exists, of any endpoint and any client that the key may see. */
  job<Data = ChatChunk>(id: string): Job<Data> {
    return new Job<Data>(this.#gateways, id, this.#patienceMs);
  }

  /** The names of the models that the key may use. */
  async models(): Promise<string[]> {
    const response = await this.#gateways.call("/v1/models");
    const { data } = (await response.json()) as { data: { id: string }[] };
    return data.map(({ id }) => id);
  }
}

/** Pages that came without TLS have no `crypto.randomUUID`. */
function randomKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
