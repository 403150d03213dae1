import { type ErrorFields, GatewayUnreachable, JobFailed } from "./errors.js";
import { type Gateways, Pauses } from "./gateways.js";
import { readEvents } from "./server-sent-events.js";

/** A piece of a chat completion, as OpenAI's API streams it. */
export interface ChatChunk {
  id: string;
  model: string;
  created: number;
  choices: ChunkChoice[];
  usage?: Usage | null;
}

export interface ChunkChoice {
  index: number;
  delta: {
    role?: string;
    content?: string | null;
    reasoning_content?: string | null;
    tool_calls?: ToolCallDelta[];
  };
  finish_reason: FinishReason | null;
}

export interface ToolCallDelta {
  index: number;
  id?: string;
  function?: { name?: string; arguments?: string };
}

export type FinishReason = "stop" | "length" | "tool_calls" | "content_filter";

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
}

/** A whole answer. */
export interface Answer {
  text: string;
  thoughts: string;
  toolCalls: ToolCall[];
  finishReason: FinishReason | null;
  usage: Usage | null;
}

export interface ToolCall {
  id: string;
  name: string;
  /** JSON */
  arguments: string;
}

/** How a job stands; times are Unix seconds. */
export interface JobStatus {
  id: string;
  model: string | null;
  created_at: number | null;
  started_at: number | null;
  ended_at: number | null;
  choices: {
    job_id: string;
    status: "queued" | "running" | "finished" | "failed" | "cancelled";
    tokens: number;
    workers: { worker: string; from_token: number }[];
  }[];
}

/** An event of a job's stream. */
export interface JobEvent<Data = ChatChunk> {
  /** Give it to `events({ after })` to go on behind this event, in this process or another. */
  id: string;
  data: Data;
}

const DONE = "[DONE]";
/** The last events of streams that have no `[DONE]`. */
const LAST = new Set(["message_stop", "finished", "failed", "cancelled"]);

/**
 * A prompt in the queue. It goes on whoever listens. Any number may follow it, at any time, from
 * the beginning or from any event; each gets every event once and in order, though gateways and
 * workers die meanwhile.
 */
export class Job<Data = ChatChunk> implements AsyncIterable<Data> {
  readonly #gateways: Gateways;
  readonly #patienceMs: number;

  constructor(
    gateways: Gateways,
    /** Any client finds the job by it. */
    readonly id: string,
    patienceMs: number,
  ) {
    this.#gateways = gateways;
    this.#patienceMs = patienceMs;
  }

  /** The data of all events, from the beginning. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Data, void, undefined> {
    for await (const event of this.events()) yield event.data;
  }

  /**
   * The events behind `after`, and then those that are still to come.
   *
   * @throws JobFailed the job has failed, or was cancelled
   * @throws RequestFailed there is no such job, or not for this key
   * @throws GatewayUnreachable no gateway has answered in time; the job goes on
   */
  async *events(
    options: { after?: string | undefined; signal?: AbortSignal | undefined } = {},
  ): AsyncGenerator<JobEvent<Data>, void, undefined> {
    const { signal } = options;
    let last = options.after;
    let pauses = new Pauses(this.#patienceMs);
    for (;;) {
      const headers: Record<string, string> = last === undefined ? {} : { "last-event-id": last };
      const response = await this.#gateways.call(this.#path("/events"), { headers, signal });
      if (response.status === 204 || response.body === null) return;
      let broken: unknown = new Error("the stream ended before the job");
      try {
        for await (const { id, data } of readEvents(response.body)) {
          if (data === DONE) return;
          const parsed = JSON.parse(data) as Data & { type?: string; error?: ErrorFields | null };
          if (parsed.error && parsed.type !== "failed") {
            await this.#throwIfEnded(parsed.error, signal);
            broken = new Error(parsed.error.message); // only this reading has failed
            break;
          }
          last = id || last;
          pauses = new Pauses(this.#patienceMs);
          yield { id, data: parsed };
          if (LAST.has(parsed.type ?? "")) return;
        }
      } catch (error) {
        if (!isBroken(error)) throw error;
        signal?.throwIfAborted();
        broken = error;
      }
      if (!(await pauses.next(0, signal))) {
        throw new GatewayUnreachable(`the stream of job ${this.id} breaks off again and again`, {
          cause: broken,
        });
      }
    }
  }

  /** Wait for the end. Of several choices it is the first. */
  async answer(this: Job, options: { signal?: AbortSignal } = {}): Promise<Answer> {
    const answer: Answer = {
      text: "",
      thoughts: "",
      toolCalls: [],
      finishReason: null,
      usage: null,
    };
    for await (const { data } of this.events(options)) {
      answer.usage = data.usage ?? answer.usage;
      for (const choice of data.choices) {
        if (choice.index !== 0) continue;
        answer.text += choice.delta.content ?? "";
        answer.thoughts += choice.delta.reasoning_content ?? "";
        answer.finishReason = choice.finish_reason ?? answer.finishReason;
        for (const delta of choice.delta.tool_calls ?? []) {
          const call = (answer.toolCalls[delta.index] ??= { id: "", name: "", arguments: "" });
          call.id += delta.id ?? "";
          call.name += delta.function?.name ?? "";
          call.arguments += delta.function?.arguments ?? "";
        }
      }
    }
    return answer;
  }

  async status(options: { signal?: AbortSignal | undefined } = {}): Promise<JobStatus> {
    const response = await this.#gateways.call(this.#path(), options);
    return (await response.json()) as JobStatus;
  }

  /** End it: at once if it waits, within a step if it runs. One that has ended stays as it is. */
  async cancel(): Promise<JobStatus> {
    const response = await this.#gateways.call(this.#path("/cancel"), { method: "POST" });
    return (await response.json()) as JobStatus;
  }

  #path(rest = ""): string {
    return `/v1/jobs/${encodeURIComponent(this.id)}${rest}`;
  }

  async #throwIfEnded(error: ErrorFields, signal: AbortSignal | undefined): Promise<void> {
    const { choices } = await this.status({ signal });
    const failed = choices.some(({ status }) => status === "failed" || status === "cancelled");
    if (failed) throw new JobFailed(this.id, error);
  }
}

/** Whether the connection is to blame, and not who reads, or what came. */
function isBroken(error: unknown): boolean {
  // fetch: TypeError where a body breaks off, in browsers a DOMException too.
  return error instanceof TypeError || (error as Error | null)?.name === "NetworkError";
}
