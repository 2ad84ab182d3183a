// The chat view: the list of conversations, the branch of the current one, and the input field.

import { h, fill, icon, iconButton, refill } from "../lib/dom.js";
import { ask, confirmed, tell } from "../lib/dialog.js";
import * as conversations from "../lib/conversations.js";
import { choose, canChat, capabilityBadges, list, named } from "../lib/models.js";
import { note } from "../lib/route.js";
import { device } from "../lib/storage.js";
import { onModelsChanged } from "../lib/transfers.js";
import { Answering } from "../chat/answer.js";
import { Log } from "../chat/log.js";
import { Tray } from "../chat/pictures.js";
import { settingsDialog } from "../chat/settings.js";
import { Side } from "../chat/side.js";
import { answerIn, complete, watch } from "../chat/under_way.js";

const LAST_MODEL = "lode-model";
/** Unsent texts and pictures by conversation id; the key of a new conversation is an empty text. */
const drafts = new Map();

/** The id of the conversation that was shown last. */
let last;

export async function draw(main, parameters) {
  const chat = new Chat(main);
  try {
    const model = parameters.get("model");
    await chat.open(model, parameters.get("conversation") ?? (model === null ? last : undefined));
  } catch (error) {
    chat.end();
    throw error;
  }
  return () => chat.end();
}

class Chat {
  constructor(main) {
    this.models = [];
    this.all = [];
    this.log = new Log(
      {
        edit: (one, content) => this.edit(one, content),
        again: (one) => this.regenerate(one),
        select: (one) => this.select(one),
        result: (one, call) => this.giveResult(one, call),
        busy: () => this.answering !== undefined,
      },
      () => (this.answering ? this.button : this.log.element),
    );
    this.side = new Side({
      begin: () => this.startAnew(),
      show: (conversation) => this.show(conversation),
      rename: (conversation) => this.rename(conversation),
      remove: (conversation) => this.remove(conversation),
      add: (read) => this.add(read),
      all: () => this.all,
    });
    this.barPart = h("div", { class: "bar-part" });
    this.bar = h("div", { class: "talk-bar" }, this.side.opener, this.barPart);
    this.input = h("textarea", {
      rows: 1,
      placeholder: "Write a message",
      "aria-label": "Message",
      oninput: () => this.grow(),
      onpaste: (event) => {
        // Office programs put a picture of a copied text beside the text.
        if (event.clipboardData.getData("text/plain") === "" && this.tray.receive(event.clipboardData)) event.preventDefault();
      },
      onkeydown: (event) => {
        if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
          event.preventDefault();
          this.send();
        }
      },
    });
    this.tray = new Tray(() => this.grow());
    this.button = h("button", { type: "submit", class: "primary" });
    const form = h("form", { onsubmit: (event) => {
      event.preventDefault();
      if (this.answering) this.answering.stop();
      else this.send();
    } }, this.tray.file, this.tray.button, this.input, this.button);
    const escape = (event) => {
      if (event.key === "Escape" && !event.isComposing && !document.querySelector("dialog[open]")) {
        if (this.side.isOpen) this.side.open(false);
        else this.answering?.stop();
      }
    };
    document.addEventListener("keydown", escape);
    this.unheard = [
      watch(this),
      () => document.removeEventListener("keydown", escape),
      conversations.onChanged((id) => this.changedElsewhere(id)),
      onModelsChanged(() => this.modelsChanged()),
    ];
    const isOfFiles = (event) => event.dataTransfer?.types.includes("Files");
    const talk = h("div", {
      class: "talk",
      ondragover: (event) => {
        if (isOfFiles(event)) event.preventDefault();
      },
      ondrop: (event) => {
        if (!isOfFiles(event)) return;
        event.preventDefault();
        this.tray.receive(event.dataTransfer);
      },
    }, this.bar, this.log.element, h("div", { class: "compose" }, this.tray.element, form));
    fill(main, h("div", { class: "chat" }, this.side.element, talk));
  }

  async open(model, id) {
    // The conversation of a running answer is newer in memory than in the database.
    const all = conversations.all().then((kept) => kept.map((one) => answerIn(one)?.conversation ?? one));
    [this.all, this.models, this.areKept] = await Promise.all([all, list(), conversations.areKept()]);
    this.conversation = this.all.find((one) => one.id === id);
    if (this.conversation === undefined) this.begin(model);
    else note("conversation", id);
    this.drawAll();
    // The user may have started to write already.
    if (this.input.value === "") this.takeDraft();
    this.input.focus();
  }

  end() {
    this.ended = true;
    for (const end of this.unheard) end();
    if (this.conversation === undefined) return;
    this.leaveDraft();
    last = this.conversation.id;
  }

  /** The running answer of the conversation that is shown. */
  get answering() {
    return answerIn(this.conversation);
  }

  /** Starts a conversation with the requested model or the one that was used last. */
  begin(model) {
    this.conversation = conversations.create(this.suited(model));
  }

  /** Returns the requested model, or else the one that was used last, a loaded one, or any. */
  suited(model) {
    const models = this.models.filter(canChat);
    const found = named(models, model) ?? named(models, device.getItem(LAST_MODEL)) ?? models.find((one) => one.loaded) ?? models[0];
    return found?.name ?? "";
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
    this.side.draw(this.conversation, (one) => answerIn(one) !== undefined, this.areKept);
  }

  drawBar() {
    const { model } = this;
    const name = this.conversation.model || "Choose a model";
    const missing = this.conversation.model !== "" && model === undefined;
    this.tray.offer(model === undefined || (model.capabilities ?? []).includes("vision"));
    const unseen = !this.tray.sees && conversations.branch(this.conversation).some((one) => one.pictures);
    const { system, options } = this.conversation;
    const set = [system && "system prompt", options.format && "format", options.tools && "tools", (options.sampling || options.think !== undefined) && "options"].filter(Boolean);
    refill(
      this.barPart,
      h("button", { type: "button", class: "model-button", "data-part": "model", "aria-label": `Model: ${name}`, onclick: () => this.chooseModel() }, model?.loaded && h("span", { class: "dot", title: "loaded" }), h("span", { class: "name" }, name), h("span", { "aria-hidden": "true" }, "▾")),
      missing && h("span", { class: "failure" }, "is no longer in the store"),
      model && capabilityBadges(model),
      unseen && h("span", { class: "hint" }, "does not see the pictures above"),
      h("span", { class: "grow" }),
      set.length > 0 && h("span", { class: "hint set" }, `with its own ${set.join(", ")}`),
      iconButton("settings", "System prompt, options and tools", () => this.changeSettings()),
    );
  }

  drawMessages() {
    if (conversations.branch(this.conversation).length > 0) this.log.draw(this.conversation, this.answering);
    else this.log.welcome(this.conversation.model, this.model, this.models.some(canChat));
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

  /** The key of this conversation's draft. */
  get draft() {
    return this.conversation.current === null ? "" : this.conversation.id;
  }

  leaveDraft() {
    const { pictures } = this.tray;
    if (this.input.value === "" && pictures.length === 0) drafts.delete(this.draft);
    else drafts.set(this.draft, { text: this.input.value, pictures });
  }

  takeDraft() {
    const { text, pictures } = drafts.get(this.draft) ?? { text: "", pictures: [] };
    this.input.value = text;
    this.tray.set(pictures);
  }

  async chooseModel() {
    const chosen = await choose("Choose a model", this.conversation.model, canChat);
    if (chosen === undefined) return;
    this.models = this.models.filter((one) => one.name !== chosen.name).concat(chosen);
    this.conversation.model = chosen.name;
    device.setItem(LAST_MODEL, chosen.name);
    if (this.conversation.current !== null) await this.keep();
    this.drawAll();
  }

  async changeSettings() {
    if (!(await settingsDialog(this.conversation, this.model))) return;
    this.drawBar();
    if (this.conversation.current !== null) await this.keep();
  }

  async modelsChanged() {
    this.models = await list().catch(() => this.models);
    if (this.ended || this.conversation === undefined) return;
    if (this.conversation.model === "") this.conversation.model = this.suited();
    this.drawBar();
    if (this.conversation.current === null) this.drawMessages();
  }

  startAnew() {
    this.leaveDraft();
    this.begin(this.conversation.model);
    note("conversation");
    this.drawAll();
    this.side.open(false);
    this.takeDraft();
    this.input.focus();
  }

  show(conversation) {
    this.leaveDraft();
    this.conversation = conversation;
    note("conversation", conversation.id);
    this.log.follows = true;
    this.drawAll();
    this.side.open(false);
    this.takeDraft();
  }

  /** Saves a conversation, unless it was deleted meanwhile. */
  async keep(conversation = this.conversation) {
    try {
      if (!(await conversations.save(conversation))) return;
    } catch (error) {
      tell("The conversation cannot be kept", error.message);
    }
    this.arrange(conversation);
  }

  /** Adds a conversation if it is new, and sorts all of them, the newest first. */
  arrange(added) {
    if (!this.all.some((one) => one.id === added.id)) this.all.push(added);
    this.all.sort((a, b) => b.updated - a.updated);
  }

  /**
   * Removes a deleted conversation. If it was shown, the text in the input field becomes the draft
   * of a new one.
   */
  forget(conversation) {
    answerIn(conversation)?.stop();
    this.all = this.all.filter((one) => one.id !== conversation.id);
    if (conversation === this.conversation) {
      const text = this.input.value;
      this.startAnew();
      if (this.input.value === "") this.input.value = text;
      this.grow();
    } else this.drawSide();
    drafts.delete(conversation.id);
  }

  /** Called when an answer grows. */
  follow() {
    this.log.follow();
  }

  /** Called when an answer has ended. */
  async answered(conversation) {
    if (this.conversation === undefined) return;
    if (conversation === this.conversation) this.drawAll();
    else this.drawSide();
    // The model is loaded by now.
    this.models = await list().catch(() => this.models);
    if (!this.ended) this.drawBar();
  }

  /** Called when another tab has saved or removed a conversation. */
  async changedElsewhere(id) {
    const read = await conversations.read(id);
    const known = this.all.find((one) => one.id === id);
    if (this.ended || this.conversation === undefined) return;
    if (read === undefined) {
      if (known !== undefined) this.forget(known);
      return;
    }
    if (known !== undefined) conversations.takeOver(known, read);
    this.arrange(known ?? read);
    this.drawSide();
    if (known !== this.conversation) return;
    this.drawBar();
    if (!this.answering) this.drawMessages();
  }

  /**
   * Imports conversations from a file. A conversation that exists keeps its title and branch; the
   * file adds messages to it.
   */
  async add(read) {
    for (const one of read) {
      const known = this.all.find((other) => other.id === one.id);
      if (known === undefined) this.all.push(one);
      else conversations.merge(known, one);
      await conversations.restore(known ?? one);
    }
    this.all.sort((a, b) => b.updated - a.updated);
    this.drawSide();
    if (!this.answering) this.drawMessages();
  }

  async rename(conversation) {
    const values = await ask("Rename the conversation", [["title", "Title", { value: conversation.title, required: true }]], "Rename");
    if (values === undefined) return;
    conversation.title = values.title;
    await this.keep(conversation);
    this.drawSide();
  }

  async remove(conversation) {
    const title = conversation.title || "Without a title";
    if (!(await confirmed("Delete the conversation?", h("p", {}, `“${title}” is kept nowhere else.`), "Delete"))) return;
    await conversations.remove(conversation.id);
    this.forget(conversation);
  }

  async send() {
    const content = this.input.value.trim();
    const { pictures } = this.tray;
    if ((content === "" && pictures.length === 0) || this.answering) return;
    if (this.conversation.model === "") {
      await this.chooseModel();
      if (this.conversation.model === "") return;
    }
    drafts.delete(this.draft);
    this.input.value = "";
    this.tray.set([]);
    this.input.focus();
    conversations.add(this.conversation, this.conversation.current, { role: "user", content, ...(pictures.length > 0 ? { pictures } : {}) });
    await this.answer(this.conversation.current);
  }

  /** Shows another existing version of a message. */
  select(one) {
    conversations.select(this.conversation, one);
    this.keep();
    this.drawMessages();
  }

  /** Adds an edited version of a message, which starts its own branch. */
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

  /** Asks the user for the result of a tool call of the model. */
  async giveResult(one, call) {
    const { conversation } = this;
    const values = await ask(`What does ${call.function.name} answer?`, [["content", "Result", { kind: "textarea", rows: 6, required: true }]], "Give it to the model");
    if (values === undefined || this.answering || conversation !== this.conversation) return;
    // Results follow each other behind the message with the calls.
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

  /** Lets the model answer the branch that ends with `parent`. */
  async answer(parent) {
    const { conversation } = this;
    conversation.current = parent;
    const history = conversations.branch(conversation);
    const said = conversations.add(conversation, parent, { role: "assistant", content: "", model: conversation.model });
    this.log.follows = true;
    note("conversation", conversation.id);
    const completed = complete(new Answering(conversation, history, said, this.model));
    this.drawAll();
    await this.keep(conversation);
    this.drawSide();
    await completed;
  }
}
