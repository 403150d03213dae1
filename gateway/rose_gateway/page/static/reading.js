// What the events of each kind of job mean to the page: text, a status, an end.

const ENDS = new Set(["response.completed", "response.incomplete", "response.failed"]);

/** Of one event's data: { text?, status?, ended?, error?, broken? }. */
export function meaning(data) {
  if (data === "[DONE]") return { done: true };
  const event = JSON.parse(data);
  if (typeof event.type === "string" && event.type.startsWith("response.")) return ofResponse(event);
  if (event.type === "error") return { broken: event.message };
  if (event.error) return { ended: "failed", error: event.error.message };
  if (Array.isArray(event.choices)) return ofChoices(event.choices);
  return ofJob(event);
}

function ofResponse(event) {
  if (event.type === "response.output_text.delta") return { text: event.delta };
  if (event.type === "response.output_item.added" && event.item.type === "function_call") {
    return { text: `${event.item.name} ` };
  }
  if (event.type === "response.function_call_arguments.delta") return { text: event.delta };
  if (ENDS.has(event.type)) {
    return { ended: event.response.status, error: event.response.error?.message };
  }
  return { status: event.response?.status };
}

/** Chat completions and completions; of several answers the first one. */
function ofChoices(choices) {
  const choice = choices.find((one) => one.index === 0);
  if (!choice) return {};
  const text = choice.text ?? choice.delta?.content ?? "";
  if (!choice.finish_reason) return { text };
  return { text, ended: choice.finish_reason === "length" ? "incomplete" : "completed" };
}

/** Of a job that did not come through this server. */
function ofJob(event) {
  if (event.type === "tokens") return { text: event.text };
  if (event.type === "finished") return { ended: event.reason === "length" ? "incomplete" : "completed" };
  if (event.type === "cancelled") return { ended: "cancelled" };
  return { ended: "failed", error: event.message };
}
