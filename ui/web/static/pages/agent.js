// One agent: description, results, opponents, and what it was trained on.

import { bars } from "../charts.js";
import { figures, fill, h, link, part } from "../dom.js";
import { clock, decimal, percent, whole } from "../format.js";
import { get } from "../league.js";
import { paced } from "../pace.js";
import { ratingChart } from "../ratings.js";
import { joined } from "../choices.js";
import { table } from "../table.js";

export const title = "Agent";
export const at = true;

const CHANGES = [
  { name: "event", of: (r) => whole(r.sequence), number: true },
  { name: "time", of: (r) => clock(r.time) },
  { name: "change", of: (r) => r.change },
  { name: "why", of: (r) => r.reason, text: true },
];
const RATINGS = [
  { name: "system", of: (r) => r.system },
  { name: "rating", of: (r) => decimal(r.rating), number: true },
  { name: "deviation", of: (r) => decimal(r.deviation), number: true },
  { name: "rated games", of: (r) => whole(r.rated_games), number: true },
];
const PLAYED = [
  { name: "matches for", of: (r) => r.purpose },
  { name: "matches", of: (r) => whole(r.matches), number: true },
  { name: "won", of: (r) => whole(r.wins), number: true },
  { name: "mean rank", of: (r) => decimal(r.mean_rank, 2), number: true },
  { name: "mean score", of: (r) => decimal(r.mean_score, 3), number: true },
];
const OPPONENTS = [
  { name: "against", of: (r) => link(`/agent/${part(r.opponent)}`, r.opponent) },
  { name: "games", of: (r) => whole(r.games), number: true, sort: (r) => r.games },
  { name: "share of points", of: (r) => decimal(r.share, 2), number: true, sort: (r) => r.share },
  { name: "95 % interval", of: (r) => `${decimal(r.low, 2)} … ${decimal(r.high, 2)}`, number: true },
  { name: "won", of: (r) => whole(r.wins), number: true, sort: (r) => r.wins },
  { name: "drawn", of: (r) => whole(r.draws), number: true, sort: (r) => r.draws },
  { name: "lost", of: (r) => whole(r.losses), number: true, sort: (r) => r.losses },
];
const MOST_BARS = 6;
const MATCHES = [
  { name: "event", of: (r) => whole(r.sequence), number: true },
  { name: "match", of: (r) => link(`/match/${part(r.match_id)}`, r.match_id) },
  { name: "for", of: (r) => r.purpose },
  { name: "seat", of: (r) => r.roles.join(", ") },
  { name: "rank", of: (r) => r.ranks.join(", "), number: true },
  { name: "score", of: (r) => r.scores.map((score) => decimal(score, 2)).join(", "), number: true },
  { name: "outcome", of: (r) => (r.voided ? "voided" : r.won ? "won" : "") },
];
const STEPS = [
  { name: "step", of: (r) => whole(r.step), number: true, sort: (r) => r.step },
  { name: "event", of: (r) => whole(r.sequence), number: true },
  { name: "matches", of: (r) => whole(r.matches), number: true, sort: (r) => r.matches },
  { name: "accepted", of: (r) => whole(r.accepted), number: true, sort: (r) => r.accepted },
  { name: "stale", of: (r) => whole(r.stale), number: true, sort: (r) => r.stale },
  { name: "rejected", of: (r) => whole(r.refused), number: true, sort: (r) => r.refused },
  { name: "seats trained on", text: true, of: (r) => Object.entries(r.roles).map(([role, count]) => `${role} ×${count}`).join(", ") },
  { name: "note", of: (r) => (r.tainted.length ? `tainted by ${r.tainted.join(", ")}` : r.skipped ? "skipped" : "") },
];

export async function show(main, context) {
  const name = context.path[0] ?? "";
  const chart = ratingChart("Rating under the official system");
  const ratings = table(RATINGS, { key: (r) => r.system, caption: "Ratings", empty: "in no rated match" });
  const played = table(PLAYED, { key: (r) => r.purpose, caption: "Matches", empty: "in no match" });
  const changes = table(CHANGES, { key: (r) => r.sequence, caption: "In and out of the league" });
  const moves = h("section", null, changes.node);
  const opponents = table(OPPONENTS, { key: (r) => r.opponent, caption: "Head to head: matches count once, however many seats the two held; won, drawn and lost are counted seat against seat", empty: "no opponents", most: 50 });
  const matches = table(MATCHES, { key: (r) => r.sequence, caption: "Newest matches", empty: "in no match" });
  const what = h("div");
  const question = { name, at: context.at };

  async function update() {
    const [found, met, newest] = await Promise.all([get("/agent", question), get("/agent/opponents", question), get("/agent/matches", { ...question, limit: 10 })]);
    fill(what, identity(found, context.at));
    ratings.update(found.ratings);
    played.update(found.played);
    moves.hidden = !found.changes.length;
    changes.update(found.changes);
    opponents.update(met);
    matches.update(newest);
  }

  await Promise.all([update(), chart.show({ agents: [name], system: null, by: "event", at: context.at })]);
  const all = h("p", { class: "online" }, link(`/matches?agent=${part(name)}`, "all its matches"), " · ", link(`/ratings?agents=${part(joined([name]))}`, "its ratings beside others"));
  fill(main, h("h1", null, name), what, all,
    h("div", { class: "columns" }, h("section", null, ratings.node), h("section", null, played.node), moves),
    chart.node, h("section", null, opponents.node), h("section", null, matches.node), training(name));
  return paced(() => Promise.all([update(), chart.update()]));
}

function identity({ joined: row, published }, at) {
  const known = row ?? published;
  if (!known) return h("p", null, "It played, and was never registered.");
  const is = row && (at === null || row.joined_sequence <= at);
  const adapter = known.adapter ? h("code", { title: known.adapter }, known.adapter.slice(0, 12)) : "–";
  const parent = known.parent || published?.parent_checkpoint;
  return figures([
    ["kind", row ? row.kind : "version"],
    ["why", (row && (row.join_reason || (row.baseline ? "baseline" : ""))) || "–"],
    ["parent", parent ? link(`/agent/${part(parent)}`, parent) : "–"],
    ["adapter", adapter],
    ["published at event", whole(published?.sequence)],
    ["joined at event", row ? (is ? whole(row.joined_sequence) : "later") : "never"],
    ["retired", row?.retired_sequence && (at === null || row.retired_sequence <= at) ? `event ${whole(row.retired_sequence)}: ${row.retired_reason}` : "no"],
  ]);
}

/** What made it: asked once, since that never changes. */
function training(name) {
  const node = h("section");
  get("/agent/steps", { name }).then((found) => {
    if (found.count) fill(node, trained(found));
  }, () => {});
  return node;
}

function trained(found) {
  const steps = table(STEPS, { key: (r) => r.step, caption: found.count > found.steps.length ? `The newest ${found.steps.length} of ${whole(found.count)} steps` : "Its steps", most: 50 });
  steps.update([...found.steps].reverse());
  const before = found.way.at(-2);
  const seats = found.opponents.reduce((sum, one) => sum + one.seats, 0);
  return [
    h("h2", null, "What it was trained on"),
    h("p", null, `${whole(found.count)} gradient steps since `, before ? link(`/agent/${part(before)}`, before) : "the beginning", `: ${whole(found.accepted)} trajectories of ${whole(found.matches)} matches.`),
    h("p", { class: "soft" }, "Way from the base model: ", found.way.map((agent, i) => [i ? " → " : "", link(`/agent/${part(agent)}`, agent)])),
    found.opponents.length ? bars(shares(found.opponents, seats), { label: `Who sat in the other seats of these matches${found.others ? ` (and ${whole(found.others)} more)` : ""}: shares`, format: (value) => percent(value) }) : null,
    steps.node,
  ];
}

/** The most frequent opponents, and all others together. */
function shares(opponents, seats) {
  const rest = opponents.length > MOST_BARS + 1 ? opponents.slice(MOST_BARS) : [];
  const most = opponents.slice(0, opponents.length - rest.length).map((one) => ({ name: one.agent, value: one.seats / seats }));
  return rest.length ? [...most, { name: `${rest.length} others`, value: rest.reduce((sum, one) => sum + one.seats, 0) / seats }] : most;
}
