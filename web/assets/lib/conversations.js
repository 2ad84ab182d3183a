// Conversations, stored in this browser. Each is a tree, because every message can have several
// versions.
//
//   conversation = { id, title, model, system, options, updated, messages: { id: message },
//                    current }
//   message      = { id, parent, at, role, content, thinking?, calls?, name?, figures?,
//                    model?, failure?, pictures? }
//
// `current` is the id of the last message of the branch that is shown.

const NAME = "lode";
const STORE = "conversations";

/** The channel on which tabs report conversations that they have saved or removed. */
const CHANNEL = "lode-conversations";

let opening;
/** Replaces the database if the browser does not provide one. */
const memory = new Map();

/** Opens the database; `undefined` if the browser does not provide one. */
function database() {
  opening ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  }).catch(() => undefined);
  return opening;
}

/** Whether conversations survive the page. */
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

/**
 * Ids that this tab has read or saved. If one of these conversations is missing, another tab has
 * removed it.
 */
const met = new Set();
const channel = "BroadcastChannel" in window ? new BroadcastChannel(CHANNEL) : undefined;

/**
 * Calls `listener` with the `id` of each conversation that another tab changes. Returns a function
 * that unsubscribes.
 */
export function onChanged(listener) {
  const heard = (event) => listener(event.data.id);
  channel?.addEventListener("message", heard);
  return () => channel?.removeEventListener("message", heard);
}

/** Returns all conversations, the newest first. */
export async function all() {
  const found = (await areKept()) ? await within("readonly", (store) => store.getAll()) : [...memory.values()];
  for (const one of found) met.add(one.id);
  return found.sort((a, b) => b.updated - a.updated);
}

/** Returns a stored conversation; `undefined` if it was removed. */
export async function read(id) {
  const found = (await areKept()) ? await within("readonly", (store) => store.get(id)) : memory.get(id);
  if (found !== undefined) met.add(id);
  return found;
}

/**
 * Saves a conversation, merged with changes from other tabs. A conversation that was removed
 * meanwhile is not saved. Returns whether it was saved.
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

/** Saves a conversation from a file, even if it was removed before. */
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

/**
 * Merges another version into a conversation. A message only grows until it is complete, so the
 * longer version wins.
 */
export function merge(conversation, other) {
  const further = (one) => [one.figures?.reason !== undefined || one.failure !== undefined, one.content.length + (one.thinking?.length ?? 0)];
  for (const [id, message] of Object.entries(other.messages)) {
    if (!Object.hasOwn(conversation.messages, id)) conversation.messages[id] = message;
    else {
      const mine = conversation.messages[id];
      const [[ended, length], [otherEnded, otherLength]] = [further(mine), further(message)];
      // Changes the object in place, because the page or a running answer may refer to it.
      if (otherEnded > ended || (otherEnded === ended && otherLength > length)) Object.assign(mine, message, { parent: mine.parent });
    }
  }
}

/**
 * Takes over the changes of another tab. The branch that is shown stays, since tabs may show
 * different ones.
 */
export function takeOver(conversation, read) {
  const { title, model, system, options, updated } = read;
  merge(conversation, read);
  Object.assign(conversation, { title, model, system, options, updated: Math.max(conversation.updated, updated) });
}

function unique() {
  // `randomUUID` exists only in pages that are loaded over TLS or from this machine.
  return crypto.randomUUID?.() ?? Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(16).padStart(8, "0")).join("");
}

export function create(model) {
  return { id: unique(), title: "", model, system: "", options: {}, updated: Date.now(), messages: {}, current: null };
}

/** Adds a message behind `parent` and makes it the current one. */
export function add(conversation, parent, message) {
  // Ids are random, because two tabs may add to the same conversation.
  const id = unique();
  conversation.messages[id] = { ...message, id, parent, at: Date.now() };
  conversation.current = id;
  if (conversation.title === "" && message.role === "user") conversation.title = message.content.trim().slice(0, 80) || (message.pictures ? "Picture" : "");
  conversation.updated = Date.now();
  return conversation.messages[id];
}

/** Returns the messages from the first to the current one. */
export function branch(conversation) {
  const path = [];
  for (let message = conversation.messages[conversation.current]; message; message = conversation.messages[message.parent]) path.unshift(message);
  return path;
}

/** Returns the children of a message in the order of their creation, in all tabs. */
function following(conversation, parent) {
  return Object.values(conversation.messages).filter((one) => one.parent === parent).sort((a, b) => (a.at ?? 0) - (b.at ?? 0));
}

/** Returns all messages with the same parent, including this one. */
export function siblings(conversation, message) {
  return following(conversation, message.parent);
}

/** Selects the branch of a message: follows the newest children to the last message. */
export function select(conversation, message) {
  let last = message;
  for (;;) {
    const next = following(conversation, last.id).at(-1);
    if (next === undefined) break;
    last = next;
  }
  conversation.current = last.id;
}
