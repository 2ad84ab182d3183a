// The estimated memory of the model, by Ollama's formula and by ours, for chosen settings.

import { post } from "../lib/api.js";
import { h, s, fill } from "../lib/dom.js";
import { bytes, count } from "../lib/format.js";

const KV_TYPES = ["f16", "q8_0", "bf16", "f32"];
const GIB = 2 ** 30;
const PARTS = [
  ["weights", "weights", "#7aa2f7"],
  ["kv_cache", "KV cache", "#e0af68"],
  ["graph", "computing", "#9ece6a"],
  ["process", "process", "#bb9af7"],
];

export async function draw(model) {
  const longest = model.shown.details.context_length || 131072;
  const answers = h("div", { class: "panels", "aria-live": "polite" });
  const notes = h("ul", { class: "hint problems" });
  const steps = Math.max(1, Math.ceil(Math.log2(longest / 256)));
  const context = (step) => Math.min(longest, 256 * 2 ** step);
  const state = { step: Math.min(steps, 4), slots: 1, kv: "f16", gpus: 0, memory: 24 };
  let waiting;
  let turn = 0;
  const load = async () => {
    turn += 1;
    const mine = turn;
    try {
      const plan = await post("/api/lode/plan", { model: model.name, num_ctx: context(state.step), num_parallel: state.slots, kv_cache_type: state.kv, gpus: Array.from({ length: state.gpus }, () => Math.round(state.memory * GIB)) });
      if (mine !== turn) return;
      const most = Math.max(plan.ollama.total, plan.exact?.total ?? 0);
      fill(answers, column("Ollama's formula", plan.ollama, most), plan.exact ? column("What Lode allocates", plan.exact, most) : h("section", { class: "panel" }, h("h2", {}, "What Lode allocates"), h("p", {}, "Lode cannot run this model.")));
      fill(notes, plan.notes.map((text) => h("li", {}, text)));
    } catch (error) {
      if (mine === turn) fill(answers, h("p", { class: "failure", role: "alert" }, error.message));
    }
  };
  const changed = () => {
    clearTimeout(waiting);
    waiting = setTimeout(load, 60);
  };
  const slider = (label, name, limits, say) => {
    const output = h("output", {}, say(state[name]));
    const input = h("input", {
      type: "range",
      ...limits,
      value: state[name],
      "aria-valuetext": say(state[name]),
      oninput: (event) => {
        state[name] = Number(event.target.value);
        fill(output, say(state[name]));
        event.target.setAttribute("aria-valuetext", say(state[name]));
        changed();
      },
    });
    return h("label", { class: "field" }, h("span", {}, label, output), input);
  };
  const kv = h("select", { onchange: (event) => { state.kv = event.target.value; changed(); } }, KV_TYPES.map((type) => h("option", { value: type }, type)));
  const sliders = h(
    "div",
    { class: "sliders" },
    slider("Context", "step", { min: 0, max: steps, step: 1 }, (step) => `${count(context(step))} tokens`),
    slider("Slots", "slots", { min: 1, max: 16, step: 1 }, count),
    h("label", { class: "field" }, h("span", {}, "KV cache"), kv),
    slider("GPUs", "gpus", { min: 0, max: 8, step: 1 }, (number) => (number === 0 ? "the CPU alone" : count(number))),
    slider("Free on each GPU", "memory", { min: 2, max: 192, step: 2 }, (gib) => `${gib} GiB`),
  );
  await load();
  return [h("section", { class: "panel" }, sliders), answers, notes];
}

function column(title, plan, most) {
  let at = 0;
  const rects = PARTS.map(([key, label, colour]) => {
    const width = (100 * plan[key]) / most;
    const rect = s("rect", { x: at, y: 0, width, height: 10, fill: colour }, s("title", {}, `${label}: ${bytes(plan[key])}`));
    at += width;
    return rect;
  });
  return h(
    "section",
    { class: "panel" },
    h("h2", {}, title, ": ", bytes(plan.total)),
    s("svg", { class: "stack", viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": PARTS.map(([key, label]) => `${label} ${bytes(plan[key])}`).join(", ") }, s("rect", { width: 100, height: 10, fill: "var(--sunken)" }), rects),
    h(
      "table",
      { class: "simple" },
      PARTS.map(([key, label, colour]) => {
        const swatch = h("span", { class: "swatch" });
        swatch.style.cssText = `background:${colour};display:inline-block;margin-right:8px;vertical-align:-2px`;
        return h("tr", {}, h("td", {}, swatch, label), h("td", { class: "right" }, bytes(plan[key])));
      }),
      h("tr", {}, h("td", {}, "in the system's memory"), h("td", { class: "right" }, bytes(plan.in_system))),
      h("tr", {}, h("td", {}, "of it not shared with others"), h("td", { class: "right" }, bytes(plan.private))),
      plan.devices.map((device, place) => h("tr", { class: device.total > device.free ? "failure" : "" }, h("td", {}, `GPU ${place}: ${count(device.layers)} of ${count(plan.layers)} layers`), h("td", { class: "right" }, `${bytes(device.total)} of ${bytes(device.free)}${device.total > device.free ? ": too much" : ""}`))),
    ),
  );
}
