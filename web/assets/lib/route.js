// Where one is in the page: `/ui/VIEW?parameters`.

const listeners = new Set();

/** The view and its parameters. */
export function place() {
  const view = location.pathname.replace(/^\/(ui\/?)?/, "").split("/")[0] || "chat";
  return { view, parameters: new URLSearchParams(location.search) };
}

/** Goes to another place of the page. */
export function go(path) {
  if (path !== location.pathname + location.search) history.pushState(null, "", path);
  for (const listener of listeners) listener();
}

/** Changes a parameter of the place, without a step that one could go back. */
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

/** The address of a model's page. */
export function modelPath(name, more = {}) {
  return `/ui/model?${new URLSearchParams({ name, ...more })}`;
}

window.addEventListener("popstate", () => {
  for (const listener of listeners) listener();
});
