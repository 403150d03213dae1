// A block of code: highlighted where its language is known, with a button that copies it.

import { copyButton } from "./clipboard.js";
import { make } from "./dom.js";
import highlighter from "./libraries/highlight.js";

/** Longer ones stay plain: each change of a growing block highlights all of it again. */
const LONGEST = 100_000;

const FILES = Object.entries({
  bash: "bash sh shell zsh console shellsession",
  c: "c h",
  cpp: "cpp c++ cc cxx hpp",
  csharp: "csharp c# cs",
  css: "css",
  diff: "diff patch",
  dockerfile: "dockerfile docker",
  go: "go golang",
  ini: "ini toml",
  java: "java",
  javascript: "javascript js jsx mjs cjs",
  json: "json jsonc json5 jsonl",
  kotlin: "kotlin kt",
  lua: "lua",
  makefile: "makefile make mk",
  markdown: "markdown md",
  php: "php",
  python: "python py pycon",
  ruby: "ruby rb",
  rust: "rust rs",
  sql: "sql",
  swift: "swift",
  typescript: "typescript ts tsx",
  xml: "xml html svg xhtml",
  yaml: "yaml yml",
});
const FILE_OF = new Map(FILES.flatMap(([file, names]) => names.split(" ").map((name) => [name, file])));

/** Makes elements from what highlight.js recognises: it has no other way without strings of markup. */
class ElementEmitter {
  constructor() {
    this.root = document.createDocumentFragment();
    this.open = [this.root];
  }

  addText(text) {
    this.open.at(-1).append(text);
  }

  openNode(scope) {
    const element = make("span", { className: `code-${scope.split(".")[0]}` });
    this.open.at(-1).append(element);
    this.open.push(element);
  }

  closeNode() {
    this.open.pop();
  }

  startScope(scope) {
    this.openNode(scope);
  }

  endScope() {
    this.closeNode();
  }

  __addSublanguage(emitter) {
    this.open.at(-1).append(emitter.root);
  }

  finalize() {
    this.open.length = 1;
  }

  toHTML() {
    return "";
  }
}

highlighter.configure({ __emitter: ElementEmitter });
const loads = new Map();

/** Whether it can be highlighted. If not yet, `loaded()` is called when it can. */
function ready(file, loaded) {
  if (highlighter.getLanguage(file)) return true;
  if (!loads.has(file)) {
    const load = import(`./libraries/languages/${file}.js`);
    loads.set(file, load.then((module) => highlighter.registerLanguage(file, module.default)));
  }
  // Without its file the code stays plain, which is how it is shown already.
  loads.get(file).then(loaded, () => loads.delete(file));
  return false;
}

/** `loaded()`: its language has come; make it again. */
export function codeBlock(text, language, loaded) {
  const name = language.trim().split(/[\s{,:]/)[0].toLowerCase();
  const file = FILE_OF.get(name);
  const code = make("code", { textContent: text });
  if (file && text.length < LONGEST && ready(file, loaded)) {
    const { _emitter } = highlighter.highlight(text, { language: file, ignoreIllegals: true });
    code.replaceChildren(_emitter.root);
  }
  const head = make("figcaption", {}, make("span", { textContent: name || "code" }), copyButton(() => text, "the code"));
  return make("figure", { className: "code" }, head, make("pre", { tabIndex: 0 }, code));
}
