// Rating histories of any agents under the recorded rating systems.

import { choice, joined, parted, remember, systemGroups } from "../choices.js";
import { fill, h, link, part, problem } from "../dom.js";
import { decimal, whole } from "../format.js";
import { get } from "../league.js";
import { paced } from "../pace.js";
import { policyChart, ratingChart, WAYS } from "../ratings.js";
import { table } from "../table.js";

export const title = "Ratings";
export const at = true;

const MOST = 20;
const USUAL = 6;

const ROWS = (remove) => [
  { name: "agent", of: (r) => link(`/agent/${part(r.agent)}`, r.agent) },
  { name: "rating", of: (r) => decimal(r.online), number: true, sort: (r) => r.online ?? -Infinity },
  { name: "deviation", of: (r) => decimal(r.deviation), number: true },
  { name: "rated games", of: (r) => whole(r.rated_games), number: true, sort: (r) => r.rated_games ?? 0 },
  { name: "", of: (r) => h("button", { type: "button", class: "online", "aria-label": `Remove ${r.agent}`, onclick: () => remove(r.agent) }, "×") },
];

export async function show(main, context) {
  const systems = await get("/systems");
  const ends = ["from", "to"].map((name) => context.query.get(name));
  const range = ends.every((end) => /^\d{1,16}$/.test(end ?? "")) ? ends.map(Number) : null;
  const chart = ratingChart("Ratings", range, (to) => remember({ from: to && Math.max(Math.floor(to[0]), 0), to: to && Math.max(Math.ceil(to[1]), 0) }));
  const policies = policyChart();
  const standing = table(ROWS(remove), { key: (r) => r.agent, caption: context.at === null ? "Chosen, as they stand now" : `Chosen, as they stood at event ${whole(context.at)}`, empty: "nobody is chosen" });
  const said = h("div", { role: "status", class: "soft" });
  let system = context.query.get("system") ?? systems.official;
  let by = WAYS.some(([way]) => way === context.query.get("by")) ? context.query.get("by") : "event";
  let chosen = parted(context.query.get("agents")).slice(0, MOST);

  async function board() {
    const found = await get("/leaderboard", { at: context.at, system });
    const rows = new Map(found.rows.map((r) => [r.agent, r]));
    standing.update(chosen.map((agent) => rows.get(agent) ?? { agent, online: null, deviation: null, rated_games: null }));
    return found.rows;
  }

  async function redraw(done = "") {
    remember({ system: system === systems.official ? null : system, by: by === "event" ? null : by, agents: joined(chosen) });
    try {
      await Promise.all([board(), chart.show({ agents: chosen, system, by, at: context.at })]);
      fill(said, done);
    } catch (error) {
      fill(said, problem(error));
    }
  }

  function remove(agent) {
    chosen = chosen.filter((one) => one !== agent);
    redraw(`${agent} is left out.`);
    // The button that had the focus goes.
    main.querySelector("input[type=search]")?.focus();
  }

  function add(agent) {
    if (chosen.includes(agent)) fill(said, `${agent} is shown already.`);
    else if (chosen.length >= MOST) fill(said, `At most ${MOST} agents: remove one first.`);
    else {
      chosen = [...chosen, agent];
      redraw(`${agent} is added.`);
    }
  }

  async function best() {
    try {
      chosen = (await board()).filter((r) => r.rated_games).slice(0, USUAL).map((r) => r.agent);
    } catch (error) {
      fill(said, problem(error));
      return;
    }
    await redraw();
  }

  const form = h("form", { class: "form online", onsubmit: (event) => event.preventDefault() },
    choice("rating system", systemGroups(systems), system, (value) => { system = value; redraw(); }),
    choice("along", [["", WAYS]], by, (value) => { by = value; redraw(); }),
    search(add, said, context.at), h("button", { type: "button", onclick: best }, `best ${USUAL}`));
  async function drawPolicies() {
    policies.update(await get("/learning", { at: context.at }));
  }

  await Promise.all([drawPolicies(), chosen.length ? redraw() : best()]);
  fill(main, h("h1", null, "Ratings"), policies.node, h("h2", null, "Agents one by one"), form, said, chart.node, standing.node);
  return paced(() => Promise.all([drawPolicies(), board(), chart.update()]));
}

/** A field that finds agents by parts of their names. */
function search(add, said, at) {
  const names = h("datalist", { id: "found" });
  const input = h("input", { type: "search", list: "found", autocomplete: "off", placeholder: "part of a name", oninput: look, onkeydown: (event) => { if (event.key === "Enter") take(); } });
  let turns = 0;

  async function look() {
    const turn = ++turns;
    const found = await get("/agents", { search: input.value, limit: 20, at });
    if (turn === turns) fill(names, found.map((one) => h("option", { value: one.agent }, one.kind)));
    return found;
  }

  async function take() {
    const found = input.value ? await look() : [];
    const one = found.find((r) => r.agent === input.value) ?? (found.length === 1 ? found[0] : null);
    if (one) {
      input.value = "";
      add(one.agent);
    } else {
      fill(said, found.length ? `${found.length === 20 ? "Many" : found.length} agents have that in their names: ${found.slice(0, 5).map((r) => r.agent).join(", ")}…` : "No agent has that in its name.");
    }
  }

  return [h("label", null, "add an agent", input, names), h("button", { type: "button", onclick: take }, "add")];
}
