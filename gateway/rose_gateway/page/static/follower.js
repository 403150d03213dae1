// Follows a job from its first event to its last, whatever happens to the connection in between.

import { ApiError, ask } from "./api.js";
import { eventsOf } from "./events.js";
import { meaning } from "./reading.js";

const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 4000;
/** A server that has gone without a word is noticed after this: it says something every 15 s. */
const PATIENCE_MS = 40000;

export class Follower {
  /** `told(change)` hears { text, status, ended, error, lost, resumed, last }, as they come. */
  constructor(job, told) {
    this.job = job;
    this.told = told;
    this.last = null;
    this.stopped = false;
    this.paused = false;
    this.ended = false;
  }

  /** Until the end of the job, or `stop`. Throws ApiError: nobody can follow it. */
  async run() {
    let pause = FIRST_PAUSE_MS;
    while (!this.stopped && !this.ended) {
      if (this.paused) {
        await this.#awaken();
        continue;
      }
      const before = this.last;
      try {
        await this.#once();
      } catch (error) {
        if (error instanceof ApiError && error.status < 500 && error.status !== 429) throw error;
      }
      if (this.stopped || this.ended || this.paused) continue;
      if (this.last !== before) pause = FIRST_PAUSE_MS;
      this.told({ lost: true, last: this.last });
      await new Promise((resolve) => setTimeout(resolve, pause * (0.5 + Math.random())));
      pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
    }
  }

  stop() {
    this.stopped = true;
    this.#leave();
  }

  /** Give the connection back: a browser has six for a server. */
  pause() {
    this.paused = true;
    this.#leave();
  }

  resume() {
    this.paused = false;
    this.awake?.();
  }

  async #once() {
    const controller = new AbortController();
    this.controller = controller;
    const heard = () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => controller.abort(), PATIENCE_MS);
    };
    heard();
    try {
      const answer = await ask(...this.#request(controller.signal));
      if (answer.status === 204) this.ended = true;
      if (this.ended) return;
      this.told({ resumed: this.last !== null, last: this.last });
      for await (const event of eventsOf(answer)) {
        heard();
        this.#hear(event);
        if (this.ended) return;
      }
    } finally {
      clearTimeout(this.timer);
    }
  }

  #hear({ id, data }) {
    const change = meaning(data);
    if (change.broken !== undefined) return; // the next connection goes on after the last event
    if (change.done) {
      this.ended = true;
      return;
    }
    if (id !== null) this.last = id;
    this.told({ ...change, last: this.last });
  }

  /** After the last event that came. */
  #request(signal) {
    const { id, endpoint } = this.job;
    if (endpoint === "response") {
      const after = this.last === null ? "" : `&starting_after=${this.last}`;
      return [`responses/resp_${id}?stream=true${after}`, { signal }];
    }
    const headers = this.last === null ? {} : { "last-event-id": this.last };
    return [`jobs/${id}/events`, { signal, headers }];
  }

  #leave() {
    this.controller?.abort();
    this.awake?.();
  }

  #awaken() {
    return new Promise((resolve) => {
      this.awake = resolve;
    });
  }
}
