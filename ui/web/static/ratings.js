// Rating histories as a chart; zooming in reloads a part with finer points.

import { lines } from "./charts.js";
import { joined } from "./choices.js";
import { fill, h } from "./dom.js";
import { whole } from "./format.js";
import { get } from "./league.js";

const AXES = {
  event: { name: "event", format: whole },
  time: { name: "time (UTC)", format: (ms) => new Date(ms).toISOString().slice(5, 19).replace("T", " ") },
  games: { name: "rated games", format: whole },
  step: { name: "gradient step", format: whole },
};

/** How histories can be laid out: [[value, name], …]. */
export const WAYS = [["event", "event"], ["time", "time"], ["games", "games"], ["step", "gradient step"]];

/**
 * A chart of rating histories.
 *
 * Returns {node, show({agents, system, by, at}), update()}; `at` is marked, except by games, where it is another place
 * for everybody. `first` is the part that it begins with, [from, to]; `onzoom` is called with others.
 */
export function ratingChart(label, first = null, onzoom = () => {}) {
  const node = h("div");
  const about = h("p", { class: "soft" });
  let wanted = null;
  let part = first;
  let chart = null;
  let asks = 0;

  function made(by) {
    const axis = AXES[by];
    return lines({ label, x: axis.name, y: "rating", height: 340, format: axis.format, onzoom: (to) => zoomed(to) });
  }

  function zoomed(to) {
    part = to;
    onzoom(to);
    update().catch((error) => fill(about, error.message));
  }

  async function update() {
    if (!wanted) return;
    const turn = ++asks;
    const { agents, system, by, at } = wanted;
    const range = part ? { from: Math.max(Math.floor(part[0]), 0), to: Math.max(Math.ceil(part[1]), 0) } : {};
    const [found, mark] = await Promise.all([agents.length ? get("/ratings", { agents: joined(agents), system, by, ...range }) : null, marked(by, at)]);
    if (turn !== asks) return;
    chart.update((found?.series ?? []).map((one) => ({ name: one.agent, points: one.points })), mark);
    fill(about, found ? said(found) : "No agent is chosen.");
  }

  return {
    node: h("section", null, node, about),
    async show(to) {
      if (!chart || to.by !== wanted.by) {
        if (chart) onzoom((part = null));
        chart = made(to.by);
        chart.view(part);
        fill(node, chart.node);
      }
      wanted = to;
      await update();
    },
    update,
  };
}

async function marked(by, at) {
  if (at === null || by === "games" || by === "step") return null;
  return by === "event" ? at : (await get("/when", { at })).time_ms;
}

function said(found) {
  const band = found.interval ? `The band is the ${found.interval}` : "This system states no deviation, so there is no band.";
  const none = found.series.filter((one) => !one.points.length).map((one) => one.agent);
  return [`${found.system} in ${found.game}, as it was recorded. ${band}`, none.length ? ` No rated match here: ${none.join(", ")}.` : ""];
}

/** Leaderboard ratings of each policy's versions over gradient steps, beside the baselines; `update` takes what /learning answers. */
export function policyChart() {
  const chart = lines({ label: "Rating of each version over gradient steps, with 95 % bands", x: "gradient step", y: "rating", height: 260, format: whole });
  function update(found) {
    const last = Math.max(1, ...found.policies.flatMap((p) => p.points.map((point) => point[0])));
    const level = (name, rating) => ({ name, points: [[0, rating], [last, rating]] });
    chart.node.hidden = !found.policies.length;
    chart.update([...found.policies.map((p) => ({ name: p.policy, points: p.points })), ...found.baselines.map((b) => level(b.agent, b.rating))]);
  }
  return { node: chart.node, update };
}
