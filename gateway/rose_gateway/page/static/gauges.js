// How the queue stands: looked at once a second while somebody can see it.

import { ask, askJson } from "./api.js";
import { $, count, make, notify, say } from "./dom.js";

const LOOK_MS = 1000;
/** Rates are over this long, so that a number can be read before it changes. */
const WINDOW_S = 4;
const POINTS = 60;
/** A worker that lives is heard of every 5 s. */
const SILENT_S = 7;

const looks = [];
const rates = [];

/** Never ends. `refused(error)` is told of an answer that is none. */
export async function watch(model, refused) {
  for (;;) {
    if (!document.hidden) {
      try {
        show(await askJson("status"), model());
      } catch (error) {
        refused(error);
        blank();
      }
    }
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
  }
}

function show(status, model) {
  const queue = status.queues.find((one) => one.queue === model?.queue) ?? status.queues[0];
  $("kill").hidden = !status.demo;
  if (!queue) return blank();
  const rate = rateOf(queue);
  $("rate").textContent = Math.round(rate).toLocaleString("en");
  draw(rate);
  $("batch").textContent = `${queue.running} of ${queue.slots}`;
  $("occupancy").value = queue.slots > 0 ? Math.min(1, queue.running / queue.slots) : 0;
  const waiting = Object.values(queue.waiting).reduce((sum, jobs) => sum + Math.max(0, jobs), 0);
  $("waiting").textContent = waiting.toLocaleString("en");
  $("workers").replaceChildren(...chips(queue.workers));
}

function blank() {
  for (const id of ["rate", "batch", "waiting"]) $(id).textContent = "–";
  $("occupancy").value = 0;
  $("workers").replaceChildren();
  looks.length = 0;
}

function rateOf({ queue, generated_tokens: tokens, at }) {
  if (looks.length > 0 && (looks[0].queue !== queue || at < looks.at(-1).at)) looks.length = 0;
  looks.push({ queue, tokens, at });
  while (looks.length > 2 && looks[1].at <= at - WINDOW_S) looks.shift();
  const [first] = looks;
  return at > first.at ? Math.max(0, tokens - first.tokens) / (at - first.at) : 0;
}

function draw(rate) {
  rates.push(rate);
  if (rates.length > POINTS) rates.shift();
  const most = Math.max(...rates, 1);
  const points = rates.map((one, i) => {
    const x = (96 * (i + POINTS - rates.length)) / (POINTS - 1);
    return `${x.toFixed(1)},${(22.5 - (21 * one) / most).toFixed(1)}`;
  });
  $("spark").firstElementChild.setAttribute("points", points.join(" "));
}

/** One that is silent and holds nothing is over. */
function chips(all) {
  const workers = all.filter((worker) => worker.jobs > 0 || worker.silent_s <= SILENT_S);
  if (workers.length === 0) return [make("li", { className: "none", textContent: "no worker: requests wait" })];
  return workers.map((worker) => {
    const silent = worker.silent_s > SILENT_S;
    const state = silent ? `silent for ${Math.round(worker.silent_s)} s` : `${worker.jobs} of ${worker.slots ?? "?"}`;
    return make(
      "li",
      { className: silent ? "silent" : worker.jobs > 0 ? "busy" : "", title: `${worker.name}: ${count(worker.jobs, "job")}` },
      make("b", { textContent: worker.name }),
      ` ${state}`,
    );
  });
}

/** Only where this is a trial, which says so itself. */
export async function killWorker() {
  try {
    const { worker } = await (await ask("demo/kill-worker", { method: "POST", body: {} })).json();
    notify(`${worker} was killed with SIGKILL. Its answers wait for its lease to lapse, then they go on.`, "passing");
    say(`${worker} was killed.`);
  } catch (error) {
    notify(error.message, "error");
  }
}
