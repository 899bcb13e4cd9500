// Downloads of charts and tables: CSV from their values, SVG and PNG from what is drawn.

const SVG = "http://www.w3.org/2000/svg";
const PNG_SCALE = 2;
const EDGE_PX = 12; // Around what is drawn.
const LARGEST_PX = 16_000; // Of a canvas.
const LEFT_OUT = "button:not(.sort), input, select, textarea, label, .menu, .readout, .hidden";
// Presentation attributes with the values that need not be written.
const DRAWN = { fill: "rgb(0, 0, 0)", stroke: "none", "stroke-width": "1px", "stroke-dasharray": "none", opacity: "1" };
const WRITTEN = ["font-family", "font-size", "font-weight"];

const FORMULA = /^[=+\-@\t\r](?!\d+(\.\d+)?([eE][+-]?\d+)?$)/; // As a spreadsheet takes it; numbers are none.

/** Rows as CSV (RFC 4180), without formulas. */
export function csv(rows) {
  const text = (value) => String(value ?? "").replace(FORMULA, "'$&");
  const cell = (value) => (/[",\r\n]/.test(text(value)) ? `"${text(value).replaceAll('"', '""')}"` : text(value));
  return rows.map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

/** The texts of a table, head first. */
export function cells(table) {
  return [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent.trim()));
}

/** What is drawn in an element, as one SVG that stands by itself: {text, width, height}. */
export function picture(node, title) {
  const box = node.getBoundingClientRect();
  const from = { left: box.left - EDGE_PX, top: box.top - EDGE_PX };
  const [width, height] = [Math.max(node.scrollWidth, box.width), box.height].map((size) => Math.ceil(size) + 2 * EDGE_PX);
  const root = make("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}` });
  const name = make("title");
  name.textContent = title.replace(/[\u0000-\u001f\u007f-\u009f\ufffe\uffff]/g, " ");
  root.append(name, make("rect", { width, height, fill: getComputedStyle(document.body).backgroundColor }));
  copy(node, root, from);
  return { text: new XMLSerializer().serializeToString(root), width, height };
}

function make(tag, attributes = {}) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, typeof value === "number" ? +value.toFixed(1) : value);
  return node;
}

function copy(node, root, from) {
  if (node instanceof Text) return void write(node, root, from);
  if (!(node instanceof Element) || node.matches(LEFT_OUT)) return;
  const style = getComputedStyle(node);
  if (style.display === "none" || style.visibility === "hidden") return;
  const box = node.getBoundingClientRect();
  const [x, y] = [box.left - from.left, box.top - from.top];
  if (node instanceof SVGSVGElement) return void root.append(drawing(node, x, y, box));
  if (!/^(transparent|rgba\(0, 0, 0, 0\))$/.test(style.backgroundColor)) root.append(make("rect", { x, y, width: box.width, height: box.height, fill: style.backgroundColor }));
  for (const [side, at] of [["borderTop", y], ["borderBottom", y + box.height]]) {
    if (parseFloat(style[`${side}Width`]) > 0 && style[`${side}Style`] !== "none") root.append(make("line", { x1: x, x2: x + box.width, y1: at, y2: at, stroke: style[`${side}Color`] }));
  }
  if (parseFloat(style.borderLeftWidth) > 0) root.append(make("line", { x1: x, x2: x, y1: y, y2: y + box.height, stroke: style.borderLeftColor, "stroke-width": style.borderLeftWidth }));
  for (const child of node.childNodes) copy(child, root, from);
}

/** A drawing with the colours that it has on the page, since those of its styles are not in the file. */
function drawing(node, x, y, box) {
  const same = node.cloneNode(true);
  const originals = node.querySelectorAll("*");
  [...same.querySelectorAll("*")].forEach((each, i) => {
    const style = getComputedStyle(originals[i]);
    for (const [name, usual] of Object.entries(DRAWN)) {
      const value = style.getPropertyValue(name);
      if (value === usual) each.removeAttribute(name);
      else each.setAttribute(name, value);
    }
    if (each.tagName === "text") for (const name of WRITTEN) each.setAttribute(name, style.getPropertyValue(name));
  });
  same.querySelectorAll(".cursor").forEach((each) => each.remove());
  for (const name of ["class", "tabindex", "role"]) same.removeAttribute(name);
  for (const [name, value] of Object.entries({ x, y, width: box.width, height: box.height })) same.setAttribute(name, value.toFixed(1));
  return same;
}

/** A text, line by line where it is broken. */
function write(text, root, from) {
  const style = getComputedStyle(text.parentElement);
  const range = document.createRange();
  const lines = [];
  for (const { 0: word, index } of text.data.matchAll(/\S+/g)) {
    range.setStart(text, index);
    range.setEnd(text, index + word.length);
    const [box] = range.getClientRects();
    const last = lines.at(-1);
    if (!box) continue;
    if (last && Math.abs(last.box.top - box.top) < 2) last.words.push(word);
    else lines.push({ box, words: [word] });
  }
  for (const { box, words } of lines) {
    const turned = style.writingMode.startsWith("vertical");
    const [x, y] = turned ? [box.left + box.width * 0.79 - from.left, box.bottom - from.top] : [box.left - from.left, box.top + box.height * 0.79 - from.top];
    const line = make("text", { x, y, fill: style.color, ...Object.fromEntries(WRITTEN.map((name) => [name, style.getPropertyValue(name)])) });
    if (turned) line.setAttribute("transform", `rotate(-90 ${x.toFixed(1)} ${y.toFixed(1)})`);
    line.textContent = words.join(" ");
    root.append(line);
  }
}

async function png({ text, width, height }) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const scale = Math.min(PNG_SCALE, LARGEST_PX / Math.max(width, height));
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width * scale, height * scale];
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

function save(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/**
 * A menu that downloads a chart or a table. `node` gives its element, or a picture as `picture` makes them; `rows` its
 * values, or is null where there are none. `more` are other elements of the menu.
 */
export function downloads(title, node, rows, ...more) {
  const file = (title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "") || "download").slice(0, 60);
  const drawn = async () => {
    const found = await node();
    return found instanceof Element ? picture(found, title) : found;
  };
  const kinds = {
    CSV: () => new Blob([csv(rows())], { type: "text/csv" }),
    SVG: async () => new Blob([(await drawn()).text], { type: "image/svg+xml" }),
    PNG: async () => png(await drawn()),
  };
  const menu = document.createElement("details");
  const summary = document.createElement("summary");
  const list = document.createElement("div");
  menu.className = "menu";
  summary.textContent = "⤓";
  summary.title = "Download";
  summary.setAttribute("aria-label", `Download ${title}`);
  list.append(...more);
  for (const [kind, build] of Object.entries(kinds)) {
    if (kind === "CSV" && !rows) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = kind;
    button.addEventListener("click", async () => {
      save(`${file}.${kind.toLowerCase()}`, await build());
      menu.open = false;
      summary.focus();
    });
    list.append(button);
  }
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    menu.open = false;
    summary.focus();
  });
  menu.addEventListener("focusout", (event) => {
    if (event.relatedTarget && !menu.contains(event.relatedTarget)) menu.open = false;
  });
  menu.append(summary, list);
  return menu;
}
