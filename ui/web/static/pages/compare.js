// Compare: several runs side by side, as of now: how they stand, ratings over gradient steps, benchmarks, and metrics.

import { lines } from "../charts.js";
import { curves } from "../curves.js";
import { fill, h } from "../dom.js";
import { decimal, percent, whole } from "../format.js";
import { get } from "../league.js";
import { paced } from "../pace.js";
import { table } from "../table.js";

export const title = "Compare";
export const at = false;

const RUNS = [
  { name: "run", of: (r) => h("a", { href: `/?run=${encodeURIComponent(r.run)}` }, r.run) },
  { name: "league", of: (r) => r.league },
  { name: "game", of: (r) => r.game },
  { name: "gradient steps", of: (r) => whole(r.step), number: true, sort: (r) => r.step },
  { name: "training matches", of: (r) => whole(r.training_matches), number: true, sort: (r) => r.training_matches },
  { name: "best checkpoint", of: (r) => r.best?.agent ?? "–" },
  { name: "rating", of: (r) => decimal(r.best?.rating ?? null), number: true, sort: (r) => r.best?.rating ?? -Infinity },
  { name: "above the best baseline", of: (r) => decimal(r.above, 0), number: true, sort: (r) => r.above ?? -Infinity },
];

const BENCHMARKS = [
  { name: "against", of: (b) => b.opponent, sort: (b) => b.opponent },
  { name: "run", of: (b) => b.run, sort: (b) => b.run },
  { name: "version", of: (b) => b.after.agent },
  { name: "won", of: (b) => percent(b.after.share, 1), number: true, sort: (b) => b.after.share },
  { name: "95 %", of: (b) => `${percent(b.after.low, 1)} … ${percent(b.after.high, 1)}`, number: true },
  { name: "games", of: (b) => whole(b.after.games), number: true },
  { name: "before", of: (b) => (b.before ? percent(b.before.share, 1) : "–"), number: true },
];

export async function show(main, context) {
  const runs = (await get("/runs")).map((one) => one.run);
  const standing = table(RUNS, { key: (r) => r.run, caption: "Runs" });
  const ratings = lines({ label: "Rating of each version, as it stands, over gradient steps, with 95 % bands", x: "gradient step", y: "rating", height: 300, format: whole });
  const benchmarks = table(BENCHMARKS, { key: (b) => `${b.run} ${b.policy} ${b.opponent}`, caption: "Games won by the newest version with one opponent in all other seats", empty: "no benchmark of a trained version has finished" });
  const charts = curves(context, runs);
  const all = (path) => Promise.all(runs.map((run) => get(path, { run })));

  async function update() {
    const [counts, learned, trained] = await Promise.all([all("/overview"), all("/learning"), all("/training")]);
    standing.update(runs.map((run, i) => {
      const { best, baselines } = learned[i];
      return { ...counts[i], run, best, above: best && baselines.length ? best.rating - baselines[0].rating : null };
    }));
    ratings.update(runs.flatMap((run, i) => learned[i].policies.map((p) => ({ name: learned[i].policies.length > 1 ? `${run} ${p.policy}` : run, points: p.points }))));
    benchmarks.update(runs.flatMap((run, i) => learned[i].benchmarks.map((b) => ({ ...b, run }))).sort((a, b) => a.opponent.localeCompare(b.opponent)));
    charts.know(runs.map((run, i) => [run, trained[i]]));
    await charts.update();
  }

  await update();
  fill(main, h("h1", null, "Compare"), standing.node, h("p", { class: "soft" }, "Ratings are of each league's own; benchmarks against the same opponents compare between leagues."),
    h("div", { class: "columns" }, ratings.node, benchmarks.node), charts.node);
  const steady = paced(update);
  return {
    update: steady.update,
    close() {
      steady.close();
      charts.close();
    },
  };
}
