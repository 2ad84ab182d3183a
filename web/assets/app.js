// The frame of the page: navigation between views. Each view is a module that draws into `main` and
// may return a function that ends its work.

import { ApiError, setKeyDialog, hasKey, forgetKey, get } from "./lib/api.js";
import { h, fill, icon, iconButton } from "./lib/dom.js";
import { askForKey, tell } from "./lib/dialog.js";
import { transfersButton } from "./lib/transfers.js";
import { go, onRoute, place } from "./lib/route.js";

const VIEWS = [
  ["chat", "Chat", () => import("./views/chat.js")],
  ["models", "Models", () => import("./views/models.js")],
  ["store", "Store", () => import("./views/store.js")],
  ["running", "Running", () => import("./views/running.js")],
  ["registry", "Registry", () => import("./views/registry.js")],
];
// Views that are reached from another view, which stays selected in the navigation.
const INNER = { model: ["models", "Model", () => import("./views/model.js")] };

/** How long to wait, in milliseconds, before a daemon that could not be reached is tried again. */
const AGAIN = 3000;

const main = document.getElementById("main");
let end;
let shown = 0;

setKeyDialog(askForKey);
drawBar();
onRoute(show);
show();

function drawBar() {
  const links = VIEWS.map(([name, label]) =>
    h("a", { href: `/ui/${name}`, "data-view": name }, icon(name), h("span", {}, label)),
  );
  const version = h("span", { class: "version" });
  fill(
    document.getElementById("bar"),
    h("a", { class: "brand", href: "/ui/chat", "aria-label": "Lode" }, h("img", { src: new URL("icon.svg", import.meta.url).pathname, alt: "", width: 26, height: 26 }), h("span", {}, "Lode")),
    h("nav", { "aria-label": "Views" }, links),
    h("div", { class: "bar-end" }, transfersButton(), keyButton(), version),
  );
  get("/api/version", { silent: true }).then(
    (answer) => fill(version, `v${answer.lode_version}`),
    () => {},
  );
}

/** Returns a button that forgets the key of this tab; it is visible if there is a key. */
function keyButton() {
  const button = iconButton("close", "Forget the API key of this tab", () => {
    forgetKey();
    location.reload();
  });
  const holder = h("span", { class: "key-holder", hidden: !hasKey() }, "key", button);
  document.addEventListener("lode-key", () => {
    holder.hidden = !hasKey();
  });
  return holder;
}

async function show() {
  shown += 1;
  const mine = shown;
  const { view, parameters } = place();
  const found = VIEWS.find(([name]) => name === view);
  const [under, label, load] = found ?? INNER[view] ?? [];
  end?.();
  end = undefined;
  for (const dialog of document.querySelectorAll("dialog[open]:not(.key-dialog)")) dialog.close();
  for (const link of document.querySelectorAll("#bar [data-view]")) {
    if (link.dataset.view === under) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (load === undefined) {
    document.title = "Not found · Lode";
    fill(main, h("section", { class: "view" }, h("h1", {}, "There is no such page"), h("p", {}, h("a", { href: "/ui/chat" }, "Go to the chat"))));
    return;
  }
  document.title = `${label} · Lode`;
  main.className = `main-${view}`;
  fill(main, h("p", { class: "loading" }, "Loading…"));
  try {
    const module = await load().catch(() => {
      throw new ApiError(0, "this part of the page cannot be loaded: the daemon cannot be reached, or has another version by now; reload the page");
    });
    if (mine !== shown) return;
    // Each view has its own holder, so a view that finishes late draws into a detached element.
    const holder = h("div", { class: "holder" });
    fill(main, holder);
    const ended = await module.draw(holder, parameters, () => mine === shown);
    // The user may have left the view while it was being drawn.
    if (mine === shown) end = ended;
    else ended?.();
  } catch (error) {
    if (mine !== shown) return;
    if (error.status === 0) setTimeout(() => lookAgain(mine), AGAIN);
    fill(
      main,
      h(
        "section",
        { class: "view" },
        h("h1", {}, label),
        h("p", { class: "failure", role: "alert" }, icon("warning"), error.message),
        h("button", { type: "button", onclick: show }, "Try again"),
      ),
    );
  }
}

/** Draws the view again once the daemon is reachable, unless a dialog is open then. */
async function lookAgain(turn) {
  if (turn !== shown) return;
  const isBack = await get("/api/version", { silent: true }).then(() => true, () => false);
  if (turn !== shown) return;
  if (isBack && document.querySelector("dialog[open]") === null) show();
  else setTimeout(() => lookAgain(turn), AGAIN);
}

// Links within the page change the view without a reload.
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
  if (link.target === "_blank" || link.origin !== location.origin || !/^\/ui(\/(?!files\/)|$)/.test(link.pathname)) return;
  event.preventDefault();
  go(link.pathname + link.search);
  main.focus({ preventScroll: true });
});

window.addEventListener("error", (event) => tell("Something went wrong", event.message));
window.addEventListener("unhandledrejection", (event) => {
  if (event.reason?.name === "AbortError") return;
  tell("Something went wrong", event.reason?.message ?? String(event.reason));
});
