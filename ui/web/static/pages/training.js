// Training: metrics over gradient steps, what became of rollouts, pauses and resets.

import { curves } from "../curves.js";
import { fill, h, problem } from "../dom.js";
import { clock, whole } from "../format.js";
import { get } from "../league.js";
import { again } from "../pace.js";
import { table } from "../table.js";

export const title = "Training";
export const at = true;

const ACCOUNT_MS = 5000;

const POLICIES = [
  { name: "policy", of: (p) => p.policy },
  { name: "steps", of: (p) => whole(p.steps), number: true },
  { name: "newest", of: (p) => whole(p.last_step), number: true },
  { name: "rollouts trained on", of: (p) => whole(p.accepted), number: true },
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

export async function show(main, context) {
  const known = await get("/training", { at: context.at });
  const marks = table(MARKS, { key: (m) => `${m.sequence} ${m.what}`, caption: "Newest first; a few resets stand as lines in the curves", empty: "never paused, never reset" });
  const ledger = table(LEDGER, { key: (r) => r.policy, caption: "As league ledger has it, as of now", empty: "no rollout yet" });
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
    h("h2", null, "What became of every rollout"), ledger.node, trouble,
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
