// List of matches: filters, newest first, live at the top.

import { here, put } from "../address.js";
import { fill, h, link, part } from "../dom.js";
import { clock, decimal, seconds, whole } from "../format.js";
import { get } from "../league.js";
import { table } from "../table.js";

export const title = "Matches";
export const at = true;

const PAGE = 50;
const MOST = 1000; // Rows on the page; older ones are read by a filter or a link.
const FIELDS = ["agent", "outcome", "purpose", "game", "worker", "evaluation", "voided"];
const OUTCOMES = [["", "any"], ["won", "won by the agent"], ["lost", "won by another"], ["drawn", "no winner"], ["failed", "failed"]];
const VOIDED = [["", "any"], ["yes", "taken back"], ["no", "standing"]];

/** Who sat in a match, each agent once: with its number of seats and its best score. */
function seated(row, asked) {
  const agents = new Map();
  for (const seat of row.seats) {
    const known = agents.get(seat.agent) ?? { seats: 0, score: -Infinity };
    agents.set(seat.agent, { seats: known.seats + 1, score: Math.max(known.score, seat.score) });
  }
  return [...agents].map(([agent, { seats, score }], i) => [
    i > 0 && ", ",
    h(agent === asked ? "strong" : "span", null, link(`/agent/${part(agent)}`, agent)),
    ` ${decimal(score)}${seats > 1 ? ` (best of ${seats} seats)` : ""}`,
  ]);
}

function result(row) {
  if (row.error !== null) return h("span", { class: "bad" }, `failed: ${row.error}`);
  const first = row.seats.find((seat) => seat.seat === row.winner);
  const said = first?.team ? `${first.team}: ${row.seats.filter((seat) => seat.won).map((seat) => seat.agent).join(", ")}`
    : first ? `${first.agent} as ${first.role || `seat ${first.seat}`}` : "no winner";
  return row.voided === null ? said : [said, h("span", { class: "warn" }, ` · taken back: ${row.void_reason}`)];
}

function columns(asked, games) {
  return [
    { name: "match", line: true, of: (r) => link(`/match/${part(r.match_id)}`, r.match_id) },
    { name: "won by", text: true, of: result },
    { name: "agents and scores", text: true, of: (r) => seated(r, asked()) },
    { name: "purpose", of: (r) => r.purpose, wide: true },
    { name: "turns", of: (r) => whole(r.length), number: true, wide: true },
    { name: "took", of: (r) => seconds(r.seconds), number: true, wide: true },
    ...(games > 1 ? [{ name: "game", of: (r) => r.environment || r.game, wide: true }] : []),
    { name: "worker", line: true, of: (r) => r.worker, wide: true },
    { name: "time", of: (r) => clock(r.time).slice(5), number: true, wide: true },
    { name: "event", of: (r) => whole(r.sequence), number: true, wide: true },
  ];
}

function choice(name, label, options, value) {
  const known = options.some(([key]) => key === value) ? options : [...options, [value, value]];
  return h("label", null, label, h("select", { name }, known.map(([key, text]) => h("option", { value: key, selected: key === value }, text))));
}

function filters(options, query, apply) {
  const words = (list) => [["", "any"], ...list.map((word) => [word, word])];
  const value = (name) => query.get(name) ?? "";
  const form = h("form", { class: "form online", "aria-label": "Which matches" },
    h("label", null, "agent", h("input", { name: "agent", list: "agents", value: value("agent"), autocomplete: "off" })),
    h("datalist", { id: "agents" }, options.agents.map((agent) => h("option", { value: agent }))),
    choice("outcome", "outcome", OUTCOMES, value("outcome")),
    choice("purpose", "purpose", words(options.purposes), value("purpose")),
    choice("game", "game", words(options.games), value("game")),
    choice("worker", "worker", words(options.workers), value("worker")),
    h("label", null, "evaluation", h("input", { name: "evaluation", value: value("evaluation"), autocomplete: "off" })),
    choice("voided", "result", VOIDED, value("voided")),
    h("button", { type: "submit" }, "show"),
  );
  const asked = () => Object.fromEntries([...new FormData(form)].filter(([, text]) => text));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    apply(asked());
  });
  form.addEventListener("change", (event) => event.target.tagName === "SELECT" && apply(asked()));
  return form;
}

export async function show(main, context) {
  let asked = Object.fromEntries(FIELDS.map((name) => [name, context.query.get(name)]).filter(([, text]) => text));
  const options = await get("/matches/options");
  const found = table(columns(() => asked.agent, options.games.length), { key: (r) => `${r.sequence} ${asked.agent ?? ""}`, caption: "Newest first", empty: "no such match" });
  const more = h("button", { type: "button", class: "online", onclick: older }, "older ones");
  const said = h("p", { class: "soft", role: "status" });
  let rows = [];
  let next = null;

  // In place, so that the focus stays in the form.
  async function apply(wanted) {
    asked = wanted;
    const query = new URLSearchParams(wanted);
    if (context.at !== null) query.set("at", context.at);
    put(new URL(`/matches${query.size ? `?${query}` : ""}`, here()));
    [rows, next] = [[], null];
    await update().catch((error) => fill(said, h("span", { class: "bad" }, error.message)));
  }

  function draw() {
    found.update(rows);
    more.hidden = next === null || rows.length >= MOST;
    fill(said, `${whole(rows.length)}${next === null ? "" : ", and older ones"}${rows.length >= MOST ? "; narrow the filters to see older ones" : ""}`);
  }

  const page = (given) => get("/matches", { ...asked, at: context.at, limit: PAGE, ...given });

  async function older() {
    const wanted = asked;
    const list = await page({ before: next });
    if (wanted !== asked) return;
    rows = [...rows, ...list.rows];
    next = list.next;
    draw();
  }

  async function update() {
    const wanted = asked;
    const list = await page({});
    if (wanted !== asked) return;
    const oldest = list.rows.at(-1)?.sequence ?? 0;
    const before = rows.filter((row) => row.sequence < oldest);
    // Where more came than one page holds, what was known does not follow on it.
    const follows = list.next === null || (rows.length > 0 && rows[0].sequence >= oldest);
    const kept = follows ? before.slice(0, MOST - list.rows.length) : [];
    if (!kept.length) next = list.next;
    else if (kept.length < before.length) next = kept.at(-1).sequence;
    rows = [...list.rows, ...kept];
    draw();
  }

  const form = filters(options, context.query, apply);
  fill(main, h("h1", null, "Matches"), form, said, found.node, h("p", null, more));
  await update().catch((error) => fill(said, h("span", { class: "bad" }, error.message)));
  return { update };
}
