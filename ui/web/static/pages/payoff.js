// Shares of points between agents.

import { matrix } from "../charts.js";
import { choice, remember } from "../choices.js";
import { fill, h, link, part, problem } from "../dom.js";
import { whole } from "../format.js";
import { get } from "../league.js";
import { paced } from "../pace.js";

export const title = "Payoff";
export const at = true;

const SIZES = ["8", "12", "20", "40", "80"];
const WHO = [["played", "in the most matches"], ["rated", "rated best"]];
const PURPOSES = [["", "all"], ["training", "training"], ["evaluation", "evaluation"]];

export async function show(main, context) {
  const asked = (name, options, usual) => (options.includes(context.query.get(name)) ? context.query.get(name) : usual);
  let most = asked("most", SIZES, "12");
  let who = asked("who", WHO.map(([value]) => value), "played");
  let purpose = asked("purpose", PURPOSES.map(([value]) => value), "");
  const place = h("section");
  const status = h("div");
  let said = null;
  let turns = 0;

  async function update() {
    const turn = ++turns;
    const found = await get("/payoff", { most, who, purpose, at: context.at });
    if (turn !== turns) return;
    fill(status);
    const text = JSON.stringify(found.pairs);
    if (text === said) return;
    said = text;
    fill(place, h("p", { class: "soft" }, about(found, purpose)), matrix(found.shown, cells(found), { label: "Rows against columns", of: named }));
  }

  const steady = paced(update);

  // Not awaited: comparing all agents of a long history takes seconds.
  function compare() {
    fill(status, h("p", { class: "soft", role: "status" }, "Comparing…"));
    update().catch((error) => fill(status, problem(error)));
  }

  function chosen() {
    remember({ most: most === "12" ? null : most, who: who === "played" ? null : who, purpose });
    compare();
  }

  const form = h("form", { class: "form online", onsubmit: (event) => event.preventDefault() },
    choice("agents", [["", SIZES.map((size) => [size, size])]], most, (value) => { most = value; chosen(); }),
    choice("those", [["", WHO]], who, (value) => { who = value; chosen(); }),
    choice("matches for", [["", PURPOSES]], purpose, (value) => { purpose = value; chosen(); }));
  fill(main, h("h1", null, "Payoff"), form, status, place);
  compare();
  return steady;
}

function named(agent) {
  return link(`/agent/${part(agent)}`, agent);
}

function about(found, purpose) {
  const shown = found.shown.length;
  const which = shown >= found.agents ? "all agents" : `${shown} of ${whole(found.agents)} agents, those ${found.who === "rated" ? "rated best" : "in the most matches"}`;
  return `Share of the points that the row took from the column in ${purpose ? `${purpose} matches` : "all matches"} up to event ${whole(found.sequence)}, best mean share first; ${which}.`;
}

function cells({ shown, pairs }) {
  const met = new Map(pairs.map((pair) => [JSON.stringify([pair.agent, pair.opponent]), pair]));
  return shown.map((row) => shown.map((column) => {
    const pair = met.get(JSON.stringify([row, column]));
    if (!pair) return { value: null, text: row === column ? "·" : "", title: row === column ? row : `${row} and ${column} never met` };
    const { share, low, high, games } = pair;
    return { value: share, text: share.toFixed(2), title: `${row} against ${column}: ${share.toFixed(2)}, 95 % interval ${low.toFixed(2)} to ${high.toFixed(2)}, ${whole(games)} game${games === 1 ? "" : "s"}` };
  }));
}
