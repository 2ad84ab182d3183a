// Conversations, kept in this browser: each is a tree, because any message can be written anew.
//
//   conversation = { id, title, model, system, options, updated, messages: { id: message }, current }
//   message      = { id, parent, role, content, thinking?, calls?, name?, figures?, model?, failure? }
//
// `current` is the last message of the branch that is shown.

const NAME = "lode";
const STORE = "conversations";
/** Says that a file is of this form. */
const FORM = "lode-conversations/1";

let opening;

function database() {
  opening ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return opening;
}

async function within(mode, work) {
  const transaction = (await database()).transaction(STORE, mode);
  const request = work(transaction.objectStore(STORE));
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve(request?.result);
    transaction.onerror = () => reject(transaction.error);
    transaction.onabort = () => reject(transaction.error);
  });
}

/** All of them, the newest first. */
export async function all() {
  const found = await within("readonly", (store) => store.getAll());
  return found.sort((a, b) => b.updated - a.updated);
}

export function save(conversation) {
  return within("readwrite", (store) => store.put(conversation));
}

export function remove(id) {
  return within("readwrite", (store) => store.delete(id));
}

export function create(model) {
  return { id: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`, title: "", model, system: "", options: {}, updated: Date.now(), messages: {}, current: null };
}

/** Adds a message behind another; it becomes the current one. */
export function add(conversation, parent, message) {
  let number = Object.keys(conversation.messages).length + 1;
  while (Object.hasOwn(conversation.messages, String(number))) number += 1;
  const id = String(number);
  conversation.messages[id] = { ...message, id, parent };
  conversation.current = id;
  if (conversation.title === "" && message.role === "user") conversation.title = message.content.trim().slice(0, 80);
  conversation.updated = Date.now();
  return conversation.messages[id];
}

/** The messages from the first to the current one. */
export function branch(conversation) {
  const path = [];
  for (let message = conversation.messages[conversation.current]; message; message = conversation.messages[message.parent]) path.unshift(message);
  return path;
}

/** The messages that follow the same one, in the order in which they were written. */
export function siblings(conversation, message) {
  return Object.values(conversation.messages).filter((other) => other.parent === message.parent);
}

/** Goes to the branch of a message: to its last message by the newest of each. */
export function select(conversation, message) {
  let last = message;
  for (;;) {
    const next = Object.values(conversation.messages).filter((other) => other.parent === last.id).at(-1);
    if (next === undefined) break;
    last = next;
  }
  conversation.current = last.id;
}

export function exported(conversations) {
  return JSON.stringify({ form: FORM, conversations }, null, 1);
}

/** Reads what was exported. What is not of that form is refused by name. */
export function imported(text) {
  let read;
  try {
    read = JSON.parse(text);
  } catch {
    throw new Error("the file is not JSON; expected one that was exported here");
  }
  if (read?.form !== FORM || !Array.isArray(read.conversations)) throw new Error(`the file is no export of conversations: \`form\` is not \`${FORM}\``);
  return read.conversations.map((conversation, number) => {
    const fail = (what) => {
      throw new Error(`conversation ${number + 1} of the file: ${what}`);
    };
    if (typeof conversation !== "object" || conversation === null) fail("it is no object");
    const messages = {};
    if (Object.hasOwn(conversation.messages ?? {}, "__proto__")) fail("a message has no name that one can have");
    for (const [id, message] of Object.entries(conversation.messages ?? {})) {
      if (typeof message?.content !== "string" || !["user", "assistant", "tool"].includes(message.role)) fail(`message ${id} has no role or no content`);
      if (message.parent !== null && !Object.hasOwn(conversation.messages, message.parent)) fail(`message ${id} follows one that is not there`);
      messages[id] = { ...message, id };
    }
    for (const message of Object.values(messages)) {
      const seen = new Set();
      for (let at = message; at; at = messages[at.parent]) {
        if (seen.has(at.id)) fail(`message ${message.id} follows itself`);
        seen.add(at.id);
      }
    }
    const text = (value) => (typeof value === "string" ? value : "");
    return {
      ...create(text(conversation.model)),
      title: text(conversation.title),
      system: text(conversation.system),
      options: typeof conversation.options === "object" && conversation.options !== null ? conversation.options : {},
      messages,
      current: Object.hasOwn(messages, conversation.current) ? conversation.current : null,
    };
  });
}
