// All models: facts, their own and shared sizes, and actions.

import { get, lines, post, remove } from "../lib/api.js";
import { h, fill, icon, iconButton, announce } from "../lib/dom.js";
import { ask, confirmed, open, tell } from "../lib/dialog.js";
import { ago, bytes, moment, things } from "../lib/format.js";
import { capabilityBadges, description, list, mayName, namesHost, whereTo } from "../lib/models.js";
import { asked, begin, onModelsChanged, progress } from "../lib/transfers.js";
import { go, modelPath } from "../lib/route.js";
import { searchField, Table } from "../lib/table.js";
import { createDialog } from "../model/create.js";

export async function draw(main) {
  const summary = h("p", { class: "hint" });
  const again = () => load().catch((error) => !ended && tell("The list cannot be loaded", error.message));
  const table = new Table(columns(again), {
    label: "Models",
    class: "models-table",
    height: 52,
    sort: "Changed",
    descending: true,
    onchoose: (model) => go(modelPath(model.name)),
    empty: "There is no such model here. Pull one from a registry or a hub, or create one from files.",
  });
  let ended = false;
  const load = async () => {
    // Sizes need a scan of the whole store, so the list does not wait for them.
    const models = await list();
    if (ended) return;
    table.set(models);
    fill(summary, things(models.length, "model"));
    const usage = await get("/api/lode/du");
    if (ended) return;
    const taken = new Map(usage.models.map((model) => [model.name, model]));
    table.set(models.map((model) => ({ ...model, alone: taken.get(model.name)?.unique_bytes, shared: taken.get(model.name)?.shared_bytes, used: taken.get(model.name)?.used })));
    fill(summary, `${things(models.length, "model")} · ${bytes(usage.bytes)} in ${things(usage.blobs, "blob")} · ${bytes(usage.free_bytes)} free`);
  };
  fill(
    main,
    h(
      "section",
      { class: "view" },
      h(
        "div",
        { class: "tools" },
        h("h1", {}, "Models"),
        h("span", { class: "grow" }),
        searchField("Search by name, family or type", (text) => table.filter((model) => `${model.name} ${description(model)} ${(model.capabilities ?? []).join(" ")}`.toLowerCase().includes(text))),
        h("button", { type: "button", class: "primary", onclick: pull }, icon("download"), "Pull"),
        h("button", { type: "button", onclick: createDialog }, icon("plus"), "Create"),
      ),
      summary,
      table.element,
    ),
  );
  await load();
  const unheard = onModelsChanged(again);
  // The list may have changed meanwhile, for example through the command line.
  const back = () => document.visibilityState === "visible" && load().catch(() => {});
  window.addEventListener("focus", back);
  return () => {
    ended = true;
    unheard();
    window.removeEventListener("focus", back);
  };
}

function columns(changed) {
  const number = (title, value, hint) => ({ title, value: (model) => value(model) ?? 0, class: "number-cell", show: (model) => h("span", { title: hint }, value(model) === undefined ? "…" : bytes(value(model))) });
  return [
    {
      title: "Name",
      value: (model) => model.name,
      show: (model) => [
        h("span", { class: "name-line" }, model.loaded && h("span", { class: "dot", title: "loaded", role: "img", "aria-label": "loaded" }), h("a", { href: modelPath(model.name), dir: "auto", title: model.name }, model.name), model.pinned && h("span", { class: "badge", title: "protected from being removed" }, "pinned")),
        h("span", { class: "second-line" }, description(model), " ", capabilityBadges(model)),
      ],
    },
    { title: "Family", value: (model) => model.details.family, show: (model) => model.details.family },
    { title: "Type", value: (model) => model.details.quantization_level, show: (model) => model.details.quantization_level },
    number("Size", (model) => model.size, "all of its blobs"),
    number("Alone", (model) => model.alone, "what its removal would free"),
    number("Shared", (model) => model.shared, "what other models have, too"),
    { title: "Used", value: (model) => Date.parse(model.used) || 0, show: (model) => (model.used ? h("time", { datetime: model.used, title: moment(model.used) }, ago(model.used)) : "…") },
    { title: "Changed", value: (model) => Date.parse(model.modified_at), show: (model) => h("time", { datetime: model.modified_at, title: moment(model.modified_at) }, ago(model.modified_at)) },
    { title: h("span", { class: "sr" }, "Actions"), class: "actions", show: (model) => iconButton("menu", `What to do with ${model.name}`, () => actions(model, changed)) },
  ];
}

/** Shows the actions for a model in a dialog. */
export async function actions(model, changed) {
  const action = (label, name, work) => h("li", {}, h("button", { type: "button", onclick: work }, icon(name), label));
  const chosen = await open(model.name, (close) =>
    h(
      "ul",
      { class: "actions-list" },
      action("Chat with it", "chat", () => close(() => go(`/ui/chat?${new URLSearchParams({ model: model.name })}`))),
      action("Copy to another name", "copy", () => close(() => copy(model, changed))),
      action(model.pinned ? "Unpin: it may be removed" : "Pin: protect it from being removed", "pin", () => close(() => pin(model, changed))),
      action("Push to a registry", "upload", () => close(() => push(model))),
      action("Versions and rollback", "again", () => close(() => go(modelPath(model.name, { tab: "versions" })))),
      action("Delete", "trash", () => close(() => removeModel(model, changed))),
    ),
  );
  try {
    await chosen?.();
  } catch (error) {
    tell("This cannot be done", error.message);
  }
}

async function copy(model, changed) {
  const values = await ask("Copy to another name", [["destination", "New name", { required: true, placeholder: "name:tag" }]], "Copy", "The copy takes no room: both names have the same blobs.");
  if (values === undefined || !(await mayName(values.destination))) return;
  await post("/api/copy", { source: model.name, destination: values.destination });
  announce(`${model.name} was copied`);
  await changed();
}

async function pin(model, changed) {
  await post(model.pinned ? "/api/lode/unpin" : "/api/lode/pin", { model: model.name });
  announce(model.pinned ? "It may be removed now" : "It is protected now");
  await changed();
}

async function removeModel(model, changed) {
  const usage = await get("/api/lode/du");
  const taken = usage.models.find((one) => one.name === model.name);
  const content = [
    h("p", {}, "The name ", h("strong", { dir: "auto" }, model.name), " is removed."),
    taken && h("p", {}, taken.unique_bytes > 0 ? `${bytes(taken.unique_bytes)} are freed; ${bytes(taken.shared_bytes)} stay, because other models have them.` : "Nothing is freed: other names have all of its blobs."),
    model.pinned && h("p", { class: "failure" }, "It is pinned. Unpin it first."),
  ];
  if (!(await confirmed("Delete the model?", content, "Delete", { disabled: model.pinned }))) return;
  await remove("/api/delete", { model: model.name });
  announce(`${model.name} was deleted`);
  await changed(true);
}

/** Asks for the model to pull. The user can search registries and the hub for its name. */
async function pull() {
  const values = await open("Pull a model", (close) => {
    const input = h("input", { name: "model", required: true, autofocus: true, autocomplete: "off", spellcheck: "false", placeholder: "registry.example/team/model:tag, hf.co/owner/model" });
    const found = h("ul", { class: "found" });
    const search = async () => {
      fill(found, h("li", { class: "hint" }, "Searching…"));
      try {
        const offered = await post("/api/lode/search", { query: input.value.trim() });
        fill(
          found,
          offered.models.map((model) => h("li", {}, h("button", { type: "button", class: "plain", onclick: () => { input.value = model.name; input.focus(); } }, model.name), h("span", { class: "hint" }, model.source))),
          offered.models.length === 0 && h("li", { class: "hint" }, "Nothing was found."),
          offered.silent.map((source) => h("li", { class: "hint" }, `${source.source}: ${source.reason}`)),
        );
      } catch (error) {
        fill(found, h("li", { class: "failure", role: "alert" }, error.message));
      }
    };
    const hint = h("small", {}, "A name without a host is at registry.ollama.ai: llama3.2 means registry.ollama.ai/library/llama3.2:latest. Names of hf.co/… are repositories of Hugging Face.");
    return h(
      "form",
      {
        onsubmit: (event) => {
          event.preventDefault();
          close({ model: input.value.trim(), insecure: event.target.insecure.checked });
        },
      },
      h("label", { class: "field" }, h("span", {}, "Name"), input, hint),
      h("label", { class: "check" }, h("input", { type: "checkbox", name: "insecure" }), "The registry speaks HTTP without TLS"),
      h("button", { type: "button", onclick: search }, icon("search"), "Search registries and the hub"),
      found,
      h("footer", {}, h("button", { type: "button", onclick: () => close() }, "Cancel"), h("button", { type: "submit", class: "primary" }, "Pull")),
    );
  });
  if (values === undefined || values.model === "") return;
  const transfer = begin(`Pull ${values.model}`, asked("/api/pull", { ...values, blobs: true }), { changes: true, describe: () => whereTo(values.model) });
  await open("Pull", () => progress(transfer), { class: "wide" });
}

/** Plans a push, then starts the transfer. */
export async function push(model) {
  const values = await ask(
    "Push to a registry",
    [
      // A name without a registry would go to Ollama's registry, which is rarely intended.
      ["destination", "To", { required: true, value: namesHost(model.name) ? model.name : "", placeholder: "registry.example/team/model:tag" }],
      ["insecure", "The registry speaks HTTP without TLS", { type: "checkbox" }],
    ],
    "Show the plan",
  );
  if (values === undefined) return;
  const body = { model: model.name, destination: values.destination, insecure: values.insecure };
  const plan = [];
  for await (const line of lines("/api/push", { ...body, dry_run: true })) plan.push(line);
  const rows = ["present", "mount", "send"].map((status) => {
    const those = plan.filter((line) => line.status === status && line.digest);
    return [status, those.length, those.reduce((sum, line) => sum + line.total, 0)];
  });
  const meaning = { present: "there already", mount: "to be linked from another repository there", send: "to be sent" };
  const content = h("table", { class: "simple" }, rows.map(([status, number, size]) => h("tr", {}, h("td", {}, `${things(number, "blob")} ${meaning[status]}`), h("td", { class: "right" }, bytes(size)))));
  if (!(await confirmed(`Push to ${values.destination}`, content, "Push", { harmless: true }))) return;
  const transfer = begin(`Push ${model.name} to ${values.destination}`, asked("/api/push", { ...body, blobs: true }));
  await open("Push", () => progress(transfer), { class: "wide" });
}
