// A table that is brought up to date in place: rows keep their identity, so focus and selection stay where they are.

import { fill, h } from "./dom.js";
import { downloads } from "./export.js";

/**
 * A table of rows.
 *
 * columns: [{name, of: row => text or element, number: right-aligned, text: long, may be broken, line: never broken but on phones, wide: left out where there
 * is little room, sort: row => value, which CSV files have where it is a number}]
 * options: {key: row => identity, caption, empty: what to say without rows, most: rows that are drawn until more are asked for}
 * Returns {node, update(rows)}.
 */
export function table(columns, { key, caption, empty = "nothing yet", most = Infinity }) {
  const body = h("tbody");
  const none = h("p", { class: "soft" }, empty);
  const known = new Map();
  let sorted = null;
  let rows = [];
  let began = false;
  let drawn = most;
  const more = h("button", { type: "button", hidden: true, onclick: () => extend() });

  const heads = columns.map((column, index) => {
    const name = column.sort ? h("button", { type: "button", class: "sort", onclick: () => sort(index) }, column.name) : column.name;
    return h(column.name ? "th" : "td", { scope: column.name ? "col" : null, class: classes(column) }, name);
  });
  const head = h("thead", null, h("tr", null, heads));
  const drawnTable = h("table", null, caption && h("caption", null, caption), head, body);
  const menu = downloads(caption ?? document.title, () => drawnTable, values);
  const frame = h("div", { class: "scroll", role: "group", "aria-label": caption ?? "Table" }, drawnTable, more, none);
  const node = h("div", { class: "framed" }, menu, frame);
  // What has to be scrolled and holds nothing that Tab reaches is reached itself.
  const room = new ResizeObserver(() => (frame.scrollWidth > frame.clientWidth && !frame.querySelector("a, button:not([hidden])") ? frame.setAttribute("tabindex", 0) : frame.removeAttribute("tabindex")));
  [frame, drawnTable].forEach((each) => room.observe(each));

  function values() {
    const named = columns.filter((column) => column.name);
    return [named.map((column) => column.name), ...ordered().map((row) => named.map((column) => plain(column, row)))];
  }

  function extend() {
    drawn += most;
    update(rows);
  }

  function sort(index) {
    sorted = sorted?.index === index ? { index, down: !sorted.down } : { index, down: Boolean(columns[index].number) };
    heads.forEach((head, i) => (i === index ? head.setAttribute("aria-sort", sorted.down ? "descending" : "ascending") : head.removeAttribute("aria-sort")));
    update(rows);
  }

  function ordered() {
    if (!sorted) return rows;
    const value = columns[sorted.index].sort;
    const sign = sorted.down ? -1 : 1;
    return [...rows].sort((a, b) => sign * (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0));
  }

  function update(given) {
    rows = given;
    const kept = new Set();
    let place = body.firstChild;
    for (const row of ordered().slice(0, drawn)) {
      const name = String(key(row));
      kept.add(name);
      let line = known.get(name);
      if (!line) {
        line = { tr: h("tr", { class: began && "new" }, columns.map((c) => h("td", { class: classes(c) }))), said: null };
        known.set(name, line);
      }
      const said = JSON.stringify(row);
      if (line.said !== said) {
        line.said = said;
        columns.forEach((column, i) => fill(line.tr.children[i], column.of(row)));
      }
      if (line.tr === place) place = place.nextSibling;
      else body.insertBefore(line.tr, place);
    }
    for (const [name, line] of known) {
      if (!kept.has(name)) {
        line.tr.remove();
        known.delete(name);
      }
    }
    none.hidden = rows.length > 0;
    head.hidden = menu.hidden = !none.hidden;
    more.hidden = rows.length <= drawn;
    fill(more, `${Math.min(most, rows.length - drawn)} more of ${rows.length}`);
    began = true;
  }

  return { node, update };
}

/** A cell's value for a file: numbers without digit groups and rounding. */
function plain(column, row) {
  const text = fill(document.createElement("td"), column.of(row)).textContent;
  if (!column.number || text === "–") return text === "–" ? "" : text;
  const value = column.sort?.(row);
  if (typeof value === "number") return Number.isFinite(value) ? value : "";
  return /^[-−]?[\d,.]+$/.test(text) ? text.replaceAll(",", "").replace("−", "-") : text;
}

function classes(column) {
  return [column.number ? "number" : column.text ? "text" : column.line && "line", column.wide && "wide"].filter(Boolean).join(" ") || null;
}
