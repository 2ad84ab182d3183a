// The conversations at the side of the chat; on a small screen they lie over it when they are asked for.

import { h, icon, iconButton, refill, announce } from "../lib/dom.js";
import { tell } from "../lib/dialog.js";
import { things } from "../lib/format.js";
import { exported, imported } from "./export.js";

/** How long a file that is saved must be there, in milliseconds. */
const SAVED = 60_000;

export class Side {
  /** `actions` are what one can do with conversations: `begin`, `show`, `rename`, `remove`, `add`, and `all`, which gives them. */
  constructor(actions) {
    this.actions = actions;
    this.hint = h("p", { class: "hint" }, "This browser keeps nothing for this page: conversations last until it is closed.");
    this.list = h("ul");
    this.element = h(
      "aside",
      { class: "conversations", id: "conversations", "aria-label": "Conversations" },
      h("button", { type: "button", class: "primary", onclick: actions.begin }, icon("plus"), "New conversation"),
      this.hint,
      this.list,
      h("div", { class: "tools" }, h("button", { type: "button", title: "All conversations, as a file", onclick: () => save(actions.all()) }, icon("download"), "Export all"), h("button", { type: "button", onclick: () => this.import() }, icon("upload"), "Import")),
    );
    this.opener = iconButton("menu", "Conversations", () => this.open(!this.isOpen), { class: "icon-button open-conversations", "aria-expanded": "false", "aria-controls": "conversations" });
  }

  get isOpen() {
    return this.element.classList.contains("open");
  }

  /** Lays it over the messages, or away. */
  open(opens) {
    const isHeld = this.isOpen && this.element.contains(document.activeElement);
    this.element.classList.toggle("open", opens);
    this.opener.setAttribute("aria-expanded", opens);
    if (opens) this.element.querySelector("button").focus();
    else if (isHeld) this.opener.focus();
  }

  /** Shows the conversations: the one that is `shown`, and those for which an answer is under way. */
  draw(shown, isUnderWay, areKept) {
    this.hint.hidden = areKept;
    const entries = this.actions.all().map((one) => ({ one, title: one.title || "Without a title", current: one.id === shown.id, busy: isUnderWay(one) }));
    // Another tab may keep one every few seconds: where nothing is to be seen of it, nobody loses a place.
    const state = JSON.stringify(entries.map(({ one, ...seen }) => [one.id, seen]));
    if (state === this.state) return;
    this.state = state;
    const { scrollTop } = this.list;
    refill(this.list, entries.map((entry) => this.entry(entry)));
    this.list.scrollTop = scrollTop;
  }

  entry({ one, title, current, busy }) {
    return h(
      "li",
      { class: current ? "current" : "" },
      h("button", { type: "button", "data-part": `show ${one.id}`, "aria-current": current ? "true" : undefined, title, onclick: () => this.actions.show(one) }, busy && h("span", { class: "dot", title: "it is being answered", role: "img", "aria-label": "being answered" }), h("span", {}, title)),
      iconButton("edit", `Rename “${title}”`, () => this.actions.rename(one), { "data-part": `rename ${one.id}` }),
      iconButton("trash", `Delete “${title}”`, () => this.actions.remove(one), { "data-part": `remove ${one.id}` }),
    );
  }

  import() {
    const input = h("input", { type: "file", accept: "application/json,.json" });
    input.addEventListener("change", async () => {
      try {
        const read = imported(await input.files[0].text());
        await this.actions.add(read);
        announce(`${things(read.length, "conversation")} imported`);
      } catch (error) {
        tell("This file cannot be imported", error.message);
      }
    });
    input.click();
  }
}

function save(all) {
  const link = h("a", { href: URL.createObjectURL(new Blob([exported(all)], { type: "application/json" })), download: "conversations.json" });
  link.click();
  // Some browsers read it only later.
  setTimeout(() => URL.revokeObjectURL(link.href), SAVED);
}
