// The conversations at the side of the chat; on a small screen they lie over it when they are asked for.

import { h, fill, icon, iconButton, announce } from "../lib/dom.js";
import { tell } from "../lib/dialog.js";
import { things } from "../lib/format.js";
import { exported, imported } from "./export.js";

/** How long a file that is saved must be there, in milliseconds. */
const SAVED = 60_000;

export class Side {
  /** `actions` are what one can do with conversations: `begin`, `show`, `rename`, `remove`, `add`. */
  constructor(actions) {
    this.actions = actions;
    this.element = h("aside", { class: "conversations", id: "conversations", "aria-label": "Conversations" });
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

  /** Shows conversations; `areKept` says whether they stay when the page is closed. */
  draw(all, shown, areKept) {
    const isHeld = this.element.contains(document.activeElement);
    const entry = (conversation) => {
      const title = conversation.title || "Without a title";
      const current = conversation.id === shown.id;
      return h(
        "li",
        { class: current ? "current" : "" },
        h("button", { type: "button", "aria-current": current ? "true" : undefined, title, onclick: () => this.actions.show(conversation) }, h("span", {}, title)),
        iconButton("edit", `Rename “${title}”`, () => this.actions.rename(conversation)),
        iconButton("trash", `Delete “${title}”`, () => this.actions.remove(conversation)),
      );
    };
    fill(
      this.element,
      h("button", { type: "button", class: "primary", onclick: this.actions.begin }, icon("plus"), "New conversation"),
      !areKept && h("p", { class: "hint" }, "This browser keeps nothing for this page: conversations last until it is closed."),
      h("ul", {}, all.map(entry)),
      h("div", { class: "tools" }, h("button", { type: "button", onclick: () => save(all) }, icon("download"), "Export"), h("button", { type: "button", onclick: () => this.import() }, icon("upload"), "Import")),
    );
    if (isHeld) (this.element.querySelector("[aria-current]") ?? this.element.querySelector("button")).focus();
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
