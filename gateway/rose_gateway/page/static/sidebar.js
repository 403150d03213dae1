// The list of conversations of the key in use, the latest first, without end; and the search in it.

import { $, make } from "./dom.js";
import { keyId } from "./keys.js";
import { containing, latest } from "./store.js";

const PAGE = 40;
const SEARCH_MS = 150;

let shown = [];
let currentId = "";
let turn = 0;
let typing;
/** Whoever scrolls to the end needs no button. */
let end;

/** `failed(error)`: the list could not be read. */
export function beginSidebar(failed) {
  const again = () => list().catch(failed);
  $("search").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(again, SEARCH_MS);
  });
  $("more").addEventListener("click", () => more().catch(failed));
  end = new IntersectionObserver((seen) => seen.at(-1).isIntersecting && more().catch(failed), { root: $("list") });
}

/** Read the list again, as far as it was shown. `current`: the id of the conversation that is shown. */
export async function list(current = currentId) {
  currentId = current;
  const mine = ++turn;
  const read = await latest(keyId(), null, Math.max(PAGE, shown.length) + 1, await wanted());
  if (mine === turn) draw(read, Math.max(PAGE, shown.length));
}

async function more() {
  const mine = ++turn;
  const read = await latest(keyId(), shown.at(-1), PAGE + 1, await wanted());
  if (mine === turn) draw([...shown, ...read], shown.length + PAGE);
}

/** What the search looks for: all its words, in the title or in one message. */
async function wanted() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return () => true;
  const found = await containing(words);
  return ({ id, title }) => found.has(id) || words.every((word) => title.toLowerCase().includes(word));
}

function draw(read, limit) {
  shown = read.slice(0, limit);
  const focused = $("conversations").contains(document.activeElement) ? document.activeElement.hash : null;
  $("conversations").replaceChildren(...shown.map((one) => entry(one, one.id === currentId)));
  if (focused) $("conversations").querySelector(`a[href="${focused}"]`)?.focus();
  $("no-conversations").hidden = shown.length > 0;
  $("no-conversations").textContent = $("search").value ? "No conversation has these words." : "Nothing yet. Conversations stay in this browser.";
  $("more").hidden = read.length <= limit;
  // It may still be in sight.
  end.unobserve($("more"));
  end.observe($("more"));
}

function entry({ id, title, kind, updated }, isCurrent) {
  const name = make("span", { className: "title", textContent: title || "Untitled" });
  const when = make("span", { className: "when", textContent: [kind === "text" ? "text" : "", clock(new Date(updated))].filter(Boolean).join(" · ") });
  const link = make("a", { href: `#c/${id}` }, name, when);
  if (isCurrent) link.setAttribute("aria-current", "page");
  return make("li", {}, link);
}

function clock(when) {
  const today = when.toDateString() === new Date().toDateString();
  const time = when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return today ? time : `${when.toLocaleDateString()} ${time}`;
}
