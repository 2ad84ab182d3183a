// The current location in the page: `/ui/VIEW?parameters`.

const listeners = new Set();

/** Returns the current view and its parameters. */
export function place() {
  const view = location.pathname.replace(/^\/(ui\/?)?/, "").split("/")[0] || "chat";
  return { view, parameters: new URLSearchParams(location.search) };
}

/** Navigates to another view. */
export function go(path) {
  if (path !== location.pathname + location.search) history.pushState(null, "", path);
  for (const listener of listeners) listener();
}

/** Changes a URL parameter without adding a history entry. */
export function note(name, value) {
  const parameters = new URLSearchParams(location.search);
  if (value === undefined || value === "") parameters.delete(name);
  else parameters.set(name, value);
  const search = parameters.toString();
  history.replaceState(null, "", location.pathname + (search === "" ? "" : `?${search}`));
}

export function onRoute(listener) {
  listeners.add(listener);
}

/** Returns the path of a model's view. */
export function modelPath(name, more = {}) {
  return `/ui/model?${new URLSearchParams({ name, ...more })}`;
}

window.addEventListener("popstate", () => {
  for (const listener of listeners) listener();
});
