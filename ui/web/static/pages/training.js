// Training: metrics over gradient steps, what became of rollouts, pauses and resets.

import { curves } from "../curves.js";
import { fill, h, link, part, problem } from "../dom.js";
import { clock, decimal, whole } from "../format.js";
import { manifest } from "../frozen.js";
import { get } from "../league.js";
import { thoughts } from "../match/texts.js";
import { again } from "../pace.js";
import { table } from "../table.js";

export const title = "Training";
export const at = true;

const ACCOUNT_MS = 5000;

const POLICIES = [
  { name: "policy", of: (p) => p.policy },
  { name: "steps", of: (p) => whole(p.steps), number: true },
  { name: "newest", of: (p) => whole(p.last_step), number: true },
  { name: "trajectories trained on", of: (p) => whole(p.accepted), number: true },
  { name: "too old", of: (p) => whole(p.stale), number: true },
  { name: "nothing to learn", of: (p) => whole(p.filtered), number: true },
  { name: "skipped steps", of: (p) => whole(p.skipped), number: true },
];

const FATES = ["generated", "trained", "stale", "filtered", "voided", "refused", "given_up", "late", "abandoned", "pending", "unrecorded"];

const LEDGER = [
  { name: "policy", of: (r) => r.policy },
  ...FATES.map((fate) => ({ name: fate.replace("_", " "), of: (r) => whole(r[fate]), number: true })),
  { name: "account", of: (r) => (r.balanced ? "balances" : h("strong", { class: "bad" }, "does not balance")) },
];

const MARKS = [
  { name: "event", of: (m) => whole(m.sequence), number: true },
  { name: "time", of: (m) => clock(m.time) },
  { name: "policy", of: (m) => m.policy || "the whole league" },
  { name: "what", of: (m) => m.what },
  { name: "after step", of: (m) => whole(m.step), number: true },
  { name: "why", text: true, of: (m) => m.reason },
];

const DECISIONS = [
  { name: "advantage", of: (d) => decimal(d.advantage, 3), number: true, sort: (d) => d.advantage },
  { name: "reward", of: (d) => decimal(d.reward, 3), number: true, sort: (d) => d.reward },
  { name: "reply", text: true, of: (d) => [thoughts(d), h("code", null, d.reply)] },
  { name: "log-probability", of: (d) => decimal(d.logprob, 2), number: true, sort: (d) => d.logprob },
  { name: "move", of: (d) => d.move ?? "–" },
  { name: "fault", of: (d) => d.fault },
  { name: "prompt", text: true, of: (d) => h("details", null, h("summary", null, "prompt"), h("pre", null, d.prompt)) },
  { name: "opponents", of: (d) => d.opponents.join(", ") },
  { name: "score", of: (d) => decimal(d.score, 2), number: true, sort: (d) => d.score },
  { name: "outcome", of: (d) => d.outcome },
  { name: "match", of: (d) => link(`/match/${part(d.match_id)}`, d.match_id) },
];

/** What one step of a policy was trained on, by its number. */
function trainedOn(context, policies) {
  const shown = table(DECISIONS, { key: (d) => `${d.match_id} ${d.seat} ${d.call}`, caption: "Decisions, the largest advantages first, positive or negative", empty: "no decision of this step is kept", most: 20 });
  const policy = h("select", { "aria-label": "Policy" }, policies.map((p) => h("option", { value: p.policy }, p.policy)));
  const step = h("input", { type: "number", min: 1, value: policies[0]?.last_step ?? 1, "aria-label": "Step" });
  const below = h("div");
  async function load() {
    try {
      const { rows, total } = await get("/training/decisions", { policy: policy.value, step: step.value, at: context.at, limit: 500 });
      shown.update(rows);
      fill(below, total > rows.length && h("p", { class: "soft" }, `The ${whole(rows.length)} of ${whole(total)} decisions with the largest advantages.`));
    } catch (error) {
      fill(below, problem(error));
    }
  }
  policy.addEventListener("change", load);
  step.addEventListener("change", load);
  // Files have no answer to it, and do not show it.
  if (policies.length && !manifest) load();
  return h("section", { class: "online" }, h("h2", null, "What a step was trained on"), h("p", { class: "form" }, policy, " step ", step), shown.node, below);
}

export async function show(main, context) {
  const known = await get("/training", { at: context.at });
  const marks = table(MARKS, { key: (m) => `${m.sequence} ${m.what}`, caption: "Newest first; a few resets stand as lines in the curves", empty: "never paused, never reset" });
  const ledger = table(LEDGER, { key: (r) => r.policy, caption: "As of now, also by the command league ledger", empty: "no trajectory yet" });
  const charts = curves(context);
  const policies = table(POLICIES, { key: (p) => p.policy, caption: "Policies", empty: "no gradient step yet" });
  const trouble = h("div");

  async function update(found) {
    found ??= await get("/training", { at: context.at });
    policies.update(found.policies);
    marks.update(found.marks);
    charts.know([[null, found]]);
    await charts.update();
  }

  // Apart: it follows every rollout of the history, and the curves need not wait for that.
  async function account() {
    try {
      ledger.update(await get("/training/ledger"));
      fill(trouble);
    } catch (error) {
      fill(trouble, problem(error));
    }
  }

  await update(known);
  account();
  fill(main, h("h1", null, "Training"), policies.node, charts.node,
    trainedOn(context, known.policies),
    h("h2", null, "What became of every trajectory"), ledger.node, trouble,
    h("h2", null, "Pauses, resets, ends"), marks.node);
  const end = again(account, ACCOUNT_MS);
  return {
    update,
    close() {
      end();
      charts.close();
    },
  };
}
