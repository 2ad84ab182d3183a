// The manifest as it is stored, its layers, and a check of all of its bytes now.

import { request } from "../lib/api.js";
import { h, fill, icon } from "../lib/dom.js";
import { bytes, short, things } from "../lib/format.js";
import { Table } from "../lib/table.js";
import { begin, progress } from "../lib/transfers.js";

export async function draw(model) {
  const manifest = await read(model);
  const layers = manifest === undefined ? [] : [{ ...manifest.config, name: "config" }, ...(manifest.layers ?? []).map((layer) => ({ ...layer, name: layer.annotations?.["org.opencontainers.image.title"] ?? layer.name ?? "" }))];
  const table = new Table(
    [
      { title: "Layer", value: (layer) => layer.name, show: (layer) => h("span", { class: "mono", dir: "auto", title: layer.name }, layer.name || "–") },
      { title: "Media type", value: (layer) => layer.mediaType ?? "", show: (layer) => layer.mediaType },
      { title: "Bytes", value: (layer) => layer.size ?? 0, class: "number-cell", show: (layer) => bytes(layer.size) },
      { title: "Digest", value: (layer) => layer.digest ?? "", show: (layer) => h("code", { title: layer.digest }, short(layer.digest ?? "")) },
    ],
    { label: "Layers", class: "small layers-table", height: 38 },
  );
  table.set(layers);
  const result = h("div", { "aria-live": "polite" });
  const verify = () => {
    const transfer = begin(`Verify ${model.name}`, "/api/lode/fsck", { model: model.name }, (done) => {
      const mine = done.report.problems.filter((problem) => (problem.models ?? []).some((name) => name === model.name));
      fill(
        result,
        mine.length === 0
          ? h("p", { class: "state done" }, icon("check"), `All ${things(done.report.blobs, "blob")} are what they are called: ${bytes(done.report.bytes)} were read.`)
          : [h("p", { class: "failure" }, icon("warning"), `${things(mine.length, "problem")} found; the view Store can repair them.`), h("ul", { class: "problems" }, mine.map((problem) => h("li", {}, problem.layer && `${problem.layer}: `, problem.error)))],
      );
    });
    fill(result, progress(transfer));
  };
  return [
    h("div", { class: "tools" }, h("p", { class: "hint" }, `${things(layers.length, "blob")} · ${bytes(layers.reduce((sum, layer) => sum + (layer.size ?? 0), 0))} · manifest `, h("code", {}, model.entry?.digest ?? "")), h("span", { class: "grow" }), h("button", { type: "button", class: "primary", onclick: verify }, icon("check"), "Verify now")),
    result,
    manifest === undefined ? h("p", { class: "hint" }, "The registry of this daemon does not let this page read the manifest.") : [table.element, h("section", { class: "panel" }, h("h2", {}, "The document"), h("pre", { class: "text", tabindex: 0 }, manifest.raw.length > 200_000 ? `${manifest.raw.slice(0, 200_000)}\n…` : manifest.raw))],
  ];
}

/** The manifest, from this daemon's registry; `undefined` where that is closed to the page. */
async function read(model) {
  const [repository, tag] = parts(model.name);
  try {
    const response = await request("GET", `/v2/${repository}/manifests/${model.entry ? `sha256:${model.entry.digest}` : tag}`, { silent: true });
    const raw = await response.text();
    return { ...JSON.parse(raw), raw: JSON.stringify(JSON.parse(raw), null, 2) };
  } catch {
    return undefined;
  }
}

/** Repository and tag as this daemon's registry calls them. */
function parts(name) {
  const colon = name.lastIndexOf(":");
  const [path, tag] = colon > name.lastIndexOf("/") ? [name.slice(0, colon), name.slice(colon + 1)] : [name, "latest"];
  return [path.includes("/") ? path : `library/${path}`, tag];
}
