// The daemon's public API: requests, streams of lines, and the key that it may ask for.

import { tab } from "./storage.js";

/** What the daemon refused, or what became of the connection. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// In this tab alone, and as long as it is open.
const KEY = "lode-key";
let asking;
let askForKey = () => Promise.resolve(undefined);

/** Says how a key is asked for: a function that is told why and promises the key, or nothing. */
export function setKeyDialog(dialog) {
  askForKey = dialog;
}

export function hasKey() {
  return tab.getItem(KEY) !== null;
}

export function forgetKey() {
  tab.removeItem(KEY);
}

function headers(more) {
  const key = tab.getItem(KEY);
  return key === null ? more : { ...more, Authorization: `Bearer ${key}` };
}

/** One question at a time: many requests may be refused at once. */
async function keyFor(refused) {
  const used = tab.getItem(KEY);
  asking ??= askForKey(refused).finally(() => {
    asking = undefined;
  });
  const key = await asking;
  if (key !== undefined) tab.setItem(KEY, key);
  document.dispatchEvent(new Event("lode-key"));
  return key !== undefined && key !== used;
}

async function failure(response) {
  const text = await response.text().catch(() => "");
  let message;
  try {
    const body = JSON.parse(text);
    message = body.error?.message ?? body.error ?? body.errors?.[0]?.message;
  } catch {
    message = text;
  }
  return new ApiError(response.status, String(message || response.statusText || `status ${response.status}`));
}

/** An answer of the daemon; asks for a key where one is missing or wrong. */
export async function request(method, path, options = {}) {
  for (;;) {
    const used = tab.getItem(KEY);
    let response;
    try {
      response = await fetch(path, {
        method,
        headers: headers(options.json === undefined ? {} : { "Content-Type": "application/json" }),
        body: options.json === undefined ? options.body : JSON.stringify(options.json),
        signal: options.signal,
        cache: "no-store",
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "the daemon cannot be reached");
    }
    if (response.ok) return response;
    const error = await failure(response);
    // Somebody else may have given a key meanwhile.
    const renewed = tab.getItem(KEY) !== used;
    if (response.status !== 401 || options.silent || !(renewed || (await keyFor(error.message)))) throw error;
  }
}

export async function get(path, options) {
  return (await request("GET", path, options)).json();
}

export async function post(path, json, options) {
  const response = await request("POST", path, { ...options, json });
  const text = await response.text();
  return text === "" ? undefined : JSON.parse(text);
}

export async function remove(path, json) {
  await request("DELETE", path, json === undefined ? {} : { json });
}

/** Lines of JSON as they come. An error among them is thrown. */
export async function* lines(path, json, signal) {
  const response = await request("POST", path, { json, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let ended = false;
  try {
    while (!ended) {
      const { value, done } = await reader.read();
      ended = done;
      rest += value ?? "";
      const parts = rest.split("\n");
      rest = done ? "" : parts.pop();
      for (const line of parts) {
        if (line.trim() === "") continue;
        const parsed = JSON.parse(line);
        if (parsed.error !== undefined) throw new ApiError(response.status, parsed.error);
        yield parsed;
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ApiError) throw error;
    throw new ApiError(0, "the connection to the daemon broke off");
  } finally {
    // Who listens no more lets the daemon know.
    reader.cancel().catch(() => {});
  }
}

/** Sends a file. Tells how many bytes have gone, as they go; the last thing told is the answer. `fetch` cannot tell. */
export async function* upload(path, file, signal) {
  const sender = new XMLHttpRequest();
  let news = () => {};
  let sent = 0;
  sender.upload.addEventListener("progress", (event) => {
    sent = event.loaded;
    news();
  });
  const abort = () => sender.abort();
  signal.addEventListener("abort", abort);
  const answer = answered(sender);
  let ended = false;
  const end = answer.then(
    () => (ended = true),
    () => (ended = true),
  );
  sender.open("POST", path);
  for (const [name, value] of Object.entries(headers({ "Content-Type": "application/octet-stream" }))) sender.setRequestHeader(name, value);
  sender.send(file);
  if (signal.aborted) abort();
  try {
    while (!ended) {
      await Promise.race([end, new Promise((resolve) => (news = resolve))]);
      yield { sent };
    }
    yield await answer;
  } finally {
    signal.removeEventListener("abort", abort);
    if (!ended) abort();
  }
}

function answered(sender) {
  return new Promise((resolve, reject) => {
    sender.addEventListener("load", () => {
      let body = {};
      try {
        body = JSON.parse(sender.responseText);
      } catch {
        // An answer without a body.
      }
      if (sender.status < 300) resolve(body);
      else reject(new ApiError(sender.status, String(body.error ?? `status ${sender.status}`)));
    });
    sender.addEventListener("error", () => reject(new ApiError(0, "the upload broke off")));
    sender.addEventListener("abort", () => reject(new DOMException("cancelled", "AbortError")));
  });
}
