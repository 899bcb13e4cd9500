// Matchmaking: target and realised shares of the buckets, and the opponents.

import { here, put } from "../address.js";
import { bars, COLOURS, lines } from "../charts.js";
import { fill, h, link, part, problem } from "../dom.js";
import { decimal, percent, whole } from "../format.js";
import { get } from "../league.js";
import { again } from "../pace.js";
import { table } from "../table.js";

export const title = "Matchmaking";
export const at = true;

const AGAIN_MS = 20_000;
const RESTS_MS = 700;
const SMALL = 0.02; // Opponents that are drawn less often are shown together.

const OPPONENTS = [
  { name: "opponent", of: (r) => (r.all ? h("details", null, h("summary", null, r.agent), r.all.map((agent, i) => [i ? ", " : "", link(`/agent/${part(agent)}`, agent)])) : link(`/agent/${part(r.agent)}`, r.agent)), sort: (r) => r.agent },
  { name: "from", of: (r) => r.buckets.join(", ") },
  { name: "seats", of: (r) => whole(r.picks), number: true, sort: (r) => r.picks },
  { name: "share", of: (r) => percent(r.share, 1), number: true, sort: (r) => r.share },
  { name: "chance now", of: (r) => (r.now === null ? "–" : percent(r.now, 1)), number: true, sort: (r) => r.now ?? -1 },
  { name: "matches", of: (r) => whole(r.matches), number: true, wide: true, sort: (r) => r.matches },
  { name: "last drawn", of: (r) => (r.newest ? `event ${whole(r.newest)}` : "never"), number: true, wide: true, sort: (r) => r.newest },
];

export async function show(main, context) {
  let policy = context.query.get("policy") ?? "";
  const opponents = table(OPPONENTS, { key: (r) => `${r.agent} ${r.all ? r.buckets : ""}`, empty: "no opponents drawn yet" });
  const choice = h("div", { class: "form online" });
  const buckets = h("div", null, h("p", { class: "soft" }, "Targets are computed again from the history …"));
  const heading = h("p", { class: "soft" });
  let listed = "";
  let audits = 0;
  let said = "";

  const ask = () => ({ policy, at: context.at });

  async function update() {
    const found = await get("/matchmaking", ask());
    offer(found.policies);
    const chances = found.now?.agents ?? null;
    const drawn = new Set(found.opponents.map((r) => r.agent));
    fill(heading, "Opponents by seats drawn.", found.now && ` Chance now: of a seat in the next match of ${found.now.policy}, by ${found.now.sampler}.`);
    const undrawn = Object.keys(chances ?? {}).filter((agent) => !drawn.has(agent));
    opponents.update(grouped([
      ...found.opponents.map((r) => ({ ...r, now: chances ? chances[r.agent] ?? 0 : null })),
      ...undrawn.map((agent) => ({ agent, buckets: [], picks: 0, share: 0, now: chances[agent], matches: 0, newest: 0 })),
    ]));
  }

  function offer(policies) {
    if (listed === policies.join("\n")) return;
    listed = policies.join("\n");
    const options = [h("option", { value: "" }, "all policies"), policies.map((name) => h("option", { value: name, selected: name === policy }, name))];
    fill(choice, policies.length > 1 && h("label", null, "Matches of", h("select", { onchange: choose }, options)));
  }

  function choose(event) {
    policy = event.target.value;
    const address = here();
    if (policy) address.searchParams.set("policy", policy);
    else address.searchParams.delete("policy");
    put(address);
    update();
    audit();
  }

  async function audit() {
    const turn = ++audits;
    try {
      const found = await get("/matchmaking/audit", ask());
      // What says the same stays as it is, with its zoom and the focus.
      if (turn !== audits || said === JSON.stringify(found)) return;
      said = JSON.stringify(found);
      fill(buckets, found.audit ? drawn(found.audit) : h("p", { class: "soft" }, found.why));
    } catch (error) {
      if (turn !== audits) return;
      said = "";
      fill(buckets, problem(error));
    }
  }

  await update();
  // While the slider of time moves, this page is shown again and again: only where it rests is an audit worth its time.
  const first = setTimeout(audit, context.at === null ? 0 : RESTS_MS);
  const end = context.at === null ? again(audit, AGAIN_MS) : () => {};
  fill(main, h("h1", null, "Matchmaking"), choice, h("section", null, buckets), h("section", { "aria-label": "Opponents" }, heading, opponents.node));
  return {
    update,
    close() {
      clearTimeout(first);
      end();
    },
  };
}

/** Opponents by seats; those that were, and would be, drawn rarely as one row for each of their buckets. */
function grouped(rows) {
  const small = Map.groupBy(rows.filter((r) => r.share < SMALL && !(r.now >= SMALL)), (r) => r.buckets.join(", "));
  const together = [...small].filter(([, list]) => list.length > 2);
  const gone = new Set(together.flatMap(([, list]) => list));
  const sum = (list, name) => list.reduce((total, r) => total + r[name], 0);
  return [...rows.filter((r) => !gone.has(r)), ...together.map(([, list]) => ({
    ...list[0], agent: `${whole(list.length)} others, each below ${percent(SMALL)}`, all: list.map((r) => r.agent),
    picks: sum(list, "picks"), share: sum(list, "share"), matches: sum(list, "matches"), newest: Math.max(...list.map((r) => r.newest)),
    now: list[0].now === null ? null : sum(list, "now"),
  }))].sort((a, b) => b.picks - a.picks);
}

/** An audit: the whole of it as bars, its windows as lines. */
function drawn(audit) {
  const { whole: all, windows } = audit;
  const names = [...new Set([...Object.keys(all.target), ...Object.keys(all.realised)])].sort((a, b) => (all.target[b] ?? 0) - (all.target[a] ?? 0));
  const rows = names.map((name) => ({ name, value: all.realised[name] ?? 0, target: all.target[name] }));
  return [
    bars(rows, { label: "Share of the seats drawn from each bucket; the mark says what it should be. Shares of empty buckets go to the others.", format: (v) => percent(v, 1), most: 1 }),
    h("p", null, said(all)),
    windows.length > 1 && over(windows, names),
    h("p", { class: "soft" }, `Targets are those of ${whole(all.recomputed)} of ${whole(all.draws)} draws, spaced evenly, computed again from the standings of their time.`,
      audit.passed_over > 0 && ` ${whole(audit.passed_over)} have none that could be computed; the first: ${audit.problem}`),
  ];
}

function said(all) {
  if (all.distance === null) return "No target could be computed.";
  return `Distance between the two (total variation): ${decimal(100 * all.distance, 2)} %; by chance about ${decimal(100 * all.by_chance, 2)} % is to be expected of ${whole(all.picks)} seats.`;
}

function over(windows, names) {
  const middle = (w) => (w.first_step + w.last_step) / 2;
  const chart = lines({ label: "Realised shares over training, and their targets", x: "gradient step", y: "", height: 260, floor: 0, format: (x) => whole(Math.round(x)) });
  chart.update(names.flatMap((name, n) => [
    { name, style: n, points: windows.map((w) => [middle(w), w.realised[name] ?? 0]), marks: true },
    { name: `${name}, target`, style: n + COLOURS, points: windows.filter((w) => w.distance !== null).map((w) => [middle(w), w.target[name] ?? 0]) },
  ]));
  return chart.node;
}
