// This daemon's registry: repositories with their tags and referrers, permissions, and mirrors of
// other registries.

import { get, request } from "../lib/api.js";
import { h, fill, icon } from "../lib/dom.js";
import { bytes, count, short, things } from "../lib/format.js";
import { searchField, Table } from "../lib/table.js";

const WHO = { anyone: "anyone", users: "users with a password", keys: "clients with an API key", nobody: "nobody", "this machine": "this machine" };
/** Number of repositories per request. */
const PAGE = 1000;

export async function draw(main) {
  const detail = h("section", { class: "panel", "aria-live": "polite" }, h("p", { class: "hint" }, "Choose a repository to see its tags and what refers to them."));
  const table = new Table(
    [{ title: "Repository", value: (one) => one.name, show: (one) => h("button", { type: "button", class: "plain", dir: "auto", onclick: () => show(one.name) }, one.name) }],
    { label: "Repositories", class: "repositories-table", height: 38, onchoose: (one) => show(one.name), empty: "There is no repository." },
  );
  let turn = 0;
  const show = async (name) => {
    turn += 1;
    const mine = turn;
    fill(detail, h("h2", { dir: "auto" }, name), h("p", { class: "hint" }, "Loading…"));
    try {
      const content = await repository(name);
      if (mine === turn) fill(detail, h("h2", { dir: "auto" }, name), content);
    } catch (error) {
      if (mine === turn) fill(detail, h("h2", { dir: "auto" }, name), h("p", { class: "failure", role: "alert" }, icon("warning"), error.message));
    }
  };
  const registry = await get("/api/lode/registry");
  // The page must not ask for passwords of the registry.
  const closed = new Error("this registry asks for a user and a password, which this page does not have");
  const repositories = registry.users ? closed : await catalog().catch((error) => error);
  if (!(repositories instanceof Error)) table.set(repositories.map((name) => ({ name })));
  fill(
    main,
    h(
      "section",
      { class: "view" },
      h("h1", {}, "Registry"),
      h("p", { class: "hint" }, "Docker, oras, skopeo and other daemons pull from and push to ", h("code", {}, location.host), ". Models from other registries are not listed here: clients that use this daemon as a mirror get them under their own names."),
      h("div", { class: "panels" }, access(registry), mirrors(registry)),
      repositories instanceof Error
        ? h("p", { class: "failure", role: "alert" }, icon("warning"), `The repositories cannot be listed: ${repositories.message}`)
        : [h("div", { class: "tools" }, h("h2", {}, things(repositories.length, "repository", "repositories")), h("span", { class: "grow" }), searchField("Search repositories", (text) => table.filter((one) => one.name.toLowerCase().includes(text)))), h("div", { class: "two" }, table.element, detail)],
    ),
  );
}

function access(registry) {
  return h(
    "section",
    { class: "panel" },
    h("h2", {}, "Who may do what"),
    h(
      "dl",
      { class: "pairs" },
      [
        ["Mode", registry.chosen ? registry.mode : `${registry.mode} (the default; LODE_REGISTRY_MODE sets another)`],
        ["Pull", WHO[registry.pull] ?? registry.pull],
        ["Push and delete", WHO[registry.push] ?? registry.push],
        ["What is missing", registry.pull_through ? `is fetched from ${registry.pull_through.join(", ")}` : "is not fetched from others"],
      ].map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
    ),
  );
}

function mirrors(registry) {
  return h(
    "section",
    { class: "panel" },
    h("h2", {}, "Other registries"),
    registry.hosts.length === 0
      ? h("p", { class: "hint" }, "None has settings in registries.toml.")
      : h("ul", { class: "problems" }, registry.hosts.map((host) => h("li", {}, h("strong", {}, host.host), host.plain_http && " (HTTP without TLS)", host.error && h("span", { class: "failure" }, host.error), host.mirrors.length > 0 && h("div", { class: "hint" }, "mirrors: ", host.mirrors.join(", "))))),
  );
}

/** Reads all repositories, page by page. */
async function catalog() {
  const all = [];
  let last = "";
  for (;;) {
    const { repositories } = await get(`/v2/_catalog?${new URLSearchParams(last === "" ? { n: PAGE } : { n: PAGE, last })}`, { silent: true });
    all.push(...repositories);
    if (repositories.length < PAGE) return all;
    last = repositories.at(-1);
  }
}

const MANIFESTS = 100;

async function repository(name) {
  const { tags } = await get(`/v2/${name}/tags/list`);
  const rows = await Promise.all((tags ?? []).slice(0, MANIFESTS).map((tag) => described(name, tag)));
  return [
    h(
      "div",
      { class: "scroll" },
      h(
        "table",
        { class: "simple" },
        h("thead", {}, h("tr", {}, ["Tag", "Digest", "Blobs", "Bytes", "Referrers"].map((title, place) => h("th", { class: place > 1 ? "right" : "" }, title)))),
        h("tbody", {}, rows.map((row) => h("tr", {}, h("td", { dir: "auto" }, row.tag), row.error ? h("td", { colspan: 4, class: "failure" }, row.error) : [h("td", {}, h("code", { title: row.digest }, short(row.digest))), h("td", { class: "right" }, count(row.blobs)), h("td", { class: "right" }, bytes(row.bytes)), h("td", { class: "right" }, row.referrers.length === 0 ? "–" : row.referrers.map((type) => h("div", {}, type)))]))),
      ),
    ),
    tags?.length > MANIFESTS && h("p", { class: "hint" }, `and ${count(tags.length - MANIFESTS)} more tags`),
    h("p", { class: "hint" }, "Pull one with ", h("code", {}, `lode pull ${location.host}/${name}:${tags?.[0] ?? "TAG"}`)),
  ];
}

async function described(name, tag) {
  try {
    const response = await request("GET", `/v2/${name}/manifests/${encodeURIComponent(tag)}`);
    const manifest = await response.json();
    const digest = response.headers.get("docker-content-digest");
    const blobs = [manifest.config, ...(manifest.layers ?? manifest.manifests ?? [])].filter(Boolean);
    const referrers = await get(`/v2/${name}/referrers/${digest}`).then((index) => index.manifests.map((one) => one.artifactType ?? one.mediaType), () => []);
    return { tag, digest, blobs: blobs.length, bytes: blobs.reduce((sum, blob) => sum + blob.size, 0), referrers };
  } catch (error) {
    return { tag, error: error.message };
  }
}
