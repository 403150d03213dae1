// How answers are sampled: a form, remembered by this browser, and the fields of a request from it.

import { $ } from "./dom.js";

const NAME = "rose-settings";
const FIELDS = () => [...$("settings-form").querySelectorAll("input, select, textarea")].filter((one) => one.id !== "system");
const nameOf = (field) => field.dataset.parameter ?? field.id;

let initial;

/** `changed()`: after each change, of the system prompt too. */
export function beginSettings(changed) {
  initial = Object.fromEntries(FIELDS().map((field) => [nameOf(field), field.value]));
  fill({ ...initial, ...JSON.parse(localStorage.getItem(NAME) ?? "{}") });
  $("tools").addEventListener("input", checkTools);
  checkTools();
  $("settings-form").addEventListener("change", () => {
    keep();
    changed();
  });
  $("settings-form").addEventListener("submit", (event) => {
    if (!valid()) event.preventDefault();
  });
  $("defaults").addEventListener("click", () => {
    fill(initial);
    checkTools();
    keep();
    changed();
  });
  $("open-settings").addEventListener("click", () => $("settings").showModal());
}

function fill(values) {
  for (const field of FIELDS()) field.value = values[nameOf(field)] ?? "";
}

function keep() {
  const values = FIELDS().filter((field) => field.validity.valid).map((field) => [nameOf(field), field.value]);
  localStorage.setItem(NAME, JSON.stringify(Object.fromEntries(values)));
  localStorage.setItem("rose-system", $("system").value);
}

/** What a new conversation begins with. */
export const keptSystem = () => localStorage.getItem("rose-system") ?? "";

/** Otherwise the form is open, at what is wrong with it. */
export function valid() {
  const form = $("settings-form");
  if (form.checkValidity()) return true;
  if (!$("settings").open) $("settings").showModal();
  form.reportValidity();
  return false;
}

function checkTools() {
  const field = $("tools");
  let wrong = "";
  try {
    const tools = field.value.trim() ? JSON.parse(field.value) : [];
    if (!Array.isArray(tools) || tools.some((tool) => typeof tool?.name !== "string")) wrong = "a list of objects, each with a name";
  } catch (error) {
    wrong = error.message;
  }
  field.setCustomValidity(wrong);
}

/** Fields of a request. `chat`: of one to a model with a chat template. */
export function parameters(chat) {
  const numbers = [...$("settings-form").querySelectorAll("[data-parameter]")].filter((field) => field.value !== "");
  const fields = Object.fromEntries(numbers.map((field) => [field.dataset.parameter, field.valueAsNumber]));
  const stop = $("stops").value.split("\n").filter((line) => line !== "");
  if (stop.length > 0) fields.stop = stop;
  if (!chat) {
    const { max_output_tokens: max_tokens, ...others } = fields;
    return max_tokens === undefined ? others : { ...others, max_tokens };
  }
  if ($("effort").value) fields.reasoning_effort = $("effort").value;
  const tools = $("tools").value.trim() ? JSON.parse($("tools").value) : [];
  if (tools.length > 0) fields.tools = tools.map((tool) => ({ type: "function", ...tool }));
  return fields;
}

/** The colours: as the system has them, or chosen. */
export function beginTheme() {
  const chosen = $("theme");
  chosen.value = document.documentElement.dataset.theme;
  chosen.addEventListener("change", () => {
    document.documentElement.dataset.theme = chosen.value;
    localStorage.setItem("rose-theme", chosen.value);
  });
}
