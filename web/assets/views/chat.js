// The chat: conversations at the side, the branch of one, and where one writes.

import { h, fill, icon, iconButton, announce } from "../lib/dom.js";
import { ask, confirmed, tell } from "../lib/dialog.js";
import * as conversations from "../lib/conversations.js";
import { choose, canChat, capabilityBadges, list } from "../lib/models.js";
import { note } from "../lib/route.js";
import { Answering } from "../chat/answer.js";
import { message } from "../chat/message.js";
import { settingsDialog } from "../chat/settings.js";

/** So near to its end a reader follows along, in pixels. */
const NEAR = 60;
/** How often an answer under way is kept, in milliseconds. */
const KEPT = 2000;
const LAST_MODEL = "lode-model";

export async function draw(main, parameters) {
  const chat = new Chat(main);
  await chat.open(parameters.get("model"), parameters.get("conversation"));
  return () => chat.end();
}

class Chat {
  constructor(main) {
    this.models = [];
    this.deleted = new Set();
    /** Whether a reader follows what is added at the end. */
    this.follows = true;
    this.messages = h("div", { class: "messages", tabindex: 0, role: "log", "aria-label": "Conversation", "aria-live": "off", onscroll: () => {
      this.follows = this.isNearEnd();
    } });
    this.bar = h("div", { class: "talk-bar" });
    this.side = h("aside", { class: "conversations", "aria-label": "Conversations" });
    this.input = h("textarea", {
      rows: 1,
      placeholder: "Write a message",
      "aria-label": "Message",
      oninput: () => this.grow(),
      onkeydown: (event) => {
        if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
          event.preventDefault();
          this.send();
        }
      },
    });
    this.button = h("button", { type: "submit", class: "primary" });
    const form = h("form", { onsubmit: (event) => {
      event.preventDefault();
      if (this.answering) this.answering.stop();
      else this.send();
    } }, this.input, this.button);
    this.escape = (event) => {
      if (event.key === "Escape" && !event.isComposing && !document.querySelector("dialog[open]")) {
        if (this.side.classList.contains("open")) this.side.classList.remove("open");
        else this.answering?.stop();
      }
    };
    document.addEventListener("keydown", this.escape);
    fill(main, h("div", { class: "chat" }, this.side, h("div", { class: "talk" }, this.bar, this.messages, h("div", { class: "compose" }, form))));
  }

  async open(model, id) {
    [this.all, this.models] = await Promise.all([conversations.all(), list()]);
    this.conversation = this.all.find((one) => one.id === id);
    if (this.conversation === undefined) this.begin(model);
    this.drawAll();
    this.input.focus();
  }

  end() {
    this.ended = true;
    this.answering?.stop();
    document.removeEventListener("keydown", this.escape);
  }

  /** A new conversation, with the model that was asked for or that was used last. */
  begin(model) {
    const names = this.models.filter(canChat).map((one) => one.name);
    const last = localStorage.getItem(LAST_MODEL);
    const complete = names.find((name) => name === model || name === `${model}:latest`);
    const loaded = this.models.find((one) => one.loaded && canChat(one))?.name;
    this.conversation = conversations.create(complete ?? (names.includes(last) ? last : loaded ?? names[0] ?? ""));
  }

  get model() {
    return this.models.find((one) => one.name === this.conversation.model);
  }

  drawAll() {
    this.drawSide();
    this.drawBar();
    this.drawMessages();
    this.drawButton();
  }

  drawSide() {
    const entry = (conversation) => {
      const title = conversation.title || "Without a title";
      const current = conversation.id === this.conversation.id;
      return h(
        "li",
        { class: current ? "current" : "" },
        h("button", { type: "button", "aria-current": current ? "true" : undefined, title, onclick: () => this.show(conversation) }, h("span", {}, title)),
        iconButton("edit", `Rename “${title}”`, () => this.rename(conversation)),
        iconButton("trash", `Delete “${title}”`, () => this.remove(conversation)),
      );
    };
    fill(
      this.side,
      h("button", { type: "button", class: "primary", onclick: () => this.startAnew() }, icon("plus"), "New conversation"),
      h("ul", {}, this.all.map(entry)),
      h("div", { class: "tools" }, h("button", { type: "button", onclick: () => this.export() }, icon("download"), "Export"), h("button", { type: "button", onclick: () => this.import() }, icon("upload"), "Import")),
    );
  }

  drawBar() {
    const { model } = this;
    const name = this.conversation.model || "Choose a model";
    fill(
      this.bar,
      iconButton("menu", "Conversations", () => this.side.classList.toggle("open"), { class: "icon-button open-conversations" }),
      h("button", { type: "button", class: "model-button", "aria-label": `Model: ${name}`, onclick: () => this.chooseModel() }, model?.loaded && h("span", { class: "dot", title: "loaded" }), h("span", { class: "name" }, name), h("span", { "aria-hidden": "true" }, "▾")),
      model && capabilityBadges(model),
      h("span", { class: "grow" }),
      iconButton("settings", "System prompt, options and tools", () => this.changeSettings()),
    );
  }

  drawMessages() {
    const branch = conversations.branch(this.conversation);
    if (branch.length === 0) {
      const without = this.models.filter(canChat).length === 0;
      fill(
        this.messages,
        h(
          "div",
          { class: "welcome" },
          h("h1", {}, without ? "There is no model that can chat yet" : "What would you like to know?"),
          without
            ? h("p", {}, "Fetch one from a registry or make one of files: ", h("a", { href: "/ui/models" }, "Models"), ".")
            : h("p", {}, `${this.conversation.model} answers on this machine; the conversation stays in this browser.`),
        ),
      );
      return;
    }
    const actions = {
      edit: (one, content) => this.edit(one, content),
      again: (one) => this.regenerate(one),
      select: (one) => {
        conversations.select(this.conversation, one);
        this.keep();
        this.drawMessages();
      },
      result: (one, call) => this.giveResult(one, call),
      busy: () => this.answering !== undefined,
    };
    fill(this.messages, h("div", { class: "column" }, branch.map((one) => message(this.conversation, one, actions, this.answering))));
    if (this.follows) this.toEnd();
  }

  drawButton() {
    const busy = this.answering !== undefined;
    this.button.setAttribute("aria-label", busy ? "Stop" : "Send");
    this.button.title = busy ? "Stop (Escape)" : "Send (Enter; Shift and Enter begin a line)";
    fill(this.button, icon(busy ? "stop" : "send"));
  }

  grow() {
    this.input.style.height = "auto";
    this.input.style.height = `${this.input.scrollHeight}px`;
  }

  isNearEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.messages;
    return scrollHeight - scrollTop - clientHeight < NEAR;
  }

  toEnd() {
    this.messages.scrollTop = this.messages.scrollHeight;
  }

  async chooseModel() {
    const chosen = await choose("Choose a model", this.conversation.model, canChat);
    if (chosen === undefined) return;
    this.models = this.models.filter((one) => one.name !== chosen.name).concat(chosen);
    this.conversation.model = chosen.name;
    localStorage.setItem(LAST_MODEL, chosen.name);
    if (this.conversation.current !== null) await this.keep();
    this.drawAll();
  }

  async changeSettings() {
    if (await settingsDialog(this.conversation, this.model)) {
      if (this.conversation.current !== null) await this.keep();
    }
  }

  startAnew() {
    this.answering?.stop();
    this.begin(this.conversation.model);
    note("conversation");
    this.side.classList.remove("open");
    this.drawAll();
    this.input.focus();
  }

  show(conversation) {
    this.answering?.stop();
    this.conversation = conversation;
    note("conversation", conversation.id);
    this.side.classList.remove("open");
    this.follows = true;
    this.drawAll();
  }

  /** Stores a conversation; one that was deleted meanwhile stays so. */
  async keep(conversation = this.conversation) {
    if (this.deleted.has(conversation.id)) return;
    this.all = [conversation, ...this.all.filter((one) => one.id !== conversation.id)];
    try {
      await conversations.save(conversation);
    } catch (error) {
      tell("The conversation cannot be kept", error.message);
    }
  }

  async rename(conversation) {
    const values = await ask("Rename the conversation", [["title", "Title", { value: conversation.title, required: true }]], "Rename");
    if (values === undefined) return;
    conversation.title = values.title;
    await conversations.save(conversation);
    this.drawSide();
  }

  async remove(conversation) {
    const title = conversation.title || "Without a title";
    if (!(await confirmed("Delete the conversation?", h("p", {}, `“${title}” is kept nowhere else.`), "Delete"))) return;
    this.deleted.add(conversation.id);
    await conversations.remove(conversation.id);
    this.all = this.all.filter((one) => one.id !== conversation.id);
    if (conversation.id === this.conversation.id) this.startAnew();
    else this.drawSide();
  }

  export() {
    const link = h("a", { href: URL.createObjectURL(new Blob([conversations.exported(this.all)], { type: "application/json" })), download: "conversations.json" });
    link.click();
    URL.revokeObjectURL(link.href);
  }

  import() {
    const input = h("input", { type: "file", accept: "application/json,.json" });
    input.addEventListener("change", async () => {
      try {
        const read = conversations.imported(await input.files[0].text());
        for (const one of read) await conversations.save(one);
        this.all = await conversations.all();
        this.drawSide();
        announce(`${read.length} conversations were imported`);
      } catch (error) {
        tell("This file cannot be imported", error.message);
      }
    });
    input.click();
  }

  async send() {
    const content = this.input.value.trim();
    if (content === "" || this.answering) return;
    if (this.conversation.model === "") {
      await this.chooseModel();
      if (this.conversation.model === "") return;
    }
    this.input.value = "";
    this.grow();
    conversations.add(this.conversation, this.conversation.current, { role: "user", content });
    await this.answer(this.conversation.current);
  }

  /** Another message in the place of one: a branch of its own. */
  async edit(one, content) {
    if (this.answering) return;
    const added = conversations.add(this.conversation, one.parent, { ...one, content, figures: undefined, failure: undefined });
    if (one.role === "user") await this.answer(added.id);
    else {
      await this.keep();
      this.drawMessages();
    }
  }

  async regenerate(one) {
    if (!this.answering) await this.answer(one.parent);
  }

  /** What a tool said that the model called. */
  async giveResult(one, call) {
    const values = await ask(`What does ${call.function.name} answer?`, [["content", "Result", { kind: "textarea", rows: 6, required: true }]], "Give it to the model");
    if (values === undefined || this.answering) return;
    // Behind the results that are given already.
    const branch = conversations.branch(this.conversation);
    const given = [];
    for (const other of branch.slice(branch.indexOf(one) + 1)) {
      if (other.role !== "tool") break;
      given.push(other);
    }
    const last = given.at(-1) ?? one;
    conversations.add(this.conversation, last.id, { role: "tool", content: values.content, name: call.function.name, call: call.id });
    if (given.length + 1 >= one.calls.length) await this.answer(this.conversation.current);
    else {
      await this.keep();
      this.drawMessages();
    }
  }

  /** Lets the model answer what is said up to a message. */
  async answer(parent) {
    const { conversation } = this;
    conversation.current = parent;
    const history = conversations.branch(conversation);
    const said = conversations.add(conversation, parent, { role: "assistant", content: "", model: conversation.model });
    this.answering = new Answering(conversation, history, said, this.model);
    this.follows = true;
    this.drawAll();
    note("conversation", conversation.id);
    await this.keep(conversation);
    this.drawSide();
    const answering = this.answering;
    // What is there is kept on the way, too: a tab may be closed.
    const kept = setInterval(() => conversations.save(conversation).catch(() => {}), KEPT);
    await answering.run(() => {
      if (this.follows) requestAnimationFrame(() => this.toEnd());
    });
    clearInterval(kept);
    await this.keep(conversation);
    if (this.answering !== answering) return;
    this.answering = undefined;
    announce(said.failure ? `The answer failed: ${said.failure}` : "The answer is complete");
    this.models = await list().catch(() => this.models);
    if (!this.ended) this.drawAll();
  }
}
