// Small things that this browser keeps. Where it is told to keep nothing they last as long as the page.

/** `sessionStorage` or `localStorage`, or what stands in its place. Asking for one that is forbidden throws. */
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

/** As long as the tab is open, and in it alone. */
export const tab = storage("sessionStorage");
/** For every tab, until it is removed. */
export const device = storage("localStorage");
