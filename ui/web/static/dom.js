// The only way to make elements here: texts of agents, models and events become text nodes, never markup.

import { here, href } from "./address.js";
import { exists, manifest } from "./frozen.js";

const SVG = "http://www.w3.org/2000/svg";
// Bidirectional overrides and control characters could make a name look like another one.
const UNSAFE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

/** A text as it can be shown: control characters are spelled out. */
export function shown(value) {
  return String(value).replace(UNSAFE, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : shown(value));
  }
  add(node, children);
  return node;
}

function add(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(shown(child)));
  }
}

/** An element: h("td", {class: "number"}, 5). Attributes that begin with "on" are listeners. */
export function h(tag, attributes, ...children) {
  return build(document.createElement(tag), attributes, children);
}

/** An element of a drawing. */
export function s(tag, attributes, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

/** Replace what a node holds. */
export function fill(node, ...children) {
  node.replaceChildren();
  add(node, children);
  return node;
}

/**
 * A link within these pages; a text where a file does not have the page. Every part of a path that comes from data goes
 * through `part`.
 */
export function link(path, ...children) {
  const isThere = !manifest || (exists(new URL(path, here()).pathname) && !/.[?]/.test(path));
  return isThere ? h("a", { href: href(path) }, ...children) : h("span", null, ...children);
}

/** A name as a part of a path. */
export function part(name) {
  return encodeURIComponent(name);
}

/** Figures with their names: [["steps", 5], …]. */
export function figures(pairs) {
  return h("dl", { class: "figures" }, pairs.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
}

/** A text whose parts in backticks are code. */
export function marked(text) {
  const parts = String(text).split("`");
  return parts.length % 2 ? parts.map((part, i) => (i % 2 ? h("code", null, part) : part)) : text;
}

/** What went wrong, in place of what was asked; lines stay lines. */
export function problem(error) {
  const text = String(error.message ?? error);
  return h("p", { class: ["problem", text.includes("\n") && "lines"].filter(Boolean).join(" "), role: "alert" }, marked(text));
}
