// The versions that the name has had, and the rollback to one of them.

import { post } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { confirmed } from "../lib/dialog.js";
import { moment, short } from "../lib/format.js";
import { go } from "../lib/route.js";

const STATES = { current: "the present one", here: "complete", gone: "parts of it were deleted" };

export async function draw(model) {
  const { versions } = await post("/api/lode/history", { model: model.name });
  const back = async (version) => {
    const content = [h("p", {}, h("strong", {}, model.name), ` will be the version of ${moment(version.since)} again.`), h("p", {}, "The present version is kept: you can come back to it.")];
    if (!(await confirmed("Go back to this version?", content, "Go back", { harmless: true }))) return;
    await post("/api/lode/rollback", { model: model.name, to: version.digest });
    go(location.pathname + location.search);
  };
  return h(
    "div",
    { class: "scroll" },
    h(
      "table",
      { class: "simple" },
      h("thead", {}, h("tr", {}, ["Version", "Since", "State", h("span", { class: "sr" }, "Actions")].map((title) => h("th", {}, title)))),
      h("tbody", {}, versions.map((version) => h("tr", {}, h("td", {}, h("code", { title: version.digest }, short(version.digest))), h("td", {}, moment(version.since)), h("td", {}, STATES[version.state]), h("td", { class: "right" }, version.state === "here" && h("button", { type: "button", onclick: () => back(version) }, "Go back to it"))))),
    ),
  );
}
