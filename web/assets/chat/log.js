// The messages of a conversation, one below the other. What was drawn of a message stays as long as it is so.

import { h, fill } from "../lib/dom.js";
import { branch } from "../lib/conversations.js";
import { message } from "./message.js";

/** So near to its end a reader follows along, in pixels. */
const NEAR = 60;

export class Log {
  /** `actions` are what one can do with a message; `elsewhere` gets the keys where no message can have them. */
  constructor(actions, elsewhere) {
    Object.assign(this, { actions, elsewhere });
    /** What is shown of each message, by its identity. */
    this.drawn = new Map();
    /** Whether a reader follows what is added at the end. */
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

  /** In the place of messages where there are none yet; says whether there is a model that can answer. */
  welcome(name, model, isThereOne) {
    this.drawn.clear();
    fill(this.element, welcome(name, model, isThereOne));
  }

  /** The branch that is shown of a conversation; `answering` is the answer under way. */
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

  /** What was drawn of a message, where that is still so, else anew. */
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

  /** The keys go on where they were: at the button of the same name, or near it. */
  giveFocus(element, label) {
    const buttons = [...(element?.querySelectorAll(".message-foot button:not(:disabled)") ?? [])];
    const next = buttons.find((button) => button.getAttribute("aria-label") === label) ?? buttons.find((button) => button.closest(".branches"));
    (next ?? this.elsewhere()).focus({ preventScroll: true });
  }
}

/** Makes elements the children of another, in their order, and moves none that is where it should be. */
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
