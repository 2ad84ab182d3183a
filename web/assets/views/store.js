// The disk usage of the store, removable content, and damage.

import { get, post } from "../lib/api.js";
import { h, fill, icon } from "../lib/dom.js";
import { ask, confirmed, open, tell } from "../lib/dialog.js";
import { bytes, count, moment, things } from "../lib/format.js";
import { modelPath } from "../lib/route.js";
import { asked, begin, onModelsChanged, progress } from "../lib/transfers.js";
import { treemap } from "../lib/treemap.js";

const DAY = 86400;

export async function draw(main) {
  const body = h("div", { class: "view" });
  fill(main, body);
  let ended = false;
  const load = async () => {
    const usage = await get("/api/lode/du");
    if (!ended) fill(body, content(usage, again));
  };
  const again = () => load().catch((error) => !ended && tell("The store cannot be measured", error.message));
  await load();
  const unheard = onModelsChanged(again);
  return () => {
    ended = true;
    unheard();
  };
}

function content(usage, again) {
  const others = [
    ["earlier versions", usage.version_bytes],
    ["manifests without a tag", usage.linked_bytes],
    ["of no model", usage.unreferenced_bytes],
    ["transfers that were cut off", usage.ingest_bytes],
    ["damaged, set aside", usage.damaged_bytes],
  ];
  // The sum of the models' separate sizes, for comparison with the size that they take together.
  const apart = usage.models.reduce((sum, model) => sum + model.bytes, 0);
  const together = usage.families.reduce((sum, family) => sum + family.bytes, 0);
  const figures = [
    [bytes(usage.bytes), `in ${things(usage.blobs, "blob")}`],
    [bytes(usage.free_bytes), "free on the disk"],
    [bytes(Math.max(0, apart - together)), "saved, because models share blobs"],
    ...others.filter(([, size]) => size > 0).map(([label, size]) => [bytes(size), label]),
  ];
  return [
    h("h1", {}, "Store"),
    h("dl", { class: "figures" }, figures.map(([value, title]) => h("div", {}, h("dt", {}, title), h("dd", {}, value)))),
    h("section", {}, h("h2", {}, "Disk usage by family"), h("p", { class: "hint" }, "By family. What several models share is shown once, hatched; each model shows its unshared bytes."), usage.bytes > 0 ? map(usage, others) : h("p", { class: "nothing" }, "Nothing is here yet.")),
    h(
      "div",
      { class: "panels" },
      panel("Collect", "Removes blobs that nothing needs any more.", [button("Show what would go", () => collect(again))]),
      panel("Prune", "Removes earlier versions, transfers that were cut off, and models that have not been used for a long time.", [button("Show what would go", () => prune(again))]),
      panel("Check", "Reads blobs and compares them with their digests.", [button("Check a tenth", () => check({ sample: { percent: 10 } }, again)), button("Check all", () => check({}, again))]),
    ),
  ];
}

function panel(title, text, buttons) {
  return h("section", { class: "panel" }, h("h2", {}, title), h("p", { class: "hint" }, text), h("div", { class: "tools" }, buttons));
}

function button(label, work) {
  const element = h("button", {
    type: "button",
    onclick: async () => {
      element.disabled = true;
      try {
        await work();
      } catch (error) {
        tell("This cannot be done", error.message);
      }
      element.disabled = false;
    },
  }, label);
  return element;
}

/** A treemap of families; each has its shared part and the part that each model alone takes. */
function map(usage, others) {
  const models = new Map(usage.models.map((model) => [model.name, model]));
  const groups = usage.families.map((family) => ({
    name: family.family || "several families",
    parts: [
      ...(family.shared_bytes > 0 ? [{ name: `shared by ${family.family ? `models of ${family.family}` : "several"}`, bytes: family.shared_bytes, shared: true }] : []),
      ...family.models.map((name) => ({ name, bytes: models.get(name)?.unique_bytes ?? 0, href: modelPath(name) })),
    ],
  }));
  groups.push({ name: "no model", parts: others.slice(0, 3).map(([name, size]) => ({ name, bytes: size })) });
  return treemap(groups);
}

async function collect(again) {
  const plan = await post("/api/lode/gc", { dry_run: true });
  const put = plan.put_off;
  const content = [
    h("p", {}, plan.blobs === 0 ? "There is nothing to collect now. Files that were sent are kept for an hour, and what a pull has fetched for a day, so that they need not come again." : `${things(plan.blobs, "blob")} would be removed: ${bytes(plan.bytes)}.`),
    put && h("p", { class: "hint" }, `${things(put.blobs, "blob")} (${bytes(put.bytes)}) would stay${put.in_use ? ", because they are in use" : ""}. ${put.reasons.join("; ")}`),
  ];
  if (!(await confirmed("Collect", content, "Remove them", { disabled: plan.blobs === 0 }))) return;
  const done = await post("/api/lode/gc", {});
  await tell("Collected", `${things(done.blobs, "blob")} removed: ${bytes(done.bytes)}.`);
  again();
}

async function prune(again) {
  const values = await ask("Prune", [["days", "Also remove models that were not used for this many days", { type: "number", min: 0, placeholder: "leave empty to keep all models" }]], "Show what would go");
  if (values === undefined) return;
  const request = values.days === "" ? {} : { older_than: Math.round(Number(values.days) * DAY) };
  const plan = await post("/api/lode/prune", { ...request, dry_run: true });
  const versions = plan.versions.reduce((sum, model) => sum + model.digests.length, 0);
  const list = (title, models) => models.length > 0 && [h("h3", {}, title), h("ul", { class: "problems" }, models.slice(0, 200).map((model) => h("li", {}, h("span", { dir: "auto" }, model.name), ` · ${bytes(model.bytes)} · used ${moment(model.used)}`)), models.length > 200 && h("li", {}, `and ${count(models.length - 200)} more`))];
  const nothing = versions === 0 && plan.ingests === 0 && plan.models.length === 0 && plan.linked.length === 0;
  const parts = [
    versions > 0 && `${things(versions, "earlier version")} of ${things(plan.versions.length, "model")}`,
    plan.ingests > 0 && `${things(plan.ingests, "transfer")} that ${plan.ingests === 1 ? "was" : "were"} cut off: ${bytes(plan.ingest_bytes)}`,
    plan.models.length > 0 && things(plan.models.length, "model"),
    plan.linked.length > 0 && `${things(plan.linked.length, "manifest")} without a tag`,
  ].filter(Boolean);
  const content = [
    nothing ? h("p", {}, "There is nothing to prune.") : [h("p", {}, "This would be removed:"), h("ul", {}, parts.map((part) => h("li", {}, part)))],
    list("Models", plan.models),
    list("Manifests without a tag", plan.linked),
    plan.versions.length > 0 && [h("h3", {}, "Earlier versions"), h("ul", { class: "problems" }, plan.versions.slice(0, 200).map((model) => h("li", {}, h("span", { dir: "auto" }, model.name), `: ${count(model.digests.length)}`)))],
  ];
  if (!(await confirmed("Prune", content, "Remove all of this", { disabled: nothing }))) return;
  const done = await post("/api/lode/prune", request);
  await tell("Pruned", done.collected ? `${things(done.collected.blobs, "blob")} removed with it: ${bytes(done.collected.bytes)}.` : "It is done.");
  again();
}

async function check(request, again) {
  const transfer = begin("Check the store", asked("/api/lode/fsck", request), { describe: (found) => report(found, again) });
  await open("Check the store", () => progress(transfer), { class: "wide" });
}

function report(found, again) {
  if (found.problems.length === 0) return h("p", { class: "state done" }, icon("check"), `No damage: ${things(found.blobs, "blob")} of ${things(found.models, "model")}, ${bytes(found.bytes)} read.`);
  return [
    h("p", { class: "failure" }, icon("warning"), `${things(found.problems.length, "problem")} found.`),
    h("ul", { class: "problems" }, found.problems.slice(0, 200).map((problem) => h("li", {}, h("span", { dir: "auto" }, (problem.models ?? []).join(", ")), problem.layer && ` · ${problem.layer}`, h("br"), problem.error))),
    h("div", { class: "tools" }, button("Repair: fetch damaged blobs again", () => repair(again))),
  ];
}

async function repair(again) {
  const describe = ({ repaired, failed }) => [
    h("p", {}, `${things(repaired.length, "blob")} fetched again.`),
    failed.length > 0 && h("ul", { class: "problems" }, failed.map((problem) => h("li", {}, (problem.models ?? []).join(", "), h("br"), problem.error))),
  ];
  const transfer = begin("Repair the store", asked("/api/lode/repair", {}), { ondone: again, describe });
  await open("Repair the store", () => progress(transfer), { class: "wide" });
}
