// The list of conversations beside the chat. On a small screen it opens over the messages.

import { h, icon, iconButton, refill, announce } from "../lib/dom.js";
import { tell } from "../lib/dialog.js";
import { things } from "../lib/format.js";
import { exported, imported } from "./export.js";

/** How long the URL of a saved file stays valid, in milliseconds. */
const SAVED = 60_000;

export class Side {
  /**
   * `actions` are the operations on conversations: `begin`, `show`, `rename`, `remove`, `add`, and
   * `all`, which returns them.
   */
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

  /** Opens or closes the list on a small screen. */
  open(opens) {
    const isHeld = this.isOpen && this.element.contains(document.activeElement);
    this.element.classList.toggle("open", opens);
    this.opener.setAttribute("aria-expanded", opens);
    if (opens) this.element.querySelector("button").focus();
    else if (isHeld) this.opener.focus();
  }

  /** Draws the conversations, marking the `shown` one and the ones with a running answer. */
  draw(shown, isUnderWay, areKept) {
    this.hint.hidden = areKept;
    const entries = this.actions.all().map((one) => ({ one, title: one.title || "Without a title", current: one.id === shown.id, busy: isUnderWay(one) }));
    // Another tab may save a conversation every few seconds. Without a visible change the list
    // stays, so that focus and scroll position are kept.
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
  // Some browsers read the file later than the click.
  setTimeout(() => URL.revokeObjectURL(link.href), SAVED);
}
