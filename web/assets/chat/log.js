// The list of messages of a conversation. The element of a message is reused as long as it is
// valid.

import { h, fill } from "../lib/dom.js";
import { branch } from "../lib/conversations.js";
import { message } from "./message.js";

/** A reader within this distance of the end, in pixels, follows new text. */
const NEAR = 60;

export class Log {
  /**
   * `actions` are the operations on a message; `elsewhere` returns the element that gets the focus
   * if no message can have it.
   */
  constructor(actions, elsewhere) {
    Object.assign(this, { actions, elsewhere });
    /** The element and state of each message, by its id. */
    this.drawn = new Map();
    /** Whether the view scrolls with text that is added at the end. */
    this.follows = true;
    this.column = h("div", { class: "column" });
    this.element = h("div", { class: "messages", tabindex: 0, role: "log", "aria-label": "Conversation", "aria-live": "off", onscroll: () => {
      this.follows = this.isNearEnd();
    } });
  }

  isNearEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.element;
    return scrollHeight - scrollTop - clientHeight < NEAR;
  }

  follow() {
    if (this.follows) this.element.scrollTop = this.element.scrollHeight;
  }

  /** Shows a welcome text instead of messages. `isThereOne` states whether any model can chat. */
  welcome(name, model, isThereOne) {
    this.drawn.clear();
    fill(this.element, welcome(name, model, isThereOne));
  }

  /** Draws the current branch of a conversation; `answering` is the running answer. */
  draw(conversation, answering) {
    const { activeElement } = document;
    const held = this.element.contains(activeElement) ? { label: activeElement.getAttribute("aria-label"), message: activeElement.closest(".message") } : undefined;
    const place = [...this.drawn.values()].findIndex((drawn) => drawn.element === held?.message);
    this.drawn = new Map(branch(conversation).map((one) => [one.id, this.part(conversation, one, answering)]));
    const elements = [...this.drawn.values()].map((drawn) => drawn.element);
    if (this.column.parentNode !== this.element) fill(this.element, this.column);
    arrange(this.column, elements);
    if (held !== undefined && !this.element.contains(document.activeElement)) this.giveFocus(elements[place], held.label);
    this.follow();
  }

  /** Returns the existing element of a message if it is still valid, otherwise a new one. */
  part(conversation, one, answering) {
    const mine = answering?.message === one;
    const state = [one.thinking?.length, one.calls?.length, one.failure].join(" ");
    const before = this.drawn.get(one.id);
    const isSame = before?.message === one && before.mine === mine;
    if (isSame && (mine || before.state === state || before.element.querySelector(".edit") !== null)) {
      before.element.refresh();
      return before;
    }
    return { message: one, mine, state, element: message(conversation, one, this.actions, answering) };
  }

  /** Moves the focus to the button with the same name, or to one near it. */
  giveFocus(element, label) {
    const buttons = [...(element?.querySelectorAll(".message-foot button:not(:disabled)") ?? [])];
    const next = buttons.find((button) => button.getAttribute("aria-label") === label) ?? buttons.find((button) => button.closest(".branches"));
    (next ?? this.elsewhere()).focus({ preventScroll: true });
  }
}

/**
 * Makes `elements` the children of `holder`, in order, without moving elements that are in place
 * already.
 */
function arrange(holder, elements) {
  const stay = new Set(elements);
  for (const child of [...holder.children]) if (!stay.has(child)) child.remove();
  for (const [place, element] of elements.entries()) if (holder.children[place] !== element) holder.insertBefore(element, holder.children[place] ?? null);
}

function welcome(name, model, isThereOne) {
  const answers = model?.only_completes
    ? `${name} has no chat template: it completes text, it does not chat.`
    : `${name} answers on this machine; the conversation stays in this browser.`;
  return h(
    "div",
    { class: "welcome" },
    h("h1", {}, isThereOne ? "What would you like to know?" : "There is no model that can chat yet"),
    isThereOne
      ? h("p", {}, answers)
      : h("p", {}, "Fetch one from a registry or make one of files: ", h("a", { href: "/ui/models" }, "Models"), "."),
  );
}
