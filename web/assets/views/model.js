// One model: facts, contents, memory needs, and origin.

import { get, post } from "../lib/api.js";
import { h, fill, icon } from "../lib/dom.js";
import { bytes, count, moment, short } from "../lib/format.js";
import { capabilityBadges, named } from "../lib/models.js";
import { go, note } from "../lib/route.js";
import { actions } from "./models.js";

const TABS = [
  ["overview", "Overview", () => import("../model/overview.js")],
  ["tensors", "Tensors", () => import("../model/tensors.js")],
  ["map", "Map", () => import("../model/map.js")],
  ["memory", "Memory", () => import("../model/memory.js")],
  ["documents", "Documents", () => import("../model/documents.js")],
  ["lineage", "Lineage", () => import("../model/lineage.js")],
  ["versions", "Versions", () => import("../model/versions.js")],
  ["blobs", "Manifest", () => import("../model/blobs.js")],
];

export async function draw(main, parameters, isShown) {
  const name = parameters.get("name") ?? "";
  const shown = await post("/api/show", { model: name });
  const entry = named((await get("/api/tags")).models, name);
  const model = { name: entry?.name ?? name, entry, shown, tensors: once(() => tensors(name)), sharing: once(() => post("/api/lode/sharing", { model: name })) };
  if (!isShown()) return;
  document.title = `${model.name} · Lode`;
  const panel = h("div", { role: "tabpanel", tabindex: 0, id: "panel", class: "panel-body" });
  let turn = 0;
  const buttons = TABS.map(([tab, label], place) =>
    h("button", {
      type: "button",
      role: "tab",
      id: `tab-${tab}`,
      "aria-controls": "panel",
      onclick: () => show(tab),
      onkeydown: (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (step === undefined) return;
        const next = buttons[(place + step + TABS.length) % TABS.length];
        next.focus();
        next.click();
      },
    }, label),
  );
  const show = async (tab) => {
    turn += 1;
    const mine = turn;
    const place = Math.max(0, TABS.findIndex(([known]) => known === tab));
    for (const [number, button] of buttons.entries()) {
      button.setAttribute("aria-selected", number === place);
      button.tabIndex = number === place ? 0 : -1;
    }
    panel.setAttribute("aria-labelledby", buttons[place].id);
    // On a small screen the tabs may not fit. Scrolling works only once they are in the page.
    requestAnimationFrame(() => buttons[place].scrollIntoView({ block: "nearest", inline: "nearest" }));
    if (isShown()) note("tab", place === 0 ? undefined : TABS[place][0]);
    fill(panel, h("p", { class: "loading" }, "Loading…"));
    try {
      const content = await (await TABS[place][2]()).draw(model);
      if (mine === turn) fill(panel, content);
    } catch (error) {
      if (mine === turn) fill(panel, h("p", { class: "failure", role: "alert" }, icon("warning"), error.message));
    }
  };
  const facts = [shown.details.family, shown.details.parameter_size, shown.details.quantization_level, entry && bytes(entry.size)].filter(Boolean);
  fill(
    main,
    h(
      "section",
      { class: "view" },
      h("div", { class: "title-line" }, h("h1", {}, model.name), capabilityBadges(shown), entry?.pinned && h("span", { class: "badge" }, "pinned"), h("span", { class: "grow" }), buttonsOf(model)),
      h("p", { class: "hint" }, facts.join(" · "), entry && ` · changed ${moment(entry.modified_at)} · `, entry && h("code", {}, short(entry.digest)), shown.model_info["general.tensor_count"] && ` · ${count(shown.model_info["general.tensor_count"])} tensors`),
      h("div", { class: "tabs", role: "tablist", "aria-label": "About the model" }, buttons),
      panel,
    ),
  );
  await show(parameters.get("tab") ?? "overview");
}

function buttonsOf({ name, entry }) {
  const changed = (gone) => go(gone ? "/ui/models" : location.pathname + location.search);
  return h(
    "div",
    { class: "tools" },
    h("a", { class: "button", href: `/ui/chat?${new URLSearchParams({ model: name })}` }, icon("chat"), "Chat"),
    entry && h("button", { type: "button", onclick: () => actions(entry, changed) }, "More…"),
  );
}

async function tensors(name) {
  return (await post("/api/show", { model: name, verbose: true })).tensors ?? [];
}

/**
 * Returns a function that calls `work` at its first use and caches the result. A failed call is
 * repeated.
 */
function once(work) {
  let promise;
  return () => {
    promise ??= work().catch((error) => {
      promise = undefined;
      throw error;
    });
    return promise;
  };
}
