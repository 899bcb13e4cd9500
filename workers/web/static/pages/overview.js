// The league at a glance: the leaderboard, and what just happened.

import { fill, h, link, part } from "../dom.js";
import { clock, decimal, whole } from "../format.js";
import { get } from "../league.js";
import { table } from "../table.js";

export const title = "League";
export const at = true;

const MOST_EVENTS = 30;

const ROWS = [
  { name: "#", of: (r) => r.rank, number: true },
  { name: "agent", of: (r) => link(`/agent/${part(r.agent)}`, r.agent) },
  { name: "kind", of: (r) => r.kind },
  { name: "rating", of: (r) => decimal(r.rating), number: true, sort: (r) => r.rating },
  { name: "95 % interval", of: (r) => (r.low === null ? "" : `${decimal(r.low, 0)} … ${decimal(r.high, 0)}`), number: true },
  { name: "games", of: (r) => whole(r.rated_games), number: true, sort: (r) => r.rated_games },
  { name: "wins", of: (r) => whole(r.wins), number: true, sort: (r) => r.wins },
  { name: "active", of: (r) => (r.active ? "yes" : "no") },
  { name: "joined as", of: (r) => r.reason },
];

const EVENTS = [
  { name: "event", of: (e) => whole(e.sequence), number: true },
  { name: "time", of: (e) => clock(e.time).slice(11) },
  { name: "type", of: (e) => e.type },
  { name: "what", text: true, of: (e) => (e.match_id ? link(`/match/${part(e.match_id)}`, e.text) : e.text) },
];

export async function show(main, context) {
  const board = table(ROWS, { key: (r) => r.agent, caption: "Leaderboard", empty: "nobody has joined" });
  const tail = table(EVENTS, { key: (e) => e.sequence, caption: "Newest events" });
  const heading = h("p", { class: "soft" });
  let events = [];

  async function update() {
    const found = await get("/leaderboard", { at: context.at });
    board.update(found.rows);
    fill(heading, `${found.system}${found.official ? " (official)" : ""} in ${found.game}: ${whole(found.matches)} rated matches up to event ${whole(found.sequence)}`);
  }

  function arrived(list) {
    const newest = events[0]?.sequence ?? 0;
    events = [...list.filter((e) => e.sequence > newest).reverse(), ...events].slice(0, MOST_EVENTS);
    tail.update(events);
  }

  const before = context.at === null ? {} : { before: context.at + 1 };
  const [, newest] = await Promise.all([update(), get("/events", { limit: MOST_EVENTS, ...before })]);
  arrived([...newest].reverse());
  fill(main, h("h1", null, "League"), heading, h("div", { class: "columns" }, h("section", null, board.node), h("section", null, tail.node)));
  return { update, events: arrived };
}
