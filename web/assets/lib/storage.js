// Small values in the browser's storage. If the browser forbids storage, they last as long as the
// page.

/**
 * Returns `sessionStorage` or `localStorage`, or a replacement in memory. Access to a forbidden
 * storage throws.
 */
function storage(name) {
  try {
    const found = window[name];
    found.getItem("");
    return found;
  } catch {
    const kept = new Map();
    return {
      getItem: (key) => kept.get(key) ?? null,
      setItem: (key, value) => kept.set(key, value),
      removeItem: (key) => kept.delete(key),
    };
  }
}

/** Values of this tab, until it is closed. */
export const tab = storage("sessionStorage");
/** Values of all tabs, until they are removed. */
export const device = storage("localStorage");
