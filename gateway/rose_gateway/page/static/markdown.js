// Markdown as elements. marked reads it; each element is made from one of its tokens, so markup in a
// text stays text, and an image, which would ask another server, is a link.

import { codeBlock } from "./code.js";
import { make } from "./dom.js";
import { lexer } from "./libraries/marked.js";

const OPTIONS = { gfm: true, breaks: true };
const LINKS = new Set(["http:", "https:", "mailto:"]);
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", hellip: "…", mdash: "—", ndash: "–" };
const SIMPLE = { strong: "strong", em: "em", del: "del", blockquote: "blockquote", paragraph: "p" };

/** A text that grows: only the blocks that have changed are made again. */
export class Markdown {
  constructor(element) {
    this.element = element;
    this.blocks = []; // { raw, elements, leaves, level }
    this.marks = []; // { at: an offset in the text, in UTF-16 units, element }
    this.text = "";
  }

  update(text, marks = this.marks) {
    this.text = text;
    this.marks = marks;
    const tokens = lexer(text, OPTIONS);
    let same = 0;
    // A definition of a link may come behind the link.
    const links = JSON.stringify(tokens.links);
    if (links === this.links) while (this.blocks[same] && this.blocks[same].raw === tokens[same]?.raw) same++;
    this.links = links;
    for (const { elements } of this.blocks.splice(same)) for (const one of elements) one.remove();
    let start = this.blocks.reduce((sum, { raw }) => sum + raw.length, 0);
    for (const token of tokens.slice(same)) {
      this.#add(token, start);
      start += token.raw.length;
    }
    for (const mark of this.marks) if (!this.element.contains(mark.element)) this.#place(mark);
  }

  #add(token, start) {
    const builder = new Builder(this.blocks.at(-1)?.level ?? 1, () => this.#again());
    const elements = builder.made(token, start);
    this.element.append(...elements);
    this.blocks.push({ raw: token.raw, elements, leaves: builder.leaves, level: builder.level });
  }

  #again() {
    this.links = null;
    this.update(this.text);
  }

  /** Where its offset lies in what is shown; at the beginning where that is not known. */
  #place({ at, element }) {
    let leaf = null;
    for (const { leaves } of this.blocks) for (const one of leaves) if (one.start <= at) leaf = one;
    if (leaf === null) this.element.prepend(element);
    else insertAt(leaf.node, at - leaf.start, element);
  }
}

/** Behind so many characters of a node's text, or behind all of it. */
function insertAt(node, offset, element) {
  const walker = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
  if (node.nodeType === Node.TEXT_NODE) walker.currentNode = node;
  let last = node.nodeType === Node.TEXT_NODE ? node : walker.nextNode();
  if (last === null) return node.append(element);
  while (offset > last.length) {
    const next = node.nodeType === Node.TEXT_NODE ? null : walker.nextNode();
    if (next === null) break;
    offset -= last.length;
    last = next;
  }
  if (offset < last.length) last.splitText(offset);
  return last.after(element);
}

class Builder {
  /** `level`: of the heading before. */
  constructor(level, again) {
    this.level = level;
    this.again = again;
    this.leaves = []; // { start, node }: what shows the text from an offset on
  }

  /** The elements of a block. `start`: where it begins, null where nobody knows. */
  made(token, start) {
    switch (token.type) {
      case "space":
      case "def":
        return [];
      case "heading":
        return [this.#heading(token, start)];
      case "code":
        return [this.#code(token, start)];
      case "list":
        return [this.#list(token, start)];
      case "table":
        return [this.#table(token, start)];
      case "hr":
        return [make("hr")];
      case "html":
        return [make("p", {}, this.#leaf(token.raw.trim(), start))];
      default:
        return [this.#inline(token, start)];
    }
  }

  /** Their places are looked for in `raw`, one after another. */
  #children(tokens, raw, start) {
    let from = 0;
    return tokens.flatMap((token) => {
      const found = start === null ? -1 : raw.indexOf(token.raw, from);
      if (found >= 0) from = found + token.raw.length;
      const place = found < 0 ? null : start + found;
      return ["list", "code", "table", "heading", "hr", "space", "blockquote", "paragraph", "def"].includes(token.type)
        ? this.made(token, place)
        : [this.#inline(token, place)];
    });
  }

  #inline(token, start) {
    const { type, raw, tokens } = token;
    if (type in SIMPLE) return make(SIMPLE[type], {}, ...this.#children(tokens, raw, start));
    if (type === "link" || type === "image") return this.#link(token, start);
    if (type === "br") return make("br");
    if (type === "checkbox") return make("span", { textContent: token.checked ? "☑ " : "☐ " });
    if (type === "codespan") return make("code", {}, this.#leaf(token.text, start === null ? null : start + raw.indexOf(token.text)));
    if (tokens) return make("span", {}, ...this.#children(tokens, raw, start));
    return this.#leaf(type === "html" ? raw : type === "escape" ? token.text : decoded(token.text), start);
  }

  #leaf(text, start) {
    const node = document.createTextNode(text);
    if (start !== null) this.leaves.push({ start, node });
    return node;
  }

  #link({ type, href, raw, text, tokens }, start) {
    const shown = type === "image" ? [`${text || href} (image)`] : this.#children(tokens, raw, start);
    const url = URL.canParse(href) ? new URL(href) : null;
    if (url === null || !LINKS.has(url.protocol)) return make("span", { title: href }, ...shown);
    return make("a", { href: url.href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...shown);
  }

  /** Never deeper than one below the heading before. */
  #heading({ depth, raw, tokens }, start) {
    this.level = Math.min(6, depth + 1, this.level + 1);
    return make(`h${this.level}`, { className: `depth-${depth}` }, ...this.#children(tokens, raw, start));
  }

  #code({ text, lang, raw }, start) {
    const block = codeBlock(text, lang ?? "", this.again);
    const inside = raw.indexOf(text);
    if (start !== null && inside >= 0) this.leaves.push({ start: start + inside, node: block.querySelector("code") });
    return block;
  }

  #list({ ordered, start: first, items, raw }, start) {
    let from = 0;
    const lines = items.map((item) => {
      const found = start === null ? -1 : raw.indexOf(item.raw, from);
      if (found >= 0) from = found + item.raw.length;
      return make("li", {}, ...this.#children(item.tokens, item.raw, found < 0 ? null : start + found));
    });
    return make(ordered ? "ol" : "ul", ordered ? { start: first } : {}, ...lines);
  }

  #table({ header, rows, raw }, start) {
    let from = 0;
    const row = (cells, tag) =>
      make("tr", {}, ...cells.map(({ text, tokens, align }) => {
        const found = start === null ? -1 : raw.indexOf(text, from);
        if (found >= 0) from = found + text.length;
        const inside = this.#children(tokens, text, found < 0 ? null : start + found);
        return make(tag, { className: align ? `to-${align}` : "" }, ...inside);
      }));
    const head = make("thead", {}, row(header, "th"));
    const table = make("table", {}, head, make("tbody", {}, ...rows.map((cells) => row(cells, "td"))));
    return make("div", { className: "table", tabIndex: 0, attributes: { role: "region", "aria-label": "Table" } }, table);
  }
}

function decoded(text) {
  return text.replace(/&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|([a-z]{2,6}));/gi, (whole, decimal, hex, name) => {
    if (name) return ENTITIES[name] ?? whole;
    const code = decimal ? Number(decimal) : Number.parseInt(hex, 16);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : whole;
  });
}
