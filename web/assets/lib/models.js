// The models of the daemon: their list, the loaded ones, and a dialog to choose one.

import { get } from "./api.js";
import { h, fill } from "./dom.js";
import { confirmed, open } from "./dialog.js";
import { ago, bytes } from "./format.js";
import { modelPath } from "./route.js";
import { searchField } from "./table.js";

/** The list shows this many models; further ones are found by searching. */
const LISTED = 200;

/** Returns all models; loaded ones have their state in `loaded`. */
export async function list() {
  const [tags, running] = await Promise.all([get("/api/tags"), get("/api/lode/running")]);
  const loaded = new Map(running.models.map((model) => [model.name, model]));
  return tags.models.map((model) => ({ ...model, loaded: loaded.get(model.name) }));
}

export function canChat(model) {
  return (model.capabilities ?? []).includes("completion");
}

/** Returns a canonical form, which is equal for all names of the same tag. */
function canonical(name) {
  const [, rest] = /^(?:https?:\/\/)?(.*)$/.exec(name.trim());
  const tagged = rest.includes(":", rest.lastIndexOf("/") + 1) ? rest : `${rest}:latest`;
  const [first, ...path] = tagged.split("/");
  const full = namesHost(tagged) ? [first.toLowerCase(), ...path].join("/") : tagged;
  return full.replace(/^registry\.ollama\.ai\//, "").replace(/^library\//, "");
}

/** Finds the model with this name; `undefined` if there is none or the name is empty. */
export function named(models, name) {
  if (!name) return undefined;
  const complete = canonical(name);
  return models.find((model) => canonical(model.name) === complete);
}

/** Whether a new model may take this name. If a model already has it, the user must confirm. */
export async function mayName(name) {
  const found = named((await get("/api/tags")).models, name);
  if (found === undefined) return true;
  return confirmed(`Replace ${found.name}?`, h("p", {}, "There is a model of that name. It will name the new one; the earlier version can be gone back to under Versions, until it is pruned."), "Replace");
}

/** Whether a name contains the host of a registry. */
export function namesHost(name) {
  const [first, ...rest] = name.split("/");
  return rest.length > 0 && /[.:]|^localhost$/.test(first);
}

/** Returns links to a new model, under the name that it has in the store. */
export function whereTo(name) {
  const links = h("div", { class: "tools" });
  get("/api/tags").then(({ models }) => {
    const found = named(models, name);
    // A model of a hub has another name in the store, which contains its revision.
    if (found !== undefined) fill(links, h("a", { class: "button primary", href: `/ui/chat?${new URLSearchParams({ model: found.name })}` }, "Chat with it"), h("a", { class: "button", href: modelPath(found.name) }, "Look at it"));
  }, () => {});
  return links;
}

/** Returns badges for the capabilities of a model. */
export function capabilityBadges(model) {
  const told = (model.capabilities ?? []).filter((name) => name !== "completion");
  if (model.only_completes) told.unshift("completes text");
  return h("span", { class: "badges" }, told.map((name) => h("span", { class: "badge" }, name)));
}

/** Describes a model in one line. */
export function description(model) {
  const { details } = model;
  return [details.family, details.parameter_size, details.quantization_level].filter(Boolean).join(" · ");
}

/** Shows a dialog with all models. Resolves to the chosen one, or `undefined`. */
export async function choose(title, current, allowed = () => true) {
  const models = (await list()).filter(allowed);
  models.sort((a, b) => Number(Boolean(b.loaded)) - Number(Boolean(a.loaded)) || Date.parse(b.modified_at) - Date.parse(a.modified_at));
  return open(title, (close) => {
    const entries = h("ul", { class: "choices" });
    const draw = (text) => {
      const found = models.filter((model) => `${model.name} ${description(model)}`.toLowerCase().includes(text));
      fill(
        entries,
        found.slice(0, LISTED).map((model) =>
          h(
            "li",
            { "aria-current": model.name === current ? "true" : undefined },
            h(
              "button",
              { type: "button", onclick: () => close(model) },
              h("span", { class: model.loaded ? "dot" : "", title: model.loaded ? "loaded" : undefined }),
              h("span", { class: "name" }, model.name),
              h("span", { class: "size" }, bytes(model.size)),
              h("small", {}, description(model), model.loaded ? " · loaded" : ` · ${ago(model.modified_at)}`, " ", capabilityBadges(model)),
            ),
          ),
        ),
        found.length > LISTED && h("li", { class: "hint" }, `${found.length - LISTED} more: search for them`),
        found.length === 0 && h("li", { class: "nothing" }, models.length === 0 ? ["There is no model that can do this. ", h("a", { href: "/ui/models" }, "Get one under Models"), "."] : "No model has such a name."),
      );
    };
    draw("");
    const search = searchField("Search models", draw);
    search.querySelector("input").autofocus = true;
    return [search, entries];
  });
}
