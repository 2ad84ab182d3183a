// The element of a message: text, thinking, tool calls, figures, and actions.

import { h, fill, icon, iconButton, announce } from "../lib/dom.js";
import { count, seconds, things } from "../lib/format.js";
import { siblings } from "../lib/conversations.js";
import { drawText, isWhole, shownText } from "./answer.js";
import { shown } from "./pictures.js";

const WHO = { user: "You", assistant: "Model", tool: "Tool" };
/** How long the confirmation of a copy is shown, in milliseconds. */
const SHOWN = 1500;
const EDIT = { user: "Edit, and ask anew", assistant: "Edit this answer" };
const REASONS = {
  length: "ended at the most tokens",
  stopped: "stopped",
  repetition: "ended: it repeated itself",
  load: "the model was loaded",
};

/**
 * Returns the element of a message. `answering` is the running answer, which may belong to this
 * message. Its method `refresh` redraws only the parts that depend on other messages; the text and
 * an open edit stay.
 */
export function message(conversation, one, actions, answering) {
  const mine = answering?.message === one ? answering : undefined;
  const element = h("article", { class: `message ${one.role}`, "aria-label": `${WHO[one.role]}: ${one.content.slice(0, 60)}` });
  const who = h("div", { class: "who" }, one.role === "assistant" ? (one.model ?? WHO.assistant) : one.role === "tool" ? `Result of ${one.name}` : WHO.user);
  const foot = h("div", { class: "message-foot" });
  const thoughts = thinking(one, mine);
  const text = body(one, mine);
  fill(element, who, thoughts, one.pictures && shown(one.pictures), text, calls(one, actions), one.failure && h("p", { class: "failure", role: "alert" }, icon("warning"), one.failure), foot);
  let drawn = one.content;
  element.refresh = () => {
    drawFoot(foot, element, conversation, one, actions, mine);
    // Another tab may be writing this message.
    if (mine || one.content === drawn) return;
    drawn = one.content;
    drawBody(text, one, isWhole(one));
  };
  drawFoot(foot, element, conversation, one, actions, mine);
  return element;
}

function thinking(one, mine) {
  if (!one.thinking && !mine) return undefined;
  const text = h("div", { class: "plain-text" }, one.thinking ?? "");
  const details = h("details", { class: "thinking", hidden: !one.thinking }, h("summary", {}, mine && !one.content ? "Thinking…" : "Thoughts"), text);
  if (mine) {
    mine.thinking = (thought) => {
      details.hidden = false;
      text.textContent = thought;
      fill(details.querySelector("summary"), one.content ? "Thoughts" : "Thinking…");
    };
  }
  return details;
}

function body(one, mine) {
  const text = one.role === "user" ? h("div", { class: "said" }) : h("div", { class: `markdown ${mine ? "caret" : ""}`, dir: "auto" });
  if (mine) mine.text = text;
  if (one.content) drawBody(text, one, mine === undefined || isWhole(one));
  return text;
}

function drawBody(text, one, whole) {
  if (one.role === "user") fill(text, one.content);
  else drawText(text, shownText(one), whole).then(() => withCopyButtons(text));
}

function withCopyButtons(text) {
  for (const code of text.querySelectorAll("pre:not(.copyable)")) {
    code.classList.add("copyable");
    const content = code.textContent;
    code.append(h("button", { type: "button", class: "copy-code", onclick: async ({ currentTarget }) => {
      const done = await copied(content);
      fill(currentTarget, done ? "Copied" : "It cannot be copied");
      setTimeout(() => fill(currentTarget, "Copy"), SHOWN);
    } }, "Copy"));
  }
}

function calls(one, actions) {
  return (one.calls ?? []).map((call) =>
    h(
      "div",
      { class: "call" },
      h("strong", {}, "Calls "),
      h("code", {}, call.function.name),
      h("pre", {}, JSON.stringify(call.function.arguments, null, 2)),
      h("button", { type: "button", onclick: () => actions.result(one, call) }, "Give a result"),
    ),
  );
}

function drawFoot(foot, element, conversation, one, actions, mine) {
  const figures = h("span", { class: "figures-line" });
  const drawFigures = (known) => fill(figures, described(known));
  if (mine) {
    mine.foot = drawFigures;
    drawFigures(mine.soFar());
    fill(foot, figures);
    return;
  }
  if (one.figures) drawFigures(one.figures);
  fill(
    foot,
    branches(conversation, one, actions),
    iconButton("copy", "Copy the text", async ({ currentTarget }) => {
      fill(currentTarget, icon((await copied(one.content)) ? "check" : "warning"));
      setTimeout(() => fill(currentTarget, icon("copy")), SHOWN);
    }),
    one.role !== "tool" && iconButton("edit", EDIT[one.role], () => edit(element, one, actions)),
    one.role === "assistant" && iconButton("again", "Regenerate the answer", () => actions.again(one)),
    figures,
  );
}

/** Returns the navigation between the versions of a message. */
function branches(conversation, one, actions) {
  const all = siblings(conversation, one);
  if (all.length < 2) return undefined;
  const place = all.indexOf(one);
  return h(
    "span",
    { class: "branches" },
    iconButton("left", "The version before", () => actions.select(all[place - 1]), { disabled: place === 0 || actions.busy() }),
    `${place + 1} / ${all.length}`,
    iconButton("right", "The version after", () => actions.select(all[place + 1]), { disabled: place === all.length - 1 || actions.busy() }),
  );
}

/** Describes the speed, the time to the first token, and the context. */
export function described(figures) {
  const parts = [];
  if (figures.speed > 0) parts.push(`${figures.speed.toFixed(1)} tokens/s`);
  if (figures.first !== undefined) parts.push(`first token after ${seconds(figures.first)}${figures.load > 0.5 ? `, ${seconds(figures.load)} of it to load` : ""}`);
  if (figures.tokens > 0) parts.push(things(figures.tokens, "token"));
  if (figures.prompt !== undefined) parts.push(`context ${count(figures.prompt + figures.tokens)} (${count(figures.cached)} of the prompt's ${count(figures.prompt)} cached)`);
  if (figures.truncated > 0) parts.push(`${things(figures.truncated, "token")} of the beginning left out`);
  if (REASONS[figures.reason]) parts.push(REASONS[figures.reason]);
  return parts.join(" · ");
}

/** Copies a text; returns whether the browser allows that. */
async function copied(text) {
  const done = await navigator.clipboard?.writeText(text).then(() => true, () => false);
  announce(done ? "Copied" : "The browser does not let this page copy");
  return done ?? false;
}

function edit(element, one, actions) {
  const text = h("textarea", { rows: Math.min(12, one.content.split("\n").length + 2), "aria-label": "Message" });
  text.value = one.content;
  const before = [...element.childNodes];
  const back = () => {
    fill(element, before);
    element.querySelector(`[aria-label="${EDIT[one.role]}"]`)?.focus();
  };
  const form = h(
    "form",
    {
      class: "edit",
      onsubmit: (event) => {
        event.preventDefault();
        const content = text.value.trim();
        // While another answer is running, the edit stays open.
        if ((content === "" && !one.pictures) || actions.busy()) return;
        back();
        actions.edit(one, content);
      },
      onkeydown: (event) => {
        if (event.key === "Escape") {
          event.stopPropagation();
          back();
        }
      },
    },
    text,
    h("div", { class: "tools" }, h("button", { type: "button", onclick: back }, "Cancel"), h("button", { type: "submit", class: "primary" }, one.role === "user" ? "Send" : "Save")),
  );
  fill(element, form);
  text.focus();
}
