// Shares of points between agents, and how far they are a ranking or cyclic.

import { matrix } from "../charts.js";
import { choice, remember } from "../choices.js";
import { figures, fill, h, link, part, problem } from "../dom.js";
import { decimal, percent, whole } from "../format.js";
import { get } from "../league.js";
import { paced } from "../pace.js";
import { table } from "../table.js";

export const title = "Payoff";
export const at = true;

const SIZES = ["8", "12", "20", "40", "80"];
const WHO = [["played", "in the most matches"], ["rated", "rated best"]];
const PURPOSES = [["", "all"], ["training", "training"], ["evaluation", "evaluation"]];

const ROWS = [
  { name: "agent", of: (r) => named(r.agent) },
  { name: "log-strength", of: (r) => decimal(r.potential, 3), number: true, sort: (r) => r.potential },
  { name: "Nash share", of: (r) => decimal(r.share, 3), number: true, sort: (r) => r.share ?? 0 },
  { name: "Nash worth", of: (r) => signed(r.worth), number: true, sort: (r) => r.worth ?? 0 },
];

export async function show(main, context) {
  const asked = (name, options, usual) => (options.includes(context.query.get(name)) ? context.query.get(name) : usual);
  let most = asked("most", SIZES, "12");
  let who = asked("who", WHO.map(([value]) => value), "played");
  let purpose = asked("purpose", PURPOSES.map(([value]) => value), "");
  const strengths = table(ROWS, { key: (r) => r.agent, caption: "A ranking's part of it: log-odds that fit best" });
  const place = h("div");
  const numbers = h("div");
  let said = null;
  let turns = 0;

  async function update() {
    const turn = ++turns;
    const found = await get("/payoff", { most, who, purpose, at: context.at });
    if (turn !== turns) return;
    const text = JSON.stringify(found.payoff);
    fill(numbers, circles(found));
    strengths.update(found.payoff.agents.map((agent, i) => ({ agent, potential: found.circularity.potential[i], share: found.nash?.share[i] ?? null, worth: found.nash?.worth[i] ?? null })));
    if (text === said) return;
    said = text;
    fill(place, h("p", { class: "soft" }, about(found)), matrix(found.payoff.agents, cells(found.payoff), { label: "Rows against columns", of: named }));
  }

  const steady = paced(update);

  // Not awaited: comparing all agents of a long history takes seconds.
  function compare() {
    fill(numbers, h("p", { class: "soft", role: "status" }, "Comparing…"));
    update().catch((error) => fill(numbers, problem(error)));
  }

  function chosen() {
    remember({ most: most === "12" ? null : most, who: who === "played" ? null : who, purpose });
    compare();
  }

  const form = h("form", { class: "form", onsubmit: (event) => event.preventDefault() },
    choice("agents", [["", SIZES.map((size) => [size, size])]], most, (value) => { most = value; chosen(); }),
    choice("those", [["", WHO]], who, (value) => { who = value; chosen(); }),
    choice("matches for", [["", PURPOSES]], purpose, (value) => { purpose = value; chosen(); }));
  fill(main, h("h1", null, "Payoff"), form, numbers, place, h("section", null, strengths.node));
  compare();
  return steady;
}

/** A number without the sign of what rounds to nothing. */
function signed(value) {
  return decimal(value !== null && Math.abs(value) < 5e-4 ? 0 : value, 3);
}

function named(agent) {
  return link(`/agent/${part(agent)}`, agent);
}

function about(found) {
  const shown = found.payoff.agents.length;
  const which = shown >= found.agents ? "all agents" : `${shown} of ${whole(found.agents)} agents, those ${found.who === "rated" ? "rated best" : "in the most matches"}`;
  const unmet = found.unmet ? ` ${whole(found.unmet)} of ${whole((shown * (shown - 1)) / 2)} pairs never met.` : "";
  const passed = found.payoff.passed_over ? ` ${whole(found.payoff.passed_over)} matches compare no two of them.` : "";
  return `${found.game}, matches for ${found.purposes.join(" and ")} up to event ${whole(found.sequence)}: the share of the points that the row took from the column, strongest first; ${which}.${unmet}${passed}`;
}

function cells({ agents, share, low, high, matches }) {
  return agents.map((row, i) => agents.map((column, j) => {
    const value = share[i][j];
    if (value === null) return { value, text: i === j ? "·" : "", title: i === j ? row : `${row} and ${column} never met` };
    const games = `${whole(matches[i][j])} game${matches[i][j] === 1 ? "" : "s"}`;
    return { value, text: value.toFixed(2), title: `${row} against ${column}: ${value.toFixed(2)}, 95 % interval ${low[i][j].toFixed(2)} to ${high[i][j].toFixed(2)}, ${games}` };
  }));
}

function circles(found) {
  const { cycles, cyclic_share: share, beyond_chance: beyond, p_value: p } = found.circularity;
  const rough = found.seats > 2 ? " The p-value is approximate, since matches have more than two seats." : "";
  const whole_ = cycles
    ? [["cyclic share", percent(share, 1)], ["beyond chance", percent(beyond, 1)], ["p-value", p < 0.001 ? p.toExponential(1) : p.toFixed(3)], ["independent cycles", whole(cycles)]]
    : [["cyclic share", "0"]];
  const nash = found.nash ? [["Nash: as diverse as", `${Math.exp(found.nash.entropy).toFixed(2)} agents`]] : [];
  const words = cycles ? `The cyclic share is what no ranking explains of the squared log-odds.${rough}` : "No three agents met all round, so nothing can go in circles.";
  return [figures([...whole_, ...nash]), h("p", { class: "soft" }, words, found.nash ? " Pairs that never met count as even in the Nash average." : ` No Nash average: ${found.problem}`)];
}
