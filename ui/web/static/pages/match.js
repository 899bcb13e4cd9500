// One match: seats, result, how it was drawn, and what was played.

import { here } from "../address.js";
import { fill, h, link, part, problem, shown as spelled } from "../dom.js";
import { clock, decimal, percent, seconds, spoken, whole } from "../format.js";
import { api, get } from "../league.js";
import { conversations, transcript } from "../match/texts.js";
import { player } from "../match/player.js";
import { table } from "../table.js";

export const title = "Match";
export const at = false;

function outcome(match) {
  const { finished, failed, sampled, voided } = match;
  if (finished) {
    const game = finished.environment || finished.game;
    return [
      h("p", null, `${game}, ${finished.purpose}, played by ${finished.worker} in ${seconds(finished.seconds)}: ${whole(finished.length)} turns, ${whole(finished.tokens)} tokens written${finished.reason === "scored" ? "" : `, ended by ${spoken(finished.reason)}`}.`),
      h("p", { class: "soft" }, `Event ${whole(finished.sequence)}, ${clock(finished.time)}, seed ${finished.seed}`, finished.evaluation_id && [", of the evaluation ", link(`/matches?evaluation=${part(finished.evaluation_id)}`, finished.evaluation_id)]),
      voided && h("p", { class: "problem" }, `Taken back by event ${whole(voided.sequence)} (${clock(voided.time)}): ${voided.reason}`),
    ];
  }
  if (failed) return h("p", { class: "problem" }, `Failed at ${failed.worker} (event ${whole(failed.sequence)}, ${clock(failed.time)}): ${failed.error}`);
  return h("p", { role: "status" }, `Being played: drawn by event ${whole(sampled?.sequence)}, and neither finished nor failed yet. This page follows it.`);
}

function hasWon(seat, { seats, winner }) {
  return seat.seat === winner || (seat.team && seats.some((one) => one.seat === winner && one.team === seat.team));
}

const SEATS = (match) => [
  { name: "seat", of: (s) => [s.role || `seat ${s.seat}`, s.drawn_role && `, ${s.drawn_role}`, s.team && ` (${s.team})`] },
  { name: "agent", of: (s) => [link(`/agent/${part(s.agent)}`, s.agent), s.trainable && " (trained on)"] },
  { name: "score", of: (s) => decimal(s.score, 2), number: true, sort: (s) => s.score },
  { name: "rank", of: (s) => `${s.rank}${hasWon(s, match.finished) ? " (first)" : ""}`, number: true, sort: (s) => s.rank },
  { name: "metrics", text: true, wide: true, of: (s) => Object.entries(s.metrics).map(([name, value]) => `${name} ${+value.toPrecision(6)}`).join(", ") },
];

function seats(match) {
  const shown = table(SEATS(match), { key: (s) => s.seat, caption: "Seats" });
  shown.update(match.finished.seats);
  return shown.node;
}

function consequences(match) {
  const systems = [...new Set(match.ratings.map((r) => r.system))];
  const changes = systems.map((system) => h("li", null, `${system}: `, match.ratings.filter((r) => r.system === system).map((r) => `${r.agent} ${r.after >= r.before ? "+" : "−"}${Math.abs(r.after - r.before).toFixed(1)} → ${decimal(r.after)}`).join(", ")));
  const used = match.used.map((u) => h("li", null, `${u.dropped === null ? "trained on in" : `left out as ${u.dropped} by`} step ${whole(u.step)} of ${u.policy} (event ${whole(u.sequence)})`));
  const none = h("li", null, "no rating and no gradient step so far");
  return h("section", null, h("h2", null, "What it changed"), h("ul", null, changes.length + used.length ? [...changes, ...used] : none));
}

function drawn(match) {
  const { sampled } = match;
  const said = h("div", { "aria-live": "polite" });
  const button = asking("explain", "computing it again …", said, async () => explained(await get(`/match/${part(match.match_id)}/explain`)));
  const picks = sampled && h("ul", null, sampled.picks.map((pick) => h("li", null, `seat ${pick.seat}: `, link(`/agent/${part(pick.agent)}`, pick.agent), ` from ${pick.bucket}`)));
  const isAsked = Boolean(match.finished?.evaluation_id || match.failed?.evaluation_id);
  const how = sampled
    ? [h("p", null, `${sampled.hero} in seat ${sampled.hero_seat}; opponents drawn by ${sampled.sampler}, draw ${sampled.draw}, from the standings at event ${whole(sampled.standings_sequence)}.`), picks]
    : h("p", null, isAsked ? "Requested by an evaluation." : "Not drawn by matchmaking: a person played in it, or requested it.");
  return h("section", null, h("h2", null, sampled ? "How it was drawn" : "Why it was played"), how, (sampled || isAsked) && h("p", null, button), said);
}

const BUCKETS = [
  { name: "bucket", of: (r) => r.bucket },
  { name: "share", of: (r) => percent(r.share, 1), number: true },
  { name: "agent", of: (r) => r.agent },
  { name: "rating", of: (r) => decimal(r.rating), number: true },
  { name: "in the bucket", of: (r) => percent(r.chance, 1), number: true },
  { name: "per seat", of: (r) => percent(r.share * r.chance, 2), number: true },
];

function explained(found) {
  const verdict = found.agrees
    ? h("p", { class: "good" }, "Agrees: computed again from the history, everything is as recorded.")
    : h("div", { class: "problem" }, "Disagrees:", h("ul", null, found.differences.map((difference) => h("li", null, difference))));
  if (found.kind === "evaluation") {
    const { requested } = found;
    return [verdict, h("p", null, `Number ${found.index + 1} of ${requested.matches.length} of ${requested.evaluation_id} (${requested.suite} of ${requested.agent} against ${requested.opponents.join(", ")}), requested by event ${whole(found.requested_sequence)}.`)];
  }
  const rows = Object.entries(found.explanation.distribution).flatMap(([bucket, { share, probabilities }]) => Object.entries(probabilities).map(([agent, chance]) => ({ bucket, share, agent, chance, rating: found.ratings[agent] ?? null })));
  const shown = table(BUCKETS, { key: (r) => `${r.bucket} ${r.agent}`, caption: "Who could have been drawn" });
  shown.update(rows);
  const draws = found.explanation.picks.map((pick) => h("li", null, `seat ${pick.seat}: ${pick.agent} from ${pick.bucket}`));
  return [verdict, shown.node, h("ul", null, draws)];
}

/** A button that asks for something slow, once at a time, and shows it in `said`. */
function asking(text, waiting, said, ask) {
  const button = h("button", { type: "button", class: "online", onclick: async () => {
    button.disabled = true;
    fill(said, h("p", { class: "soft" }, waiting));
    try {
      fill(said, await ask());
    } catch (error) {
      fill(said, problem(error));
    } finally {
      button.disabled = false;
    }
  } }, text);
  return button;
}

function again(match) {
  const said = h("div", { "aria-live": "polite" });
  const button = asking("play it again", "playing it again …", said, async () => resimulated(await get(`/match/${part(match.match_id)}/resimulate`)));
  return h("section", { class: "online" }, h("h2", null, "Played again"), h("p", { class: "soft" }, "The record goes through the rules again: positions, results, and what bots decide."), h("p", null, button), said);
}

function resimulated(found) {
  const compared = `${whole(found.turns)} turns played again, ${whole(found.positions)} positions and ${whole(found.decisions)} decisions of bots compared.`;
  if (found.identical) return [h("p", { class: "good" }, "Identical"), h("p", null, compared)];
  const { turn, seat, what, recorded, replayed } = found.divergence;
  const where = [turn !== null && `turn ${turn}`, seat !== null && `seat ${seat}`].filter(Boolean).join(", ");
  return h("div", { class: "problem" }, `Differs${where ? ` at ${where}` : ""}: ${what}`, h("dl", null, h("dt", null, "recorded"), h("dd", null, recorded), h("dt", null, "played again"), h("dd", null, replayed)), compared);
}

/** What was played: {node, close, isSaid: whether it is a conversation}. */
async function played(match, phase) {
  const replay = await get(`/match/${part(match.match_id)}/replay`);
  const heading = h("h2", { class: "hidden" }, "What was played");
  if (replay.problem) return { node: h("section", null, heading, h("p", { class: "problem" }, `No moves to show: ${replay.problem}`)) };
  if (replay.episodes.length) return { node: h("section", null, heading, conversations(match, replay.episodes, replay.replies)), isSaid: true };
  if (!replay.pictures.length) {
    // Once it is on the page.
    if (phase) setTimeout(() => document.getElementById(`phase-${phase}`)?.scrollIntoView());
    return { node: h("section", null, heading, transcript(match, replay.turns, replay.replies)) };
  }
  const shown = player(match, replay, phase);
  return { node: h("section", null, heading, shown.node), close: shown.close };
}

/** How the match's file is shown on other pages. */
function embedding(id, name) {
  const text = h("textarea", { rows: 3, readonly: true, class: "statement", "aria-label": "Markup that embeds the match" });
  const closed = h("details", { class: "online" }, h("summary", null, "embed"), h("p", { class: "soft" }, "Put the downloaded file beside your page; #?phase=4 at the end of its name begins there."), text,
    h("button", { type: "button", onclick: () => (text.select(), navigator.clipboard?.writeText(text.value)) }, "copy"));
  // What the address says when it is opened, with the phase that is looked at.
  closed.addEventListener("toggle", () => {
    const phase = here().searchParams.get("phase");
    text.value = `<iframe src="${name}${phase ? `#?phase=${phase}` : ""}" title="${spelled(`Match ${id}`).replaceAll("&", "&amp;").replaceAll('"', "&quot;")}" sandbox="allow-scripts" loading="lazy" width="100%" height="760"></iframe>`;
  });
  return closed;
}

export async function show(main, context) {
  const id = context.path[0] ?? "";
  const [top, middle, below, after] = Array.from({ length: 4 }, () => h("div", { class: "stack" }));
  let said = null;
  let shown = null;

  async function update() {
    const match = await get(`/match/${part(id)}`);
    const now = JSON.stringify(match);
    if (now === said) return;
    said = now;
    // A button's answer stays where it is while nothing else about the match is news.
    fill(top, outcome(match));
    fill(below, match.finished && seats(match), h("div", { class: "columns" }, drawn(match), consequences(match)));
    if (match.finished && !shown) {
      shown = await played(match, Number(context.query.get("phase")) || 0);
      fill(middle, shown.node);
      // What was said cannot be computed again.
      fill(after, !shown.isSaid && again(match));
    }
  }

  await update();
  document.title = spelled(`${id} · ${document.title}`);
  const name = `${id.replace(/[^A-Za-z0-9_@.-]/g, "_")}.html`;
  const file = h("a", { class: "online", href: api(`/match/${part(id)}/file`), download: name }, "download as one file");
  fill(main, h("div", { class: "titled" }, h("h1", null, `Match ${id}`), file, embedding(id, name)), top, middle, below, after);
  return { update, close: () => shown?.close?.() };
}
