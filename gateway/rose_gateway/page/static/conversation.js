// One conversation: its branches, what a model is sent of it, and how it leaves and enters the page.

import * as store from "./store.js";

const TITLE = 80;
const FORMAT = "roseinfer-conversation";

export const newId = () => crypto.randomUUID?.() ?? Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

export class Conversation {
  constructor(record, messages = []) {
    this.record = record;
    this.messages = new Map(messages.map((message) => [message.id, message]));
  }

  /** `kind`: "chat" or "text". It is kept with its first message. */
  static begin(kind, key, system = "") {
    const now = Date.now();
    return new Conversation({ id: newId(), key, kind, title: "", system, leaf: null, created: now, updated: now });
  }

  static async open(id) {
    const found = await store.read(id);
    return found && new Conversation(found.conversation, found.messages);
  }

  get isText() {
    return this.record.kind === "text";
  }

  get title() {
    return this.record.title || (this.isText ? "New text" : "New conversation");
  }

  /** From the first message to one; without one, to the last of the shown branch. */
  path(last = this.messages.get(this.record.leaf)) {
    const path = [];
    for (let one = last; one; one = this.messages.get(one.parent)) path.unshift(one);
    return path;
  }

  /** All that could stand in a message's place, itself included, the oldest first. */
  siblings(message) {
    return [...this.messages.values()]
      .filter((one) => one.parent === message.parent && one.role === message.role)
      .sort((one, other) => one.created - other.created);
  }

  message(role, parent, fields) {
    return { id: newId(), conversation: this.record.id, parent: parent?.id ?? null, role, created: Date.now(), text: "", ...fields };
  }

  /** They are shown from now on. */
  async add(...messages) {
    for (const message of messages) this.messages.set(message.id, message);
    const [first] = messages;
    this.record.title ||= titleOf(first.text) || titleOf(first.files?.[0]?.name ?? "");
    this.record.leaf = messages.at(-1).id;
    this.record.updated = Date.now();
    await store.save(this.record, ...messages);
  }

  /** The branch of a message: down to its latest end. */
  async choose(message) {
    const children = (parent) => [...this.messages.values()].filter((one) => one.parent === parent.id);
    let last = message;
    for (let below = children(last); below.length > 0; below = children(last)) {
      last = below.reduce((one, other) => (other.created > one.created ? other : one));
    }
    this.record.leaf = last.id;
    await store.save(this.record);
  }

  async rename(title) {
    this.record.title = title;
    await store.save(this.record);
  }

  async keepSystem(system) {
    this.record.system = system;
    if (this.messages.size > 0) await store.save(this.record);
  }

  /** What a text's model goes on with. */
  prompt(last) {
    return this.path(last).map(said).join("");
  }

  markdown() {
    const parts = this.path().map((message) => {
      if (this.isText) return said(message);
      if (message.role === "tool") return message.outputs.map((one) => `### Result of ${one.name}\n\n${fenced(one.output)}`).join("\n\n");
      if (message.role === "user") return `## You\n\n${said(message)}`;
      const thought = message.thought ? `<details><summary>Thought</summary>\n\n${message.thought}\n\n</details>\n\n` : "";
      const calls = (message.calls ?? []).map((call) => `\n\n### Call of ${call.name}\n\n${fenced(call.arguments, "json")}`);
      return `## ${message.model}\n\n${thought}${message.text}${calls.join("")}`;
    });
    const system = this.record.system ? [`> System: ${this.record.system.replaceAll("\n", "\n> ")}`] : [];
    return `${[`# ${this.title}`, ...system, ...parts].join(this.isText ? "" : "\n\n")}\n`;
  }

  json() {
    const messages = [...this.messages.values()].map(({ conversation, ...message }) => message);
    const { key, ...conversation } = this.record;
    return JSON.stringify({ format: FORMAT, version: 1, conversation, messages }, null, 2);
  }

  /** A copy of what `json` has written, for a key. Throws Error: the text is something else. */
  static async import(text, key) {
    const given = checked(text);
    const ids = new Map(given.messages.map((message) => [message.id, newId()]));
    const { kind, title, system, leaf, created, updated } = given.conversation;
    const record = { id: newId(), key, kind, title, system, leaf: ids.get(leaf) ?? ids.get(given.messages.at(-1)?.id) ?? null, created, updated };
    const messages = given.messages.map((message) => ({
      ...message,
      id: ids.get(message.id),
      conversation: record.id,
      parent: ids.get(message.parent) ?? null,
      job: null, // of another server, perhaps
      status: ["queued", "in_progress"].includes(message.status) ? "lost" : message.status,
    }));
    await store.save(record, ...messages);
    return new Conversation(record, messages);
  }
}

/** A message's text with that of its files. */
export function said({ text, files = [] }) {
  return [...files.map((file) => `${file.name}:\n\n${fenced(file.text)}\n\n`), text].join("");
}

/** What the Responses API calls a conversation. */
export function itemsOf(path) {
  return path.flatMap((message) => {
    if (message.role === "user") return message.unknown ? [] : [{ role: "user", content: said(message) }];
    if (message.role === "tool") return outputsOf(message);
    const { thought, text, calls = [] } = message;
    const items = [];
    if (thought) items.push({ type: "reasoning", summary: [], content: [{ type: "reasoning_text", text: thought }] });
    if (text) items.push({ role: "assistant", content: text });
    for (const call of calls) items.push({ type: "function_call", call_id: call.id, name: call.name, arguments: call.arguments });
    return items;
  });
}

export const outputsOf = (message) =>
  message.outputs.map(({ call, output }) => ({ type: "function_call_output", call_id: call, output }));

export function titleOf(text) {
  const line = text.trim().replace(/\s+/g, " ");
  return line.length > TITLE ? `${line.slice(0, TITLE)}…` : line;
}

/** In a fence that the text does not hold. */
function fenced(text, language = "") {
  const longest = Math.max(2, ...Array.from(text.matchAll(/`+/g), ([run]) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text}\n${fence}`;
}

function checked(text) {
  let given;
  try {
    given = JSON.parse(text);
  } catch (error) {
    throw new Error(`it is no JSON: ${error.message}`);
  }
  if (given?.format !== FORMAT || given.version !== 1) throw new Error(`it is no ${FORMAT} of version 1`);
  const { conversation, messages } = given;
  const texts = (object, ...names) => names.every((name) => typeof object?.[name] === "string");
  const isWhole = texts(conversation, "title", "system") && ["chat", "text"].includes(conversation.kind);
  if (!isWhole || ![conversation.created, conversation.updated].every(Number.isFinite)) throw new Error("its conversation lacks a title, a system prompt, a kind or a time");
  if (!Array.isArray(messages)) throw new Error("its messages are no list");
  const wrong = messages.findIndex((one) => !isMessage(one, texts));
  if (wrong >= 0) throw new Error(`its message ${wrong + 1} is none`);
  if (hasCircle(messages)) throw new Error("its messages follow each other in a circle");
  return given;
}

function hasCircle(messages) {
  const parents = new Map(messages.map(({ id, parent }) => [id, parent]));
  return messages.some((message) => {
    let steps = 0;
    for (let id = message.id; id; id = parents.get(id)) if (++steps > messages.length) return true;
    return false;
  });
}

function isMessage(one, texts) {
  if (!texts(one, "id", "text") || !Number.isFinite(one.created)) return false;
  const list = (name, ...fields) => (one[name] ?? []).every?.((entry) => texts(entry, ...fields)) ?? false;
  if (one.role === "user") return list("files", "name", "text");
  if (one.role === "tool") return Array.isArray(one.outputs) && list("outputs", "call", "name", "output");
  return one.role === "assistant" && texts(one, "model", "status") && list("calls", "id", "name", "arguments") && list("marks", "label");
}
