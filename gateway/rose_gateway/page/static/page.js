// The page: what its controls do, and which conversation it shows. The address names the job, so a
// reload and another tab find it again.

import { Answer } from "./answer.js";
import { ApiError, ask, askJson, newIdempotencyKey, savedKey, saveKey } from "./api.js";
import { $, make, notify } from "./dom.js";
import { killWorker, watch } from "./gauges.js";
import { refresh, select, showMore } from "./history.js";

/** A hidden tab gives its connection back after this. */
const HIDDEN_MS = 20000;
const REPEATS = 4;
const ENDPOINTS = { chat: "response", prompt: "completion" };

let models = [];
let answer = null;
let hiddenTimer;

const model = () => models.find((one) => one.id === $("model").value);
const mode = () => document.querySelector("input[name=mode]:checked").value;

// Errors, and the key

function failed(error) {
  if (error instanceof ApiError && error.status === 401) {
    if (error.key === savedKey()) askForKey(error); // else it was about the key before
  } else notify(error instanceof ApiError ? error.message : "The server does not answer.", "error");
}

function askForKey(error) {
  const dialog = $("key-dialog");
  if (dialog.open) return;
  // Without a key nothing is wrong yet.
  $("key-error").textContent = error && savedKey() ? error.message : "";
  $("secret").value = "";
  dialog.showModal();
  $("secret").focus();
}

function useKey(event) {
  event.preventDefault();
  saveKey($("secret").value.trim(), $("keep").checked);
  $("key-dialog").close();
  notify("");
  begin();
}

// Models

async function readModels() {
  models = (await askJson("models")).data;
  const chosen = $("model").value;
  $("model").replaceChildren(...models.map((one) => make("option", { value: one.id, textContent: one.id })));
  if (models.some((one) => one.id === chosen)) $("model").value = chosen;
  if (models.length === 0) notify("No worker has announced a model yet: start one with rose worker.");
  fitMode();
}

/** A model without a chat template can only go on with a text. */
function fitMode() {
  const [chat, prompt] = document.querySelectorAll("input[name=mode]");
  chat.disabled = model()?.chat === false;
  if (chat.disabled) prompt.checked = true;
  $("input").placeholder = mode() === "chat" ? "Ask something" : "Once upon a time";
}

// Asking

async function send(event) {
  event?.preventDefault();
  const text = $("input").value;
  if (!text.trim() || !model() || answer?.running) return;
  $("send").disabled = true;
  notify("");
  try {
    const job = await submitted(text);
    $("input").value = "";
    if (job.endpoint === "completion" || answer?.job.endpoint !== "response") $("turns").replaceChildren();
    show(question(text));
    follow(job);
    history.pushState(null, "", `#${job.id}`);
    listAgain();
  } catch (error) {
    failed(error);
  } finally {
    $("send").disabled = false;
  }
}

/** What the next message belongs to: the conversation that is shown. */
async function conversation(text) {
  if (answer?.job.endpoint !== "response") return { input: text };
  const previous = `resp_${answer.job.id}`;
  if (["completed", "incomplete"].includes(answer.status)) return { input: text, previous_response_id: previous };
  // One that was stopped or failed is no answer to go on from, but what was said stands.
  const said = (await inputOf(answer.job.id)).filter((item) => item.type === "message");
  const input = said.map((item) => ({ role: item.role, content: textOf(item) }));
  if (answer.text) input.push({ role: "assistant", content: answer.text });
  return { input: [...input, { role: "user", content: text }] };
}

async function submitted(text) {
  const endpoint = ENDPOINTS[mode()];
  const length = Number($("length").value) || 400;
  const temperature = Number($("temperature").value);
  const shared = { model: model().id, temperature };
  const headers = { "idempotency-key": newIdempotencyKey() };
  if (endpoint === "response") {
    const limit = { background: true, max_output_tokens: Math.max(16, length) };
    const body = { ...shared, ...limit, ...(await conversation(text)) };
    const answered = await insisted("responses", body, headers);
    await answered.body.cancel();
    return { id: answered.headers.get("x-rose-job-id"), endpoint };
  }
  const body = { ...shared, prompt: text, max_tokens: length, stream: true };
  const answered = await insisted("completions", body, { ...headers, "x-rose-on-disconnect": "continue" });
  await answered.body.cancel(); // it is followed as any other job
  return { id: answered.headers.get("x-rose-job-id"), endpoint };
}

/** A reply that was lost is asked for again: by its key the job is there once. */
async function insisted(path, body, headers) {
  for (let failures = 0; ; failures++) {
    try {
      return await ask(path, { method: "POST", body, headers });
    } catch (error) {
      const passing = !(error instanceof ApiError) || error.status === 503;
      if (!passing || failures >= REPEATS) throw error;
      await new Promise((resolve) => setTimeout(resolve, 250 * 2 ** failures));
    }
  }
}

async function stop() {
  if (!answer?.running) return;
  try {
    await ask(`jobs/${answer.job.id}/cancel`, { method: "POST" });
  } catch (error) {
    failed(error);
  }
}

// Showing

function question(text) {
  return make("article", { className: "question", textContent: text, attributes: { "aria-label": "You" } });
}

/** Keeps the end in sight, unless the reader has scrolled back. */
function show(element) {
  $("turns").append(element);
  $("turns").scrollTop = $("turns").scrollHeight;
}

function follow(job) {
  answer?.stop();
  const current = new Answer(job, () => {
    fitButtons();
    listAgain();
  });
  answer = current;
  show(current.element);
  fitButtons();
  select(job.id);
  current.run().then(fitButtons);
}

function fitButtons() {
  const running = answer?.running ?? false;
  $("stop").hidden = !running;
  $("send").hidden = running;
  document.title = running ? "… roseinfer" : "roseinfer";
}

/** The job that the address names. */
async function open() {
  const id = decodeURIComponent(location.hash.slice(1));
  if (!id || id === "input") return empty();
  if (answer?.job.id === id) return undefined;
  notify("");
  try {
    const job = await askJson(`jobs/${encodeURIComponent(id)}`);
    const input = job.endpoint === "response" ? await inputOf(job.id) : [];
    if (decodeURIComponent(location.hash.slice(1)) !== id) return undefined; // the reader has gone on
    $("turns").replaceChildren(...input.map(turn));
    follow({ id: job.id, endpoint: job.endpoint });
  } catch (error) {
    empty();
    if (error.status === 404) notify("That answer is not kept any more, or belongs to another key.", "error");
    else failed(error);
  }
  return undefined;
}

/** All items that a response was given, the oldest first. */
async function inputOf(id) {
  const items = [];
  let after = "";
  for (let more = true; more; ) {
    const page = await askJson(`responses/resp_${id}/input_items?order=asc&limit=100${after}`);
    items.push(...page.data);
    more = page.has_more;
    after = `&after=${page.last_id}`;
  }
  return items;
}

const textOf = (item) => (item.content ?? []).map((part) => part.text ?? "").join("\n");

function turn(item) {
  const text = textOf(item);
  if (item.type === "message" && item.role === "user") return question(text);
  const body = make("div", { className: "text", textContent: text || item.output || `${item.name} ${item.arguments}` });
  return make("article", { className: "answer earlier", attributes: { "aria-label": item.role ?? item.type } }, body);
}

function empty() {
  answer?.stop();
  answer = null;
  $("turns").replaceChildren();
  fitButtons();
  select("");
}

function newConversation() {
  history.pushState(null, "", location.pathname);
  empty();
  showHistory(false);
  $("input").focus();
}

function listAgain() {
  refresh(answer?.job.id).catch(failed);
}

function showHistory(shown) {
  $("history").classList.toggle("open", shown);
  $("show-history").setAttribute("aria-expanded", String(shown));
}

// Life

async function begin() {
  try {
    await readModels();
  } catch (error) {
    failed(error);
    return;
  }
  listAgain();
  await open();
}

function onVisibility() {
  clearTimeout(hiddenTimer);
  if (document.hidden) {
    hiddenTimer = setTimeout(() => answer?.running && answer.follower.pause(), HIDDEN_MS);
  } else {
    answer?.follower.resume();
    if (models.length > 0) listAgain();
  }
}

function onKey(event) {
  if (event.key === "Escape" && !$("key-dialog").open) stop();
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target === $("input")) send(event);
}

function keepEndInSight() {
  const turns = $("turns");
  let atEnd = true;
  turns.addEventListener("scroll", () => {
    atEnd = turns.scrollHeight - turns.scrollTop - turns.clientHeight < 48;
  });
  const grown = new MutationObserver(() => {
    if (atEnd) turns.scrollTop = turns.scrollHeight;
  });
  grown.observe(turns, { childList: true, subtree: true, characterData: true });
}

$("composer").addEventListener("submit", send);
$("stop").addEventListener("click", stop);
$("new").addEventListener("click", newConversation);
$("kill").addEventListener("click", killWorker);
$("key").addEventListener("click", () => askForKey());
$("key-form").addEventListener("submit", useKey);
$("key-cancel").addEventListener("click", () => $("key-dialog").close());
// The focus that a browser gives back has no caret where the page opened the dialog at once.
$("key-dialog").addEventListener("close", () => {
  $("input").blur();
  $("input").focus();
});
$("model").addEventListener("change", fitMode);
for (const radio of document.querySelectorAll("input[name=mode]")) radio.addEventListener("change", fitMode);
$("more").addEventListener("click", () => {
  showMore();
  listAgain();
});
$("show-history").addEventListener("click", () => showHistory(!$("history").classList.contains("open")));
$("jobs").addEventListener("click", () => showHistory(false));
$("skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("input").focus();
});
document.addEventListener("keydown", onKey);
document.addEventListener("visibilitychange", onVisibility);
window.addEventListener("popstate", open); // a changed hash is one, too
keepEndInSight();
watch(model, (error) => {
  if (error instanceof ApiError && error.status === 401) failed(error);
});
begin();
