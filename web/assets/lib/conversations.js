// Conversations, kept in this browser: each is a tree, because any message can be written anew.
//
//   conversation = { id, title, model, system, options, updated, messages: { id: message }, current }
//   message      = { id, parent, at, role, content, thinking?, calls?, name?, figures?, model?, failure? }
//
// `current` is the last message of the branch that is shown.

const NAME = "lode";
const STORE = "conversations";

/** What tabs tell each other: which conversation was kept or removed. */
const CHANNEL = "lode-conversations";

let opening;
/** In the place of the database, where the browser keeps nothing. */
const memory = new Map();

/** The database; `undefined` where the browser keeps none. */
function database() {
  opening ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  }).catch(() => undefined);
  return opening;
}

/** Whether conversations stay when the page is closed. */
export async function areKept() {
  return (await database()) !== undefined;
}

async function within(mode, work) {
  const transaction = (await database()).transaction(STORE, mode);
  const result = work(transaction.objectStore(STORE));
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve(result?.result);
    transaction.onerror = () => reject(transaction.error);
    transaction.onabort = () => reject(transaction.error);
  });
}

/** Those that this tab has read or kept. One of them that is there no more was removed by another tab. */
const met = new Set();
const channel = "BroadcastChannel" in window ? new BroadcastChannel(CHANNEL) : undefined;

/** Calls a function with the `id` of each conversation that another tab has changed; gives one that ends this. */
export function onChanged(listener) {
  const heard = (event) => listener(event.data.id);
  channel?.addEventListener("message", heard);
  return () => channel?.removeEventListener("message", heard);
}

/** All of them, the newest first. */
export async function all() {
  const found = (await areKept()) ? await within("readonly", (store) => store.getAll()) : [...memory.values()];
  for (const one of found) met.add(one.id);
  return found.sort((a, b) => b.updated - a.updated);
}

/** One as it is kept; nothing where it was removed. */
export async function read(id) {
  const found = (await areKept()) ? await within("readonly", (store) => store.get(id)) : memory.get(id);
  if (found !== undefined) met.add(id);
  return found;
}

/**
 * Keeps a conversation, with what other tabs have added to it meanwhile. One that was removed meanwhile stays so; says whether
 * it is kept.
 */
export async function save(conversation) {
  const { id } = conversation;
  let kept = true;
  if (await areKept()) {
    await within("readwrite", (store) => {
      const before = store.get(id);
      before.onsuccess = () => {
        kept = before.result !== undefined || !met.has(id);
        if (before.result !== undefined) merge(conversation, before.result);
        if (kept) store.put(conversation);
      };
    });
  } else {
    kept = memory.has(id) || !met.has(id);
    if (kept) memory.set(id, conversation);
  }
  met.add(id);
  if (kept) channel?.postMessage({ id });
  return kept;
}

/** Keeps one that comes from a file, even where it was removed before. */
export function restore(conversation) {
  met.delete(conversation.id);
  return save(conversation);
}

export async function remove(id) {
  if (await areKept()) await within("readwrite", (store) => store.delete(id));
  memory.delete(id);
  met.add(id);
  channel?.postMessage({ id });
}

/** Adds to a conversation what another version of it has. A message only ever gets longer, until it has an end. */
export function merge(conversation, other) {
  const further = (one) => [one.figures?.reason !== undefined || one.failure !== undefined, one.content.length + (one.thinking?.length ?? 0)];
  for (const [id, message] of Object.entries(other.messages)) {
    if (!Object.hasOwn(conversation.messages, id)) conversation.messages[id] = message;
    else {
      const mine = conversation.messages[id];
      const [[ended, length], [otherEnded, otherLength]] = [further(mine), further(message)];
      // The same object stays: it may be on the page, or be written to.
      if (otherEnded > ended || (otherEnded === ended && otherLength > length)) Object.assign(mine, message, { parent: mine.parent });
    }
  }
}

/** Takes over what another tab has made of a conversation; the branch that is shown stays, it may look at another. */
export function takeOver(conversation, read) {
  const { title, model, system, options, updated } = read;
  merge(conversation, read);
  Object.assign(conversation, { title, model, system, options, updated: Math.max(conversation.updated, updated) });
}

function unique() {
  // Not everywhere: only what is loaded over TLS or from this machine has it.
  return crypto.randomUUID?.() ?? Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(16).padStart(8, "0")).join("");
}

export function create(model) {
  return { id: unique(), title: "", model, system: "", options: {}, updated: Date.now(), messages: {}, current: null };
}

/** Adds a message behind another; it becomes the current one. */
export function add(conversation, parent, message) {
  // Two tabs may add to one conversation.
  const id = unique();
  conversation.messages[id] = { ...message, id, parent, at: Date.now() };
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

/** The messages that follow one, in the order in which they were written, also in other tabs. */
function following(conversation, parent) {
  return Object.values(conversation.messages).filter((one) => one.parent === parent).sort((a, b) => (a.at ?? 0) - (b.at ?? 0));
}

/** The messages that follow the same one. */
export function siblings(conversation, message) {
  return following(conversation, message.parent);
}

/** Goes to the branch of a message: to its last message by the newest of each. */
export function select(conversation, message) {
  let last = message;
  for (;;) {
    const next = following(conversation, last.id).at(-1);
    if (next === undefined) break;
    last = next;
  }
  conversation.current = last.id;
}
