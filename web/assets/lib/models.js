// The models of the daemon: their list, which are loaded, and the dialog in which one is chosen.

import { get } from "./api.js";
import { h, fill } from "./dom.js";
import { confirmed, open } from "./dialog.js";
import { ago, bytes } from "./format.js";
import { modelPath } from "./route.js";
import { searchField } from "./table.js";

/** More than that are found by searching. */
const LISTED = 200;

/** Every model, and by name those that are loaded. */
export async function list() {
  const [tags, running] = await Promise.all([get("/api/tags"), get("/api/lode/running")]);
  const loaded = new Map(running.models.map((model) => [model.name, model]));
  return tags.models.map((model) => ({ ...model, loaded: loaded.get(model.name) }));
}

export function canChat(model) {
  return (model.capabilities ?? []).includes("completion");
}

/** A name in the form in which two names of one model are the same. */
function canonical(name) {
  const [, rest] = /^(?:https?:\/\/)?(.*)$/.exec(name.trim());
  const tagged = rest.includes(":", rest.lastIndexOf("/") + 1) ? rest : `${rest}:latest`;
  const [first, ...path] = tagged.split("/");
  const full = namesHost(tagged) ? [first.toLowerCase(), ...path].join("/") : tagged;
  return full.replace(/^registry\.ollama\.ai\//, "").replace(/^library\//, "");
}

/** The model of that name among some; nothing where there is none, or no name. */
export function named(models, name) {
  if (!name) return undefined;
  const complete = canonical(name);
  return models.find((model) => canonical(model.name) === complete);
}

/** Asks whether a name may name something else, where there is a model of that name. */
export async function mayName(name) {
  const found = named((await get("/api/tags")).models, name);
  if (found === undefined) return true;
  return confirmed(`Replace ${found.name}?`, h("p", {}, "There is a model of that name. It will name the new one; the earlier version can be gone back to under Versions, until it is pruned."), "Replace");
}

/** Whether a name says at which registry it is. */
export function namesHost(name) {
  const [first, ...rest] = name.split("/");
  return rest.length > 0 && /[.:]|^localhost$/.test(first);
}

/** Where one can go with a model that has come to be, as it is called here. */
export function whereTo(name) {
  const links = h("div", { class: "tools" });
  get("/api/tags").then(({ models }) => {
    const found = named(models, name);
    // A revision of a hub gets a name of its own.
    if (found !== undefined) fill(links, h("a", { class: "button primary", href: `/ui/chat?${new URLSearchParams({ model: found.name })}` }, "Chat with it"), h("a", { class: "button", href: modelPath(found.name) }, "Look at it"));
  }, () => {});
  return links;
}

/** What a model can do, as badges. */
export function capabilityBadges(model) {
  const told = (model.capabilities ?? []).filter((name) => name !== "completion");
  if (model.only_completes) told.unshift("completes text");
  return h("span", { class: "badges" }, told.map((name) => h("span", { class: "badge" }, name)));
}

/** What a model is, in a line. */
export function description(model) {
  const { details } = model;
  return [details.family, details.parameter_size, details.quantization_level].filter(Boolean).join(" · ");
}

/** A dialog with all models; promises the one that was chosen, or nothing. */
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
