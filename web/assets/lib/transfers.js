// What is under way: pulls, pushes, creates, checks. They go on while one looks at other views, and can be cancelled and resumed.

import { lines } from "./api.js";
import { h, fill, icon, iconButton, announce } from "./dom.js";
import { bytes, percent, seconds, short } from "./format.js";
import { meter } from "./table.js";
import { open } from "./dialog.js";

/** How long a rate is measured over, in milliseconds. */
const MEASURED = 3000;

const all = [];
const listeners = new Set();

export function onTransfers(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

let waiting;
function changed() {
  waiting ??= requestAnimationFrame(() => {
    waiting = undefined;
    for (const listener of listeners) listener();
  });
}

/** Something that answers with lines of progress. */
class Transfer {
  constructor(title, path, body, ondone, describe) {
    Object.assign(this, { title, path, body, ondone, describe, state: "running", status: "", parts: new Map(), samples: [] });
    this.run();
  }

  async run() {
    this.state = "running";
    this.failure = undefined;
    this.samples = [];
    this.abort = new AbortController();
    try {
      for await (const line of lines(this.path, this.body, this.abort.signal)) this.take(line);
      this.state = "done";
      announce(`${this.title}: done`);
      this.ondone?.(this);
    } catch (error) {
      this.state = error.name === "AbortError" ? "cancelled" : "failed";
      this.failure = error.name === "AbortError" ? undefined : error.message;
      announce(`${this.title}: ${this.failure ?? "cancelled"}`);
    }
    changed();
  }

  take(line) {
    if (line.report !== undefined) this.report = line.report;
    if (line.total !== undefined) {
      const name = line.digest ?? line.status;
      this.parts.set(name, { name, status: line.status, total: line.total, completed: line.completed ?? 0 });
      const now = Date.now();
      this.samples.push([now, this.completed]);
      while (this.samples.length > 2 && now - this.samples[0][0] > MEASURED) this.samples.shift();
    }
    this.status = line.status ?? this.status;
    changed();
  }

  get total() {
    return [...this.parts.values()].reduce((sum, part) => sum + part.total, 0);
  }

  get completed() {
    return [...this.parts.values()].reduce((sum, part) => sum + part.completed, 0);
  }

  /** Bytes a second, of the last seconds. */
  get rate() {
    const [first, last] = [this.samples[0], this.samples.at(-1)];
    return first && last[0] > first[0] ? ((last[1] - first[1]) * 1000) / (last[0] - first[0]) : 0;
  }

  cancel() {
    this.abort.abort();
  }
}

/** Begins something; it is shown in the list of what is under way, and so is what `describe` makes of its report. */
export function begin(title, path, body, ondone, describe) {
  const transfer = new Transfer(title, path, body, ondone, describe);
  all.unshift(transfer);
  changed();
  return transfer;
}

/** How far a transfer is, overall and blob by blob; goes along with it until it is removed from the page. */
export function progress(transfer) {
  const element = h("div", { class: "transfer" });
  const head = h("div", { class: "transfer-head" });
  const bar = h("div", { class: "transfer-bar" });
  const facts = h("p", { class: "facts", "aria-live": "off" });
  const parts = h("ul", { class: "parts" });
  const details = h("details", {}, h("summary", {}, "Parts"), parts);
  const result = h("div", { "aria-live": "polite" });
  fill(element, head, bar, facts, details, result);
  const draw = () => {
    const { total, completed, state } = transfer;
    const buttons = [];
    if (state === "running") buttons.push(h("button", { type: "button", onclick: () => transfer.cancel() }, "Cancel"));
    if (state === "failed" || state === "cancelled") buttons.push(h("button", { type: "button", class: "primary", onclick: () => transfer.run() }, "Resume"));
    const mark = { running: "", done: icon("check"), failed: icon("warning"), cancelled: icon("stop") }[state];
    if (head.dataset.state !== state) {
      head.dataset.state = state;
      fill(result, state === "done" && transfer.describe?.(transfer.report));
      fill(head, h("strong", { dir: "auto" }, transfer.title), h("span", { class: `state ${state}` }, mark, state), h("span", { class: "grow" }), buttons);
    }
    fill(bar, meter(state === "done" ? 1 : completed / total, state));
    bar.setAttribute("role", "progressbar");
    bar.setAttribute("aria-label", transfer.title);
    bar.setAttribute("aria-valuemin", 0);
    bar.setAttribute("aria-valuemax", 100);
    bar.setAttribute("aria-valuenow", state === "done" ? 100 : Math.floor((100 * completed) / total) || 0);
    const rate = transfer.rate;
    const left = rate > 0 && state === "running" ? (total - completed) / rate : undefined;
    fill(
      facts,
      transfer.failure ? h("span", { class: "failure", role: "alert" }, transfer.failure) : h("span", { dir: "auto" }, state === "running" ? transfer.status : ""),
      total > 0 && h("span", {}, `${bytes(completed)} of ${bytes(total)} · ${percent(completed / total)}`),
      rate > 0 && state === "running" && h("span", {}, `${bytes(rate)}/s`),
      left !== undefined && Number.isFinite(left) && h("span", {}, `${seconds(left)} left`),
    );
    details.hidden = transfer.parts.size < 2;
    if (details.open) fill(parts, rows(transfer));
  };
  details.addEventListener("toggle", draw);
  draw();
  const stop = onTransfers(() => (element.isConnected ? draw() : stop()));
  return element;
}

/** The blobs under way first; of the others there may be hundreds. */
function rows(transfer) {
  const parts = [...transfer.parts.values()];
  const ends = (part) => part.completed >= part.total;
  const shown = [...parts.filter((part) => !ends(part)), ...parts.filter(ends)].slice(0, 60);
  const more = parts.length - shown.length;
  return [
    shown.map((part) =>
      h("li", {}, h("code", {}, part.name.startsWith("sha256:") ? short(part.name) : part.name), meter(part.completed / part.total, ends(part) ? "done" : ""), h("span", {}, `${bytes(part.completed)} of ${bytes(part.total)}`)),
    ),
    more > 0 && h("li", {}, `and ${more} more that are done`),
  ];
}

/** Opens the list of what is under way and what was. */
export function showTransfers() {
  return open("Under way", () => {
    const list = h("div", { class: "transfers" });
    const draw = () => {
      if (all.length === 0) fill(list, h("p", {}, "Nothing was begun in this tab."));
      else fill(list, all.map(progress));
    };
    draw();
    return list;
  }, { class: "wide" });
}

/** A button that says how much is under way. */
export function transfersButton() {
  const number = h("span", { class: "number", hidden: true });
  const button = iconButton("download", "Pulls, pushes and other work under way", showTransfers);
  button.append(number);
  onTransfers(() => {
    const running = all.filter((transfer) => transfer.state === "running").length;
    number.hidden = running === 0;
    fill(number, running);
    button.classList.toggle("busy", running > 0);
  });
  return button;
}

window.addEventListener("beforeunload", (event) => {
  // What is under way ends with the page; what has come stays, and is resumed.
  if (all.some((transfer) => transfer.state === "running")) event.preventDefault();
});
