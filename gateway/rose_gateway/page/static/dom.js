// Elements are made here and nowhere from strings of markup: no text can become any.

export const $ = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const { attributes = {}, ...rest } = properties;
  const element = Object.assign(document.createElement(tag), rest);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** For those who hear the page. */
export function say(text) {
  $("said").textContent = text;
}

export function notify(text, kind = "") {
  const notice = $("notice");
  notice.textContent = text;
  notice.dataset.kind = kind;
}

export const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
