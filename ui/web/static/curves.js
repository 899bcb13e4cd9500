// Metrics over gradient steps, of one run or of several side by side: recorded ones, and any that a statement gives. All
// charts show the same steps: zooming into one zooms into all, and reloads the data at a finer resolution.

import { here, put } from "./address.js";
import { lines } from "./charts.js";
import { remember } from "./choices.js";
import { fill, h, problem } from "./dom.js";
import { decimal, isNumeric, whole } from "./format.js";
import { get, post } from "./league.js";
import { paced } from "./pace.js";

const USUAL = ["reward_mean", "entropy", "kl", "reply_tokens", "clipped", "loss", "ratio_max", "reply_opening", "reply_truncated", "reply_empty", "reply_unparsable", "reply_illegal", "wait_share", "wall_s", "accepted", "stale"];
const MOST = 24;
const MOST_STATEMENTS = 8;
const MOST_SERIES = 12; // Of a statement.
const MOST_RESETS = 12; // With more lines than that the curves are hard to see.
const EXAMPLE = "SELECT step, len(matches) AS matches FROM gradient_steps";
const NAMES = {
  accepted: "trajectories trained on", stale: "stale trajectories", filtered: "filtered trajectories", refused: "rejected trajectories",
  voided: "trajectories of voided matches", wait_share: "share of the time spent waiting", wall_s: "seconds a step", wait_s: "seconds waited",
  seconds: "seconds computing", reward_mean: "mean reward", clipped: "share of clipped ratios", ratio_max: "largest ratio",
  ratio_min: "smallest ratio", ratio_mean: "mean ratio", kl: "KL divergence, nats", entropy: "entropy, nats", grad_norm: "gradient norm",
  reply_opening: "share of the commonest reply", reply_turn_opening: "share of each turn's commonest reply", reply_tokens: "sampled tokens a reply", reply_free_tokens: "tokens a free reply",
  reply_truncated: "share of truncated replies", reply_empty: "share of empty replies",
  reply_unparsable: "share of replies without a readable move", reply_illegal: "share of replies with an illegal move",
  tokens_per_s: "tokens a second", learning_rate: "learning rate",
};
/**
 * The charts, and the form that says which. `runs` are the names of those side by side; null is the one that the page shows.
 * Returns {node, know([[run, what /training answers], …]), update(), close()}.
 */
export function curves(context, runs = [null]) {
  const given = (name) => (context.query.get(name) ?? "").split(",").filter(Boolean);
  const policies = new Set(given("policy"));
  const names = new Set(given("names").length ? given("names").slice(0, MOST) : USUAL);
  const statements = new Set(context.query.getAll("sql").slice(0, MOST_STATEMENTS));
  let range = /^\d+$/.test(context.query.get("from") ?? "") && /^\d+$/.test(context.query.get("to") ?? "") ? [Number(context.query.get("from")), Number(context.query.get("to"))] : null;
  let weight = Math.min(Math.max(Number(context.query.get("smooth")) || 0, 0), 0.99);
  let waiting = null;
  const made = new Map();
  const choice = h("div");
  const strength = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: weight, oninput: () => smooth(Number(strength.value)) });
  const grid = h("div", { class: "columns" });
  const own = h("div", { class: "columns" });
  const constant = h("p", { class: "soft" });
  const trouble = h("div");
  const node = h("section", { "aria-label": "Curves" },
    h("div", { class: "form" }, h("label", null, "smoothing (moving average)", strength)), choice, statementForm(), trouble, own, grid, constant);
  const measured = paced(measure);
  let listed = "";
  let resets = [];
  let known = 0;

  /** Offer what there is to choose; what is new is offered without touching what was chosen. */
  function know(all) {
    resets = all.flatMap(([, found]) => found.marks.filter((mark) => mark.what === "began anew"));
    const offered = (of) => [...new Set(all.flatMap(([, found]) => of(found)))];
    const [called, metrics] = [offered((found) => found.policies.map((p) => p.policy)), offered((found) => found.names).sort()];
    const now = JSON.stringify([called, metrics]);
    if (now === listed) return;
    listed = now;
    known = called.length;
    if (!policies.size) called.slice(0, 8).forEach((policy) => policies.add(policy));
    const open = choice.querySelector("details")?.open;
    fill(choice,
      called.length > 1 && boxes("Policies", called, policies, (name) => name),
      h("details", { open }, h("summary", null, "Choose what is drawn"), boxes("Metrics", metrics, names, (name) => NAMES[name] ?? name)));
  }

  function boxes(label, options, chosen, called) {
    const box = (name) => h("label", { class: "check" }, h("input", { type: "checkbox", checked: chosen.has(name), onchange: (event) => toggle(event, chosen, name) }), called(name));
    return h("fieldset", { class: "checks" }, h("legend", null, label), options.map(box));
  }

  function toggle(event, chosen, name) {
    if (!event.target.checked) chosen.delete(name);
    else if (chosen.size < MOST) chosen.add(name);
    else event.target.checked = false;
    keep();
    update();
  }

  function statementForm() {
    const text = h("textarea", { rows: 3, class: "statement", spellcheck: "false", "aria-label": "Statement", value: EXAMPLE });
    const add = (event) => {
      event.preventDefault();
      if (!text.value.trim() || statements.size >= MOST_STATEMENTS) return;
      statements.add(text.value.trim());
      keep();
      measure();
    };
    return h("details", { class: "online" }, h("summary", null, "Any metric over steps, from SQL"),
      h("p", { class: "soft" }, "A column ", h("code", null, "step"), " and columns of numbers; columns of text tell series apart. As of now, whatever the slider says."),
      h("form", { onsubmit: add }, text, h("button", { type: "submit" }, "Add a chart")));
  }

  function keep() {
    remember({
      policy: [...policies].join(","), names: [...names].join(","), smooth: weight || null,
      from: range && Math.max(Math.floor(range[0]), 0), to: range && Math.max(Math.ceil(range[1]), 0),
    });
    const address = here();
    address.searchParams.delete("sql");
    for (const statement of statements) address.searchParams.append("sql", statement);
    put(address);
  }

  function smooth(to) {
    weight = to;
    for (const chart of made.values()) chart.smooth(to);
    keep();
  }

  function zoom(to) {
    range = to;
    for (const chart of made.values()) chart.view(to);
    keep();
    clearTimeout(waiting);
    waiting = setTimeout(update, 150);
  }

  function chart(name, label = name) {
    if (!made.has(name)) {
      made.set(name, lines({ label, x: "gradient step", y: "", height: 220, format: (x) => whole(Math.round(x)), onzoom: zoom }));
      if (weight) made.get(name).smooth(weight);
    }
    return made.get(name);
  }

  /** What a series is called: its run where there are several, its policy where there are several. */
  function called(run, policy) {
    return [runs.length > 1 && run, (known > 1 || runs.length < 2) && policy].filter(Boolean).join(" ");
  }

  async function update() {
    const query = { policy: [...policies].join(","), names: [...names].join(","), at: runs.length > 1 ? null : context.at };
    if (range) Object.assign(query, { from: Math.max(Math.floor(range[0]), 0), to: Math.max(Math.ceil(range[1]), 0) });
    try {
      const found = policies.size && names.size ? await Promise.all(runs.map((run) => get("/training/curves", { ...query, ...(run && { run }) }))) : [];
      draw(found.flatMap((list, i) => list.map((one) => ({ ...one, series: called(runs[i], one.policy) }))));
      fill(trouble);
    } catch (error) {
      fill(trouble, problem(error));
    }
    await measured.update();
  }

  function draw(found) {
    const begun = resets.filter((mark) => policies.has(mark.policy) && (!range || (mark.step >= range[0] && mark.step <= range[1]))).map((mark) => mark.step);
    const kept = [...names].filter((name) => found.some((one) => one.name === name));
    const all = [...new Set(found.map((one) => one.series))];
    for (const name of kept) {
      chart(name, NAMES[name] ?? name).view(range);
      chart(name).update(found.filter((one) => one.name === name).map((one) => ({ name: one.series, style: all.indexOf(one.series), points: one.points, marks: one.points.length < 40 })), begun.length <= MOST_RESETS ? begun : []);
    }
    const only = new Map(kept.map((name) => [name, sole(found.filter((one) => one.name === name))]));
    const told = kept.filter((name) => only.get(name) !== null && !given("names").length);
    arrange(grid, kept.filter((name) => !told.includes(name)).map((name) => chart(name).node));
    fill(constant, told.length > 0 && `The same at every step: ${told.map((name) => `${NAMES[name] ?? name} ${decimal(only.get(name), 2)}`).join(", ")}.`);
  }

  /** The charts of statements, one after the other: each takes a process of the server. */
  async function measure() {
    const shown = [];
    for (const statement of statements) {
      const key = `sql ${statement}`;
      const remove = h("button", { type: "button", "aria-label": `Remove ${statement}`, onclick: () => { statements.delete(statement); made.delete(key); keep(); measure(); } }, "×");
      const about = h("p", { class: "soft" }, h("code", null, statement), " ", remove);
      try {
        const page = Array.from(crypto.getRandomValues(new Uint32Array(2)), (n) => n.toString(36)).join("");
        const series = [];
        for (const run of runs) series.push(...overSteps(await post("/sql", { statement, page }, run ? { run } : {}), runs.length > 1 ? run : ""));
        chart(key, "From SQL").view(range);
        chart(key).update(series.slice(0, MOST_SERIES));
        shown.push(h("div", null, chart(key).node, about));
      } catch (error) {
        shown.push(h("div", null, problem(error), about));
      }
    }
    fill(own, shown);
  }

  return { node, know, update, close: measured.close };
}

/** The value that all points of some series share; null where they differ, or are only a few. */
function sole(series) {
  const values = series.flatMap((one) => one.points.map((point) => point[1]));
  return values.length > 2 && values.every((value) => value === values[0]) ? values[0] : null;
}

/** Nodes that stay where they are keep the focus, which a new filling would take away. */
function arrange(grid, nodes) {
  if (nodes.length !== grid.children.length || nodes.some((each, i) => each !== grid.children[i])) grid.replaceChildren(...nodes);
}

/** A statement's rows as series over its column `step`, or its first column of numbers. */
function overSteps({ columns, types, rows }, run) {
  const numbers = columns.map((_, i) => i).filter((i) => isNumeric(types[i]));
  const x = numbers.find((i) => columns[i] === "step") ?? numbers[0];
  const measures = numbers.filter((i) => i !== x);
  if (!measures.length) throw new Error(`columns ${columns.join(", ")}: expected \`step\` and at least one other column of numbers`);
  const words = columns.map((_, i) => i).filter((i) => !numbers.includes(i));
  const series = new Map();
  for (const row of rows) {
    for (const y of measures) {
      if (row[x] === null || row[y] === null) continue;
      const name = [run, ...words.map((i) => row[i]), measures.length > 1 || !(run || words.length) ? columns[y] : ""].filter(Boolean).join(" ");
      if (!series.has(name)) series.set(name, []);
      series.get(name).push([Number(row[x]), Number(row[y])]);
    }
  }
  return [...series].map(([name, points]) => ({ name, points: points.sort((a, b) => a[0] - b[0]), marks: points.length < 40 }));
}
