// The models that this one was made from, the models that were made from it, and the models that
// share blobs with it.

import { post } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { bytes, count, percent, short, things } from "../lib/format.js";
import { modelPath } from "../lib/route.js";
import { Table } from "../lib/table.js";

export async function draw(model) {
  const [lineage, sharing] = await Promise.all([post("/api/lode/lineage", { model: model.name }), model.sharing()]);
  const relatives = (all, none) =>
    all.length === 0
      ? h("p", { class: "hint" }, none)
      : h("ul", { class: "problems" }, all.map((one) => h("li", {}, h("a", { href: modelPath(one.name) }, one.name), ` · ${one.quantization} · ${bytes(one.bytes)}`)));
  const size = model.entry?.size ?? 1;
  const table = new Table(
    [
      { title: "Model", value: (one) => one.name, show: (one) => h("a", { href: modelPath(one.name), dir: "auto" }, one.name) },
      { title: "Blobs", value: (one) => one.blobs, class: "number-cell", show: (one) => count(one.blobs) },
      { title: "Bytes", value: (one) => one.bytes, class: "number-cell", show: (one) => bytes(one.bytes) },
      { title: "Of this model", value: (one) => one.bytes, class: "number-cell", show: (one) => percent(one.bytes / size) },
    ],
    { label: "Models that have blobs of this one", class: "small sharing-table", height: 38, empty: "No other model has a blob of this one." },
  );
  table.set(sharing.models);
  return [
    h(
      "div",
      { class: "panels" },
      h(
        "section",
        { class: "panel" },
        h("h2", {}, "Made from"),
        lineage.base === undefined
          ? h("p", { class: "hint" }, "Nothing: it was imported from files, or its manifest does not say.")
          : relatives(lineage.bases, `The manifest ${short(lineage.base)}, which has no name here.`),
      ),
      h("section", { class: "panel" }, h("h2", {}, "Adapters"), lineage.adapters.length === 0 ? h("p", { class: "hint" }, "None") : h("ul", { class: "problems" }, lineage.adapters.map((adapter) => h("li", {}, adapter.name, ` · ${bytes(adapter.bytes)} · `, h("code", {}, short(adapter.digest)))))),
      h("section", { class: "panel" }, h("h2", {}, "Made from it"), relatives(lineage.derived, "No model here says that it was made from this one.")),
    ),
    h("h2", {}, `Shares with ${things(sharing.models.length, "model")}`),
    table.element,
  ];
}
