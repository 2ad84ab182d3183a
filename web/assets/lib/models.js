// The models of the daemon: their list, which are loaded, and the dialog in which one is chosen.

import { get } from "./api.js";
import { h, fill } from "./dom.js";
import { open } from "./dialog.js";
import { ago, bytes } from "./format.js";
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

/** What a model can do, as badges. */
export function capabilityBadges(model) {
  const told = (model.capabilities ?? []).filter((name) => name !== "completion");
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
        found.length === 0 && h("li", { class: "nothing" }, models.length === 0 ? "There is no model that can do this. Pull one under Models." : "No model is called so."),
      );
    };
    draw("");
    const search = searchField("Search models", draw);
    search.querySelector("input").autofocus = true;
    return [search, entries];
  });
}
