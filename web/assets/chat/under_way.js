// Answers that are under way, by their conversations. They go on while one looks at something else.

import { announce } from "../lib/dom.js";
import { tell } from "../lib/dialog.js";
import * as conversations from "../lib/conversations.js";

/** How often an answer under way is kept, in milliseconds. */
const KEPT = 2000;

const underWay = new Map();
/** The chat that is on the page. */
let shown;

/** Tells a chat of answers: `follow()` when one got longer, `answered(conversation)` at its end. Gives a function that ends this. */
export function watch(chat) {
  shown = chat;
  return () => {
    if (shown === chat) shown = undefined;
  };
}

/** The answer under way in a conversation; nothing where there is none. */
export function answerIn(conversation) {
  return underWay.get(conversation?.id);
}

/** Lets an answer come to its end, whatever is shown meanwhile. */
export async function complete(answering) {
  const { conversation, message } = answering;
  underWay.set(conversation.id, answering);
  // What is there is kept on the way, too: a tab may be closed.
  const kept = setInterval(() => conversations.save(conversation).catch(() => {}), KEPT);
  await answering.run(() => requestAnimationFrame(() => shown?.follow()));
  clearInterval(kept);
  announce(message.failure ? `The answer failed: ${message.failure}` : "The answer is complete");
  try {
    await conversations.save(conversation);
  } catch (error) {
    tell("The conversation cannot be kept", error.message);
  }
  underWay.delete(conversation.id);
  await shown?.answered(conversation);
}

// Also where no chat is on the page: the answer would be kept with what another tab has changed meanwhile.
conversations.onChanged(async (id) => {
  if (!underWay.has(id)) return;
  const read = await conversations.read(id);
  const answering = underWay.get(id);
  if (read === undefined) answering?.stop();
  else if (answering !== undefined) conversations.takeOver(answering.conversation, read);
});
