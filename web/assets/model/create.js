// Creating a model from a folder or file of the daemon's machine, from another model, or from
// uploaded files.

import { lines, request, upload } from "../lib/api.js";
import { h, fill } from "../lib/dom.js";
import { open } from "../lib/dialog.js";
import { mayName, whereTo } from "../lib/models.js";
import { begin, progress } from "../lib/transfers.js";

/** Maximal depth of a file's path, including the file name. */
const DEEPEST = 4;

/** Asks for the source of the model and starts creating it. */
export async function createDialog() {
  const wanted = await open("Create a model", form, { stays: true });
  if (wanted === undefined || !(await mayName(wanted.body.model))) return;
  const { body, files } = wanted;
  const transfer = begin(`Create ${body.model}`, (signal, onjob) => created(body, files, signal, onjob), { changes: true, describe: () => whereTo(body.model) });
  await open("Create", () => progress(transfer), { class: "wide" });
}

function form(close) {
  const failure = h("p", { class: "failure", role: "alert", hidden: true });
  const submit = (event) => {
    event.preventDefault();
    try {
      close(read(event.target));
    } catch (error) {
      failure.hidden = false;
      fill(failure, error.message);
    }
  };
  return h(
    "form",
    { onsubmit: submit },
    h("label", { class: "field" }, h("span", {}, "Name of the new model"), h("input", { name: "model", required: true, autofocus: true, autocomplete: "off", spellcheck: "false", placeholder: "name:tag" })),
    h("label", { class: "field" }, h("span", {}, "From"), h("input", { name: "from", autocomplete: "off", spellcheck: "false", placeholder: "/path/of/a/folder or file.gguf, or the name of a model" }), h("small", {}, "A path on the machine where the daemon runs.")),
    h("label", { class: "field" }, h("span", {}, "Or send files from here"), h("input", { type: "file", name: "files", multiple: true }), h("small", {}, "A GGUF file, or all files of a model.")),
    h("label", { class: "field" }, h("span", {}, "Or send a folder from here"), h("input", { type: "file", name: "folder", webkitdirectory: true }), h("small", {}, "As Hugging Face and MLX have them.")),
    h("label", { class: "field" }, h("span", {}, "Quantize to"), h("input", { name: "quantize", autocomplete: "off", placeholder: "as it is; q4_K_M, q8_0, int4, nvfp4 …" })),
    h("label", { class: "check" }, h("input", { type: "checkbox", name: "requantize" }), "Quantize what is quantized already, too, which loses more"),
    h("label", { class: "field" }, h("span", {}, "System prompt"), h("textarea", { name: "system", rows: 2 })),
    failure,
    h("footer", {}, h("button", { type: "button", onclick: () => close() }, "Cancel"), h("button", { type: "submit", class: "primary" }, "Create")),
  );
}

/** Reads the form: the request, and the files to upload, by their names in the model. */
function read(form) {
  const body = { model: form.model.value.trim() };
  if (form.quantize.value.trim()) body.quantize = form.quantize.value.trim();
  if (form.requantize.checked) {
    if (body.quantize === undefined) throw new Error("Say what to quantize to");
    body.requantize = true;
  }
  if (form.system.value.trim()) body.system = form.system.value.trim();
  const from = form.from.value.trim();
  const inFolder = [...form.folder.files].map((file) => [inside(file), file]).filter(([name]) => isRead(name));
  const files = new Map([...[...form.files.files].map((file) => [file.name, file]), ...inFolder]);
  const ways = [from !== "", form.files.files.length > 0, inFolder.length > 0].filter(Boolean).length;
  if (ways === 0) throw new Error("Say what the model is made of, or choose files");
  if (ways > 1) throw new Error("Choose one of the three: what it is made of here, files, or a folder");
  if (from !== "") body[from.startsWith("/") ? "path" : "from"] = from;
  return { body, files };
}

/** Returns the name of a file within the chosen folder, without the name of the folder. */
function inside(file) {
  return file.webkitRelativePath.split("/").slice(1).join("/") || file.name;
}

/**
 * Whether the daemon would read this file from a local folder: hidden files and deeply nested ones
 * are skipped.
 */
function isRead(name) {
  const parts = name.split("/");
  return parts.length <= DEEPEST && !parts.some((part) => part.startsWith("."));
}

/**
 * Uploads the files, then creates the model; yields progress. After a resume, files that the daemon
 * already has are not uploaded again.
 */
async function* created(body, files, signal, onjob) {
  const digests = {};
  const part = (name, completed) => ({ digest: name, name, total: files.get(name).size, completed });
  for (const name of files.keys()) yield part(name, 0);
  for (const [name, file] of files) {
    const known = sent.get(file);
    if (known !== undefined && (await isThere(known, signal))) digests[name] = known;
    else {
      yield { status: `sending ${name}` };
      for await (const told of upload("/api/lode/upload", file, signal)) {
        if (told.digest !== undefined) digests[name] = told.digest;
        else yield part(name, told.sent);
      }
      sent.set(file, digests[name]);
    }
    yield part(name, file.size);
  }
  // The first upload may be hours old. The request renews its lease.
  for (const digest of Object.values(digests)) await request("HEAD", `/api/blobs/${digest}`, { signal });
  yield* lines("/api/create", files.size > 0 ? { ...body, files: digests } : body, signal, onjob);
}

/** Digests of uploaded files, for as long as the page lives. */
const sent = new WeakMap();

async function isThere(digest, signal) {
  try {
    await request("HEAD", `/api/blobs/${digest}`, { signal });
    return true;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return false;
  }
}
