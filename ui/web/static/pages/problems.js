// Problems: alarms, dead letters, failed matches and voided results.

import { fill, h, link, part, problem } from "../dom.js";
import { clock, decimal, seconds, whole } from "../format.js";
import { get } from "../league.js";
import { again } from "../pace.js";
import { table } from "../table.js";

export const title = "Problems";
export const at = false;

const EVERY_MS = 5000;

const event = { name: "event", of: (r) => whole(r.sequence), number: true };
const time = { name: "time", of: (r) => clock(r.time) };
const matchOf = { name: "match", of: (r) => link(`/match/${part(r.match_id)}`, r.match_id) };

const ALARMS = [
  { name: "alarm", of: (r) => h("strong", { class: "bad" }, r.name) },
  { name: "what", text: true, of: (r) => r.text },
];

const FAILURES = [
  { name: "matches", of: (r) => whole(r.matches), number: true },
  { name: "why", text: true, of: (r) => r.error },
  { name: "of", of: (r) => r.purposes.join(", ") },
  { name: "workers", of: (r) => r.workers.join(", ") },
  { name: "first", of: (r) => clock(r.first) },
  { name: "last", of: (r) => clock(r.last) },
  { name: "newest", of: (r) => link(`/match/${part(r.newest)}`, r.newest) },
];

const VOIDS = [event, time, matchOf, { name: "why", text: true, of: (r) => r.reason },
  { name: "steps that had used it", of: (r) => whole(r.tainted), number: true }];

const REGRESSIONS = [event, { name: "agent", of: (r) => link(`/agent/${part(r.agent)}`, r.agent) },
  { name: "rating", of: (r) => decimal(r.rating), number: true },
  { name: "below", text: true, of: (r) => r.others.map((name, i) => `${name} (${decimal(r.ratings[i])})`).join(", ") }];

const WAITED = [
  { name: "evaluation", of: (r) => r.evaluation_id },
  { name: "agent", of: (r) => link(`/agent/${part(r.agent)}`, r.agent) },
  { name: "suite", of: (r) => r.suite },
  { name: "asked for", of: (r) => clock(r.time) },
  { name: "played", of: (r) => `${whole(r.played)} of ${whole(r.matches)}`, number: true },
  { name: "took", of: (r) => `${seconds(r.seconds)}${r.finished_sequence === null ? ", still open" : ""}`, number: true },
];

const UNREADABLE = [
  { name: "type", of: (r) => r.type },
  { name: "events", of: (r) => whole(r.events), number: true },
  { name: "first", of: (r) => whole(r.first), number: true },
  { name: "last", of: (r) => whole(r.last), number: true },
];

export async function show(main) {
  const letter = h("section", { "aria-live": "polite" });
  const LETTERS = [
    { name: "number", of: (r) => [r.number, " ", h("button", { type: "button", class: "online", "aria-label": `Open letter ${r.number}`, onclick: () => open(r.number, letter) }, "open")] },
    { name: "set aside", of: (r) => clock(r.time) },
    { name: "message", of: (r) => `${r.stream} ${whole(r.sequence)}` },
    { name: "tried", of: (r) => whole(r.tries), number: true },
    { name: "why", text: true, of: (r) => r.error },
  ];
  const kinds = [
    ["alarms", "Alarms now", ALARMS, (r) => r.name],
    ["letters", "Dead letters: messages that could not be decoded, and jobs that failed too often", LETTERS, (r) => r.number],
    ["failures", "Matches that failed, by reason", FAILURES, (r) => r.error],
    ["voids", "Results that were taken back", VOIDS, (r) => r.match_id],
    ["regressions", "Versions that were rated below a baseline", REGRESSIONS, (r) => r.sequence],
    ["waited", "Evaluations that waited", WAITED, (r) => r.evaluation_id],
    ["unreadable", "Events that this version cannot read", UNREADABLE, (r) => r.type],
  ].map(([name, heading, columns, key]) => ({ name, heading, table: table(columns, { key }) }));
  const well = h("p", { class: "good", role: "status" });
  const trouble = h("div");
  const sections = kinds.map((kind) => h("section", { "aria-label": kind.heading }, h("h2", null, kind.heading), kind.table.node, kind.name === "letters" && letter));

  async function update() {
    try {
      const found = await get("/problems");
      kinds.forEach((kind, i) => {
        sections[i].hidden = !found[kind.name].length;
        kind.table.update(found[kind.name]);
      });
      const now = found.alarms.length ? "" : "No alarm now.";
      fill(well, kinds.some((kind) => found[kind.name].length) ? now : "All is well: no alarm, no dead letter, no failed match, nothing taken back.");
      fill(trouble);
    } catch (error) {
      fill(trouble, problem(error));
    }
  }

  await update();
  fill(main, h("h1", null, "Problems"), trouble, well, sections);
  return { close: again(update, EVERY_MS) };
}

/** A letter and its message, below the list. */
async function open(number, into) {
  try {
    const found = await get(`/problems/letters/${number}`);
    const retry = found.can_be_retried ? `league dead-letters ${number} --retry puts it back on the queue.` : "Only jobs can be tried again.";
    fill(into, h("h3", null, `Letter ${number}`), h("p", null, found.error),
      h("p", { class: "soft" }, `Message ${whole(found.sequence)} of ${found.stream}, subject ${found.subject}. ${retry}`,
        found.match_id && [" Match ", link(`/match/${part(found.match_id)}`, found.match_id)]),
      found.message === null ? h("p", null, "The message is gone from its stream.") : h("pre", { tabindex: 0 }, found.message),
      found.bytes > found.message?.length && h("p", { class: "soft" }, `${whole(found.bytes)} bytes in all`));
  } catch (error) {
    fill(into, problem(error));
  }
}
