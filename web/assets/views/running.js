// Runtime state: loaded models and their slots, the queue, memory, and the tokens of the last
// minutes.

import { get, post } from "../lib/api.js";
import { h, s, fill } from "../lib/dom.js";
import { tell } from "../lib/dialog.js";
import { ago, bytes, count, things } from "../lib/format.js";
import { modelPath } from "../lib/route.js";

/** Pause between two refreshes, in milliseconds. */
const PAUSE = 1500;

export async function draw(main) {
  const figures = h("dl", { class: "figures" });
  const chart = h("div");
  const models = h("div", { class: "panels" });
  const section = h("section", { class: "view" }, h("h1", {}, "Running"), figures, h("section", { class: "panel" }, h("h2", {}, "Tokens a second"), chart), models);
  fill(main, section);
  let ended = false;
  let shown = "";
  const look = async () => {
    const running = await get("/api/lode/running");
    if (ended) return;
    drawFigures(figures, running);
    drawRates(chart, running);
    // Without a change the panels are not redrawn, because the user may be about to press a button.
    const now = JSON.stringify(running.models.map((model) => ({ ...model, expires_at: model.expires_at && ago(model.expires_at) })));
    if (now !== shown) fill(models, running.models.length === 0 ? h("p", { class: "nothing" }, "No model is loaded. A model is loaded at its first request.") : running.models.map((model) => panel(model, look)));
    shown = now;
  };
  await look();
  let failed;
  const again = async () => {
    if (ended) return;
    // A hidden page does not poll.
    if (document.visibilityState === "visible") {
      try {
        await look();
        failed?.remove();
        failed = undefined;
      } catch (error) {
        if (ended) return;
        failed ??= section.insertBefore(h("p", { class: "failure", role: "alert" }, error.message), figures);
      }
    }
    if (!ended) setTimeout(again, PAUSE);
  };
  setTimeout(again, PAUSE);
  return () => {
    ended = true;
  };
}

function drawFigures(element, running) {
  const sum = (name) => running.models.reduce((total, model) => total + model[name], 0);
  const figures = [
    [count(running.models.length), `of at most ${things(running.most_loaded, "model")} loaded`],
    [count(running.active), running.active === 1 ? "request being answered" : "requests being answered"],
    [`${count(running.waiting)} / ${count(running.queue)}`, "requests waiting"],
    [bytes(sum("weights")), "weights"],
    [bytes(sum("kv_cache")), "KV caches"],
    [bytes(sum("on_devices")), "on GPUs"],
    ...(running.memory_limit ? [[bytes(running.memory_limit), "memory limit"]] : []),
    [count(running.loads), "loads since the start"],
    ...(running.evictions ? [[count(running.evictions), "unloaded for others"]] : []),
    ...(running.crashes ? [[count(running.crashes), "runners crashed"]] : []),
    ...(running.refused ? [[count(running.refused), "requests refused"]] : []),
  ];
  fill(element, figures.map(([value, title]) => h("div", {}, h("dt", {}, title), h("dd", {}, value))));
}

const SHOWN = 60;

function drawRates(element, running) {
  const rates = running.rates.slice(-SHOWN);
  const speeds = rates.map((rate) => [rate.prompt / running.period, rate.generated / running.period]);
  const most = Math.max(1, ...speeds.map(([prompt, generated]) => prompt + generated));
  const bars = speeds.flatMap(([prompt, generated], place) => {
    const x = SHOWN - speeds.length + place;
    const tall = (100 * generated) / most;
    const above = (100 * prompt) / most;
    return [s("rect", { class: "generated", x, y: 100 - tall, width: 0.85, height: tall }), s("rect", { class: "prompt", x, y: 100 - tall - above, width: 0.85, height: above })];
  });
  // The last period is incomplete; the one before it is complete.
  const [prompt, generated] = speeds.at(-2) ?? [0, 0];
  fill(
    element,
    h("p", { class: "hint" }, h("span", { class: "swatch generated" }), ` written: ${generated.toFixed(1)} `, h("span", { class: "swatch prompt" }), ` read: ${prompt.toFixed(1)} tokens a second in the last ${running.period} s; the highest bar is ${most.toFixed(0)}`),
    s("svg", { class: "spark", viewBox: `0 0 ${SHOWN} 100`, preserveAspectRatio: "none", role: "img", "aria-label": `Tokens a second over the last ${Math.round((SHOWN * running.period) / 60)} minutes` }, bars),
    h("div", { class: "axis" }, h("span", {}, `${Math.round((SHOWN * running.period) / 60)} minutes ago`), h("span", {}, "now")),
  );
}

/** Renders a text; parts between backticks become code. */
function withCode(text) {
  return text.split("`").map((part, place) => (place % 2 === 1 ? h("code", {}, part) : part));
}

function panel(model, again) {
  const unload = async (event) => {
    event.target.disabled = true;
    try {
      await post("/api/generate", { model: model.name, keep_alive: 0, stream: false });
      await again();
    } catch (error) {
      tell("The model cannot be unloaded", error.message);
    }
    event.target.disabled = false;
  };
  const used = Math.min(model.active, model.slots);
  return h(
    "section",
    { class: "panel" },
    h("h2", {}, h("a", { href: modelPath(model.name), dir: "auto" }, model.name)),
    h("p", { class: "tools" }, h("span", { class: "slots", role: "img", "aria-label": `${count(used)} of ${things(model.slots, "slot")} in use` }, Array.from({ length: Math.min(model.slots, 64) }, (_, slot) => h("span", { class: `slot ${slot < used ? "used" : ""}` }))), `${count(used)} of ${things(model.slots, "slot")} in use${model.waiting > 0 ? `, ${count(model.waiting)} wait` : ""}`),
    h(
      "dl",
      { class: "pairs" },
      [
        ["Device", model.device_note ? [`${model.device} · `, withCode(model.device_note)] : model.device],
        ["Context", `${count(model.context)} tokens, KV cache ${model.kv_cache_type}`],
        ["Weights", bytes(model.weights)],
        ["KV cache", bytes(model.kv_cache)],
        ["On GPUs", bytes(model.on_devices)],
        ["Not shared", model.private > 0 ? bytes(model.private) : "not known"],
        ["Process", String(model.pid)],
        ["Unloads", used > 0 ? "not while it answers" : model.expires_at ? ago(model.expires_at) : "never"],
      ].map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
    ),
    h("div", { class: "tools" }, h("button", { type: "button", onclick: unload }, "Unload")),
  );
}
