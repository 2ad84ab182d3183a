// Colours with a meaning: one per type, a scale for shared parts, and a scale for sizes.

const TYPES = ["#7aa2f7", "#e0af68", "#9ece6a", "#f7768e", "#bb9af7", "#7dcfff", "#ff9e64", "#73daca", "#c0caf5", "#d2a6ff"];

/** Returns the bytes and the number of tensors of each type. */
export function kinds(tensors) {
  const found = new Map();
  for (const tensor of tensors) {
    const sum = found.get(tensor.type) ?? { number: 0, bytes: 0 };
    sum.number += 1;
    sum.bytes += tensor.size;
    found.set(tensor.type, sum);
  }
  return found;
}

/** Assigns a colour to each name, in order. */
export function palette(names) {
  return new Map(names.map((name, place) => [name, TYPES[place % TYPES.length]]));
}

/** Returns a colour between pale and strong; `part` is from 0 to 1. */
export function step(part) {
  const mix = Math.round(100 * Math.max(0, Math.min(1, part)));
  return `color-mix(in oklab, #f04f5f ${mix}%, #b9cdf6)`;
}
