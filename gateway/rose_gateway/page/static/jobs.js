// A job that another program or another browser has asked for, as a conversation.

import { all, askJson } from "./api.js";
import { Conversation } from "./conversation.js";
import { keyId } from "./keys.js";

const textOf = (item) => {
  const { content = [] } = item;
  return typeof content === "string" ? content : content.map((part) => part.text ?? "").join("\n");
};

/** Throws ApiError: it is not kept, or belongs to another key. */
export async function jobConversation(id) {
  const job = await askJson(`jobs/${encodeURIComponent(id)}`);
  const conversation = Conversation.begin(job.endpoint === "completion" ? "text" : "chat", keyId());
  const messages = [];
  const add = (role, fields) => messages.push(conversation.message(role, messages.at(-1), fields));
  if (job.endpoint === "response") {
    const response = await askJson(`responses/resp_${job.id}`);
    conversation.record.system = response.instructions ?? "";
    for (const item of await all(`responses/resp_${job.id}/input_items`)) addItem(item, messages, add, job.model, conversation);
  }
  // Where there is no text, its endpoint does not say what it was asked.
  if (messages.length === 0) add("user", { unknown: true });
  add("assistant", { model: job.model ?? "", job: job.id, endpoint: job.endpoint, status: "queued", thought: "", calls: [], marks: [] });
  await conversation.add(...messages);
  return conversation;
}

function addItem(item, messages, add, model, conversation) {
  if (item.type === "message" && item.role === "user") return add("user", { text: textOf(item) });
  if (item.type === "message" && item.role !== "assistant") {
    conversation.record.system = [conversation.record.system, textOf(item)].filter(Boolean).join("\n\n");
    return undefined;
  }
  if (item.type.endsWith("_output")) {
    if (messages.at(-1)?.role !== "tool") add("tool", { outputs: [] });
    const output = typeof item.output === "string" ? item.output : JSON.stringify(item.output);
    const name = callNamed(item.call_id, messages);
    return messages.at(-1).outputs.push({ call: item.call_id, name, output });
  }
  if (messages.at(-1)?.role !== "assistant") add("assistant", { model, job: null, status: "completed", thought: "", calls: [], marks: [] });
  const answer = messages.at(-1);
  if (item.type === "reasoning") answer.thought += textOf(item);
  else if (item.type === "message") answer.text += textOf(item);
  else if (item.type.endsWith("_call")) {
    const written = item.arguments ?? item.input ?? JSON.stringify(item.action ?? item.operation ?? {});
    answer.calls.push({ id: item.call_id, name: item.name || item.type, arguments: written });
  }
  return undefined;
}

function callNamed(id, messages) {
  return messages.flatMap((message) => message.calls ?? []).find((call) => call.id === id)?.name ?? "a call";
}
