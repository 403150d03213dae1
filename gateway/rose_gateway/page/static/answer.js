// One answer on the page: its thought, text and calls, where it changed hands, and how far it is.

import { askJson } from "./api.js";
import { copyButton } from "./clipboard.js";
import { codeBlock } from "./code.js";
import { button, count, forgetPassing, make, say } from "./dom.js";
import { Follower } from "./follower.js";
import { Markdown } from "./markdown.js";

const LOOK_MS = 1000;
const DRAW_MS = 60;
/** After a drawing there is none for so many times as long as it took: a long text, a slow phone. */
const REST = 4;
const KEEP_MS = 2000;
const WORDS = {
  queued: "waiting for a worker",
  in_progress: "being written",
  completed: "complete",
  incomplete: "complete up to the limit of tokens",
  cancelled: "stopped",
  failed: "failed",
  lost: "cut off",
};

export const isRunning = (message) => message.status === "queued" || message.status === "in_progress";

export class Answer {
  /**
   * `message`: it grows. `plain`: its text is no Markdown. `asked`: by performance.now(), where this page has
   * asked for it. `keep(message)`: it has changed. `changed()`: it has ended. `buttons`: more of them.
   */
  constructor(message, { plain, asked = null, keep, changed, buttons }) {
    this.message = message;
    this.plain = plain;
    this.asked = asked;
    this.keep = keep;
    this.changed = changed;
    this.pending = []; // marks whose text has not come yet, by characters
    this.known = 1;
    this.worker = "";
    this.cost = 0; // of the last drawing, ms
    this.wentOnAfter = null; // the last event before a lost connection came back
    this.#build(buttons);
  }

  /** From its first event to its last, whatever was kept of it. */
  async follow() {
    const { message } = this;
    this.follower = new Follower({ id: message.job, endpoint: message.endpoint }, (change) => this.#hear(change));
    const looking = this.#look();
    try {
      await this.follower.run();
    } catch (error) {
      if (error.status === 404) this.#end("lost", "The server does not keep it any more.");
      else this.note.textContent = error.message; // to this key; it may be followed with another
    }
    this.over = true;
    await looking;
    this.#draw();
    if (this.follower.ended) this.keep(message);
  }

  stop() {
    this.over = true;
    this.follower?.stop();
    clearTimeout(this.drawing);
  }

  #build(buttons) {
    const { message } = this;
    this.body = make("div", { className: this.plain ? "text plain" : "text" });
    this.markdown = this.plain ? null : new Markdown(this.body);
    this.thoughtText = make("div", { className: "thought-text" });
    this.thoughtTitle = make("summary", { textContent: "Thought" });
    this.thought = make("details", { className: "thought", hidden: true }, this.thoughtTitle, this.thoughtText);
    this.calls = make("div", { className: "calls" });
    this.note = make("p", { className: "note" });
    this.facts = make("p", { className: "facts" });
    this.branches = make("span", { className: "branches" });
    this.buttons = make("div", { className: "buttons" }, this.branches, copyButton(() => message.text, "the answer"), ...buttons);
    const attributes = { "aria-busy": String(isRunning(message)), "aria-label": "Answer" };
    const footer = make("footer", {}, this.facts, this.buttons);
    this.element = make("article", { className: "answer", attributes, data: { status: message.status } }, this.thought, this.body, this.calls, this.note, footer);
    this.#draw();
  }

  #hear(change) {
    const { message } = this;
    if (change.lost) {
      this.note.textContent = `The connection is gone. It goes on after event ${change.last ?? "0"}.`;
      this.isLost = true;
    } else if (change.resumed !== undefined) {
      this.note.textContent = "";
      if (change.resumed && this.isLost) this.wentOnAfter = change.last;
      if (!change.resumed) Object.assign(message, { text: "", thought: "", calls: [], marks: [], workers: 1 });
      this.isLost = false;
    }
    if (change.status && isRunning(message)) this.#become(change.status);
    if (change.usage) Object.assign(message, { tokens: change.usage.answer, prompt_tokens: change.usage.prompt });
    if (change.thought || change.text || change.call) this.#add(change);
    if (change.ended) this.#end(change.ended, change.error);
    this.#drawSoon();
  }

  #add({ thought = "", text = "", call }) {
    const { message } = this;
    if (message.status === "queued") this.#become("in_progress");
    const now = performance.now();
    if (this.asked !== null && this.first === undefined) message.first_ms = Math.round(now - this.asked);
    this.first ??= now;
    this.latest = now;
    message.thought += thought;
    message.text += text;
    if (call) this.#call(call);
  }

  #call({ key, id, name, more = "", all }) {
    const { calls } = this.message;
    let call = calls.find((one) => one.key === key);
    if (!call) calls.push((call = { key, id: "", name: "", arguments: "" }));
    if (id) call.id = id;
    if (name) call.name = name;
    call.arguments = all ?? call.arguments + more;
  }

  #become(status) {
    this.message.status = status;
    this.element.dataset.status = status;
  }

  #end(status, error) {
    const { message } = this;
    if (!isRunning(message)) return;
    this.#become(status);
    this.element.setAttribute("aria-busy", "false");
    if (error) message.error = error;
    say(`The answer is ${WORDS[status]}.`);
    forgetPassing();
    this.keep(message);
    this.changed();
  }

  /** Who writes it, and how many tokens there are: once a second, and at the end. */
  async #look() {
    for (;;) {
      const last = this.over;
      try {
        this.#learn(await askJson(`jobs/${this.message.job}`));
        if ((this.message.workers ?? 1) < this.known) await this.#mark();
      } catch (error) {
        // The follower says what is wrong; here the next look may succeed.
        if (!last) this.worker = "";
      }
      this.#drawSoon();
      if (last) return;
      await new Promise((resolve) => setTimeout(resolve, this.follower.paused ? 4 * LOOK_MS : LOOK_MS));
    }
  }

  #learn({ choices: [choice], started_at: started, ended_at: ended }) {
    const { message } = this;
    message.tokens = Math.max(message.tokens ?? 0, choice.tokens);
    this.known = Math.max(1, choice.workers.length);
    this.worker = choice.workers.at(-1)?.worker ?? "";
    // Seen from its first token to its last, it is timed here. Otherwise the server says how long it took, but
    // of one that changed hands only since the last change.
    const seen = (this.latest - this.first) / 1000;
    if (this.asked !== null && this.wentOnAfter === null && seen > 0) message.rate = (message.tokens - 1) / seen;
    else if (ended && this.known === 1 && ended > started) message.rate ??= choice.tokens / (ended - started);
  }

  /** Another worker has it: say so where its text begins. */
  async #mark() {
    const { workers } = (await askJson(`jobs/${this.message.job}?characters=true`)).choices[0];
    this.pending = workers.slice(1).map((one) => ({
      characters: one.from_character,
      label: `went on at token ${one.from_token} on ${one.worker}`,
    }));
    this.message.workers = workers.length;
    this.message.marks = [];
    const { worker, from_token: token } = workers.at(-1);
    say(`The answer went on at token ${token} on ${worker}.`);
    forgetPassing();
  }

  /** Marks whose place in the text has come. */
  #place() {
    if (this.pending.length === 0) return;
    const characters = Array.from(this.message.text);
    const due = this.pending.filter((mark) => mark.characters <= characters.length);
    this.pending = this.pending.filter((mark) => !due.includes(mark));
    for (const { characters: place, label } of due) {
      this.message.marks.push({ at: characters.slice(0, place).join("").length, label });
    }
  }

  #drawSoon() {
    if (this.drawing !== undefined) return;
    this.drawing = setTimeout(() => {
      const began = performance.now();
      this.drawing = undefined;
      this.#draw();
      this.#keepSometimes();
      this.cost = performance.now() - began;
    }, Math.max(DRAW_MS, REST * this.cost));
  }

  #keepSometimes() {
    const now = performance.now();
    if (!isRunning(this.message) || now - (this.kept ?? 0) < KEEP_MS) return;
    this.kept = now;
    this.keep(this.message);
  }

  #draw() {
    const { message } = this;
    this.#place();
    this.#drawText();
    this.#drawThought();
    this.#drawCalls();
    if (message.error) this.note.textContent = message.error;
    this.facts.textContent = this.#factsOf().join(" · ");
  }

  #drawText() {
    const { text, marks = [] } = this.message;
    this.marks ??= [];
    if (this.marks.length > marks.length) this.marks.splice(0).forEach(({ element }) => element.remove());
    for (const mark of marks.slice(this.marks.length)) this.marks.push({ at: mark.at, element: handover(mark.label) });
    if (this.markdown) return this.markdown.update(text, this.marks);
    const parts = [];
    let from = 0;
    for (const { at, element } of this.marks) {
      parts.push(text.slice(from, at), element);
      from = at;
    }
    return this.body.replaceChildren(...parts, text.slice(from));
  }

  #drawThought() {
    const { thought = "", text } = this.message;
    this.thought.hidden = thought === "";
    if (this.thoughtText.textContent !== thought) this.thoughtText.textContent = thought;
    const title = isRunning(this.message) && !text ? "Thinking …" : "Thought";
    if (this.thoughtTitle.textContent !== title) this.thoughtTitle.textContent = title;
  }

  #drawCalls() {
    const { calls = [] } = this.message;
    const shown = JSON.stringify(calls);
    if (shown === this.shownCalls) return;
    this.shownCalls = shown;
    const again = () => {
      this.shownCalls = null;
      this.#drawCalls();
    };
    this.calls.replaceChildren(...calls.map((call) => {
      const title = make("p", { className: "call-title" }, "Calls ", make("b", { textContent: call.name }));
      return make("section", { className: "call", attributes: { "aria-label": `Call of ${call.name}` } }, title, codeBlock(indented(call.arguments), "json", again));
    }));
  }

  #factsOf() {
    const { status, tokens = 0, rate, first_ms: first, workers = 1, model } = this.message;
    const facts = [WORDS[status]];
    if (tokens > 0) facts.push(count(tokens, "token"));
    if (rate > 0 && Number.isFinite(rate)) facts.push(`${rate.toFixed(1)} tokens/s`);
    if (first !== undefined) facts.push(`first after ${(first / 1000).toFixed(2)} s`);
    if (workers > 1) facts.push(`${workers} workers, every token once`);
    else if (this.worker && isRunning(this.message)) facts.push(`on ${this.worker}`);
    if (this.wentOnAfter !== null) facts.push(`connected again after event ${this.wentOnAfter}, and nothing came twice`);
    if (model) facts.push(model);
    return facts;
  }
}

function handover(label) {
  return make("span", { className: "handover", textContent: label, attributes: { role: "note" } });
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // it is not whole yet, or no JSON
  }
}

/** ‹ 2/3 ›: which of its siblings a message is, and the way to the others. */
export function branchesOf(siblings, message, choose) {
  if (siblings.length < 2) return [];
  const at = siblings.indexOf(message);
  const way = (text, what, to) => button(text, () => choose(siblings[to]), { disabled: siblings[to] === undefined, attributes: { "aria-label": what } });
  return [way("‹", "The version before", at - 1), ` ${at + 1}/${siblings.length} `, way("›", "The next version", at + 1)];
}
