// Charts as SVG: lines with intervals, bars, and matrices. Every chart has an equivalent text for screen
// readers, and colours that colour-blind readers can tell apart.

import { fill, h, s, shown } from "./dom.js";
import { downloads } from "./export.js";

const WIDTH = 720;
const NARROWEST = 280;
const MARGIN = { left: 56, right: 12, top: 10, bottom: 30 };
/** Colours that there are; a series of a style that many further on has the same colour, dashed. */
export const COLOURS = 8;
const DASHES = ["", "6 3", "2 3", "8 3 2 3"];

/** The colour of the nth series. */
export function colour(n) {
  return `var(--series-${n % COLOURS})`;
}

/** Round places between two values, about so many. */
export function ticks(low, high, wanted = 5) {
  const span = high - low || Math.abs(high) || 1;
  const rough = span / wanted;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * size).find((candidate) => candidate >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(Math.abs(value) < step * 1e-9 ? 0 : value);
  return found;
}

/** A number as short as an axis wants it. */
export function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toFixed(2)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toFixed(1)}k`;
  return `${+value.toPrecision(4)}`;
}

function scale(from, to) {
  const [low, high] = from;
  const width = high - low || 1;
  const place = (value) => to[0] + ((value - low) / width) * (to[1] - to[0]);
  place.invert = (at) => low + ((at - to[0]) / (to[1] - to[0])) * width;
  return place;
}

function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value === null || value === undefined || !Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low > high ? [0, 1] : low === high ? [low - 1, high + 1] : [low, high];
}

/**
 * An exponential moving average, without the pull of its start towards zero, as TensorBoard draws it. `weight`: of what
 * came before, from 0 to 1.
 */
export function smoothed(points, weight) {
  let [mean, share] = [0, 0];
  return points.filter((p) => Number.isFinite(p[1])).map(([x, y]) => {
    mean = mean * weight + y * (1 - weight);
    share = share * weight + (1 - weight);
    return [x, mean / share];
  });
}

/**
 * Lines over a common axis.
 *
 * options: {label: what is drawn, x: name of the horizontal axis, y: name of the vertical one, height, floor: least value
 * of the vertical axis that is always shown, format: number => text for the horizontal axis, onzoom: ([from, to] | null) => …}
 * Returns {node, update(series, mark), view([from, to] | null), smooth(weight)}; a series is {name, points: [[x, y, low?,
 * high?], …] by x, marks: true for dots, style: whose colour and dashes it has; by default the nth, paint: another colour}.
 * `view` shows a part without telling `onzoom`: for charts that go together. At `mark`, a place on the horizontal axis or
 * several, stands a vertical line. Smoothed lines stand before the values themselves, which are faint.
 * Dragging, or "+", "-", the arrows and "0" on the keyboard, chooses what part is shown.
 */
export function lines({ label, x, y, height = 300, floor, format = short, onzoom }) {
  const plot = s("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", tabindex: 0 });
  const legend = h("ul", { class: "legend" });
  const said = h("p", { class: "soft readout", "aria-live": "polite" });
  const reset = h("button", { type: "button", onclick: () => zoom(null) }, "whole");
  const strength = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0, oninput: () => smooth(Number(strength.value)) });
  const menu = downloads(label, () => node, values, h("label", null, "smoothing ", strength));
  const node = h("figure", { class: "figure framed" }, menu, h("figcaption", null, label, " ", reset), plot, legend, said);
  let series = [];
  let width = WIDTH; // Later as wide as there is room, so that what is written on it is as large on every screen.
  let window_ = null;
  let across = scale([0, 1], [0, 1]);
  let drag = null;
  let marks = [];
  let weight = 0;

  function smooth(to) {
    strength.value = weight = to;
    draw();
  }

  function values() {
    const ends = series.some((one) => one.points.some((p) => p.length > 3));
    const head = ["series", x, y || "value", ...(ends ? ["low", "high"] : []), ...(weight ? ["smoothed"] : [])];
    return [head, ...series.flatMap((one) => {
      const means = new Map(weight ? smoothed(one.points, weight) : []);
      return one.points.map((p) => [one.name, p[0], p[1], ...(ends ? [p[2], p[3]] : []), ...(weight ? [means.get(p[0])] : [])]);
    })];
  }

  function view(to) {
    window_ = to && to[1] > to[0] ? to : null;
    draw();
  }

  function zoom(to) {
    view(to);
    onzoom?.(window_);
  }

  function draw() {
    const whole = extent(series.flatMap((one) => one.points.map((p) => p[0])));
    const [from, to] = window_ ?? whole;
    const cut = (points) => clipped(points, from, to);
    const seen = series.map((one) => ({ ...one, points: cut(one.points), smooth: weight && one.points.length > 1 ? cut(smoothed(one.points, weight)) : null }));
    const values = seen.flatMap((one) => one.points.flatMap((p) => p.slice(1)));
    const [least, high] = extent(floor === undefined ? values : [...values, floor]);
    // What never goes below its floor needs no room there, not even where all of it is the floor.
    const low = floor === undefined || values.some((value) => value < floor) ? least - (high - least) * 0.05 : floor;
    const top = high + (high - least) * 0.05;
    across = scale([from, to], [MARGIN.left, width - MARGIN.right]);
    const down = scale([low, top], [height - MARGIN.bottom, MARGIN.top]);
    reset.hidden = window_ === null;
    plot.setAttribute("aria-label", shown(`${label}. ${said_of(series, format)}`));
    plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
    fill(plot, axes(across, down, [from, to], [low, top], [width, height], x, y, format), seen.map((one, n) => drawn(one, n, across, down)), marks.filter((mark) => mark >= from && mark <= to).map((mark) => marking(across(mark), height)), s("g", { class: "cursor" }));
    legend.hidden = series.length < 2;
    fill(legend, series.map((one, n) => h("li", null, swatch(one, n), one.name)));
  }

  function at(event) {
    const box = plot.getBoundingClientRect();
    const place = ((event.clientX - box.left) / box.width) * width;
    return across.invert(Math.min(Math.max(place, MARGIN.left), width - MARGIN.right));
  }

  plot.addEventListener("pointerdown", (event) => {
    drag = at(event);
    plot.setPointerCapture(event.pointerId);
  });
  plot.addEventListener("pointermove", (event) => {
    const here = at(event);
    const marks = drag === null ? s("line", { class: "axis", x1: across(here), x2: across(here), y1: MARGIN.top, y2: height - MARGIN.bottom }) : brush(across(drag), across(here), height);
    fill(plot.querySelector(".cursor"), marks);
    const last = (points) => points.findLast((p) => p[0] <= here);
    const near = series.map((one) => [one.name, last(one.points), weight ? last(smoothed(one.points, weight))?.[1] : undefined]).filter(([, point]) => point);
    fill(said, near.length ? `${x} ${format(Math.max(...near.map(([, p]) => p[0])))}: ${near.map(([name, p, mean]) => `${name} ${mean === undefined ? "" : `${short(mean)}, smoothed from `}${short(p[1])}${p.length > 3 && p[2] !== null ? ` (${short(p[2])} to ${short(p[3])})` : ""}`).join(", ")}` : "");
  });
  plot.addEventListener("pointerup", (event) => {
    const ends = drag === null ? null : [drag, at(event)].sort((a, b) => a - b);
    drag = null;
    if (ends && across(ends[1]) - across(ends[0]) > 5) zoom(ends);
    else draw();
  });
  plot.addEventListener("dblclick", () => zoom(null));
  plot.addEventListener("keydown", (event) => {
    const [from, to] = window_ ?? extent(series.flatMap((one) => one.points.map((p) => p[0])));
    const size = to - from;
    const moves = {
      "+": [from + size / 4, to - size / 4],
      "-": [from - size / 2, to + size / 2],
      ArrowLeft: [from - size / 4, to - size / 4],
      ArrowRight: [from + size / 4, to + size / 4],
      0: null,
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    zoom(moves[event.key]);
  });

  new ResizeObserver(([entry]) => {
    const room = Math.max(Math.round(entry.contentRect.width), NARROWEST);
    if (room === width || !entry.contentRect.width) return;
    width = room;
    draw();
  }).observe(node);

  return {
    node,
    view,
    smooth,
    update(given, at = null) {
      series = given;
      marks = [at ?? []].flat();
      draw();
    },
  };
}

function marking(x, height) {
  return s("line", { class: "mark", x1: x, x2: x, y1: MARGIN.top, y2: height - MARGIN.bottom, stroke: "var(--text)", "stroke-width": 1.5, "stroke-dasharray": "4 2" });
}

function clipped(points, from, to) {
  const first = points.findIndex((p) => p[0] >= from);
  const last = points.findLastIndex((p) => p[0] <= to);
  return first < 0 || last < 0 ? [] : points.slice(Math.max(first - 1, 0), last + 2).filter((p) => p[0] >= from && p[0] <= to);
}

function said_of(series, format) {
  return series
    .filter((one) => one.points.length)
    .map((one) => `${one.name}: from ${short(one.points[0][1])} at ${format(one.points[0][0])} to ${short(one.points.at(-1)[1])} at ${format(one.points.at(-1)[0])}`)
    .join("; ");
}

function axes(across, down, xs, ys, [width, height], x, y, format) {
  const bottom = height - MARGIN.bottom;
  const widest = Math.max(...xs.map((v) => format(Math.round(v)).length)) * 7 + 24;
  const wanted = Math.min(Math.max(Math.floor((width - MARGIN.left) / widest), 2), 8);
  // Events, steps and times have names of their own at whole numbers only.
  const places = ticks(xs[0], xs[1], wanted).filter((v) => format === short || Number.isInteger(v));
  return [
    ticks(ys[0], ys[1]).map((v) => [
      s("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: down(v), y2: down(v), opacity: 0.5 }),
      s("text", { x: MARGIN.left - 6, y: down(v) + 4, "text-anchor": "end" }, short(v)),
    ]),
    places.map((v) => labelled(across(v), bottom + 14, format(v), width)),
    s("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: bottom, y2: bottom }),
    s("text", { x: width - MARGIN.right, y: height - 2, "text-anchor": "end" }, x),
    s("text", { x: 10, y: MARGIN.top + 4, transform: `rotate(-90 10 ${MARGIN.top + 4})`, "text-anchor": "end" }, y),
  ];
}

/** What stands below a place, moved in where it would be cut off. */
function labelled(x, y, text, width) {
  const half = text.length * 3.5;
  return s("text", { x: Math.min(x, width - half - 2), y, "text-anchor": "middle" }, text);
}

/** Colour and dashes of a series, the nth. */
function paint(one, n) {
  const style = one.style ?? n;
  return { stroke: one.paint ?? colour(style), "stroke-dasharray": (!one.paint && DASHES[Math.floor(style / COLOURS) % DASHES.length]) || null };
}

function drawn(one, n, across, down) {
  const points = one.points.filter((p) => Number.isFinite(p[1]));
  const line = (list) => list.map((p, i) => `${i ? "L" : "M"}${across(p[0]).toFixed(1)} ${down(p[1]).toFixed(1)}`).join("");
  const pen = paint(one, n);
  const banded = points.filter((p) => Number.isFinite(p[2] ?? NaN) && Number.isFinite(p[3] ?? NaN));
  const edge = (index) => (p) => `${across(p[0]).toFixed(1)} ${down(p[index]).toFixed(1)}`;
  const band = banded.length > 1 && `M${banded.map(edge(3)).join("L")}L${[...banded].reverse().map(edge(2)).join("L")}Z`;
  return [
    band && s("path", { d: band, fill: pen.stroke, opacity: 0.15 }),
    s("path", { d: line(points), fill: "none", ...pen, "stroke-width": 1.6, opacity: one.smooth ? 0.25 : null }),
    one.smooth && s("path", { d: line(one.smooth), fill: "none", ...pen, "stroke-width": 2 }),
    (one.marks || points.length === 1) && points.map((p) => s("circle", { cx: across(p[0]), cy: down(p[1]), r: 2.5, fill: pen.stroke, opacity: one.smooth ? 0.25 : null })),
  ];
}

function brush(a, b, height) {
  return s("rect", { x: Math.min(a, b), width: Math.abs(b - a), y: MARGIN.top, height: height - MARGIN.top - MARGIN.bottom, fill: "var(--link)", opacity: 0.15 });
}

function swatch(one, n) {
  return s("svg", { class: "swatch", viewBox: "0 0 22 8", "aria-hidden": "true" }, s("line", { x1: 0, x2: 22, y1: 4, y2: 4, ...paint(one, n), "stroke-width": 3 }));
}

/**
 * Horizontal bars, each beside what it should have been.
 *
 * rows: [{name, value, target?, low?, high?}], all in the same unit.
 */
export function bars(rows, { label, format = short, most }) {
  const top = most ?? Math.max(...rows.flatMap((r) => [r.value, r.target ?? 0, r.high ?? 0]), 1e-9);
  const text = rows.map((r) => `${r.name} ${format(r.value)}${r.target === undefined ? "" : `, should be ${format(r.target)}`}`).join("; ");
  // Not drawn to a scale of its own: what is written is as large as everything else on every screen.
  const part = (kind, from, to) => {
    const node = h("span", { class: kind });
    node.style.setProperty("left", `${(100 * Math.max(from, 0)) / top}%`);
    node.style.setProperty("width", `${(100 * Math.max(to - from, 0)) / top}%`);
    return node;
  };
  const row = (r) => [
    h("span", { class: "name" }, r.name),
    h("span", { class: "track" }, part("bar", 0, r.value), Number.isFinite(r.low ?? NaN) && part("spread", r.low, r.high), r.target !== undefined && part("target", r.target, r.target)),
    h("span", { class: "value" }, format(r.value)),
  ];
  const node = h("figure", { class: "figure framed" }, h("figcaption", null, label), h("div", { class: "bars", role: "img", "aria-label": `${label}. ${text}` }, rows.map(row)));
  const values = [["name", "value", "target", "low", "high"], ...rows.map((r) => [r.name, r.value, r.target, r.low, r.high])];
  node.prepend(downloads(label, () => node, () => values));
  return node;
}

/**
 * A matrix of shares from 0 to 1, as a table that is coloured too. 0.5 has the ground's colour.
 *
 * cells[i][j]: {value (null: nothing), text, title} of row i against column j.
 */
export function matrix(names, cells, { label, of = (name) => name }) {
  const drawnTable = h("table", { class: "matrix" }, h("caption", null, label),
    h("thead", null, h("tr", null, h("td", null, ""), names.map((name) => h("th", { scope: "col" }, h("span", null, name))))),
    h("tbody", null, names.map((name, i) => h("tr", null, h("th", { scope: "row" }, of(name)), cells[i].map((cell) => {
      const td = h("td", { class: "number", title: cell.title }, cell.text);
      if (cell.value !== null) td.style.setProperty("background", heat(cell.value));
      return td;
    })))));
  const values = [["", ...names], ...names.map((name, i) => [name, ...cells[i].map((cell) => cell.value)])];
  return h("div", { class: "framed" }, downloads(label, () => drawnTable, () => values), h("div", { class: "scroll" }, drawnTable));
}

function heat(value) {
  const far = Math.min(Math.abs(value - 0.5) * 2, 1) * 55;
  return `color-mix(in srgb, ${value >= 0.5 ? "var(--series-0)" : "var(--series-1)"} ${far.toFixed(0)}%, transparent)`;
}
