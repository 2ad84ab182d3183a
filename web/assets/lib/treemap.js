// A treemap: rectangles with areas in proportion to sizes, arranged by group.

import { h } from "./dom.js";
import { bytes } from "./format.js";

const COLOURS = ["#9db4f5", "#f0c48a", "#a8d8a0", "#f2a3b0", "#c9b3f0", "#9fd6e6", "#f5b78f", "#9adfc9"];
/**
 * Maximal number of parts of a group that are drawn separately. The remaining ones would be too
 * small and become one part.
 */
const DRAWN = 60;
const HEAD = 22;

/**
 * Draws groups `{ name, parts: [{ name, bytes, href?, shared? }] }` once the size of the element is
 * known.
 */
export function treemap(groups) {
  const element = h("div", { class: "treemap", role: "group", "aria-label": "Disk usage" });
  const shown = groups.map((group) => ({ ...group, bytes: group.parts.reduce((sum, part) => sum + part.bytes, 0) })).filter((group) => group.bytes > 0);
  const draw = () => {
    const [width, height] = [element.clientWidth, element.clientHeight];
    element.replaceChildren();
    for (const [group, area] of squarified(shown, { x: 0, y: 0, width, height })) {
      const colour = colourOf(group.name);
      const hasHead = area.height > 2 * HEAD && area.width > 50;
      if (hasHead) element.append(at(h("div", { class: "family-name" }, `${group.name} · ${bytes(group.bytes)}`), { ...area, height: HEAD }));
      const inner = hasHead ? { ...area, y: area.y + HEAD, height: area.height - HEAD } : area;
      const parts = group.parts.filter((part) => part.bytes > 0).sort((a, b) => b.bytes - a.bytes);
      const rest = parts.slice(DRAWN);
      if (rest.length > 0) parts.splice(DRAWN, rest.length, { name: `${rest.length} more`, bytes: rest.reduce((sum, part) => sum + part.bytes, 0) });
      for (const [part, field] of squarified(parts, inner)) element.append(tile(part, field, colour));
    }
  };
  new ResizeObserver(draw).observe(element);
  return element;
}

/** Derives the colour from the name, so that a family keeps its colour when other families grow. */
function colourOf(name) {
  let sum = 0;
  for (const letter of name) sum = (sum * 31 + letter.codePointAt(0)) % 65_521;
  return COLOURS[sum % COLOURS.length];
}

function tile(part, area, colour) {
  const label = `${part.name}, ${bytes(part.bytes)}`;
  const text = area.width > 46 && area.height > 20 ? [part.name, h("br"), area.height > 38 && bytes(part.bytes)] : [];
  const element = h(part.href ? "a" : "div", { href: part.href, title: label, "aria-label": part.href ? label : undefined, class: part.shared ? "shared-part" : "" }, text);
  element.style.backgroundColor = colour;
  return at(element, area);
}

function at(element, { x, y, width, height }) {
  Object.assign(element.style, { left: `${x}px`, top: `${y}px`, width: `${width}px`, height: `${height}px` });
  return element;
}

/**
 * Squarified treemaps (Bruls, Huizing, van Wijk 2000): fills rows along the shorter side, as long
 * as the parts become squarer.
 */
function squarified(items, area) {
  const placed = [];
  const left = { ...area };
  let all = items.reduce((sum, item) => sum + item.bytes, 0);
  let rest = [...items].sort((a, b) => b.bytes - a.bytes);
  while (rest.length > 0 && all > 0) {
    const side = Math.min(left.width, left.height);
    const scale = (left.width * left.height) / all;
    let row = 1;
    while (row < rest.length && worst(rest.slice(0, row + 1), side, scale) <= worst(rest.slice(0, row), side, scale)) row += 1;
    const taken = rest.slice(0, row);
    const sum = taken.reduce((total, item) => total + item.bytes, 0);
    const thick = side > 0 ? (sum * scale) / side : 0;
    let along = 0;
    for (const item of taken) {
      const long = sum > 0 ? (item.bytes / sum) * side : 0;
      placed.push([item, left.width >= left.height ? { x: left.x, y: left.y + along, width: thick, height: long } : { x: left.x + along, y: left.y, width: long, height: thick }]);
      along += long;
    }
    if (left.width >= left.height) {
      left.x += thick;
      left.width -= thick;
    } else {
      left.y += thick;
      left.height -= thick;
    }
    all -= sum;
    rest = rest.slice(row);
  }
  return placed;
}

function worst(items, side, scale) {
  const sizes = items.map((item) => item.bytes * scale);
  const sum = sizes.reduce((total, size) => total + size, 0);
  return Math.max((side * side * Math.max(...sizes)) / (sum * sum), (sum * sum) / (side * side * Math.min(...sizes)));
}
