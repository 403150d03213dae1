// The page: what its controls do, and what belongs together of its parts.

import { ApiError } from "./api.js";
import { Conversation } from "./conversation.js";
import { $, download, make, notify } from "./dom.js";
import { beginFiles, giveBack, takeFiles } from "./files.js";
import { killWorker, watch } from "./gauges.js";
import { forgetKey, keyId, knownKeys, rememberKey, useKey, usedKey } from "./keys.js";
import { model, readModels, rememberModel } from "./models.js";
import { beginSettings, beginTheme } from "./settings.js";
import { beginSidebar, list } from "./sidebar.js";
import { Thread } from "./thread.js";

/** A hidden tab gives its connection back after this. */
const HIDDEN_MS = 20000;

const thread = new Thread(changed, failed);
const tabs = new BroadcastChannel("roseinfer");
let hiddenTimer;

// What is shown

function changed() {
  const { isRunning, conversation } = thread;
  $("stop").hidden = !isRunning;
  $("send").hidden = isRunning;
  $("send").disabled = thread.sending;
  $("title").textContent = conversation.title;
  $("open-menu").hidden = conversation.messages.size === 0;
  $("input").placeholder = conversation.isText ? "Once upon a time" : "Ask something";
  document.title = `${isRunning ? "… " : ""}${conversation.messages.size > 0 ? `${conversation.title} – ` : ""}roseinfer`;
  list(conversation.record.id).catch(failed);
}

function failed(error) {
  if (error instanceof ApiError && error.status === 401) {
    if (error.key === usedKey()) askForKey(error); // else it was about the key before
  } else if (error instanceof TypeError) notify("The server does not answer.", "error");
  else notify(error.message, "error");
}

/** What the address names: a job, a conversation, or nothing. */
async function open() {
  const place = decodeURIComponent(location.hash.slice(1));
  const isWanted = () => decodeURIComponent(location.hash.slice(1)) === place;
  notify("");
  try {
    if (!place) thread.begin("chat");
    else if (place === "text") thread.begin("text");
    else if (place.startsWith("c/")) await thread.open(place.slice(2));
    else await thread.openJob(place, isWanted);
  } catch (error) {
    thread.begin("chat");
    if (error.status === 404) notify("That answer is not kept any more, or belongs to another key.", "error");
    else failed(error);
  }
}

function begin(kind) {
  history.pushState(null, "", kind === "text" ? "#text" : location.pathname);
  thread.begin(kind);
  notify("");
  showSidebar(false);
  $("input").focus();
}

function showSidebar(shown) {
  $("sidebar").classList.toggle("open", shown);
  $("show-sidebar").setAttribute("aria-expanded", String(shown));
  if (shown) $("hide-sidebar").focus();
}

// Asking

async function send(event) {
  event?.preventDefault();
  const text = $("input").value;
  const files = takeFiles();
  if (!text.trim() && files.length === 0) return;
  if (await thread.send(text, files)) {
    if ($("input").value === text) $("input").value = "";
    tabs.postMessage("changed");
  } else giveBack(files);
}

// The conversation as a whole

/** Escape must not repeat the answer of the last time. */
function ask(dialog) {
  $(dialog).returnValue = "";
  $(dialog).showModal();
}

async function rename() {
  if ($("rename-dialog").returnValue !== "rename" || !$("name").value.trim()) return;
  await thread.conversation.rename($("name").value.trim());
  changed();
  tabs.postMessage("changed");
}

async function remove() {
  if ($("delete-dialog").returnValue !== "delete") return;
  await thread.remove();
  history.replaceState(null, "", location.pathname);
  tabs.postMessage("changed");
  $("input").focus();
}

function exported(type, text, ending) {
  const name = thread.conversation.title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "");
  download(`${name || "conversation"}.${ending}`, type, text);
  $("menu").hidePopover();
}

async function importFiles(files) {
  for (const file of files) {
    try {
      const conversation = await Conversation.import(await file.text(), keyId());
      history.pushState(null, "", `#c/${conversation.record.id}`);
      await open();
      tabs.postMessage("changed");
    } catch (error) {
      notify(`${file.name} was not imported: ${error.message}`, "error");
    }
  }
}

// The key

function askForKey(error) {
  const dialog = $("key-dialog");
  if (dialog.open) return;
  // Without a key nothing is wrong yet.
  $("key-error").textContent = error?.key ? error.message : "";
  showKnownKeys();
  $("secret").value = "";
  dialog.showModal();
  $("secret").focus();
}

function showKnownKeys() {
  const known = knownKeys();
  $("known-keys").hidden = known.length === 0;
  $("key-forget").hidden = known.length === 0;
  const options = known.map((secret, number) => make("option", { value: number, textContent: keyId(secret) }));
  $("known").replaceChildren(make("option", { value: "", textContent: "No key" }), ...options);
  $("known").value = known.includes(usedKey()) ? known.indexOf(usedKey()) : "";
}

function takeKey(event) {
  event.preventDefault();
  const typed = $("secret").value.trim();
  useKey(typed || (knownKeys()[Number.parseInt($("known").value, 10)] ?? ""), typed && $("keep").checked);
  $("key-dialog").close();
  notify("");
  if (thread.conversation.record.key !== keyId()) {
    history.replaceState(null, "", location.pathname);
    thread.begin("chat");
  }
  start();
}

// Life

async function start() {
  try {
    await readModels();
  } catch (error) {
    failed(error);
    return;
  }
  rememberKey();
  await open();
}

function onVisibility() {
  clearTimeout(hiddenTimer);
  if (document.hidden) hiddenTimer = setTimeout(() => thread.pause(), HIDDEN_MS);
  else {
    thread.resume();
    onOtherTab();
  }
}

function onOtherTab() {
  thread.refresh().catch(failed);
  list().catch(failed);
}

function onKey(event) {
  const isInDialog = document.querySelector("dialog[open], [popover]:popover-open") !== null;
  if (event.key === "Escape" && !isInDialog && !event.target.closest?.(".editing")) {
    if ($("sidebar").classList.contains("open")) {
      showSidebar(false);
      $("show-sidebar").focus();
    } else thread.stop();
  }
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

const pressed = (id, action) => $(id).addEventListener("click", action);

$("composer").addEventListener("submit", send);
pressed("stop", () => thread.stop());
pressed("new", () => begin("chat"));
pressed("new-text", () => begin("text"));
pressed("kill", () => {
  showSidebar(false);
  killWorker();
});
pressed("show-sidebar", () => showSidebar(!$("sidebar").classList.contains("open")));
pressed("hide-sidebar", () => {
  showSidebar(false);
  $("show-sidebar").focus();
});
pressed("conversations", (event) => event.target.closest("a") && showSidebar(false));
$("notice").lastElementChild.addEventListener("click", () => notify(""));
$("model").addEventListener("change", rememberModel);

for (const one of document.querySelectorAll("[data-close]")) one.addEventListener("click", () => one.closest("dialog").close());
pressed("rename", () => {
  $("menu").hidePopover();
  $("name").value = thread.conversation.title;
  ask("rename-dialog");
  $("name").select();
});
$("rename-dialog").addEventListener("close", () => rename().catch(failed));
pressed("delete", () => {
  $("menu").hidePopover();
  ask("delete-dialog");
});
$("delete-dialog").addEventListener("close", () => remove().catch(failed));
pressed("export-markdown", () => exported("text/markdown", thread.conversation.markdown(), "md"));
pressed("export-json", () => exported("application/json", thread.conversation.json(), "json"));
pressed("import", () => $("imported").click());
$("imported").addEventListener("change", async () => {
  await importFiles([...$("imported").files]);
  $("imported").value = "";
});

pressed("key", () => askForKey());
$("key-form").addEventListener("submit", takeKey);
pressed("key-forget", () => {
  forgetKey(knownKeys()[Number.parseInt($("known").value, 10)]);
  showKnownKeys();
});
// The focus that a browser gives back has no caret where the page opened the dialog at once.
$("key-dialog").addEventListener("close", () => {
  $("input").blur();
  $("input").focus();
});

$("skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("input").focus();
});
document.addEventListener("keydown", onKey);
document.addEventListener("visibilitychange", onVisibility);
window.addEventListener("popstate", open); // a changed hash is one, too
tabs.addEventListener("message", onOtherTab);

beginTheme();
beginFiles();
beginSidebar(failed);
beginSettings(() => thread.conversation.keepSystem($("system").value).catch(failed));
keepEndInSight();
watch(model, (error) => {
  if (error instanceof ApiError && error.status === 401) failed(error);
});
start();
