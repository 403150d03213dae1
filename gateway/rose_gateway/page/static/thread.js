// The conversation that is shown, and what is asked in it. The address names the last answer's job, so a
// reload and another tab find it again, and another browser with the same key does.

import { Answer, branchesOf, isRunning } from "./answer.js";
import { ApiError, ask, submit } from "./api.js";
import { Conversation, itemsOf, outputsOf, said } from "./conversation.js";
import { $, button, notify } from "./dom.js";
import { jobConversation } from "./jobs.js";
import { keyId } from "./keys.js";
import { choose, model, unfit } from "./models.js";
import { questionOf, resultForm, resultsOf } from "./question.js";
import { keptSystem, parameters, valid } from "./settings.js";
import * as store from "./store.js";

const BUSY = "An answer is being written: stop it first, or wait for its end.";

export class Thread {
  /** `changed()`: another conversation is shown, or it has grown or ended. `failed(error)`: it could not. */
  constructor(changed, failed) {
    this.changed = changed;
    this.failed = failed;
    this.conversation = begun("chat");
    this.answers = new Map(); // of the shown branch, by the ids of their messages
    this.sending = false;
  }

  /** The last message of the shown branch, if it is an answer. */
  get last() {
    const last = this.conversation.messages.get(this.conversation.record.leaf);
    return last?.role === "assistant" ? last : null;
  }

  get isRunning() {
    return this.last !== null && isRunning(this.last);
  }

  // Showing

  begin(kind) {
    this.#show(begun(kind));
  }

  /** The conversation that has a job's answer, unless the reader has gone on meanwhile. */
  async openJob(job, isWanted) {
    if (this.last?.job === job) return;
    const message = await store.messageOfJob(job);
    const kept = message ? await Conversation.open(message.conversation) : null;
    const isMine = kept?.record.key === keyId();
    const conversation = isMine ? kept : await jobConversation(job);
    if (!isWanted()) return;
    if (isMine) await conversation.choose(message);
    this.#show(conversation);
  }

  async open(id) {
    const conversation = await Conversation.open(id);
    if (!conversation) return;
    this.#show(conversation);
    this.#address();
  }

  /** As another tab has left it. */
  async refresh() {
    if (this.conversation.messages.size === 0 || this.isRunning || this.sending) return;
    const now = await Conversation.open(this.conversation.record.id);
    if (now === null) this.begin(this.conversation.record.kind);
    else if (now.record.updated !== this.conversation.record.updated) this.#show(now);
  }

  #show(conversation) {
    this.conversation = conversation;
    this.#draw();
    const { model: used } = this.last ?? {};
    if (used) choose(used);
    $("system").value = conversation.record.system;
    this.changed();
  }

  leave() {
    for (const answer of this.answers.values()) answer.stop();
    this.answers.clear();
  }

  /** `asked`: when this page has asked for the last answer. */
  #draw(asked = null) {
    this.leave();
    const path = this.conversation.path();
    $("turns").replaceChildren(...path.map((message) => this.#element(message, message === this.last ? asked : null)));
    this.#offerResults();
    $("turns").scrollTop = $("turns").scrollHeight;
  }

  #element(message, asked) {
    const branches = branchesOf(this.conversation.siblings(message), message, (other) => this.#choose(other));
    if (message.role === "user") return questionOf(message, branches, (text) => this.#edit(message, text));
    if (message.role === "tool") return resultsOf(message);
    const isKnown = !this.conversation.messages.get(message.parent)?.unknown;
    const again = isKnown ? [button("Regenerate", () => this.#regenerate(message), { className: "quiet again" })] : [];
    const answer = new Answer(message, {
      plain: this.conversation.isText,
      asked,
      keep: (one) => store.saveMessage(one).catch(this.failed),
      changed: () => {
        this.#offerResults();
        this.changed();
      },
      buttons: again,
    });
    answer.branches.replaceChildren(...branches);
    if (isRunning(message)) {
      this.answers.set(message.id, answer);
      answer.follow();
    }
    return answer.element;
  }

  #offerResults() {
    const { last } = this;
    if (!last || isRunning(last) || !last.calls?.length || $("turns").querySelector("form.results")) return;
    $("turns").append(resultForm(last.calls, (outputs) => this.#say("tool", last, { outputs })));
  }

  async #choose(message) {
    await this.conversation.choose(message);
    this.#draw();
    this.#address();
    this.changed();
    $("turns").focus();
  }

  #address() {
    const { record, messages } = this.conversation;
    const before = decodeURIComponent(location.hash.slice(1));
    const place = this.last?.job ?? `c/${record.id}`;
    // The way back leads to the conversation before, and not through the turns of this one.
    const isHere = before === `c/${record.id}` || [...messages.values()].some((message) => message.job && message.job === before);
    if (isHere) history.replaceState(null, "", `#${place}`);
    else history.pushState(null, "", `#${place}`);
  }

  // Asking

  /** Whether it was taken. `files`: { name, text } each. */
  send(text, files) {
    const { last } = this;
    const parent = last ?? this.conversation.messages.get(this.conversation.record.leaf) ?? null;
    return this.#say("user", parent, { text, files });
  }

  #edit(message, text) {
    const parent = this.conversation.messages.get(message.parent) ?? null;
    return this.#say("user", parent, { text, files: message.files });
  }

  #say(role, parent, fields) {
    const message = this.conversation.message(role, parent, fields);
    return this.#ask(message, [message]);
  }

  #regenerate(answer) {
    return this.#ask(this.conversation.messages.get(answer.parent), []);
  }

  /** An answer to `question`. `fresh`: what is to be kept with it. */
  async #ask(question, fresh) {
    const { conversation } = this;
    if (this.sending || !valid()) return false;
    const wrong = this.isRunning ? BUSY : unfit(conversation.isText);
    if (wrong) {
      notify(wrong, wrong === BUSY ? "passing" : "error");
      return false;
    }
    notify("");
    const { id: name } = model();
    this.sending = true;
    this.changed();
    const asked = performance.now();
    try {
      const endpoint = conversation.isText ? "completion" : "response";
      const job = conversation.isText ? await this.#submitText(name, question) : await this.#submitChat(name, question);
      const fields = { model: name, job, endpoint, status: "queued", thought: "", calls: [], marks: [] };
      const answer = conversation.message("assistant", question, fields);
      await conversation.add(...fresh, answer);
      if (this.conversation !== conversation) return true; // the reader has gone on
      this.#draw(asked);
      this.#address();
      return true;
    } catch (error) {
      this.failed(error);
      return false;
    } finally {
      this.sending = false;
      this.changed();
    }
  }

  async #submitChat(name, question) {
    const { conversation } = this;
    const shared = { model: name, background: true, prompt_cache_key: conversation.record.id, ...parameters(true) };
    if (conversation.record.system) shared.instructions = conversation.record.system;
    const before = conversation.messages.get(question.parent);
    // The server has what was said before; one that was stopped or failed is no answer to go on from.
    if (before?.job && before.endpoint === "response" && ["completed", "incomplete"].includes(before.status)) {
      try {
        const input = question.role === "tool" ? outputsOf(question) : [{ role: "user", content: said(question) }];
        return await submit("responses", { ...shared, previous_response_id: `resp_${before.job}`, input });
      } catch (error) {
        if (!(error instanceof ApiError) || error.code !== "previous_response_not_found") throw error;
      }
    }
    const path = [...conversation.path(before ?? null), question];
    return submit("responses", { ...shared, input: itemsOf(path) });
  }

  #submitText(name, question) {
    const before = this.conversation.messages.get(question.parent);
    const prompt = (before ? this.conversation.prompt(before) : "") + said(question);
    const body = { ...parameters(false), model: name, prompt, stream: true, stream_options: { include_usage: true } };
    return submit("completions", body, { "x-rose-on-disconnect": "continue" });
  }

  async stop() {
    if (!this.isRunning) return;
    try {
      await ask(`jobs/${this.last.job}/cancel`, { method: "POST" });
    } catch (error) {
      this.failed(error);
    }
  }

  /** From here and from the server, as far as that still has it. */
  async remove() {
    const { record, messages } = this.conversation;
    for (const message of messages.values()) {
      if (message.role !== "assistant" || !message.job) continue;
      if (isRunning(message)) await ask(`jobs/${message.job}/cancel`, { method: "POST" }).catch(gone);
      if (message.endpoint === "response") await ask(`responses/resp_${message.job}`, { method: "DELETE" }).catch(gone);
    }
    await store.remove(record.id);
    this.begin("chat");
  }

  pause() {
    for (const answer of this.answers.values()) answer.follower.pause();
  }

  resume() {
    for (const answer of this.answers.values()) answer.follower.resume();
  }
}

function begun(kind) {
  return Conversation.begin(kind, keyId(), kind === "chat" ? keptSystem() : "");
}

/** Throws what is not a job that the server has forgotten. */
function gone(error) {
  if (error.status !== 404) throw error;
}
