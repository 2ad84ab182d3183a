// The template, system prompt, parameters, licence and Modelfile, shown verbatim.

import { h } from "../lib/dom.js";

export function draw(model) {
  const { shown } = model;
  const parts = [
    ["System prompt", shown.system],
    ["Template", shown.template],
    ["Parameters", shown.parameters],
    ["Messages", (shown.messages ?? []).map((message) => `${message.role}: ${message.content}`).join("\n\n")],
    ["Modelfile", shown.modelfile],
    ["License", shown.license],
  ];
  return parts
    .filter(([, text]) => text)
    .map(([title, text]) => h("section", { class: "panel" }, h("h2", {}, title), h("pre", { class: "text", tabindex: 0 }, text)));
}
