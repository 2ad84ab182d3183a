// A virtual table for any number of rows. Only the visible rows and some around them are in the
// DOM.

import { h, s, fill, identity } from "./dom.js";

const COLLATOR = new Intl.Collator("en", { numeric: true });
/** Number of rows that are drawn above and below the visible ones. */
const AROUND = 12;

/**
 * A table of rows that have a `name`. `columns` are objects with `title`, `value(row)` for sorting
 * and searching, `show(row)` for the cell, and `class`. `options` are `label`, `height` of a row in
 * pixels, `sort` (the title of a column), `descending`, `onchoose(row)`, and `empty`.
 */
export class Table {
  constructor(columns, options) {
    this.columns = columns;
    this.options = options;
    this.all = [];
    this.rows = [];
    this.sorted = columns.find((column) => column.title === options.sort);
    this.descending = options.descending ?? false;
    this.matches = () => true;
    this.height = options.height ?? 40;
    this.drawn = new Map();
    this.body = h("div", { class: "table-body", role: "rowgroup" });
    this.head = h("div", { class: "table-head", role: "rowgroup" });
    this.table = h("div", { class: "table-inner", role: "table", "aria-label": options.label }, this.head, this.body);
    this.nothing = h("p", { class: "nothing", hidden: true }, options.empty ?? "There is nothing.");
    this.element = h("div", { class: `table ${options.class ?? ""}`, tabindex: 0, role: "group", "aria-label": `${options.label}, scrollable` }, this.table, this.nothing);
    this.element.addEventListener("scroll", () => this.schedule(), { passive: true });
    new ResizeObserver(() => this.schedule()).observe(this.element);
    this.drawHead();
  }

  /** Sets the rows. */
  set(rows) {
    this.all = rows;
    this.arrange();
  }

  /** Shows only the rows that match. */
  filter(matches) {
    this.matches = matches;
    this.arrange();
  }

  arrange() {
    const held = this.held();
    this.rows = this.all.filter(this.matches);
    if (this.sorted) {
      const { value } = this.sorted;
      const sign = this.descending ? -1 : 1;
      const keyed = this.rows.map((row) => [value(row), row]);
      keyed.sort(([a], [b]) => sign * (typeof a === "string" ? COLLATOR.compare(a, b) : a - b));
      this.rows = keyed.map(([, row]) => row);
    }
    this.drawn.clear();
    fill(this.body);
    this.body.style.height = `${this.rows.length * this.height}px`;
    this.table.setAttribute("aria-rowcount", this.rows.length + 1);
    this.nothing.hidden = this.rows.length > 0;
    this.draw();
    if (held !== undefined) this.hold(held);
  }

  /**
   * Returns the focused element as the name of its row and its index among the row's buttons and
   * links.
   */
  held() {
    const row = document.activeElement?.closest(".row");
    const place = [...this.drawn].find(([, drawn]) => drawn === row)?.[0];
    if (place === undefined) return undefined;
    return { name: this.rows[place].name, part: [...row.querySelectorAll("a, button")].indexOf(document.activeElement) };
  }

  /** Restores the focus to that element if its row is visible, otherwise to the table. */
  hold({ name, part }) {
    const row = this.drawn.get(this.rows.findIndex((one) => one.name === name));
    (row?.querySelectorAll("a, button")[part] ?? this.element).focus({ preventScroll: true });
  }

  drawHead() {
    const cells = this.columns.map((column) => {
      const sort = column === this.sorted ? (this.descending ? "descending" : "ascending") : undefined;
      const title = column.value
        ? h("button", { type: "button", class: "sort", onclick: () => this.sort(column) }, column.title, h("span", { "aria-hidden": "true", class: "arrow" }, sort ? (this.descending ? "↓" : "↑") : ""))
        : column.title;
      return h("div", { role: "columnheader", class: `cell ${column.class ?? ""}`, "aria-sort": sort }, title);
    });
    fill(this.head, h("div", { class: "row", role: "row", "aria-rowindex": 1 }, cells));
  }

  sort(column) {
    const [first] = this.all;
    this.descending = this.sorted === column ? !this.descending : first !== undefined && typeof column.value(first) === "number";
    this.sorted = column;
    const place = this.columns.indexOf(column);
    this.drawHead();
    this.arrange();
    this.head.querySelectorAll("[role=columnheader]")[place].querySelector("button").focus();
  }

  schedule() {
    this.waiting ??= requestAnimationFrame(() => {
      this.waiting = undefined;
      this.draw();
    });
  }

  draw() {
    const top = this.element.scrollTop;
    const first = Math.max(0, Math.floor(top / this.height) - AROUND);
    const last = Math.min(this.rows.length, Math.ceil((top + this.element.clientHeight) / this.height) + AROUND);
    for (const [place, row] of this.drawn) {
      if (place < first || place >= last) {
        row.remove();
        this.drawn.delete(place);
      }
    }
    // The rows are in DOM order, so that Tab and screen readers follow it.
    let after = null;
    for (let place = last - 1; place >= first; place -= 1) {
      let row = this.drawn.get(place);
      if (row === undefined) {
        row = this.row(place);
        this.drawn.set(place, row);
        this.body.insertBefore(row, after);
      }
      after = row;
    }
  }

  row(place) {
    const data = this.rows[place];
    const cells = this.columns.map((column) => h("div", { role: "cell", class: `cell ${column.class ?? ""}` }, column.show(data)));
    const row = h("div", { class: "row", role: "row", "aria-rowindex": place + 2 }, cells);
    row.style.transform = `translateY(${place * this.height}px)`;
    row.style.height = `${this.height}px`;
    if (this.options.onchoose) {
      row.classList.add("chosen-by-click");
      row.addEventListener("click", (event) => {
        if (!event.target.closest("a, button, input")) this.options.onchoose(data);
      });
    }
    return row;
  }
}

/** Returns a search field, which waits until the user stops typing. */
export function searchField(label, onsearch) {
  const id = identity("search");
  let waiting;
  return h(
    "div",
    { class: "search" },
    h("label", { class: "sr", for: id }, label),
    h("input", {
      id,
      type: "search",
      placeholder: label,
      autocomplete: "off",
      spellcheck: "false",
      oninput: (event) => {
        clearTimeout(waiting);
        waiting = setTimeout(() => onsearch(event.target.value.trim().toLowerCase()), 80);
      },
    }),
  );
}

/** Returns a progress bar; the text beside it contains the same value. */
export function meter(part, kind = "") {
  const width = Math.max(0, Math.min(1, Number.isFinite(part) ? part : 0)) * 100;
  return s("svg", { class: `meter ${kind}`, viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" }, s("rect", { class: "all", width: 100, height: 6 }), s("rect", { class: "part", width, height: 6 }));
}
