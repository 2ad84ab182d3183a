// The settings of a conversation: system prompt, options, format, tools.

import { h, fill } from "../lib/dom.js";
import { open } from "../lib/dialog.js";

const NUMBERS = [
  ["temperature", "Temperature", "0 takes the likeliest token each time", { min: 0, step: 0.05 }],
  ["top_p", "Top p", "only the likeliest tokens that together have this probability", { min: 0, max: 1, step: 0.01 }],
  ["top_k", "Top k", "only so many of the likeliest tokens", { min: 0, step: 1 }],
  ["min_p", "Min p", "only tokens at least this likely, against the likeliest", { min: 0, max: 1, step: 0.01 }],
  ["repeat_penalty", "Repeat penalty", "1 is none", { min: 0, step: 0.05 }],
  ["seed", "Seed", "the same seed gives the same answer", { step: 1 }],
  ["num_predict", "Most tokens", "-1 is as many as it likes", { min: -1, step: 1 }],
  ["num_ctx", "Context", "tokens of prompt and answer; a change rebuilds the KV cache", { min: 1, step: 1 }],
];

/** Lets the user change the settings of a conversation; returns whether they were changed. */
export function settingsDialog(conversation, model) {
  const can = (what) => (model?.capabilities ?? []).includes(what);
  const { options } = conversation;
  return open(
    "System prompt and options",
    (close) => {
      const failure = h("p", { class: "failure", role: "alert", hidden: true });
      const field = (name, label, hint, input) => h("label", { class: "field" }, h("span", {}, label), input, hint && h("small", {}, hint));
      const system = h("textarea", { name: "system", rows: 4, placeholder: "The model's own" });
      system.value = conversation.system;
      const numbers = NUMBERS.map(([name, label, hint, limits]) => {
        const input = h("input", { type: "number", name, placeholder: "as the model says", ...limits });
        input.value = options.sampling?.[name] ?? "";
        return field(name, label, hint, input);
      });
      const stop = h("textarea", { name: "stop", rows: 2, class: "mono", placeholder: "none beside the model's", spellcheck: "false" });
      stop.value = (options.sampling?.stop ?? []).map(escaped).join("\n");
      const think = h("select", { name: "think", disabled: !can("thinking") }, ["as it likes", "yes", "no", "low", "medium", "high"].map((word) => h("option", { value: word }, word)));
      think.value = { undefined: "as it likes", true: "yes", false: "no" }[options.think] ?? options.think;
      const format = h("textarea", { name: "format", rows: 4, class: "mono", placeholder: "A JSON schema, or json", spellcheck: "false" });
      format.value = options.format === undefined ? "" : typeof options.format === "string" ? options.format : JSON.stringify(options.format, null, 2);
      const tools = h("textarea", { name: "tools", rows: 5, class: "mono", placeholder: '[{"type": "function", "function": {"name": …, "parameters": …}}]', spellcheck: "false", disabled: !can("tools") });
      tools.value = options.tools === undefined ? "" : JSON.stringify(options.tools, null, 2);
      const submit = (event) => {
        event.preventDefault();
        try {
          const changed = read(event.target, options);
          conversation.system = event.target.system.value.trim();
          conversation.options = changed;
          close(true);
        } catch (error) {
          failure.hidden = false;
          fill(failure, error.message);
          failure.scrollIntoView({ block: "center" });
        }
      };
      return h(
        "form",
        { onsubmit: submit, novalidate: true },
        field("system", "System prompt", undefined, system),
        h("div", { class: "panels" }, numbers),
        field("stop", "Stop at", "a text in each line; \\n in it is the end of a line", stop),
        field("think", "Think", can("thinking") ? undefined : "this model does not think", think),
        field("format", "Format of the answer", "a JSON schema that it cannot leave, or the word json", format),
        field("tools", "Tools", can("tools") ? "what the model may call, as a list in JSON; you say what they answer" : "this model calls no tools", tools),
        failure,
        h("footer", {}, h("button", { type: "button", onclick: () => close() }, "Cancel"), h("button", { type: "submit", class: "primary" }, "Use these")),
      );
    },
    { class: "wide", stays: true },
  );
}

/**
 * Reads the form. Settings that the model does not support are disabled in the form and stay
 * unchanged.
 */
function read(form, before) {
  const options = {};
  const sampling = {};
  for (const [name, label, , limits] of NUMBERS) {
    const text = form[name].value.trim();
    if (text === "" && form[name].validity.valid) continue;
    const value = Number(text);
    const { min = -Infinity, max = Infinity } = limits;
    if (text === "" || !Number.isFinite(value) || value < min || value > max) throw new Error(`${label}: expected a number${min > -Infinity ? ` from ${min}` : ""}${max < Infinity ? ` to ${max}` : ""}`);
    sampling[name] = value;
  }
  const stop = form.stop.value.split("\n").filter(Boolean).map(unescaped);
  if (stop.length > 0) sampling.stop = stop;
  if (Object.keys(sampling).length > 0) options.sampling = sampling;
  const think = form.think.value;
  if (form.think.disabled) options.think = before.think;
  else if (think !== "as it likes") options.think = { yes: true, no: false }[think] ?? think;
  const format = form.format.value.trim();
  if (format !== "") {
    options.format = format === "json" ? format : parsed("The format", format);
    if (options.format !== "json" && (typeof options.format !== "object" || options.format === null || Array.isArray(options.format))) throw new Error("The format: expected a JSON schema, which is an object, or the word json");
  }
  const tools = form.tools.value.trim();
  if (form.tools.disabled) options.tools = before.tools;
  else if (tools !== "") {
    options.tools = parsed("The tools", tools);
    if (!Array.isArray(options.tools)) throw new Error("The tools: expected a list");
  }
  return options;
}

const ESCAPES = { n: "\n", r: "\r", t: "\t", "\\": "\\" };

/** Escapes newlines, so that a text fits in one line. */
function escaped(text) {
  return text.replace(/[\n\r\t\\]/g, (sign) => `\\${Object.keys(ESCAPES).find((name) => ESCAPES[name] === sign)}`);
}

function unescaped(line) {
  return line.replace(/\\([nrt\\])/g, (_, name) => ESCAPES[name]);
}

function parsed(what, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what} cannot be read as JSON: ${error.message}`);
  }
}
