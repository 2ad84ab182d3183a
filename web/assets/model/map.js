// A map of the model: layers from top to bottom, their tensors from left to right.

import { post } from "../lib/api.js";
import { h, s, fill } from "../lib/dom.js";
import { bytes, count, figure, things } from "../lib/format.js";
import { choose } from "../lib/models.js";
import { open } from "../lib/dialog.js";
import { kinds, palette, step } from "./colours.js";
import { sharedBlobs, showTensor } from "./tensors.js";

const CELL = 24;
const LEFT = 92;
const TOP = 118;
const HINT = "Point at a field or use the arrow keys; a click or Enter opens it.";
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const WAYS = [
  ["type", "by type"],
  ["bytes", "by bytes"],
  ["sharing", "by sharing"],
  ["difference", "by difference to another model"],
];

export async function draw(model) {
  const tensors = await model.tensors();
  const grid = { tensors, ...arrange(tensors) };
  const holder = h("div", { class: "map", tabindex: 0, role: "application", "aria-label": "Map of the tensors; the arrow keys go from field to field" });
  const legend = h("ul", { class: "legend" });
  const told = h("p", { class: "hint map-told", role: "status" }, HINT);
  const cursor = new Cursor(holder, told, (cell) => showCell(model, cell));
  let turn = 0;
  let shownWay = "type";
  const show = async (way) => {
    turn += 1;
    const mine = turn;
    const colouring = await COLOURINGS[way](model, grid, () => fill(told, "Comparing…"));
    if (mine !== turn) return;
    if (colouring === undefined) {
      select.value = shownWay;
      return;
    }
    shownWay = way;
    fill(told, HINT);
    const fields = [];
    fill(holder, picture(grid, colouring, fields));
    cursor.set(fields);
    other.hidden = way !== "difference";
    fill(legend, colouring.legend.map(([colour, label]) => {
      const swatch = h("span", { class: "swatch" });
      swatch.style.background = colour;
      return h("li", {}, swatch, label);
    }));
  };
  const failed = (error) => fill(told, h("span", { class: "failure" }, error.message));
  const select = h("select", { onchange: (event) => show(event.target.value).catch(failed) }, WAYS.map(([value, label]) => h("option", { value }, label)));
  const other = h("button", { type: "button", hidden: true, onclick: () => show("difference").catch(failed) }, "Compare with another…");
  await show("type");
  return [h("div", { class: "tools" }, h("label", { class: "tools" }, h("span", { class: "label" }, "Colours"), select), other), told, h("div", { class: "panel" }, legend, holder)];
}

/** Groups tensors by layer and by their role in it. Tensors without a layer have their own rows. */
function arrange(tensors) {
  const rows = new Map();
  const columns = new Map();
  for (const tensor of tensors) {
    const found = /^(.*?\b(?:layers|blocks|blk|h|layer)\.)(\d+)\.(.*)$/.exec(tensor.name);
    const row = found ? `${Number(found[2])}` : tensor.name.replace(/\.weight$|\.bias$/, "");
    // All experts of a layer share one column, since there may be hundreds.
    const column = found ? found[3].replace(/\.\d+\./g, ".*.") : "";
    if (found && !columns.has(column)) columns.set(column, columns.size);
    const cells = rows.get(row) ?? rows.set(row, { isLayer: Boolean(found), cells: new Map() }).get(row);
    const cell = cells.cells.get(column) ?? [];
    cell.push(tensor);
    cells.cells.set(column, cell);
  }
  const layers = [...rows].filter(([, row]) => row.isLayer).sort(([a], [b]) => a - b);
  const others = [...rows].filter(([, row]) => !row.isLayer);
  // Layers come first, because the column names above them apply only to layers.
  return { rows: [...layers, ...others], columns: [...columns.keys()] };
}

/** Draws the grid and adds each of its cells to `fields`. */
function picture({ rows, columns }, colouring, fields) {
  const width = LEFT + Math.max(columns.length, 12) * CELL + 100;
  const height = TOP + rows.length * CELL + 8;
  const places = new Map(columns.map((column, place) => [column, place]));
  const parts = columns.map((column, place) => s("text", { transform: `translate(${LEFT + place * CELL + 14} ${TOP - 8}) rotate(-50)` }, column.replace(/\.weight$/, "").split(".").slice(-2).join(".")));
  for (const [row, [name, { isLayer, cells }]] of rows.entries()) {
    const y = TOP + row * CELL;
    const label = isLayer ? `layer ${name}` : name;
    parts.push(s("text", { x: isLayer ? LEFT - 8 : LEFT + CELL + 6, y: y + 15, "text-anchor": isLayer ? "end" : "start" }, label));
    for (const [name, cell] of cells) {
      const column = places.get(name) ?? 0;
      const rect = s("rect", { x: LEFT + column * CELL, y, width: CELL - 1, height: CELL - 1, rx: 3, fill: colouring.of(cell) });
      fields.push({ row, column, cell, rect, text: () => `${described(cell)}${colouring.says(cell)}` });
      parts.push(rect);
    }
  }
  // A grid with few columns is enlarged if there is room.
  const scale = Math.max(1, Math.min(1.5, (innerWidth - 120) / width / 1.6));
  return s("svg", { width: width * scale, height: height * scale, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${things(rows.length, "row")} of ${things(columns.length, "column")}; the tab Tensors has the same as a table` }, parts);
}

function size(cell) {
  return cell.reduce((sum, tensor) => sum + tensor.size, 0);
}

function described(cell) {
  return `${cell[0].name}${cell.length > 1 ? ` and ${count(cell.length - 1)} more` : ""}: ${[...kinds(cell).keys()].join(", ")}, ${bytes(size(cell))}`;
}

/** The selected cell, controlled by the mouse or the arrow keys. */
class Cursor {
  constructor(holder, told, choose) {
    Object.assign(this, { holder, told, choose, fields: [] });
    const under = (event) => this.fields.find((field) => field.rect === event.target);
    holder.addEventListener("mouseover", (event) => this.to(under(event)));
    holder.addEventListener("click", (event) => {
      const field = under(event);
      if (field !== undefined) choose(field.cell);
    });
    holder.addEventListener("keydown", (event) => this.key(event));
  }

  set(fields) {
    // The selection stays when the colours change.
    this.fields = fields;
    const before = this.at;
    this.at = undefined;
    if (before !== undefined) this.to(fields.find((field) => field.row === before.row && field.column === before.column));
  }

  to(field) {
    if (field === undefined || field === this.at) return;
    this.at?.rect.classList.remove("at");
    this.at = field;
    field.rect.classList.add("at");
    fill(this.told, field.text());
  }

  key(event) {
    // These combinations belong to the browser.
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    if (event.key === "Enter" && this.at !== undefined) this.choose(this.at.cell);
    else if (ARROWS[event.key] !== undefined) this.to(this.next(ARROWS[event.key]));
    else return;
    event.preventDefault();
    this.at?.rect.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  /**
   * Returns the nearest cell in a direction: in the same row, or in the nearest row that has one.
   */
  next([right, down]) {
    if (this.at === undefined) return this.fields[0];
    const { row, column } = this.at;
    let [nearest, least] = [undefined, Infinity];
    for (const field of this.fields) {
      const [along, across] = right !== 0 ? [(field.column - column) * right, field.row - row] : [(field.row - row) * down, field.column - column];
      if (along <= 0 || (right !== 0 && across !== 0)) continue;
      const far = along * 1000 + Math.abs(across);
      if (far < least) [nearest, least] = [field, far];
    }
    return nearest;
  }
}

/** Shows the tensors of a cell. */
async function showCell(model, cell) {
  if (cell.length === 1) return showTensor(model, cell[0]);
  const chosen = await open(described(cell), (close) => h("ul", { class: "choices" }, cell.map((tensor) => h("li", {}, h("button", { type: "button", onclick: () => close(tensor) }, h("span"), h("span", { class: "name" }, tensor.name), h("span", { class: "size" }, bytes(tensor.size)))))));
  if (chosen !== undefined) await showTensor(model, chosen);
}

const COLOURINGS = {
  async type(model, { tensors }) {
    const types = [...kinds(tensors)].sort((a, b) => b[1].bytes - a[1].bytes);
    const colours = palette(types.map(([type]) => type));
    return { of: (cell) => colours.get(cell[0].type), says: () => "", legend: types.map(([type, sum]) => [colours.get(type), `${type}: ${bytes(sum.bytes)}`]) };
  },

  async bytes(model, { rows }) {
    let most = 1;
    for (const [, row] of rows) for (const cell of row.cells.values()) most = Math.max(most, Math.log1p(size(cell)));
    return { of: (cell) => step(Math.log1p(size(cell)) / most), says: () => "", legend: [[step(0), "few bytes"], [step(1), "many"]] };
  },

  async sharing(model) {
    const shared = sharedBlobs(await model.sharing());
    const models = (cell) => Math.max(...cell.map((tensor) => shared.get(tensor.digest)?.models ?? 0));
    const most = [...shared.values()].reduce((most, blob) => Math.max(most, blob.models), 1);
    return {
      of: (cell) => (models(cell) === 0 ? "var(--line)" : step(models(cell) / most)),
      says: (cell) => (models(cell) === 0 ? ", in no other model" : `, in ${things(models(cell), "other model")}`),
      legend: [["var(--line)", "in this model alone"], [step(1 / most), "in 1 other model"], ...(most > 1 ? [[step(1), `in ${count(most)} other models`]] : [])],
    };
  },

  async difference(model, grid, begins) {
    const other = await choose("Compare with which model?", undefined, (one) => one.name !== model.name);
    if (other === undefined) return undefined;
    begins();
    const diff = await post("/api/lode/diff", { a: model.name, b: other.name, values: true });
    const differing = new Map(diff.tensors.map((tensor) => [tensor.name, tensor]));
    const rms = (tensor) => differing.get(tensor.name)?.values?.computed?.rms;
    const most = diff.tensors.reduce((most, tensor) => Math.max(most, tensor.values?.computed?.rms ?? 0), 0);
    const isSampled = (tensor) => differing.get(tensor.name)?.values?.computed?.compared < tensor.shape.reduce((product, size) => product * size, 1);
    const compared = diff.tensors.filter((tensor) => tensor.values?.computed !== undefined).length;
    const first = (cell) => cell.map((tensor) => differing.get(tensor.name)).find(Boolean);
    return {
      of: (cell) => {
        const change = first(cell);
        if (change === undefined) return "var(--line)";
        const furthest = Math.max(...cell.map((tensor) => rms(tensor) ?? -1));
        return furthest < 0 ? "#bb9af7" : step(most > 0 ? furthest / most : 0);
      },
      says: (cell) => {
        const change = first(cell);
        if (change === undefined) return ", the same in both";
        if (change.b === undefined) return `, not in ${other.name}`;
        const furthest = Math.max(...cell.map((tensor) => rms(tensor) ?? -1));
        return furthest < 0 ? `, in ${other.name} ${change.b.dtype} ${change.b.shape.join(" × ")}` : `, differs by ${figure(furthest)} (root of the mean square${cell.some(isSampled) ? ", of a million numbers" : ""})`;
      },
      legend: [
        diff.equal_tensors > 0 && ["var(--line)", `the same: ${count(diff.equal_tensors)}`],
        compared > 0 && [step(0), most > 0 ? "differs a little" : "differs in bytes, not in its numbers"],
        most > 0 && [step(1), `by ${figure(most)}`],
        compared < diff.tensors.length && ["#bb9af7", `cannot be compared by numbers: ${count(diff.tensors.length - compared)}`],
        ["transparent", `${other.name} needs ${bytes(diff.added_bytes)} that ${model.name} does not have`],
      ].filter(Boolean),
    };
  },
};
