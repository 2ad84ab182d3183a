// Pictures that are attached to the input field, and pictures of sent messages. A picture is a data
// URL with base64.

import { h, fill, icon, iconButton, announce } from "../lib/dom.js";
import { tell } from "../lib/dialog.js";

const KINDS = ["image/png", "image/jpeg", "image/webp", "image/gif"];
/** The largest file in bytes; the limit of runners. */
const LARGEST = 32 * 1024 * 1024;
const WRITTEN = /^data:image\/(png|jpeg|webp|gif);base64,[A-Za-z0-9+/]+={0,2}$/;

/** Whether a text is a picture. */
export function isPicture(text) {
  return typeof text === "string" && WRITTEN.test(text);
}

/** Returns the base64 of pictures, as requests have them. */
export function encoded(pictures) {
  return pictures.map((url) => url.slice(url.indexOf(",") + 1));
}

/** Returns the elements of sent pictures. */
export function shown(pictures) {
  const picture = (url, number) => h("img", { src: url, alt: `Picture ${number + 1}` });
  return h("div", { class: "pictures" }, pictures.map(picture));
}

function read(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${file.name} cannot be read`));
    reader.readAsDataURL(file);
  });
}

/** The pictures that are attached to the input field. */
export class Tray {
  /** `changed` is called when a picture is added or removed. */
  constructor(changed) {
    this.changed = changed;
    this.pictures = [];
    this.element = h("div", { class: "pictures attached", hidden: true });
    this.file = h("input", { type: "file", accept: KINDS.join(","), multiple: true, hidden: true, "aria-label": "Files of pictures", onchange: async () => {
      const files = [...this.file.files];
      this.file.value = "";
      await this.add(files);
    } });
    this.button = iconButton("picture", "Attach pictures", () => this.file.click());
  }

  /** Shows or hides the button: models without vision take no pictures. */
  offer(sees) {
    this.sees = sees;
    this.button.hidden = !sees;
  }

  /** Adds files; says which of them are no pictures. */
  async add(files) {
    if (files.length === 0) return;
    if (!this.sees) {
      tell("The picture is not attached", "This model does not see pictures. Choose a model with vision.");
      return;
    }
    const wrong = files.find((file) => !KINDS.includes(file.type) || file.size > LARGEST || file.size === 0);
    if (wrong !== undefined) tell("The file is not attached", `${wrong.name} is no PNG, JPEG, WebP or GIF file of at most 32 MiB.`);
    const fine = files.filter((file) => KINDS.includes(file.type) && file.size <= LARGEST && file.size > 0);
    try {
      const urls = await Promise.all(fine.map(read));
      if (urls.length === 0) return;
      this.set([...this.pictures, ...urls]);
      announce(this.pictures.length === 1 ? "1 picture is attached" : `${this.pictures.length} pictures are attached`);
    } catch (error) {
      tell("The file is not attached", error.message);
    }
  }

  /** Replaces the attached pictures. */
  set(pictures) {
    this.pictures = pictures;
    this.element.hidden = pictures.length === 0;
    fill(this.element, pictures.map((url, number) => this.attached(url, number)));
    this.changed();
  }

  attached(url, number) {
    const remove = () => {
      this.set(this.pictures.filter((_, other) => other !== number));
      const next = this.element.querySelectorAll("button")[Math.min(number, this.pictures.length - 1)];
      (next ?? this.button).focus();
    };
    return h("span", {}, h("img", { src: url, alt: `Attached picture ${number + 1}` }), h("button", { type: "button", "aria-label": `Remove picture ${number + 1}`, title: "Remove", onclick: remove }, icon("close")));
  }

  /** Takes pictures out of what is pasted or dropped; returns whether there were files. */
  receive(data) {
    const files = [...(data?.files ?? [])];
    this.add(files);
    return files.length > 0;
  }
}
