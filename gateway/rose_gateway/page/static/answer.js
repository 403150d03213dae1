// One answer on the page: its text, where it changed hands, and how far it is.

import { askJson } from "./api.js";
import { count, make, say } from "./dom.js";
import { Follower } from "./follower.js";

const LOOK_MS = 1000;
const WORDS = {
  queued: "waiting for a worker",
  in_progress: "being written",
  completed: "complete",
  incomplete: "complete up to the limit of tokens",
  cancelled: "stopped",
  failed: "failed",
};

export class Answer {
  /** `changed()` is called when it has begun, ended, or could not be followed. */
  constructor(job, changed) {
    this.job = job;
    this.changed = changed;
    this.text = "";
    this.marks = []; // { at: where in the text, in UTF-16 units, label }
    this.pending = []; // marks whose text has not come yet, by characters
    this.workers = 1;
    this.tokens = 0;
    this.worker = "";
    this.status = "queued";
    this.#build();
    this.follower = new Follower(job, (change) => this.#hear(change));
  }

  get running() {
    return this.status === "queued" || this.status === "in_progress";
  }

  async run() {
    const looking = this.#look();
    try {
      await this.follower.run();
    } catch (error) {
      this.#end("failed", error.message);
    }
    this.stopped = true;
    await looking;
  }

  stop() {
    this.stopped = true;
    this.follower.stop();
  }

  #build() {
    this.body = make("div", { className: "text" });
    this.facts = make("p", { className: "facts" });
    this.note = make("p", { className: "note" });
    this.link = make("a", {
      href: `#${this.job.id}`,
      target: "_blank",
      rel: "noopener",
      textContent: "Follow it in another tab",
    });
    this.element = make(
      "article",
      { className: "answer", attributes: { "aria-busy": "true", "aria-label": "Answer" } },
      this.body,
      this.note,
      make("footer", {}, this.facts, this.link),
    );
    this.#show();
  }

  #hear(change) {
    this.last = change.last;
    if (change.lost) {
      this.note.textContent = `The connection is gone. It goes on after event ${change.last ?? "0"}.`;
    } else if (change.resumed) {
      this.note.textContent = `Connected again: it went on after event ${change.last}, and nothing came twice.`;
    } else if (change.resumed === false) {
      this.note.textContent = "";
    }
    if (change.status && this.running) this.#become(change.status);
    if (change.text) this.#add(change.text);
    if (change.ended) this.#end(change.ended, change.error);
    this.#show();
  }

  #add(text) {
    if (this.status === "queued") this.#become("in_progress");
    this.text += text;
    if (this.pending.length > 0) this.#place();
    this.body.append(text);
  }

  #become(status) {
    this.status = status;
    this.element.dataset.status = status;
  }

  #end(status, error) {
    if (!this.running) return;
    this.#become(status);
    this.element.setAttribute("aria-busy", "false");
    if (error) this.note.textContent = error;
    say(`The answer is ${WORDS[status]}.`);
    this.#show();
    this.changed();
  }

  /** Who writes it, and how many tokens there are: once a second, and at the end. */
  async #look() {
    for (;;) {
      const last = this.stopped;
      try {
        this.#learn((await askJson(`jobs/${this.job.id}`)).choices[0]);
        if (this.workers < this.known) await this.#mark();
        this.#show();
      } catch (error) {
        // The follower says what is wrong; here the next look may succeed.
        if (!last) this.worker = "";
      }
      if (last) return;
      await new Promise((resolve) => setTimeout(resolve, this.follower.paused ? 4 * LOOK_MS : LOOK_MS));
    }
  }

  #learn(choice) {
    this.tokens = choice.tokens;
    this.known = Math.max(1, choice.workers.length);
    this.worker = choice.workers.at(-1)?.worker ?? "";
  }

  /** Another worker has it: say so where its text begins. */
  async #mark() {
    const { workers } = (await askJson(`jobs/${this.job.id}?characters=true`)).choices[0];
    this.pending = workers.slice(1).map((one) => ({
      characters: one.from_character,
      label: `went on at token ${one.from_token} on ${one.worker}`,
    }));
    this.workers = workers.length;
    this.marks = [];
    this.#place();
    const { worker, from_token: token } = workers.at(-1);
    say(`The answer went on at token ${token} on ${worker}.`);
  }

  /** Marks whose place in the text has come. */
  #place() {
    const characters = Array.from(this.text);
    const due = this.pending.filter((mark) => mark.characters <= characters.length);
    if (due.length === 0) return;
    this.pending = this.pending.filter((mark) => !due.includes(mark));
    for (const { characters: place, label } of due) {
      this.marks.push({ at: characters.slice(0, place).join("").length, label });
    }
    this.#redraw();
  }

  #redraw() {
    const parts = [];
    let from = 0;
    for (const { at, label } of this.marks) {
      parts.push(this.text.slice(from, at));
      parts.push(make("span", { className: "handover", textContent: label, attributes: { role: "note" } }));
      from = at;
    }
    this.body.replaceChildren(...parts, this.text.slice(from));
  }

  #show() {
    const facts = [WORDS[this.status]];
    if (this.tokens > 0) facts.push(count(this.tokens, "token"));
    if (this.last) facts.push(`event ${this.last}`);
    if (this.workers > 1) facts.push(`${this.workers} workers, every token once`);
    else if (this.worker && this.running) facts.push(`on ${this.worker}`);
    this.facts.textContent = facts.join(" · ");
  }
}
