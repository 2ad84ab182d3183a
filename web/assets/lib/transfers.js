// Running transfers and other work: pulls, pushes, creates, checks. They continue while other views
// are shown, and can be cancelled and resumed. Pulls, pushes and creates are jobs of the daemon,
// which go on without this page.

import { get, lines, post } from "./api.js";
import { h, fill, icon, iconButton, announce } from "./dom.js";
import { bytes, count, percent, seconds, short } from "./format.js";
import { meter } from "./table.js";
import { open } from "./dialog.js";

/** The digest that the daemon reports for a whole transfer, in addition to its parts. */
const WHOLE = "sha256:model";
/** Maximal number of parts that are shown at a time. */
const SHOWN = 60;
/** The period over which a rate is measured, in milliseconds. */
const MEASURED = 3000;
/** The shortest period for a meaningful rate, in milliseconds. */
const LEAST = 400;
/** Time between two looks at the daemon's jobs, in milliseconds. */
const LOOK = 1000;

const all = [];
const listeners = new Set();

function onTransfers(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

const changeListeners = new Set();

/**
 * Calls `listener` whenever a job has ended that may have changed the set of models. Returns a
 * function that unsubscribes.
 */
export function onModelsChanged(listener) {
  changeListeners.add(listener);
  return () => changeListeners.delete(listener);
}

let waiting;
function changed() {
  waiting ??= requestAnimationFrame(() => {
    waiting = undefined;
    for (const listener of listeners) listener();
  });
}

/**
 * Work that reports its progress as lines. `work` gets a signal that cancels it, and a function
 * that takes the number of the daemon's job. It yields the lines, and is called again to resume.
 */
class Transfer {
  constructor(title, work, { ondone, describe, changes }) {
    Object.assign(this, { title, work, ondone, describe, changes, state: "running", status: "", parts: new Map(), samples: [] });
    this.run();
  }

  async run() {
    if (this.abort !== undefined && this.state === "running") return;
    this.state = "running";
    this.failure = undefined;
    this.job = undefined;
    this.isCancelled = false;
    this.samples = [];
    this.whole = undefined;
    this.parts.clear();
    this.abort = new AbortController();
    changed();
    try {
      for await (const line of this.work(this.abort.signal, (job) => (this.job = job))) this.take(line);
      this.state = "done";
      this.close();
      announce(`${this.title}: done`);
      this.ondone?.();
      if (this.changes) for (const listener of changeListeners) listener();
    } catch (error) {
      const isCancelled = this.isCancelled || error.name === "AbortError";
      this.state = isCancelled ? "cancelled" : "failed";
      this.failure = isCancelled ? undefined : error.message;
      announce(`${this.title}: ${this.failure ?? "cancelled"}`);
    }
    changed();
  }

  take(line) {
    if (line.report !== undefined) this.report = line.report;
    if (line.total !== undefined) {
      const id = line.digest ?? line.status;
      const part = { name: line.name || id, total: line.total, completed: line.completed ?? 0 };
      if (id === WHOLE) this.whole = part;
      else this.parts.set(id, part);
      const now = Date.now();
      this.samples.push([now, this.completed]);
      while (this.samples.length > 2 && now - this.samples[0][0] > MEASURED) this.samples.shift();
    }
    // With hundreds of concurrent parts, the status of a single one is not informative.
    if (line.name === undefined) this.status = line.status ?? this.status;
    changed();
  }

  get total() {
    return this.whole?.total ?? [...this.parts.values()].reduce((sum, part) => sum + part.total, 0);
  }

  get completed() {
    return this.whole?.completed ?? [...this.parts.values()].reduce((sum, part) => sum + part.completed, 0);
  }

  /** Bytes per second over the last seconds. */
  get rate() {
    const [first, last] = [this.samples[0], this.samples.at(-1)];
    return first && last[0] - first[0] >= LEAST ? ((last[1] - first[1]) * 1000) / (last[0] - first[0]) : 0;
  }

  /** Cancels the daemon's job, which then ends the lines; other work ends with its connection. */
  async cancel() {
    this.isCancelled = true;
    if (this.job === undefined) {
      this.abort.abort();
      return;
    }
    try {
      await post("/api/lode/jobs/cancel", { id: this.job });
    } catch (error) {
      this.isCancelled = false;
      // With 409, it has just ended by itself.
      if (error.status !== 409) announce(`${this.title} could not be cancelled: ${error.message}`);
    }
  }

  /** Releases the parts and files of a completed job, which is never run again. */
  close() {
    this.work = undefined;
    this.whole ??= { total: this.total, completed: this.completed };
    this.begun = this.parts.size;
    this.parts = new Map([...this.parts].slice(-SHOWN));
  }
}

/** Returns work that consists of one API request. */
export function asked(path, body) {
  return (signal, onjob) => lines(path, body, signal, onjob);
}

/**
 * Starts a job and adds it to the list. `options`: `ondone` is called at its end, `describe`
 * renders its report, and `changes` states that the job may change the set of models.
 */
export function begin(title, work, options = {}) {
  const transfer = new Transfer(title, work, options);
  all.unshift(transfer);
  changed();
  return transfer;
}

/**
 * Returns an element with the progress of a job, overall and by part. It updates itself until it is
 * removed from the page.
 */
export function progress(transfer) {
  const element = h("div", { class: "transfer" });
  const head = h("div", { class: "transfer-head" });
  const bar = h("div", { class: "transfer-bar" });
  const facts = h("p", { class: "facts", "aria-live": "off" });
  const parts = h("ul", { class: "parts", tabindex: 0, "aria-label": "Parts" });
  const number = h("span", { class: "hint" });
  const details = h("details", { open: transfer.state === "running" }, h("summary", {}, "One by one ", number), parts);
  const result = h("div", { "aria-live": "polite" });
  const hint = h("p", { class: "hint" });
  fill(element, head, bar, facts, details, result, hint);
  const draw = () => {
    const { total, completed, state } = transfer;
    const buttons = [];
    if (state === "running") buttons.push(h("button", { type: "button", onclick: () => transfer.cancel() }, "Cancel"));
    if (state === "failed" || state === "cancelled") buttons.push(h("button", { type: "button", class: "primary", onclick: () => transfer.run() }, state === "failed" ? "Try again" : "Resume"));
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
      transfer.failure ? h("span", { class: "failure", role: "alert" }, transfer.failure) : state === "running" && h("span", { dir: "auto" }, transfer.status),
      total > 0 && h("span", {}, `${bytes(completed)} of ${bytes(total)} · ${percent(completed / total)}`),
      rate > 0 && state === "running" && h("span", {}, `${bytes(rate)}/s`),
      left !== undefined && Number.isFinite(left) && h("span", {}, `${seconds(left)} left`),
    );
    hint.hidden = state !== "running";
    fill(hint, transfer.job === undefined ? "It continues when this dialog is closed, as long as the page is open; the arrow in the bar shows it again." : "It continues when this dialog and this page are closed; the arrow in the bar shows it again.");
    details.hidden = transfer.parts.size === 0 || (transfer.whole === undefined && transfer.parts.size < 2);
    fill(number, `· ${told(transfer)}`);
    if (details.open) fill(parts, rows(transfer));
  };
  details.addEventListener("toggle", draw);
  draw();
  const stop = onTransfers(() => (element.isConnected ? draw() : stop()));
  return element;
}

const isDone = (part) => part.completed >= part.total;

/**
 * Describes how many parts are done. In a job that reports a whole, only the parts that have
 * started are known.
 */
function told({ state, whole, parts, begun }) {
  if (state === "done") return `${count(begun)} done`;
  let done = 0;
  for (const part of parts.values()) done += isDone(part) ? 1 : 0;
  if (state === "running" && whole !== undefined) return `${count(done)} done, ${count(parts.size - done)} under way`;
  return `${count(done)} of ${count(parts.size)} done`;
}

/** Returns the running parts, then the latest finished ones; there may be thousands. */
function rows(transfer) {
  const parts = [...transfer.parts.values()];
  const shown = [...parts.filter((part) => !isDone(part)), ...parts.filter(isDone).reverse()].slice(0, SHOWN);
  const more = parts.length - shown.length;
  return [
    shown.map((part) =>
      h("li", {}, h("code", { title: part.name, dir: "auto" }, part.name.startsWith("sha256:") ? short(part.name) : part.name), meter(part.completed / part.total, isDone(part) ? "done" : ""), h("span", {}, isDone(part) ? bytes(part.total) : `${bytes(part.completed)} of ${bytes(part.total)}`)),
    ),
    more > 0 && h("li", {}, `and ${count(more)} more`),
  ];
}

/** Returns an element with the unfinished jobs of the daemon that were not begun in this tab. */
function otherJobs() {
  const element = h("div", { class: "transfers" });
  const change = async (action, id) => {
    await post(`/api/lode/jobs/${action}`, { id }).catch((error) => announce(error.message));
    await look();
  };
  const button = (label, action, id) => h("button", { type: "button", onclick: () => change(action, id) }, label);
  const row = (job) => {
    const [isPaused, target] = [job.state === "paused", job.destination ? ` to ${job.destination}` : ""];
    const buttons = [job.state === "running" ? button("Pause", "pause", job.id) : button("Resume", "resume", job.id), button(job.state === "failed" ? "Remove" : "Cancel", "cancel", job.id)];
    return h(
      "div",
      { class: "transfer" },
      h("div", { class: "transfer-head" }, h("strong", { dir: "auto" }, `${job.kind} ${job.model}${target}`), h("span", { class: `state ${isPaused ? "cancelled" : job.state}` }, job.state), h("span", { class: "grow" }), buttons),
      h("div", { class: "transfer-bar" }, meter(job.completed / job.total, job.state)),
      h("p", { class: "facts" }, job.error ? h("span", { class: "failure" }, job.error) : h("span", { dir: "auto" }, job.status), job.total > 0 && h("span", {}, `${bytes(job.completed)} of ${bytes(job.total)}`), job.rate > 0 && h("span", {}, `${bytes(job.rate)}/s`)),
    );
  };
  const look = async () => {
    const { jobs } = await get("/api/lode/jobs").catch(() => ({ jobs: [] }));
    const ours = new Set(all.filter((transfer) => transfer.state === "running").map((transfer) => transfer.job));
    const others = jobs.filter((job) => ["running", "paused", "failed"].includes(job.state) && !ours.has(job.id));
    fill(element, others.length > 0 && [h("h3", {}, "Other jobs of the daemon"), others.map(row)]);
  };
  look();
  const timer = setInterval(() => (element.isConnected ? look() : clearInterval(timer)), LOOK);
  return element;
}

/** Opens the list of running and finished jobs. */
function showTransfers() {
  return open("Under way", () => {
    const list = h("div", { class: "transfers" });
    const draw = () => {
      if (all.length === 0) fill(list, h("p", {}, "Nothing was begun in this tab."));
      else fill(list, all.map(progress), all.some((one) => one.state !== "running") && h("button", { type: "button", onclick: () => {
        all.splice(0, all.length, ...all.filter((one) => one.state === "running"));
        draw();
      } }, "Clear what has ended"));
    };
    draw();
    return h("div", {}, list, otherJobs());
  }, { class: "wide" });
}

/** Returns a button with the number of running jobs. */
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
  // Work other than the daemon's jobs ends with the page.
  if (all.some((transfer) => transfer.state === "running" && transfer.job === undefined)) event.preventDefault();
});
