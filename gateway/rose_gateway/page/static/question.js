// What a person has said: a question, or the results of calls.

import { copyButton } from "./clipboard.js";
import { button, make } from "./dom.js";

/** `edited(text)`: it is asked again with another text; null where that is not possible. */
export function questionOf(message, branches, edited) {
  if (message.unknown) return make("p", { className: "unknown", textContent: "What was asked is not kept here." });
  const body = make("div", { className: "said", textContent: message.text });
  const files = (message.files ?? []).map(({ name, text }) => make("details", { className: "file" }, make("summary", { textContent: name }), make("pre", { tabIndex: 0, textContent: text })));
  const edit = edited ? [button("Edit", () => begin(), { attributes: { "aria-label": "Edit the message" } })] : [];
  const [change] = edit;
  const footer = make("footer", {}, make("div", { className: "buttons" }, make("span", { className: "branches" }, ...branches), copyButton(() => message.text, "the message"), ...edit));
  const element = make("article", { className: "question", attributes: { "aria-label": "You" } }, ...files, body, footer);

  function begin() {
    const area = make("textarea", { value: message.text, rows: 4, attributes: { "aria-label": "The message" } });
    const end = () => {
      form.replaceWith(body, footer);
      change.focus();
    };
    const form = make("form", { className: "editing" }, area, make("div", { className: "row" }, button("Cancel", end), make("button", { type: "submit", textContent: "Send" })));
    const send = (event) => {
      event.preventDefault();
      if (area.value.trim()) edited(area.value);
    };
    form.addEventListener("submit", send);
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") end();
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target === area) send(event);
    });
    footer.remove();
    body.replaceWith(form);
    area.focus();
  }

  return element;
}

export function resultsOf({ outputs }) {
  const each = outputs.map(({ name, output }) => make("section", { className: "call", attributes: { "aria-label": `Result of ${name}` } }, make("p", { className: "call-title" }, "Result of ", make("b", { textContent: name })), make("pre", { tabIndex: 0, textContent: output })));
  return make("article", { className: "results", attributes: { "aria-label": "Results" } }, ...each);
}

/** A form for the results of an answer's calls. `given(outputs)`: they are typed. */
export function resultForm(calls, given) {
  const areas = calls.map(({ name }) => make("textarea", { rows: 2, placeholder: `What ${name} returns`, attributes: { "aria-label": `Result of ${name}` } }));
  const form = make("form", { className: "results" }, ...areas, make("div", { className: "row" }, make("button", { type: "submit", textContent: "Send the results" })));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    given(calls.map(({ id, name }, number) => ({ call: id, name, output: areas[number].value })));
  });
  return form;
}
