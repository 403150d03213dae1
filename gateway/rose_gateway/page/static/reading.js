// What the events of each kind of job mean to the page: text, a thought, a call, a status, an end.

const ENDS = new Set(["response.completed", "response.incomplete", "response.failed"]);

/**
 * Of one event's data: { text?, thought?, call?: { key, id, name?, more?, all? }, status?, ended?,
 * usage?, error?, broken?, done? }.
 */
export function meaning(data) {
  if (data === "[DONE]") return { done: true };
  const event = JSON.parse(data);
  if (typeof event.type === "string" && event.type.startsWith("response.")) return ofResponse(event);
  if (event.type === "error") return { broken: event.message };
  if (event.error) return { ended: "failed", error: event.error.message };
  if (Array.isArray(event.choices)) return ofChoices(event);
  return ofJob(event) ?? ofMessage(event);
}

function ofResponse(event) {
  const { type, item, delta, output_index: key, response } = event;
  if (type === "response.output_text.delta") return { text: delta };
  if (type === "response.reasoning_text.delta") return { thought: delta };
  if (type === "response.output_item.added" && item.type === "function_call") return { call: { key, id: item.call_id, name: item.name } };
  if (type === "response.function_call_arguments.delta") return { call: { key, more: delta } };
  if (type === "response.output_item.done" && item.type.endsWith("_call")) {
    const all = item.arguments ?? item.input ?? JSON.stringify(item.action ?? item.operation ?? {});
    return { call: { key, id: item.call_id, name: item.name || item.type, all } };
  }
  if (ENDS.has(type)) {
    const { usage } = response;
    return {
      ended: response.status,
      error: response.error?.message,
      usage: usage && { prompt: usage.input_tokens, answer: usage.output_tokens },
    };
  }
  return { status: response?.status };
}

/** Chat completions and completions; of several answers the first one. */
function ofChoices({ choices, usage }) {
  const choice = choices.find((one) => one.index === 0);
  const counted = usage ? { usage: { prompt: usage.prompt_tokens, answer: usage.completion_tokens } } : {};
  if (!choice) return counted;
  const delta = choice.delta ?? {};
  const [call] = delta.tool_calls ?? [];
  const change = { ...counted, text: choice.text ?? delta.content ?? "", thought: delta.reasoning_content ?? "" };
  if (call) change.call = { key: call.index, id: call.id, name: call.function?.name, more: call.function?.arguments };
  if (choice.finish_reason) change.ended = choice.finish_reason === "length" ? "incomplete" : "completed";
  return change;
}

/** Of Anthropic's endpoint. */
function ofMessage({ type, index, content_block: block, delta = {} }) {
  if (type === "content_block_start" && block.type === "tool_use") return { call: { key: index, id: block.id, name: block.name } };
  if (type === "content_block_delta") {
    if (delta.partial_json !== undefined) return { call: { key: index, more: delta.partial_json } };
    return { text: delta.text ?? "", thought: delta.thinking ?? "" };
  }
  if (type === "message_delta" && delta.stop_reason) return { ended: delta.stop_reason === "max_tokens" ? "incomplete" : "completed" };
  return {};
}

/** Of a job that did not come through this server. */
function ofJob(event) {
  if (event.type === "tokens") return { text: event.text };
  if (event.type === "finished") return { ended: event.reason === "length" ? "incomplete" : "completed" };
  if (event.type === "cancelled") return { ended: "cancelled" };
  if (event.type === "failed") return { ended: "failed", error: event.message };
  return null;
}
