/** A transport for `useChat` of the AI SDK, by which a chat survives the reload of its page. */

import type { ChatTransport, UIMessage, UIMessageChunk } from "ai";
import { type ChatMessage, type ChatRequest, Rose } from "./client.js";
import { RequestFailed } from "./errors.js";
import type { GatewayOptions } from "./gateways.js";
import type { ChatChunk, FinishReason, Job } from "./job.js";

/** Where a page keeps which job answers which chat, such as `localStorage`. */
export interface JobStore {
  getItem(key: string): string | null;
  setItem(key: string, value: string): void;
  removeItem(key: string): void;
}

export interface RoseChatTransportOptions extends GatewayOptions {
  model: string;
  /** Further parameters of each request. */
  parameters?: Omit<ChatRequest, "model" | "messages">;
  /** `localStorage` by default. */
  store?: JobStore;
}

type SendOptions<M extends UIMessage> = Parameters<ChatTransport<M>["sendMessages"]>[0];
type ReconnectOptions<M extends UIMessage> = Parameters<ChatTransport<M>["reconnectToStream"]>[0];

/**
 * `useChat({ id, resume: true, transport: new RoseChatTransport({ model, baseURL }) })`
 *
 * The page talks to a gateway itself. Each answer is a job: when the page comes back it follows the
 * job from its beginning. `stop()` cancels the job, closing the page does not.
 */
export class RoseChatTransport<M extends UIMessage = UIMessage> implements ChatTransport<M> {
  readonly resumeStreamIsReplay = true;
  readonly #client: Rose;
  readonly #options: RoseChatTransportOptions;

  constructor(options: RoseChatTransportOptions) {
    this.#client = new Rose(options);
    this.#options = options;
  }

  sendMessages = async (options: SendOptions<M>): Promise<ReadableStream<UIMessageChunk>> => {
    const { model, parameters } = this.#options;
    const job = await this.#client.submit(
      { ...parameters, ...options.body, model, messages: chatMessages(options.messages) },
      { signal: options.abortSignal },
    );
    this.#store.setItem(storeKey(options.chatId), job.id);
    return this.#follow(job, options.chatId, options.abortSignal);
  };

  reconnectToStream = async (
    options: ReconnectOptions<M>,
  ): Promise<ReadableStream<UIMessageChunk> | null> => {
    const id = this.#store.getItem(storeKey(options.chatId));
    if (id === null) return null;
    const job = this.#client.job(id);
    try {
      await job.status({ signal: options.abortSignal });
    } catch (error) {
      if (!(error instanceof RequestFailed) || error.status !== 404) throw error;
      this.#store.removeItem(storeKey(options.chatId)); // it has expired
      return null;
    }
    return this.#follow(job, options.chatId, options.abortSignal);
  };

  get #store(): JobStore {
    return this.#options.store ?? localStorage;
  }

  #follow(
    job: Job,
    chatId: string,
    signal: AbortSignal | undefined,
  ): ReadableStream<UIMessageChunk> {
    const forget = () => {
      if (this.#store.getItem(storeKey(chatId)) === job.id) {
        this.#store.removeItem(storeKey(chatId));
      }
    };
    const chunks = uiChunks(job, signal, forget);
    return new ReadableStream<UIMessageChunk>({
      async pull(controller) {
        const { done, value } = await chunks.next();
        if (done) controller.close();
        else controller.enqueue(value);
      },
      async cancel() {
        await chunks.return();
      },
    });
  }
}

function storeKey(chatId: string): string {
  return `roseinfer:job:${chatId}`;
}

/** `ended` is called when the job has, and its events have all been taken. */
async function* uiChunks(
  job: Job,
  signal: AbortSignal | undefined,
  ended: () => void,
): AsyncGenerator<UIMessageChunk, void, undefined> {
  const parts = new Parts();
  yield { type: "start", messageId: `msg-${job.id}` };
  yield { type: "start-step" };
  try {
    for await (const { data } of job.events({ signal })) yield* parts.push(data);
  } catch (error) {
    if (signal?.aborted) {
      ended();
      await job.cancel();
      yield { type: "abort" };
      return;
    }
    ended();
    yield { type: "error", errorText: error instanceof Error ? error.message : String(error) };
    return;
  }
  yield* parts.finish();
  yield { type: "finish-step" };
  yield { type: "finish", finishReason: parts.finishReason };
  ended();
}

const REASONS = {
  stop: "stop",
  length: "length",
  tool_calls: "tool-calls",
  content_filter: "content-filter",
} as const satisfies Record<FinishReason, string>;

interface OpenCall {
  id: string;
  name: string;
  arguments: string;
}

/** The parts of a message as its chunks bring them: thoughts, texts and calls, one after another. */
class Parts {
  #open: { kind: "text" | "reasoning"; id: string } | undefined;
  #calls: OpenCall[] = [];
  #count = 0;
  #reason: FinishReason | null = null;

  get finishReason(): (typeof REASONS)[FinishReason] {
    return REASONS[this.#reason ?? "stop"];
  }

  *push(chunk: ChatChunk): Generator<UIMessageChunk> {
    for (const { index, delta, finish_reason } of chunk.choices) {
      if (index !== 0) continue;
      this.#reason = finish_reason ?? this.#reason;
      if (delta.reasoning_content) yield* this.#write("reasoning", delta.reasoning_content);
      if (delta.content) yield* this.#write("text", delta.content);
      for (const { index: number, id, function: called } of delta.tool_calls ?? []) {
        yield* this.#close();
        const known = this.#calls[number];
        const call = known ?? { id: id ?? `call-${number}`, name: called?.name ?? "", arguments: "" };
        if (!known) {
          this.#calls[number] = call;
          yield { type: "tool-input-start", toolCallId: call.id, toolName: call.name };
        }
        const written = called?.arguments ?? "";
        if (written) {
          call.arguments += written;
          yield { type: "tool-input-delta", toolCallId: call.id, inputTextDelta: written };
        }
      }
    }
  }

  *finish(): Generator<UIMessageChunk> {
    yield* this.#close();
    for (const { id: toolCallId, name: toolName, arguments: text } of this.#calls) {
      try {
        yield { type: "tool-input-available", toolCallId, toolName, input: JSON.parse(text || "{}") };
      } catch {
        const errorText = "the answer ended before the call was whole";
        yield { type: "tool-input-error", toolCallId, toolName, input: text, errorText };
      }
    }
  }

  *#write(kind: "text" | "reasoning", delta: string): Generator<UIMessageChunk> {
    if (this.#open?.kind !== kind) {
      yield* this.#close();
      this.#open = { kind, id: `${kind}-${this.#count++}` };
      yield { type: `${kind}-start`, id: this.#open.id };
    }
    yield { type: `${kind}-delta`, id: this.#open.id, delta };
  }

  *#close(): Generator<UIMessageChunk> {
    if (this.#open) yield { type: `${this.#open.kind}-end`, id: this.#open.id };
    this.#open = undefined;
  }
}

/** The messages of a conversation, as the gateway takes them. */
export function chatMessages(messages: readonly UIMessage[]): ChatMessage[] {
  return messages.flatMap((message) =>
    message.role === "assistant" ? assistantMessages(message) : [{ role: message.role, content: textOf(message) }],
  );
}

function textOf(message: UIMessage): string {
  return message.parts
    .map((part) => {
      if (part.type === "text") return part.text;
      if (part.type === "file") {
        throw new TypeError(`a file of the type ${part.mediaType} cannot be sent: models read text`);
      }
      return "";
    })
    .join("");
}

/** A step of the model is a message, and the results of its tools are messages behind it. */
function assistantMessages(message: UIMessage): ChatMessage[] {
  const written: ChatMessage[] = [];
  let step: ChatMessage = { role: "assistant" };
  let results: ChatMessage[] = [];
  const close = () => {
    if (step.content || step.tool_calls || step.reasoning_content) {
      written.push({ content: "", ...step }, ...results);
    }
    step = { role: "assistant" };
    results = [];
  };
  for (const part of message.parts) {
    if (part.type === "step-start") close();
    else if (part.type === "text") step.content = (step.content ?? "") + part.text;
    else if (part.type === "reasoning") {
      step.reasoning_content = (step.reasoning_content ?? "") + part.text;
    } else if (part.type === "dynamic-tool" || part.type.startsWith("tool-")) {
      const call = part as ToolPart;
      const name = call.toolName ?? call.type.slice("tool-".length);
      const text = JSON.stringify(call.input ?? {});
      (step.tool_calls ??= []).push({
        id: call.toolCallId,
        type: "function",
        function: { name, arguments: text },
      });
      const content = resultOf(call);
      if (content !== undefined) {
        results.push({ role: "tool", tool_call_id: call.toolCallId, content });
      }
    }
  }
  close();
  return written;
}

interface ToolPart {
  type: string;
  toolName?: string;
  toolCallId: string;
  state: string;
  input?: unknown;
  output?: unknown;
  errorText?: string;
}

function resultOf(call: ToolPart): string | undefined {
  if (call.state === "output-error") return `Error: ${call.errorText ?? "the tool has failed"}`;
  if (call.state !== "output-available") return undefined;
  return typeof call.output === "string" ? call.output : JSON.stringify(call.output);
}
