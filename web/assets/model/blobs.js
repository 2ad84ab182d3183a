// The stored manifest, its layers, and a check of all bytes on demand.

import { get } from "../lib/api.js";
import { h, fill, icon } from "../lib/dom.js";
import { bytes, short, things } from "../lib/format.js";
import { namesHost } from "../lib/models.js";
import { Table } from "../lib/table.js";
import { asked, begin, progress } from "../lib/transfers.js";

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
    const describe = (report) => {
      const mine = report.problems.filter((problem) => (problem.models ?? []).includes(model.name));
      if (mine.length === 0) return h("p", { class: "state done" }, icon("check"), `${things(report.blobs, "blob")} checked, ${bytes(report.bytes)}: no damage.`);
      return [h("p", { class: "failure" }, icon("warning"), `${things(mine.length, "problem")} found; the view Store can repair them.`), h("ul", { class: "problems" }, mine.map((problem) => h("li", {}, problem.layer && `${problem.layer}: `, problem.error)))];
    };
    fill(result, progress(begin(`Verify ${model.name}`, asked("/api/lode/fsck", { model: model.name }), { describe })));
  };
  return [
    h("div", { class: "tools" }, h("p", { class: "hint" }, `${things(layers.length, "blob")} · ${bytes(layers.reduce((sum, layer) => sum + (layer.size ?? 0), 0))} · manifest `, h("code", {}, model.entry?.digest ?? "")), h("span", { class: "grow" }), h("button", { type: "button", class: "primary", onclick: verify }, icon("search"), "Verify now")),
    result,
    manifest === undefined ? h("p", { class: "hint" }, "The registry of this daemon does not let this page read the manifest.") : [table.element, h("section", { class: "panel" }, h("h2", {}, "The document"), h("pre", { class: "text", tabindex: 0 }, manifest.raw.length > 200_000 ? `${manifest.raw.slice(0, 200_000)}\n…` : manifest.raw))],
  ];
}

/**
 * Reads the manifest from this daemon's registry; `undefined` if the registry denies access to the
 * page.
 */
async function read(model) {
  const { path, host } = place(model.name);
  const query = host === undefined ? "" : `?${new URLSearchParams({ ns: host })}`;
  try {
    const manifest = await get(`/v2/${path}/manifests/sha256:${model.entry.digest}${query}`, { silent: true });
    return { ...manifest, raw: JSON.stringify(manifest, null, 2) };
  } catch (error) {
    if (error.status === 401 || error.status === 403) return undefined;
    throw error;
  }
}

/**
 * Splits a name into the repository and the optional host, as this daemon's registry expects them.
 */
function place(name) {
  const tag = name.indexOf(":", name.lastIndexOf("/"));
  const path = tag < 0 ? name : name.slice(0, tag);
  const [first, ...rest] = path.split("/");
  if (namesHost(path)) return { host: first, path: rest.join("/") };
  return { path: path.includes("/") ? path : `library/${path}` };
}
