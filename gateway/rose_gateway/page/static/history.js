// What this key has asked for lately.

import { askJson } from "./api.js";
import { $, count, make } from "./dom.js";

const NAMES = { response: "Response", chat: "Chat completion", completion: "Text", null: "Job" };
const PAGE = 20;

let shown = PAGE;
let turn = 0;

/** Read the list again. Throws ApiError, TypeError */
export async function refresh(current) {
  const mine = ++turn;
  const jobs = [];
  let more = true;
  while (more && jobs.length < shown) {
    const after = jobs.length > 0 ? `&after=${jobs.at(-1).id}` : "";
    const page = await askJson(`jobs?limit=${PAGE}${after}`);
    jobs.push(...page.data);
    more = page.has_more;
  }
  if (mine !== turn) return; // a later call has seen more
  const focused = $("jobs").contains(document.activeElement) ? document.activeElement.hash : null;
  $("jobs").replaceChildren(...jobs.map((job) => entry(job, current)));
  if (focused) $("jobs").querySelector(`a[href="${focused}"]`)?.focus();
  $("no-jobs").hidden = jobs.length > 0;
  $("more").hidden = !more;
}

export function showMore() {
  shown += PAGE;
}

/** Without reading it again. */
export function select(current) {
  for (const link of $("jobs").querySelectorAll("a")) mark(link, link.hash === `#${current}`);
}

function entry(job, current) {
  const [choice] = job.choices;
  const when = new Date(1000 * job.created_at);
  const tokens = job.ended_at === null ? [] : [count(choice.tokens, "token")];
  const link = make(
    "a",
    { href: `#${job.id}` },
    make("span", { className: "title", textContent: job.title ?? NAMES[job.endpoint] }),
    make("span", {
      className: `state ${choice.status}`,
      textContent: [choice.status, ...tokens, clock(when)].join(" · "),
    }),
  );
  mark(link, job.id === current);
  return make("li", {}, link);
}

function mark(link, current) {
  if (current) link.setAttribute("aria-current", "page");
  else link.removeAttribute("aria-current");
}

function clock(when) {
  const today = when.toDateString() === new Date().toDateString();
  const time = when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return today ? time : `${when.toLocaleDateString()} ${time}`;
}
