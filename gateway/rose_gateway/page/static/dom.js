// Elements are made here and nowhere from strings of markup: no text can become any.

export const $ = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const { attributes = {}, data = {}, ...rest } = properties;
  const element = Object.assign(document.createElement(tag), rest);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  Object.assign(element.dataset, data);
  element.append(...children);
  return element;
}

export function button(text, pressed, properties = {}) {
  const element = make("button", { type: "button", className: "quiet", textContent: text, ...properties });
  element.addEventListener("click", pressed);
  return element;
}

/** For those who hear the page. */
export function say(text) {
  $("said").textContent = text;
}

/** `kind`: "error"; "passing": it goes when an answer goes on or ends. */
export function notify(text, kind = "") {
  const notice = $("notice");
  notice.firstElementChild.textContent = text;
  notice.dataset.kind = kind;
  notice.hidden = text === "";
}

/** What was told of something that is over by now. */
export function forgetPassing() {
  if ($("notice").dataset.kind === "passing") notify("");
}

export const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

/** A file for the user to keep. */
export function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
