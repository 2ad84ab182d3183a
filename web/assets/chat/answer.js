// An answer as it streams in: its request, its events, and its speed.

import { lines, post } from "../lib/api.js";
import { rendered } from "../lib/dom.js";
import { encoded } from "./pictures.js";

/**
 * The shortest time between two drawings of a text, in milliseconds. A slow drawing is followed by
 * a longer pause.
 */
const REST = 90;

/** How many characters of texts and blocks are cached. */
const REMEMBERED = 4_000_000;
/** Blocks by their text, in the order of use; the last used is at the end. */
const known = new Map();
let remembered = 0;

/** Converts Markdown to blocks of HTML; returns `undefined` if the daemon fails. */
async function blocks(text) {
  try {
    return (await post("/api/lode/markdown", { text }, { silent: true })).blocks;
  } catch {
    return undefined;
  }
}

const size = (text, read) => read.reduce((sum, block) => sum + block.length, text.length);

function remember(text, read) {
  if (!known.delete(text)) remembered += size(text, read);
  known.set(text, read);
  for (const [oldest, blocks] of known) {
    if (remembered <= REMEMBERED) break;
    known.delete(oldest);
    remembered -= size(oldest, blocks);
  }
}

/** Whether a message is complete. */
export function isWhole(message) {
  return message.figures?.reason !== undefined || message.failure !== undefined;
}

/**
 * Draws Markdown into an element. A cached text is drawn at once; until another one is converted,
 * the element shows the plain text.
 */
export async function drawText(element, text, whole) {
  if (element.childElementCount === 0 && !known.has(text)) {
    element.textContent = text;
    element.classList.add("plain-text");
  }
  const read = known.get(text) ?? (await blocks(text));
  if (read === undefined) return;
  if (whole) remember(text, read);
  element.classList.remove("plain-text");
  if (element.blocks === undefined) element.replaceChildren();
  rendered(element, read);
}

/** Returns the text to draw for a message. Content that is one JSON document is drawn as code. */
export function shownText({ content }) {
  if (!/^\s*[[{]/.test(content)) return content;
  try {
    JSON.parse(content);
  } catch {
    return content;
  }
  // The content stays as it was written: reformatting would change numbers and names. No line of
  // JSON begins with a code fence.
  return `\`\`\`json\n${content}\n\`\`\``;
}

export class Answering {
  constructor(conversation, history, message, model) {
    Object.assign(this, { conversation, history, message, model });
    this.abort = new AbortController();
    /** The functions that draw the answer; set by the message element. */
    this.text = undefined;
    this.thinking = undefined;
    this.foot = undefined;
  }

  stop() {
    this.stopped = true;
    this.abort.abort();
  }

  request() {
    const { conversation } = this;
    const { options = {} } = conversation;
    const can = (what) => this.model === undefined || (this.model.capabilities ?? []).includes(what);
    // An answer that failed before its first word has no content.
    const said = this.history.filter((one) => one.role !== "assistant" || one.content || one.calls);
    const messages = said.map((one) => ({
      role: one.role,
      content: one.content,
      ...(one.thinking ? { thinking: one.thinking } : {}),
      ...(one.pictures && can("vision") ? { images: encoded(one.pictures) } : {}),
      ...(one.calls ? { tool_calls: one.calls } : {}),
      ...(one.name ? { tool_name: one.name } : {}),
      ...(one.call ? { tool_call_id: one.call } : {}),
    }));
    if (conversation.system) messages.unshift({ role: "system", content: conversation.system });
    const body = { model: conversation.model, messages, stream: true, options: options.sampling ?? {} };
    if (options.format) body.format = options.format;
    // Settings from another model may not be supported by this one.
    if (options.tools && can("tools")) body.tools = options.tools;
    if (options.think !== undefined && can("thinking")) body.think = options.think;
    return body;
  }

  async run(changed) {
    const { message } = this;
    this.begun = performance.now();
    this.changed = changed;
    try {
      for await (const line of lines("/api/chat", this.request(), this.abort.signal)) this.take(line);
      if (message.figures?.reason === undefined) throw new Error("the answer broke off");
    } catch (error) {
      if (error.name === "AbortError") message.figures = { ...this.soFar(), reason: "stopped" };
      else message.failure = error.message;
    }
    await this.drawing;
    await this.drawNow();
  }

  take(line) {
    const { message } = this;
    const part = line.message ?? {};
    if (part.thinking) message.thinking = (message.thinking ?? "") + part.thinking;
    if (part.content) message.content += part.content;
    if (part.tool_calls) message.calls = [...(message.calls ?? []), ...part.tool_calls];
    if (part.thinking || part.content || part.tool_calls) {
      this.first ??= performance.now();
      this.words = (this.words ?? 0) + 1;
    }
    if (line.done) {
      message.figures = {
        reason: line.done_reason,
        prompt: line.prompt_eval_count ?? 0,
        cached: line.prompt_cached_count ?? 0,
        truncated: line.prompt_truncated_count ?? 0,
        tokens: line.eval_count ?? 0,
        speed: line.eval_duration > 0 ? (line.eval_count * 1e9) / line.eval_duration : 0,
        first: this.first === undefined ? undefined : (this.first - this.begun) / 1000,
        load: (line.load_duration ?? 0) / 1e9,
      };
    }
    this.schedule();
  }

  /** Returns the figures before the end of the answer. Each event counts as one token. */
  soFar() {
    const elapsed = this.first === undefined ? 0 : (performance.now() - this.first) / 1000;
    return {
      tokens: this.words ?? 0,
      speed: elapsed > 0.2 ? (this.words - 1) / elapsed : 0,
      first: this.first === undefined ? undefined : (this.first - this.begun) / 1000,
    };
  }

  schedule() {
    if (this.waiting) return;
    this.waiting = true;
    this.drawing = (async () => {
      await new Promise((resolve) => setTimeout(resolve, this.rest ?? 0));
      this.waiting = false;
      const begin = performance.now();
      await this.drawNow();
      this.rest = Math.max(REST, 2 * (performance.now() - begin));
    })();
  }

  async drawNow() {
    const { message } = this;
    if (this.thinking && message.thinking) this.thinking(message.thinking);
    if (this.foot) this.foot(message.figures ?? this.soFar());
    // Drawings run one after the other, so that an older text never replaces a newer one.
    if (this.text?.isConnected && message.content) {
      const turn = (this.turn = (this.turn ?? Promise.resolve()).then(() => drawText(this.text, shownText(message), isWhole(message))));
      await turn;
    }
    this.changed?.();
  }
}
