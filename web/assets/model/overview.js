// Facts about a model.

import { h } from "../lib/dom.js";
import { bytes, count, figure } from "../lib/format.js";
import { kinds } from "./colours.js";

export async function draw(model) {
  const { shown } = model;
  const tensors = await model.tensors();
  const total = tensors.reduce((sum, tensor) => sum + tensor.size, 0);
  const types = [...kinds(tensors).entries()].sort((a, b) => b[1].bytes - a[1].bytes);
  const info = Object.entries(shown.model_info).filter(([, value]) => typeof value !== "object");
  return [
    h(
      "dl",
      { class: "figures" },
      box("parameters", shown.model_info["general.parameter_count"] ? count(shown.model_info["general.parameter_count"]) : "–"),
      box("of weights", bytes(total)),
      box("tensors", count(tensors.length)),
      box("tokens of context", shown.details.context_length ? count(shown.details.context_length) : "–"),
      box("of an embedding", shown.details.embedding_length ? count(shown.details.embedding_length) : "–"),
    ),
    h(
      "div",
      { class: "panels" },
      h(
        "section",
        { class: "panel" },
        h("h2", {}, "Types of tensors"),
        h("div", { class: "scroll" }, h("table", { class: "simple" }, h("thead", {}, h("tr", {}, h("th", {}, "Type"), h("th", { class: "right" }, "Tensors"), h("th", { class: "right" }, "Bytes"))), h("tbody", {}, types.map(([type, sum]) => h("tr", {}, h("td", {}, type), h("td", { class: "right" }, count(sum.number)), h("td", { class: "right" }, bytes(sum.bytes))))))),
      ),
      h("section", { class: "panel" }, h("h2", {}, "Facts"), h("dl", { class: "pairs" }, info.map(([name, value]) => [h("dt", {}, name), h("dd", {}, typeof value === "number" ? (Number.isInteger(value) ? count(value) : figure(value)) : String(value))]))),
    ),
  ];
}

function box(title, value) {
  return h("div", {}, h("dt", {}, title), h("dd", {}, value));
}
