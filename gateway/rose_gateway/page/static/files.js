// Texts that go with the next message.

import { $, button, make, notify } from "./dom.js";

/** A request may have 4 MiB. */
const LARGEST = 1024 * 1024;

let attached = []; // { name, text }

export function beginFiles() {
  $("attach").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", async () => {
    await attach($("file").files);
    $("file").value = "";
  });
  $("composer").addEventListener("dragover", (event) => event.preventDefault());
  $("composer").addEventListener("drop", (event) => {
    if (event.dataTransfer.files.length === 0) return;
    event.preventDefault();
    attach(event.dataTransfer.files);
  });
}

/** Gives them away. */
export function takeFiles() {
  const taken = attached;
  attached = [];
  show();
  return taken;
}

export function giveBack(files) {
  attached = [...files, ...attached];
  show();
}

async function attach(files) {
  notify("");
  for (const file of files) {
    try {
      attached.push({ name: file.name, text: await textOf(file) });
    } catch (error) {
      notify(`${file.name}: ${error.message}`, "error");
    }
  }
  show();
}

async function textOf(file) {
  if (file.size > LARGEST) throw new Error(`it has ${Math.ceil(file.size / 1024).toLocaleString("en")} KiB, the limit is ${LARGEST / 1024}`);
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw new Error("it is no text in UTF-8");
  }
}

function show() {
  $("files").replaceChildren(...attached.map((file) => {
    const drop = () => {
      attached = attached.filter((one) => one !== file);
      show();
      $("attach").focus();
    };
    return make("li", {}, file.name, button("×", drop, { attributes: { "aria-label": `Remove ${file.name}` } }));
  }));
}
