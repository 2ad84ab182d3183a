// Export and import of conversations. Imported files are untrusted: invalid content is refused with
// a message that names it.

import { create } from "../lib/conversations.js";
import { isPicture } from "./pictures.js";

/** The format identifier in a file. */
const FORM = "lode-conversations/1";
const ROLES = ["user", "assistant", "tool"];
/** The maximal length of an id. */
const LONGEST = 100;

export function exported(conversations) {
  return JSON.stringify({ form: FORM, conversations }, null, 1);
}

/** Parses an exported file. */
export function imported(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("the file is not JSON; expected one that was exported here");
  }
  if (file?.form !== FORM || !Array.isArray(file.conversations)) throw new Error(`the file is no export of conversations: \`form\` is not \`${FORM}\``);
  return file.conversations.map((one, number) => {
    try {
      return conversation(one);
    } catch (error) {
      throw new Error(`conversation ${number + 1} of the file: ${error.message}`);
    }
  });
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isText = (value) => typeof value === "string";
const isNumber = (value) => Number.isFinite(value);

/** Returns a field of an object, or `undefined` if it is absent. */
function optional(object, name, is, expected) {
  const value = object[name];
  if (value === undefined || value === null) return undefined;
  if (!is(value)) throw new Error(`\`${name}\` is no ${expected}`);
  return value;
}

function conversation(read) {
  if (!isObject(read)) throw new Error("it is no object");
  const messages = tree(optional(read, "messages", isObject, "object") ?? {});
  const made = create(optional(read, "model", isText, "text") ?? "");
  const id = optional(read, "id", isText, "text") ?? "";
  const current = optional(read, "current", isText, "text") ?? null;
  if (current !== null && !Object.hasOwn(messages, current)) throw new Error(`its current message \`${current}\` is not there`);
  return {
    ...made,
    id: id !== "" && id.length <= LONGEST ? id : made.id,
    title: optional(read, "title", isText, "text") ?? "",
    system: optional(read, "system", isText, "text") ?? "",
    options: options(optional(read, "options", isObject, "object") ?? {}),
    updated: Math.min(optional(read, "updated", isNumber, "number") ?? made.updated, made.updated),
    messages,
    current,
  };
}

/** Reads messages by their ids and checks that each parent exists and that there are no cycles. */
function tree(read) {
  if (Object.hasOwn(read, "__proto__")) throw new Error("a message has no name that one can have");
  const messages = {};
  for (const [id, one] of Object.entries(read)) {
    try {
      messages[id] = { ...message(one), id };
    } catch (error) {
      throw new Error(`message ${id}: ${error.message}`);
    }
    const { parent } = messages[id];
    if (parent !== null && !Object.hasOwn(read, parent)) throw new Error(`message ${id} follows one that is not there`);
  }
  // Messages that are known to lead to a root are not walked again.
  const rooted = new Set();
  for (const one of Object.values(messages)) {
    const way = new Set();
    for (let at = one; at && !rooted.has(at.id); at = messages[at.parent]) {
      if (way.has(at.id)) throw new Error(`message ${one.id} follows itself`);
      way.add(at.id);
    }
    for (const id of way) rooted.add(id);
  }
  return messages;
}

function message(read) {
  if (!isObject(read)) throw new Error("it is no object");
  if (!isText(read.content)) throw new Error("`content` is no text");
  if (!ROLES.includes(read.role)) throw new Error(`\`role\` is none of ${ROLES.join(", ")}`);
  const made = { role: read.role, content: read.content, parent: optional(read, "parent", isText, "text") ?? null };
  const at = optional(read, "at", isNumber, "number");
  if (at !== undefined) made.at = at;
  for (const name of ["thinking", "name", "call", "model", "failure"]) {
    const value = optional(read, name, isText, "text");
    if (value !== undefined) made[name] = value;
  }
  const calls = optional(read, "calls", Array.isArray, "list");
  if (calls !== undefined) made.calls = calls.map(call);
  const pictures = optional(read, "pictures", Array.isArray, "list");
  if (pictures !== undefined) {
    if (!pictures.every(isPicture)) throw new Error("`pictures` has something else than data URLs of PNG, JPEG, WebP or GIF files");
    made.pictures = pictures;
  }
  const figures = optional(read, "figures", isObject, "object");
  if (figures !== undefined) made.figures = numbers(figures);
  return made;
}

function call(read) {
  if (!isText(read?.function?.name)) throw new Error("a call has no `function.name`");
  const made = { function: { name: read.function.name, arguments: optional(read.function, "arguments", isObject, "object") ?? {} } };
  const id = optional(read, "id", isText, "text");
  return id === undefined ? made : { id, ...made };
}

function numbers(read) {
  const made = {};
  for (const name of ["prompt", "cached", "truncated", "tokens", "speed", "first", "load"]) {
    const value = optional(read, name, isNumber, "number");
    if (value !== undefined) made[name] = value;
  }
  const reason = optional(read, "reason", isText, "text");
  return reason === undefined ? made : { ...made, reason };
}

function options(read) {
  const made = {};
  const sampling = optional(read, "sampling", isObject, "object");
  if (sampling !== undefined) {
    const { stop, ...rest } = sampling;
    for (const [name, value] of Object.entries(rest)) if (!isNumber(value)) throw new Error(`the option \`${name}\` is no number`);
    if (stop !== undefined && !(Array.isArray(stop) && stop.every(isText))) throw new Error("the option `stop` is no list of texts");
    made.sampling = sampling;
  }
  const think = optional(read, "think", (value) => typeof value === "boolean" || isText(value), "boolean or text");
  if (think !== undefined) made.think = think;
  const format = optional(read, "format", (value) => isText(value) || isObject(value), "text or object");
  if (format !== undefined) made.format = format;
  const tools = optional(read, "tools", Array.isArray, "list");
  if (tools !== undefined) made.tools = tools;
  return made;
}
