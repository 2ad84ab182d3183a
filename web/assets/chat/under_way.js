// Running answers by conversation. They continue while the page shows another view.

import { announce } from "../lib/dom.js";
import { tell } from "../lib/dialog.js";
import * as conversations from "../lib/conversations.js";

/** How often a running answer is saved, in milliseconds. */
const KEPT = 2000;

const underWay = new Map();
/** The chat that is currently on the page. */
let shown;

/**
 * Notifies a chat of answers: `follow()` when one grows, `answered(conversation)` at its end.
 * Returns a function that unsubscribes.
 */
export function watch(chat) {
  shown = chat;
  return () => {
    if (shown === chat) shown = undefined;
  };
}

/** Returns the running answer of a conversation, or `undefined`. */
export function answerIn(conversation) {
  return underWay.get(conversation?.id);
}

/** Runs an answer to its end, independent of the view that is shown. */
export async function complete(answering) {
  const { conversation, message } = answering;
  underWay.set(conversation.id, answering);
  // Saves intermediate states too, because the tab may be closed.
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

// Also runs without a chat on the page, because the answer is saved together with the conversation,
// which another tab may have changed.
conversations.onChanged(async (id) => {
  if (!underWay.has(id)) return;
  const read = await conversations.read(id);
  const answering = underWay.get(id);
  if (read === undefined) answering?.stop();
  else if (answering !== undefined) conversations.takeOver(answering.conversation, read);
});
