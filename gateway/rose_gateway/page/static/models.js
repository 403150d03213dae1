// The models that generate text, and the one that is chosen.

import { askJson } from "./api.js";
import { $, make, notify } from "./dom.js";

const NAME = "rose-model";
const NONE = "No worker has announced a model yet: start one with rose worker.";

let models = [];

export const model = () => models.find((one) => one.id === $("model").value);

/** Throws ApiError, TypeError */
export async function readModels() {
  models = (await askJson("models")).data.filter((one) => one.task === "generate");
  const chosen = $("model").value || localStorage.getItem(NAME);
  $("model").replaceChildren(...models.map((one) => make("option", { value: one.id, textContent: one.id })));
  choose(chosen);
  if (models.length === 0) notify(NONE, "passing");
}

/** If it is there. */
export function choose(id) {
  if (models.some((one) => one.id === id)) $("model").value = id;
}

export function rememberModel() {
  localStorage.setItem(NAME, $("model").value);
}

/** What it cannot be asked, as a sentence; "" where it can. */
export function unfit(isText) {
  if (!model()) return NONE;
  return model().chat || isText ? "" : `${model().id} has no chat template: it can only continue a text.`;
}
