// What is copied, and the button that does it.

import { button, make, say } from "./dom.js";

const SHOWN_MS = 2000;

export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // A page that came over plain HTTP from another machine has no clipboard.
  const area = make("textarea", { value: text, className: "hidden" });
  const focused = document.activeElement;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  focused?.focus();
  if (!copied) throw new Error("this browser does not let the page copy");
  return undefined;
}

/** `text()`: what is copied when it is pressed. */
export function copyButton(text, what) {
  const label = { attributes: { "aria-label": `Copy ${what}` } };
  const element = button("Copy", async () => {
    try {
      await copy(text());
      element.textContent = "Copied";
      say("Copied.");
    } catch (error) {
      element.textContent = "Not copied";
      say(error.message);
    }
    setTimeout(() => (element.textContent = "Copy"), SHOWN_MS);
  }, label);
  return element;
}
