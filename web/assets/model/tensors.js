// A table of the tensors of a model, and the values of a single tensor.

import { post } from "../lib/api.js";
import { h, s, fill } from "../lib/dom.js";
import { open } from "../lib/dialog.js";
import { bytes, count, figure, percent, short, things } from "../lib/format.js";
import { modelPath } from "../lib/route.js";
import { searchField, Table } from "../lib/table.js";

const BINS = 96;

export async function draw(model) {
  const tensors = await model.tensors();
  const elements = (tensor) => tensor.shape.reduce((product, size) => product * size, 1);
  let shared = new Map();
  const others = (tensor) => shared.get(tensor.digest)?.models;
  const columns = [
    { title: "Name", value: (tensor) => tensor.name, show: (tensor) => h("button", { type: "button", class: "plain mono", title: tensor.name, dir: "auto", onclick: () => showTensor(model, tensor) }, tensor.name) },
    { title: "Type", value: (tensor) => tensor.type, show: (tensor) => tensor.type },
    { title: "Shape", value: elements, show: (tensor) => h("span", { class: "mono" }, tensor.shape.join(" × ")) },
    { title: "Bytes", value: (tensor) => tensor.size, class: "number-cell", show: (tensor) => bytes(tensor.size) },
    { title: "Blob", value: (tensor) => tensor.digest, show: (tensor) => h("code", { title: tensor.digest }, short(tensor.digest)) },
    { title: "Shared", value: (tensor) => others(tensor) ?? 0, class: "number-cell", show: (tensor) => (others(tensor) ? h("span", { title: `${things(others(tensor), "other model")} have this blob` }, count(others(tensor))) : "") },
  ];
  const table = new Table(columns, { label: "Tensors", class: "tensors-table", height: 38, sort: "Name", empty: "No tensor has such a name, type or digest.", onchoose: (tensor) => showTensor(model, tensor) });
  const number = h("span", { class: "hint", role: "status" });
  const told = () => fill(number, table.rows.length === tensors.length ? things(tensors.length, "tensor") : `${count(table.rows.length)} of ${things(tensors.length, "tensor")}`, ` · ${bytes(table.rows.reduce((sum, tensor) => sum + tensor.size, 0))}`);
  table.set(tensors);
  told();
  model.sharing().then((found) => {
    shared = sharedBlobs(found);
    table.arrange();
  }, () => {});
  const search = searchField("Search by name, type or digest", (text) => {
    const parts = text.split(/\s+/);
    table.filter((tensor) => parts.every((part) => `${tensor.name} ${tensor.type} ${tensor.digest}`.toLowerCase().includes(part)));
    told();
  });
  return [h("div", { class: "tools" }, search, number), table.element];
}

/** Maps the digests of blobs to the models that share them: their number and some names. */
export function sharedBlobs(found) {
  return new Map(found.blobs.map((blob) => [blob.digest, { models: blob.models, some: blob.some.map((place) => found.models[place].name) }]));
}

/** Shows the facts about a tensor and the histogram of its values. */
export function showTensor(model, tensor) {
  const values = h("div", {}, h("p", { class: "hint" }, "Reading its numbers…"));
  post("/api/lode/values", { model: model.name, tensor: tensor.name, bins: BINS }).then(
    (found) => fill(values, histogram(found)),
    (error) => fill(values, h("p", { class: "failure", role: "alert" }, error.message)),
  );
  const pairs = h(
    "dl",
    { class: "pairs" },
    [
      ["Type", tensor.type],
      ["Shape", tensor.shape.join(" × ") || "a single number"],
      ["Bytes", `${bytes(tensor.size)} (${count(tensor.size)})`],
      ["Blob", h("code", {}, tensor.digest)],
    ].map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
  model.sharing().then((found) => {
    const others = sharedBlobs(found).get(tensor.digest);
    if (others === undefined) return;
    const links = others.some.map((name, place) => [place > 0 && ", ", h("a", { href: modelPath(name), onclick: (event) => event.target.closest("dialog").close() }, name)]);
    const more = others.models - others.some.length;
    pairs.append(h("dt", {}, "Shared with"), h("dd", {}, links, more > 0 && ` and ${count(more)} more`));
  }, () => {});
  return open(
    tensor.name,
    () => [
      pairs,
      h("h3", {}, "Its numbers"),
      values,
    ],
    { class: "wide tensor-dialog" },
  );
}

function histogram(found) {
  const most = Math.max(...found.bins, 1);
  // The scale is logarithmic, so that a few outliers are visible beside thousands of values near
  // zero.
  const height = (number) => (number === 0 ? 0 : Math.max(1.5, (100 * Math.log1p(number)) / Math.log1p(most)));
  const width = (found.max - found.min) / found.bins.length;
  const bars = found.bins.map((number, place) => {
    const tall = height(number);
    return s("rect", { x: place, y: 100 - tall, width: 0.9, height: tall }, s("title", {}, `${figure(found.min + place * width)} to ${figure(found.min + (place + 1) * width)}: ${count(number)}`));
  });
  const facts = [
    ["numbers looked at", found.sampled === found.numbers ? count(found.numbers) : `${count(found.sampled)} of ${count(found.numbers)}`],
    ["mean", figure(found.mean)],
    ["standard deviation", figure(found.deviation)],
    ["zeros", found.sampled > 0 ? percent(found.zeros / found.sampled) : "–"],
    ["not finite", count(found.not_finite)],
  ];
  return [
    found.bins.length > 0 && [
      s("svg", { class: "histogram", viewBox: `0 0 ${found.bins.length} 100`, preserveAspectRatio: "none", role: "img", "aria-label": `Histogram from ${figure(found.min)} to ${figure(found.max)}; heights are logarithmic` }, bars),
      h("div", { class: "axis" }, h("span", {}, figure(found.min)), h("span", {}, "heights are logarithmic"), h("span", {}, figure(found.max))),
    ],
    h("dl", { class: "figures" }, facts.map(([title, value]) => h("div", {}, h("dt", {}, title), h("dd", {}, value)))),
  ];
}
