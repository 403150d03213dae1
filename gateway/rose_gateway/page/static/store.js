// Conversations and their messages, in this browser's IndexedDB.
//
// A conversation: { id, key, kind: "chat" | "text", title, system, leaf, created, updated }
// A message: { id, conversation, parent, role: "user" | "assistant" | "tool", created, text, ... }
// Messages are a tree: an edited question and another answer are siblings. `leaf` is the last message
// of the branch that is shown. `key` is the id of the API key that asked.

const NAME = "roseinfer";

let opening;

function database() {
  opening ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => {
      const conversations = request.result.createObjectStore("conversations", { keyPath: "id" });
      conversations.createIndex("latest", ["key", "updated", "id"]);
      const messages = request.result.createObjectStore("messages", { keyPath: "id" });
      messages.createIndex("conversation", "conversation");
      messages.createIndex("job", "job");
    };
    request.onsuccess = () => {
      // Whoever clears the site's data closes it under the page; what comes next opens another.
      request.result.onclose = () => (opening = undefined);
      resolve(request.result);
    };
    request.onerror = () => reject(new Error(`this browser keeps no conversations: ${request.error.message}`));
  });
  return opening;
}

const settled = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

async function reading(name) {
  return (await database()).transaction(name).objectStore(name);
}

/** `work(conversations, messages)` happens as a whole, or not at all. */
async function writing(work) {
  const transaction = (await database()).transaction(["conversations", "messages"], "readwrite");
  const done = new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onabort = () => reject(transaction.error);
  });
  // Together, because an abort fails both: none may be left without somebody who hears of it.
  await Promise.all([work(transaction.objectStore("conversations"), transaction.objectStore("messages")), done]);
}

export function save(conversation, ...changed) {
  return writing((conversations, messages) => {
    conversations.put(conversation);
    for (const message of changed) messages.put(message);
  });
}

/** Nothing if its conversation was deleted meanwhile. */
export function saveMessage(message) {
  return writing(async (conversations, messages) => {
    if (await settled(conversations.get(message.conversation))) messages.put(message);
  });
}

export function remove(id) {
  return writing(async (conversations, messages) => {
    conversations.delete(id);
    for (const key of await settled(messages.index("conversation").getAllKeys(id))) messages.delete(key);
  });
}

/** The conversation and its messages; null if it is not here. */
export async function read(id) {
  const conversation = await settled((await reading("conversations")).get(id));
  if (!conversation) return null;
  return { conversation, messages: await settled((await reading("messages")).index("conversation").getAll(id)) };
}

export async function messageOfJob(job) {
  return settled((await reading("messages")).index("job").get(job));
}

/** The latest conversations of a key, before one of them, that `fits(conversation)`. */
export async function latest(key, before, limit, fits = () => true) {
  const end = before ? [key, before.updated, before.id] : [key, []];
  const range = IDBKeyRange.bound([key], end, false, true);
  const request = (await reading("conversations")).index("latest").openCursor(range, "prev");
  const found = [];
  return new Promise((resolve, reject) => {
    request.onerror = () => reject(request.error);
    request.onsuccess = () => {
      const cursor = request.result;
      if (!cursor || found.length >= limit) return resolve(found);
      if (fits(cursor.value)) found.push(cursor.value);
      return cursor.continue();
    };
  });
}

/** The ids of the conversations in which every word stands in one message. */
export async function containing(words) {
  const request = (await reading("messages")).openCursor();
  const found = new Set();
  return new Promise((resolve, reject) => {
    request.onerror = () => reject(request.error);
    request.onsuccess = () => {
      const cursor = request.result;
      if (!cursor) return resolve(found);
      const text = (cursor.value.text ?? "").toLowerCase();
      if (words.every((word) => text.includes(word))) found.add(cursor.value.conversation);
      return cursor.continue();
    };
  });
}
