// Dialogs for questions and messages. They are native dialogs, which keep the focus and close with
// Escape.

import { h, fill, identity } from "./dom.js";

/**
 * Shows a dialog. Resolves to the value that it was closed with, or `undefined`. `draw` gets a
 * function that closes it.
 */
export function open(title, draw, options = {}) {
  return new Promise((resolve) => {
    const heading = identity("dialog");
    let result;
    const dialog = h("dialog", { "aria-labelledby": heading, class: options.class });
    const close = (value) => {
      result = value;
      dialog.close();
    };
    fill(
      dialog,
      h("header", {}, h("h2", { id: heading }, title), h("button", { type: "button", class: "plain", "aria-label": "Close", onclick: () => close() }, "✕")),
      h("div", { class: "dialog-body" }, draw(close, dialog)),
    );
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(result);
    });
    // A click outside of the dialog closes it.
    dialog.addEventListener("mousedown", (event) => {
      const { left, right, top, bottom } = dialog.getBoundingClientRect();
      const isBeside = event.clientX < left || event.clientX > right || event.clientY < top || event.clientY > bottom;
      if (event.target === dialog && isBeside && !options.stays) close();
    });
    document.body.append(dialog);
    dialog.showModal();
    // The focus goes to the first input field.
    if (dialog.querySelector("[autofocus]") === null) dialog.querySelector(".dialog-body :is(input, textarea, select):not(:disabled)")?.focus();
  });
}

/** Shows a message or an error. */
export function tell(title, text) {
  return open(title, (close) => [
    h("p", { class: "told" }, text),
    h("footer", {}, h("button", { type: "button", class: "primary", autofocus: true, onclick: () => close() }, "Close")),
  ]);
}

/** Asks for confirmation. `content` describes the consequences. */
export async function confirmed(title, content, action, options = {}) {
  const yes = await open(title, (close) => [
    h("div", { class: "told" }, content),
    h(
      "footer",
      {},
      h("button", { type: "button", autofocus: true, onclick: () => close() }, "Cancel"),
      h("button", { type: "button", class: options.harmless ? "primary" : "danger", disabled: options.disabled, onclick: () => close(true) }, action),
    ),
  ]);
  return yes === true;
}

/**
 * Asks for values. `fields` are `[name, label, attributes]`. Resolves to an object of strings, or
 * `undefined`.
 */
export function ask(title, fields, action, explanation, options) {
  return open(title, (close) => {
    const inputs = fields.map(([name, label, attributes]) => {
      const { kind = "input", options, ...rest } = attributes ?? {};
      const input =
        kind === "select"
          ? h("select", { name, ...rest }, options.map((option) => h("option", { value: option }, option)))
          : h(kind, { name, type: kind === "input" ? "text" : undefined, autocomplete: "off", spellcheck: "false", ...rest });
      if (rest.type === "checkbox") return h("label", { class: "check" }, input, label);
      return h("label", { class: "field" }, h("span", {}, label), input);
    });
    const submit = (event) => {
      event.preventDefault();
      const values = {};
      for (const input of event.target.querySelectorAll("[name]")) {
        values[input.name] = input.type === "checkbox" ? input.checked : input.value.trim();
      }
      close(values);
    };
    return h(
      "form",
      { onsubmit: submit },
      explanation && h("p", { class: "told" }, explanation),
      inputs,
      h("footer", {}, h("button", { type: "button", onclick: () => close() }, "Cancel"), h("button", { type: "submit", class: "primary" }, action)),
    );
  }, options);
}

/** Asks for the API key. */
export async function askForKey(reason) {
  // A header cannot contain other characters.
  const limits = { type: "password", required: true, autofocus: true, pattern: "[!-~]+", title: "letters, digits and signs of ASCII, without spaces" };
  const explanation = `The daemon says: ${reason}. The key is kept in this tab until it is closed.`;
  const values = await ask("An API key is needed", [["key", "API key", limits]], "Use this key", explanation, { class: "key-dialog" });
  return values?.key;
}
