// Overview: is it learning, who leads, what is happening now. The newest events come last, those of a type as one row.

import { remember } from "../choices.js";
import { figures, fill, h, link, part } from "../dom.js";
import { clock, decimal, percent, seconds, whole } from "../format.js";
import { manifest } from "../frozen.js";
import { get } from "../league.js";
import { paced } from "../pace.js";
import { policyChart } from "../ratings.js";
import { table } from "../table.js";

export const title = "League";
export const at = true;

const MOST_EVENTS = 200;
const VERDICTS = { better: "better", worse: "worse", open: "not certain" };
const TONES = { better: "good", worse: "bad" };

const ROWS = (system) => [
  { name: "#", of: (r) => r.rank, number: true, wide: true },
  { name: "agent", of: (r) => link(`/agent/${part(r.agent)}`, r.agent) },
  { name: "kind", of: (r) => (r.rated_games ? r.kind : `${r.kind}, unrated`), wide: true },
  { name: "rating", of: (r) => `${decimal(r.rating, 0)}${r.one_sided ? " (won or lost all)" : ""}`, number: true, sort: (r) => r.rating ?? -Infinity },
  { name: "95 %", of: (r) => (r.low === null ? "" : `${decimal(r.low, 0)} … ${decimal(r.high, 0)}`), number: true },
  { name: system, of: (r) => decimal(r.online, 0), number: true, wide: true, sort: (r) => r.online },
  { name: "games", of: (r) => whole(r.rated_games), number: true, sort: (r) => r.rated_games },
];

const EVENTS = [
  { name: "type", of: (e) => e.type },
  { name: "count", of: (e) => whole(e.count), number: true },
  { name: "last at", of: (e) => clock(e.time).slice(11), wide: true },
  { name: "event", of: (e) => whole(e.sequence), number: true, wide: true },
  { name: "what", text: true, of: (e) => (e.match_id ? link(`/match/${part(e.match_id)}`, e.text) : e.text) },
];

const share = (b) => [h("span", { class: "wide" }, `${b.agent}: `), `${percent(b.share, 1)} of ${whole(b.games)} `, h("span", { class: "soft together" }, `${decimal(100 * b.low, 0)} … ${percent(b.high)}`)];

const BENCHMARKS = [
  { name: "against", of: (b) => b.opponent },
  { name: "verdict", of: (b) => h("strong", { class: { better: "good", worse: "bad" }[b.verdict] }, b.before ? VERDICTS[b.verdict] : "nothing to compare with") },
  { name: "before", text: true, of: (b) => (b.before ? share(b.before) : "not measured") },
  { name: "after", text: true, of: (b) => share(b.after) },
];

export async function show(main, context) {
  const [progress, board, now, judged, newest] = await Promise.all([learning(context), leaderboard(context), happening(context), criteria(context), tail(context)]);
  fill(main, h("h1", { class: "hidden" }, "League"), progress.headline,
    h("div", { class: "columns" }, progress.node, board.node), h("div", { class: "columns" }, now.node, judged.node),
    h("section", null, h("h2", null, "Newest events"), newest.node));
  const parts = [progress, board, now, judged];
  return {
    async update() {
      await Promise.all(parts.map((one) => one.live.update()));
    },
    close() {
      parts.forEach((one) => one.live.close());
    },
    events: newest.arrived,
  };
}

async function learning(context) {
  const chart = policyChart();
  const rows = table(BENCHMARKS, { key: (b) => `${b.policy} ${b.opponent}`, caption: "Games won with one opponent in all other seats, 95 % intervals", empty: "no benchmark of a trained version has finished" });
  const headline = h("section", { class: "headline", role: "status" });

  async function update() {
    const found = await get("/learning", { at: context.at });
    chart.update(found);
    rows.update(found.benchmarks);
    fill(headline, Object.entries(found.verdicts).map(([policy, told], place, all) => verdict(all.length > 1 ? policy : "", told)));
  }

  await update();
  return { headline, node: h("section", null, h("h2", null, "Rating over training"), chart.node, rows.node), live: paced(update) };
}

/** What became of a policy, and the benchmark that shows it best: before, and now. */
function verdict(policy, told) {
  const share = (benchmark) => h("div", null, h("span", { class: "big" }, percent(benchmark.share)), h("span", { class: "soft" }, benchmark.agent));
  return h("div", { class: "verdict" },
    h("div", null, h("p", { class: ["big", TONES[told.verdict]].filter(Boolean).join(" ") }, policy ? `${policy}: ` : "", told.headline), h("p", { class: "told" }, told.text.replaceAll(" %", "\u00a0%"))),
    told.pair && h("div", { class: "shares" }, share(told.pair.before), h("span", { class: "big soft", "aria-hidden": "true" }, "→"), share(told.pair.after),
      h("p", { class: "soft" }, `games won against ${told.pair.opponent}`)));
}

/** The success criteria, each as met or not. */
async function criteria(context) {
  const place = h("div");

  async function update() {
    const found = await get("/criteria", { at: context.at });
    fill(place, h("ul", { class: "plain" }, found.criteria.map((one) =>
      h("li", null, h("strong", { class: one.passed ? "good" : "soft" }, one.passed ? "✓ " : "– "), one.title, h("span", { class: "soft" }, one.passed ? ": met" : `: not met${advice(one)}`)))));
  }

  await update();
  return { node: h("section", null, h("h2", null, link("/criteria", "Success criteria")), place), live: paced(update) };
}

/** What would let a criterion be met: the first thing to do. */
function advice(criterion) {
  const first = criterion.figures.find((one) => one.advice);
  return first ? ` (${first.advice})` : "";
}

/** Rates and queues of the running processes; they are of now, whatever the slider says. */
async function happening(context) {
  const isPast = context.at !== null || manifest !== null;
  const node = h("section", { hidden: isPast });

  async function update() {
    if (isPast) return;
    const found = await get("/workers");
    const running = found.workers.length;
    const rates = found.rates;
    fill(node, h("h2", null, "Now"), running ? figures([
      ["processes", whole(running)],
      ["games a second", decimal(rates.games_s, 1)],
      ["games in progress", whole(rates.games_in_flight)],
      ["tokens sampled a second", whole(Math.round(rates.sampled_tokens_s))],
      ["tokens trained a second", whole(Math.round(rates.trained_tokens_s))],
      ["since the last step", seconds(found.since_step_s)],
    ]) : h("p", { class: "soft" }, "No process of this league is running: what is shown was recorded."));
  }

  await update();
  return { node, live: paced(update) };
}

async function leaderboard(context) {
  const heading = h("p", { class: "soft" });
  let words = context.query.get("find") ?? "";
  let found = null;
  let rows = null;

  function draw() {
    rows.update(found.rows.filter((r) => r.agent.toLowerCase().includes(words.toLowerCase())));
  }

  async function update() {
    found = await get("/leaderboard", { at: context.at });
    rows ??= table(ROWS(found.system), { key: (r) => r.agent, caption: "Leaderboard", empty: "no agents", most: 100 });
    fill(heading, `Bradley–Terry ratings with 95 % intervals, beside the online rating ${found.system}, in ${found.game}: ${whole(found.matches)} rated matches up to event ${whole(found.sequence)}`);
    draw();
  }

  const form = h("form", { class: "form", onsubmit: (event) => event.preventDefault() },
    h("label", null, "find", h("input", { type: "search", placeholder: "part of a name", value: words, oninput: (event) => { words = event.target.value; remember({ find: words }); draw(); } })));
  await update();
  return { node: h("section", null, h("h2", null, "Who leads"), heading, form, rows.node), live: paced(update) };
}

async function tail(context) {
  const rows = table(EVENTS, { key: (e) => e.type, caption: `The newest ${MOST_EVENTS} events by type, with the last one of each` });
  let events = [];

  // What was said while the connection was broken is asked for.
  function unbroken(list, newest) {
    const isBroken = newest && list.length < MOST_EVENTS && list[0]?.sequence > newest + 1;
    return isBroken ? get("/events", { limit: MOST_EVENTS }).then((found) => found.reverse(), () => list) : list;
  }

  async function arrived(list) {
    const found = await unbroken(list, events[0]?.sequence);
    const newest = events[0]?.sequence ?? 0;
    events = [...found.filter((e) => e.sequence > newest).reverse(), ...events].slice(0, MOST_EVENTS);
    rows.update(grouped(events));
  }

  const before = context.at === null ? {} : { before: context.at + 1 };
  await arrived([...(await get("/events", { limit: MOST_EVENTS, ...before }))].reverse());
  return { node: rows.node, arrived };
}

/** The newest event of each type, with the number of that type; by recency. */
function grouped(events) {
  const found = new Map();
  for (const event of events) {
    const row = found.get(event.type);
    if (row) row.count += 1;
    else found.set(event.type, { ...event, count: 1 });
  }
  return [...found.values()];
}
