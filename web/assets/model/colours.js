// Colours that mean something: one for each type, one for how much is shared, and steps for amounts.

const TYPES = ["#7aa2f7", "#e0af68", "#9ece6a", "#f7768e", "#bb9af7", "#7dcfff", "#ff9e64", "#73daca", "#c0caf5", "#d2a6ff"];

/** Bytes and number of the tensors of each type. */
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

/** A colour for each name, the first ones for those that come first. */
export function palette(names) {
  return new Map(names.map((name, place) => [name, TYPES[place % TYPES.length]]));
}

/** A colour between pale and strong; `part` is from 0 to 1. */
export function step(part) {
  const mix = Math.round(100 * Math.max(0, Math.min(1, part)));
  return `color-mix(in oklab, #f04f5f ${mix}%, #b9cdf6)`;
}
