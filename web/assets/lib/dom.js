// Elements and texts. Untrusted content enters the page only as text, through these functions. HTML
// enters only through `rendered`, after the daemon has sanitized it.

/**
 * Creates an element with attributes, listeners (`onclick`), properties (`.value`) and children.
 * Children that are not nodes become text.
 */
export function h(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key.startsWith(".")) element[key.slice(1)] = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  put(element, children);
  return element;
}

function put(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/** Replaces the children of an element. */
export function fill(element, ...children) {
  element.replaceChildren();
  put(element, children);
  return element;
}

/**
 * Replaces the children of an element and keeps the focus: it moves to the new button or link with
 * the same `data-part`, label or text.
 */
export function refill(element, ...children) {
  const name = (one) => one.dataset.part ?? one.getAttribute("aria-label") ?? one.textContent;
  const held = element.contains(document.activeElement) ? name(document.activeElement) : undefined;
  fill(element, ...children);
  if (held === undefined) return;
  const same = [...element.querySelectorAll("a, button")].find((one) => name(one) === held);
  (same ?? element.querySelector("[aria-current=true]") ?? element.querySelector("a, button"))?.focus({ preventScroll: true });
}

const SVG = "http://www.w3.org/2000/svg";

/** Creates an SVG element. */
export function s(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== null) element.setAttribute(key, value);
  }
  put(element, children);
  return element;
}

// Paths of icons in a square of 24 by 24.
const ICONS = {
  chat: "M4 5h16v11H9l-5 4z",
  models: "M4 4h7v7H4zM13 4h7v7h-7zM4 13h7v7H4zM13 13h7v7h-7z",
  store: "M4 6c0-3 16-3 16 0v12c0 3-16 3-16 0zM4 6c0 3 16 3 16 0M4 12c0 3 16 3 16 0",
  running: "M3 12h4l3-8 4 16 3-8h4",
  registry: "M4 7l8-4 8 4v10l-8 4-8-4zM4 7l8 4 8-4M12 11v10",
  plus: "M12 5v14M5 12h14",
  close: "M6 6l12 12M18 6L6 18",
  stop: "M7 7h10v10H7z",
  send: "M12 19V5M6 11l6-6 6 6",
  edit: "M4 20h4L19 9l-4-4L4 16z",
  again: "M20 11a8 8 0 1 0-2.3 5.7M20 5v6h-6",
  copy: "M8 8h12v12H8zM16 8V4H4v12h4",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 5a2 2 0 1 0 0 4 2 2 0 0 0 0-4M9 15a2 2 0 1 0 0 4 2 2 0 0 0 0-4",
  menu: "M4 6h16M4 12h16M4 18h16",
  pin: "M9 3h6l-1 7 4 4H6l4-4zM12 14v7",
  trash: "M5 7h14M9 7V4h6v3M7 7l1 13h8l1-13",
  download: "M12 4v11M7 11l5 5 5-5M4 20h16",
  upload: "M12 16V5M7 9l5-5 5 5M4 20h16",
  check: "M5 12l5 5 9-10",
  warning: "M12 4l9 16H3zM12 10v4M12 17v.5",
  picture: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M9 8.5v1",
  search: "M10 4a6 6 0 1 1 0 12 6 6 0 0 1 0-12zM15 15l5 5",
};

/** Returns an icon for use beside a text with the same meaning. */
export function icon(name) {
  return s("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true", focusable: "false" }, s("path", { d: ICONS[name] }));
}

/** Returns a button with only an icon; the label is the accessible name and the tooltip. */
export function iconButton(name, label, onclick, more) {
  return h("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...more }, icon(name));
}

/** Puts blocks of sanitized HTML into an element. Unchanged leading blocks stay. */
export function rendered(element, blocks) {
  const known = element.blocks ?? [];
  let same = 0;
  while (same < known.length && same < blocks.length && known[same] === blocks[same]) same += 1;
  while (element.childElementCount > same) element.lastElementChild.remove();
  for (const block of blocks.slice(same)) {
    const holder = document.createElement("div");
    holder.className = "block";
    holder.innerHTML = block;
    element.append(holder);
  }
  element.blocks = blocks;
}

let live;

/** Announces a text to screen readers. */
export function announce(text) {
  live ??= document.body.appendChild(h("div", { class: "sr", role: "status", "aria-live": "polite" }));
  live.textContent = text;
}

/** Returns a unique id for an element. */
let identities = 0;
export function identity(prefix) {
  identities += 1;
  return `${prefix}-${identities}`;
}
