// Lineage: every checkpoint and its parent. A row is a policy, or its continuation after a reset; versions go
// from left to right. A selected one shows what it was trained on, and links to its matches, steps and page.

import { here, put } from "../address.js";
import { drawing, SHAPES } from "../graph.js";
import { figures, fill, h, link, part, problem } from "../dom.js";
import { clock, decimal, whole } from "../format.js";
import { get } from "../league.js";
import { table } from "../table.js";

export const title = "Lineage";
export const at = true;

const STEPS = 50;

const CHECKPOINTS = [
  { name: "agent", of: (r) => link(`/agent/${part(r.agent)}`, r.agent), sort: (r) => r.agent },
  { name: "parent", of: (r) => (r.operator ? `${r.operator} of ${r.parents.join(" and ")}` : r.parent ?? "") },
  { name: "why it joined", of: (r) => r.reason || r.kind, sort: (r) => r.reason || r.kind },
  { name: "joined", of: (r) => `event ${whole(r.joined_sequence)}`, number: true, sort: (r) => r.joined_sequence },
  { name: "rating", of: (r) => decimal(r.rating), number: true, sort: (r) => r.rating ?? -Infinity },
  { name: "active", of: (r) => (r.active ? "yes" : "no"), sort: (r) => r.active },
];

const TAKEN = [
  { name: "step", of: (r) => whole(r.step), number: true },
  { name: "time", of: (r) => clock(r.time) },
  { name: "matches", of: (r) => whole(r.matches), number: true },
  { name: "trained on", of: (r) => whole(r.accepted), number: true },
  { name: "too old", of: (r) => whole(r.stale), number: true },
  { name: "loss", of: (r) => decimal(r.figures.loss, 4), number: true },
  { name: "mean reward", of: (r) => decimal(r.figures.reward_mean, 3), number: true },
];

const MET = [
  { name: "opponent", of: (r) => link(`/agent/${part(r.agent)}`, r.agent) },
  { name: "seats", of: (r) => whole(r.seats), number: true },
  { name: "matches", of: (r) => whole(r.matches), number: true },
];

export async function show(main, context) {
  const graph = drawing(choose);
  const all = table(CHECKPOINTS, { key: (r) => r.agent, caption: "Every checkpoint", empty: "none has joined" });
  const detail = h("section", { hidden: true, "aria-live": "polite", "aria-label": "The chosen checkpoint" });
  const legend = h("ul", { class: "legend" });
  const names = h("datalist", { id: "checkpoints" });
  const find = h("input", { type: "search", list: "checkpoints", onchange: () => choose(find.value.trim()) });
  let agents = [];
  let said = "";
  let turn = 0;

  async function update() {
    agents = await get("/lineage", { at: context.at });
    // Drawn again only when something joined, left or was rated: hundreds of shapes are not cheap.
    if (said === JSON.stringify(agents)) return;
    said = JSON.stringify(agents);
    graph.update(agents);
    all.update(agents);
    fill(legend, kinds(agents));
    fill(names, agents.map((each) => h("option", { value: each.agent })));
  }

  async function choose(name) {
    detail.hidden = !name;
    const agent = agents.find((each) => each.agent === name);
    if (!agent) return void (name && fill(detail, h("p", null, `No checkpoint is called ${name}.`)));
    const mine = ++turn;
    graph.choose(name);
    const address = here();
    address.searchParams.set("agent", name);
    put(address);
    fill(detail, heading(agent, agents, choose), h("p", { class: "soft" }, "…"));
    try {
      const made = agent.policy ? await trained(agent, context.at) : [];
      if (mine === turn) fill(detail, heading(agent, agents, choose), made);
    } catch (error) {
      if (mine === turn) fill(detail, heading(agent, agents, choose), problem(error));
    }
  }

  await update();
  fill(main, h("h1", null, "Lineage"),
    h("p", { class: "soft" }, "Arrows move between checkpoints, Enter chooses one. Hollow ones are not drawn as opponents any more."),
    h("section", null, h("form", { class: "form", onsubmit: (event) => event.preventDefault() }, h("label", null, "Find a checkpoint", find), names), legend, graph.node), detail, h("details", null, h("summary", null, "All as a table"), all.node));
  const named = context.query.get("agent");
  if (named) choose(named);
  return { update };
}

function kinds(agents) {
  const counts = new Map();
  for (const agent of agents) counts.set(agent.reason || agent.kind, (counts.get(agent.reason || agent.kind) ?? 0) + 1);
  return [...counts].map(([reason, count]) => h("li", null, SHAPES.sample(reason), ` ${reason} (${whole(count)})`));
}

/** The way back to the base model, the nearest ancestors first. */
function ancestors(agent, agents) {
  const known = new Map(agents.map((each) => [each.agent, each]));
  const way = [];
  for (let next = known.get(agent.parent); next && !way.includes(next); next = known.get(next.parent)) way.push(next);
  return way;
}

function heading(agent, agents, choose) {
  const go = (each) => h("button", { type: "button", onclick: () => choose(each.agent) }, each.agent);
  const way = ancestors(agent, agents);
  const children = agents.filter((each) => each.parent === agent.agent || each.parents?.includes(agent.agent));
  const parents = agents.filter((each) => agent.parents?.includes(each.agent));
  const steps = agent.policy ? `${whole(agent.first_step)} to ${whole(agent.version)}` : "none";
  return [
    h("h2", null, agent.agent),
    figures([
      ["joined as", agent.reason || agent.kind], ["at event", whole(agent.joined_sequence)], ["rating", decimal(agent.rating)],
      ["rated games", whole(agent.rated_games)], ["gradient steps since its parent", steps], ["drawn as an opponent", agent.active ? "yes" : "no"],
    ]),
    h("p", { class: "links" }, link(`/agent/${part(agent.agent)}`, "its page"), h("span", { class: "online" }, " · ", link(`/matches?agent=${part(agent.agent)}`, "its matches"),
      agent.policy && [" · ", link(`/training?policy=${part(agent.policy)}&from=${agent.first_step}&to=${agent.version}`, "its gradient steps as curves")])),
    agent.operator && h("p", null, `Began from a ${agent.operator} of `, parents.map((each, i) => [i ? " and " : "", go(each)])),
    way.length > 0 && h("p", null, "From ", way.slice(0, 6).map((each, i) => [i ? " ← " : "", go(each)]), way.length > 6 && ` ← ${whole(way.length - 6)} more`),
    children.length > 0 && h("p", null, "Became ", children.slice(0, 8).map((each) => [go(each), " "]), children.length > 8 && `and ${whole(children.length - 8)} more`),
    agent.adapter && h("p", { class: "soft" }, "adapter ", h("code", null, agent.adapter.slice(0, 16))),
  ];
}

async function trained(agent, at) {
  const steps = { policy: agent.policy, from: agent.first_step, to: agent.version, at };
  const [taken, met] = await Promise.all([get("/training/steps", { ...steps, limit: STEPS }), get("/lineage/against", steps)]);
  const rows = table(TAKEN, { key: (r) => r.step, caption: `Gradient steps since its parent, the newest ${STEPS}`, empty: "none" });
  const opponents = table(MET, { key: (r) => r.agent, caption: "Opponents in training since its parent", empty: "none" });
  rows.update(taken);
  opponents.update(met);
  return h("div", { class: "columns" }, rows.node, opponents.node);
}
