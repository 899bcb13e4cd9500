// A match on a map, phase by phase: a slider, the arrow keys, a play button, and how the centres changed hands.

import { lines } from "../charts.js";
import { remember } from "../choices.js";
import { fill, h, part, shown } from "../dom.js";
import { downloads } from "../export.js";
import { phased } from "../format.js";
import { drawingSource, drawingText } from "../league.js";
import { moved } from "./texts.js";

const PACE_MS = 1200;
const SEASONS = { S: 0, F: 0.5, W: 0.85 };

/** When a phase was, in years: S1901M is 1901, its retreats a little later. */
function year(phase, before) {
  const found = /^([SFW])(\d{4})([MRA])$/.exec(phase);
  return found ? Number(found[2]) + SEASONS[found[1]] + (found[3] === "R" ? 0.2 : 0) : before + 0.15;
}

function centres({ pictures, colors }) {
  const years = [];
  for (const picture of pictures) years.push(year(picture.phase, years.at(-1) ?? 1901));
  const chart = lines({ label: "Supply centres", x: "year", y: "centres", height: 240, floor: 0, format: (x) => `${Math.round(x * 10) / 10}` });
  chart.update(Object.keys(pictures[0].centers).map((power) => ({ name: power, paint: colors[power], points: pictures.map((picture, i) => [years[i], picture.centers[power]]) })));
  return chart.node;
}

/** {node, close()}: close stops it. It begins at a phase. */
export function player(match, replay, phase) {
  const { turns, pictures } = replay;
  const last = pictures.length - 1;
  const source = (n) => `/match/${part(match.match_id)}/map/${n}`;
  const image = h("img", { class: "map", width: 918, height: 680, onload: () => wrap.classList.remove("waiting"), onerror: () => fill(said, "The map cannot be drawn; the orders are below.") });
  const drawn = async () => ({ text: await drawingText(source(at)), width: image.naturalWidth, height: image.naturalHeight });
  const wrap = h("div", { class: "mapped framed" }, downloads(`Map of ${match.match_id}`, drawn, null), image);
  const range = h("input", { type: "range", min: 0, max: last, step: 1, "aria-label": "Phase", oninput: () => show(Number(range.value)) });
  const said = h("output", { "aria-live": "polite" });
  const orders = h("div");
  const back = h("button", { type: "button", onclick: () => step(-1), "aria-label": "Phase before" }, "◀");
  const forth = h("button", { type: "button", onclick: () => step(1), "aria-label": "Next phase" }, "▶");
  const play = h("button", { type: "button", onclick: () => (timer === null ? start() : stop()) }, "play");
  const open = new Set(); // Seats whose questions are being read, from phase to phase.
  let at = 0;
  let timer = null;

  function show(n) {
    at = n;
    const { words } = pictures[n];
    const phase = n === last ? "the end" : phased(pictures[n].phase);
    wrap.classList.add("waiting");
    image.src = drawingSource(source(n));
    image.alt = shown(`Map of ${words}`);
    range.value = n;
    range.setAttribute("aria-valuetext", phase);
    back.disabled = n === 0;
    forth.disabled = n === last;
    fill(said, `${phase}, ${n + 1} of ${pictures.length}`);
    fill(orders, given(n));
    remember({ phase: n || null });
    if (n < last) new Image().src = drawingSource(source(n + 1));
  }

  function given(n) {
    const turn = turns[n];
    for (const node of orders.querySelectorAll("details[data-seat]")) open[node.open ? "add" : "delete"](node.dataset.seat);
    if (!turn) return h("p", { class: "soft" }, "The end of the match.");
    return [
      h("div", { class: "cards" }, Object.entries(turn.moves).map(([power, moves]) => moved(match, { ...turn, number: n }, power, moves, { open }))),
      turn.notes.map((note) => h("p", null, note)),
    ];
  }

  function step(by) {
    stop();
    show(Math.min(Math.max(at + by, 0), last));
  }

  function start() {
    if (at === last) show(0);
    fill(play, "pause");
    timer = setInterval(() => {
      // A map that is still on its way is waited for.
      if (wrap.classList.contains("waiting")) return;
      if (at < last) show(at + 1);
      else stop();
    }, PACE_MS);
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    fill(play, "play");
  }

  function keys(event) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -last, End: last };
    // Inputs and charts have meanings of their own for these keys.
    if (!(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, svg")) return;
    event.preventDefault();
    step(moves[event.key]);
  }

  document.addEventListener("keydown", keys);
  show(Math.min(phase, last));
  const controls = h("div", { class: "form player", role: "group", "aria-label": "Phases; the left and right arrow keys move, too" }, back, play, forth, range, said);
  return {
    node: h("div", null, h("div", { class: "played" }, h("div", null, wrap, controls), orders), centres(replay)),
    close() {
      stop();
      document.removeEventListener("keydown", keys);
    },
  };
}
