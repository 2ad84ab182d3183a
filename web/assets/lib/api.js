// The client of the daemon's public API: requests, streams of lines, and the API key.

import { tab } from "./storage.js";

/** An error response of the daemon, or a failed connection (status 0). */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// The key is kept in this tab only, until it is closed.
const KEY = "lode-key";
let asking;
let askForKey = () => Promise.resolve(undefined);

/**
 * Sets the function that asks the user for a key. It gets the reason and returns a promise of the
 * key or `undefined`.
 */
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

/** Shows at most one dialog at a time, because many requests may be refused at once. */
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

/** Sends a request and returns the response. Asks for a key if it is missing or invalid. */
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
    // Another request may have obtained a key meanwhile.
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

/**
 * Yields the lines of a JSON stream as they arrive. Throws if a line is an error. `onjob` gets the
 * number of the daemon's job, if the request has one.
 */
export async function* lines(path, json, signal, onjob) {
  const response = await request("POST", path, { json, signal });
  const job = response.headers.get("lode-job");
  if (job !== null) onjob?.(Number(job));
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
    // Tells the daemon that the caller has stopped reading.
    reader.cancel().catch(() => {});
  }
}

/**
 * Uploads a file. Yields the number of bytes sent so far, and finally the response. `fetch` cannot
 * report the progress of an upload.
 */
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
        // A response without a body.
      }
      if (sender.status < 300) resolve(body);
      else reject(new ApiError(sender.status, String(body.error ?? `status ${sender.status}`)));
    });
    sender.addEventListener("error", () => reject(new ApiError(0, "the upload broke off")));
    sender.addEventListener("abort", () => reject(new DOMException("cancelled", "AbortError")));
  });
}
