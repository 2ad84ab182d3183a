// A map of the model: layers from top to bottom, what they are made of from left to right.

import { post } from "../lib/api.js";
import { h, s, fill } from "../lib/dom.js";
import { bytes, count, figure, things } from "../lib/format.js";
import { choose } from "../lib/models.js";
import { kinds, palette, step } from "./colours.js";

const CELL = 24;
const LEFT = 92;
const TOP = 118;
const WAYS = [
  ["type", "by type"],
  ["bytes", "by bytes"],
  ["sharing", "by sharing"],
  ["difference", "by difference to another model"],
];

export async function draw(model) {
  const tensors = await model.tensors();
  const grid = arrange(tensors);
  const holder = h("div", { class: "map", tabindex: 0, role: "group", "aria-label": "Map of the tensors, scrollable" });
  const legend = h("ul", { class: "legend" });
  const told = h("p", { class: "hint", role: "status" }, "Point at a field to see what it is.");
  let turn = 0;
  let shownWay = "type";
  const show = async (way) => {
    turn += 1;
    const mine = turn;
    const colouring = await COLOURINGS[way](model, tensors, () => fill(told, "Comparing…"));
    if (mine !== turn) return;
    if (colouring === undefined) {
      select.value = shownWay;
      return;
    }
    shownWay = way;
    fill(told, "Point at a field to see what it is.");
    fill(holder, picture(grid, colouring, told));
    fill(legend, colouring.legend.map(([colour, label]) => {
      const swatch = h("span", { class: "swatch" });
      swatch.style.background = colour;
      return h("li", {}, swatch, label);
    }));
  };
  const failed = (error) => fill(told, h("span", { class: "failure" }, error.message));
  const select = h("select", { onchange: (event) => show(event.target.value).catch(failed) }, WAYS.map(([value, label]) => h("option", { value }, label)));
  await show("type");
  return [h("div", { class: "tools" }, h("label", { class: "tools" }, h("span", { class: "label" }, "Colours"), select), h("span", { class: "grow" }), told), h("div", { class: "panel" }, legend, holder)];
}

/** Tensors by layer and by what they are in it. Those without a layer are rows of their own. */
function arrange(tensors) {
  const rows = new Map();
  const columns = new Map();
  for (const tensor of tensors) {
    const found = /^(.*?\b(?:layers|blocks|blk|h|layer)\.)(\d+)\.(.*)$/.exec(tensor.name);
    const row = found ? `${Number(found[2])}` : tensor.name.replace(/\.weight$|\.bias$/, "");
    // Experts of a layer are one column: there may be hundreds.
    const column = found ? found[3].replace(/\.\d+\./g, ".*.") : "";
    if (found && !columns.has(column)) columns.set(column, columns.size);
    const cells = rows.get(row) ?? rows.set(row, { isLayer: Boolean(found), cells: new Map() }).get(row);
    const cell = cells.cells.get(column) ?? [];
    cell.push(tensor);
    cells.cells.set(column, cell);
  }
  const layers = [...rows].filter(([, row]) => row.isLayer).sort(([a], [b]) => a - b);
  const others = [...rows].filter(([, row]) => !row.isLayer);
  return { rows: [...others, ...layers], columns: [...columns.keys()] };
}

function picture({ rows, columns }, colouring, told) {
  const width = LEFT + Math.max(columns.length, 12) * CELL + 100;
  const height = TOP + rows.length * CELL + 8;
  const parts = columns.map((column, place) => s("text", { transform: `translate(${LEFT + place * CELL + 14} ${TOP - 8}) rotate(-50)` }, column.replace(/\.weight$/, "").split(".").slice(-2).join(".")));
  for (const [place, [name, row]] of rows.entries()) {
    const y = TOP + place * CELL;
    const label = row.isLayer ? `layer ${name}` : name;
    parts.push(s("text", { x: row.isLayer ? LEFT - 8 : LEFT + CELL + 6, y: y + 15, "text-anchor": row.isLayer ? "end" : "start" }, label));
    for (const [column, tensors] of row.cells) {
      const x = LEFT + Math.max(0, columns.indexOf(column)) * CELL;
      const text = () => `${tensors[0].name}${tensors.length > 1 ? ` and ${tensors.length - 1} more` : ""}: ${[...kinds(tensors).keys()].join(", ")}, ${bytes(tensors.reduce((sum, tensor) => sum + tensor.size, 0))}${colouring.says(tensors)}`;
      const tell = () => fill(told, text());
      const field = s("rect", { x, y, width: CELL - 1, height: CELL - 1, rx: 3, fill: colouring.of(tensors), onmouseenter: tell });
      parts.push(field);
    }
  }
  return s("svg", { width, height, role: "img", "aria-label": `${things(rows.length, "row")} of ${things(columns.length, "column")}; the tab Tensors has the same as a table` }, parts);
}

const COLOURINGS = {
  async type(model, tensors) {
    const types = [...kinds(tensors)].sort((a, b) => b[1].bytes - a[1].bytes);
    const colours = palette(types.map(([type]) => type));
    return { of: (cell) => colours.get(cell[0].type), says: () => "", legend: types.map(([type, sum]) => [colours.get(type), `${type}: ${bytes(sum.bytes)}`]) };
  },

  async bytes(model, tensors) {
    const most = Math.log1p(Math.max(...tensors.map((tensor) => tensor.size)));
    const size = (cell) => cell.reduce((sum, tensor) => sum + tensor.size, 0);
    return { of: (cell) => step(Math.log1p(size(cell)) / most), says: () => "", legend: [[step(0), "few bytes"], [step(1), "many"]] };
  },

  async sharing(model) {
    const found = await model.sharing();
    const shared = new Map(found.blobs.map((blob) => [blob.digest, blob.models]));
    const models = (cell) => Math.max(...cell.map((tensor) => shared.get(tensor.digest) ?? 0));
    const most = Math.max(1, ...shared.values());
    return {
      of: (cell) => (models(cell) === 0 ? "var(--line)" : step(models(cell) / most)),
      says: (cell) => (models(cell) === 0 ? ", in no other model" : `, in ${things(models(cell), "other model")}`),
      legend: [["var(--line)", "in this model alone"], [step(1 / most), "in 1 other model"], ...(most > 1 ? [[step(1), `in ${count(most)} other models`]] : [])],
    };
  },

  async difference(model, tensors, begins) {
    const other = await choose("Compare with which model?", model.name);
    if (other === undefined) return undefined;
    begins();
    const diff = await post("/api/lode/diff", { a: model.name, b: other.name, values: true });
    const differing = new Map(diff.tensors.map((tensor) => [tensor.name, tensor]));
    const size = (tensor) => differing.get(tensor.name)?.values?.computed?.rms;
    const most = Math.max(...diff.tensors.map((tensor) => tensor.values?.computed?.rms ?? 0), Number.MIN_VALUE);
    const first = (cell) => cell.map((tensor) => differing.get(tensor.name)).find(Boolean);
    return {
      of: (cell) => {
        const change = first(cell);
        if (change === undefined) return "var(--line)";
        const rms = Math.max(...cell.map((tensor) => size(tensor) ?? -1));
        return rms < 0 ? "#bb9af7" : step(rms / most);
      },
      says: (cell) => {
        const change = first(cell);
        if (change === undefined) return ", the same in both";
        if (change.b === undefined) return `, not in ${other.name}`;
        const rms = size(cell[0]);
        return rms === undefined ? `, there ${change.b.dtype} ${change.b.shape.join(" × ")}` : `, differs by ${figure(rms)} (root of the mean square)`;
      },
      legend: [["var(--line)", `the same: ${count(diff.equal_tensors)}`], [step(0), "differs a little"], [step(1), `by ${figure(most)}`], ["#bb9af7", "cannot be compared by numbers"], ["transparent", `${other.name} takes ${bytes(diff.added_bytes)} more`]],
    };
  },
};
