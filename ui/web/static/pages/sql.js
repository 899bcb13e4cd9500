// SQL: a statement, its result as a table and a chart, and the tables.

import { bars, lines } from "../charts.js";
import { remember } from "../choices.js";
import { fill, h, link, marked, part, problem } from "../dom.js";
import { downloads } from "../export.js";
import { clock, isNumeric, whole } from "../format.js";
import { get, post, send } from "../league.js";

export const title = "SQL";
export const at = false;

const TIME = /^(TIMESTAMP|DATE)/;
const KEPT = "league-questions";
const MOST_SERIES = 12;
const MOST_BARS = 40;

export async function show(main, context) {
  // Every page of a browser has an id, so that each can run a query of its own.
  const page = Array.from(crypto.getRandomValues(new Uint32Array(2)), (n) => n.toString(36)).join("");
  const text = h("textarea", { id: "statement", rows: 7, spellcheck: "false", autocapitalize: "off", autocomplete: "off", class: "statement", value: context.query.get("q") ?? "SELECT role, avg(score) AS score FROM match_seats GROUP BY role" });
  const said = h("p", { class: "soft", role: "status" });
  const result = h("div", { class: "stack" });
  const run = h("button", { type: "submit" }, "Run");
  const stop = h("button", { type: "button", hidden: true, onclick: () => post("/sql/stop", { page }).catch(() => {}) }, "Stop");
  const save = h("button", { type: "button", onclick: () => file() }, "Download CSV");
  const form = h("form", { onsubmit: ask }, h("label", { for: "statement" }, "Statement (read-only; Ctrl+Enter runs it)"), text, h("div", { class: "form" }, run, stop, save));
  const saved = questions(text, said, ask);
  let asking = false;

  text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    ask();
  });

  async function busy(work) {
    if (asking) return;
    asking = run.disabled = save.disabled = true;
    stop.hidden = false;
    result.ariaBusy = "true"; // What still stands there answers an earlier statement.
    const began = performance.now();
    fill(said, "asking …");
    try {
      await work(() => ((performance.now() - began) / 1000).toFixed(2));
    } catch (error) {
      fill(said, "");
      fill(result, problem(error));
    } finally {
      asking = run.disabled = save.disabled = false;
      stop.hidden = true;
      result.ariaBusy = "false";
    }
  }

  function ask(event) {
    event?.preventDefault();
    return busy(async (seconds) => {
      remember({ q: text.value });
      const found = await post("/sql", { statement: text.value, page });
      const many = found.more ? `the first ${whole(found.rows.length)} rows (download holds more)` : `${whole(found.rows.length)} rows`;
      fill(said, `${many} in ${seconds()} s, as of event ${whole(found.position)}${found.warning ? `; ${found.warning}` : ""}`);
      fill(result, chart(found, context.query), found.columns.includes("step") && h("p", null, link(`/training?sql=${part(text.value)}`, "keep it as a chart on the page Training")), rows(found));
    });
  }

  function file() {
    return busy(async () => {
      const response = await send("/sql", { statement: text.value, page, form: "csv" });
      if (!response.ok) throw new Error((await response.json()).error);
      const url = URL.createObjectURL(await response.blob());
      h("a", { href: url, download: "answer.csv" }).click();
      URL.revokeObjectURL(url);
      const left = response.headers.get("X-Rows-Left-Out");
      fill(said, left ? `downloaded; rows are left out ${left}` : "downloaded");
    });
  }

  fill(main, h("h1", null, "SQL"), h("div", { class: "beside" },
    h("div", { class: "stack" }, h("section", null, form, said), result),
    h("aside", { class: "stack", "aria-label": "What can be asked" }, saved, await tables(text))));
  if (context.query.get("q")) ask();
  return {
    close: () => asking && post("/sql/stop", { page }).catch(() => {}),
  };
}

function rows(found) {
  const numeric = found.types.map((type) => isNumeric(type));
  const cell = (value, i) => h("td", { class: numeric[i] ? "number" : "text" }, value === null ? h("span", { class: "soft" }, "NULL") : typeof value === "number" ? figure(value) : String(value));
  const drawn = h("table", null,
    h("caption", null, "Result"),
    h("thead", null, h("tr", null, found.columns.map((name, i) => h("th", { scope: "col", class: numeric[i] && "number", title: found.types[i] }, name)))),
    h("tbody", null, found.rows.map((row) => h("tr", null, row.map(cell)))));
  return h("div", { class: "framed" }, downloads("Result", () => drawn, () => [found.columns, ...found.rows]),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Result" }, drawn));
}

function figure(value) {
  return Number.isInteger(value) ? String(value) : String(+value.toPrecision(6));
}

// ---- chart

/** A chart of the result; what is chosen for it is kept in the address. */
function chart(found, query) {
  const measures = found.columns.map((_, i) => i).filter((i) => isNumeric(found.types[i]));
  if (!measures.length || found.rows.length < 2) return null;
  const drawn = h("div");
  const all = found.columns.map((_, i) => i);
  const first = all.find((i) => TIME.test(found.types[i])) ?? all.find((i) => !measures.includes(i)) ?? measures[0];
  const kept = (name, options, usual) => options.find((i) => found.columns[i] === query.get(name)) ?? usual;
  const x = choice("x", found.columns, all, kept("x", all, first));
  const y = choice("y", found.columns, measures, kept("y", measures, measures.find((i) => i !== first) ?? measures[0]));
  const series = choice("series", found.columns, all, kept("series", all, -1));
  const draw = () => fill(drawn, picture(found, Number(x.value), Number(y.value), Number(series.value)));
  for (const select of [x, y, series]) select.addEventListener("change", () => {
    remember({ [select.name]: found.columns[select.value] ?? null });
    draw();
  });
  const label = (name, select) => h("label", null, name, select);
  draw();
  return h("section", null, h("h2", null, "Chart"), h("div", { class: "form" }, label("x", x), label("y", y), label("series", series)), drawn);
}

function choice(name, columns, indices, chosen) {
  const none = name === "series" ? [h("option", { value: -1 }, "(none)")] : [];
  return h("select", { name }, none, indices.map((i) => h("option", { value: i, selected: i === chosen }, columns[i])));
}

function picture(found, x, y, series) {
  const label = `${found.columns[y]} by ${found.columns[x]}`;
  const isTime = TIME.test(found.types[x]);
  if (!isTime && !isNumeric(found.types[x])) return barred(found, x, y, series, label);
  const groups = new Map();
  for (const row of found.rows) {
    const across = isTime ? Date.parse(`${String(row[x]).replace(" ", "T")}Z`) : Number(row[x]);
    const up = Number(row[y]);
    if (row[x] === null || row[y] === null || !Number.isFinite(across) || !Number.isFinite(up)) continue;
    const name = series < 0 ? found.columns[y] : String(row[series]);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push([across, up]);
  }
  const shown = [...groups].slice(0, MOST_SERIES).map(([name, points]) => ({ name, points: points.sort((a, b) => a[0] - b[0]), marks: points.length <= 60 }));
  const format = isTime ? (ms) => clock(new Date(ms).toISOString()).slice(5) : undefined;
  const made = lines({ label, x: found.columns[x], y: found.columns[y], ...(format && { format }) });
  made.update(shown);
  return [made.node, groups.size > MOST_SERIES && h("p", { class: "soft" }, `the first ${MOST_SERIES} of ${whole(groups.size)} series`)];
}

function barred(found, x, y, series, label) {
  const named = found.rows.filter((row) => Number.isFinite(Number(row[y])) && row[y] !== null).map((row) => ({ name: series < 0 ? String(row[x]) : `${row[x]} ${row[series]}`, value: Number(row[y]) }));
  // Bars begin at zero; what goes below it is drawn as a line of points.
  if (named.some((one) => one.value < 0)) return ordered(named, label, found.columns[y]);
  return [bars(named.slice(0, MOST_BARS), { label }), named.length > MOST_BARS && h("p", { class: "soft" }, `the first ${MOST_BARS} of ${whole(named.length)} rows`)];
}

function ordered(named, label, y) {
  const made = lines({ label, x: "row", y, floor: 0, format: (n) => named[Math.round(n) - 1]?.name.slice(0, 16) ?? "" });
  made.update([{ name: y, points: named.map((one, i) => [i + 1, one.value]), marks: true }]);
  return made.node;
}

// ---- what can be asked

async function tables(text) {
  const found = await get("/sql/tables");
  const column = (c) => h("li", null, h("code", null, c.name), " ", h("span", { class: "soft" }, c.type.toLowerCase()));
  const table = (t) => h("details", null,
    h("summary", null, h("code", null, t.name), " ", h("span", { class: "soft" }, marked(t.comment ?? ""))),
    h("button", { type: "button", onclick: () => put(text, `FROM ${t.name} LIMIT 100`) }, "look at it"),
    h("ul", { class: "plain" }, t.columns.map(column)));
  const macro = (m) => h("li", null, h("code", null, m.name), " ", h("span", { class: "soft" }, marked(m.comment)));
  return [
    h("section", null, h("h2", null, "Tables"), found.tables.map(table)),
    h("section", null, h("h2", null, "Macros"), h("ul", { class: "plain" }, found.macros.map(macro))),
  ];
}

function put(text, statement) {
  text.value = statement;
  text.focus();
}

function questions(text, said, ask) {
  const own = h("ul", { class: "plain" });
  const name = h("input", { id: "question-name", maxlength: 100, autocomplete: "off" });
  const shipped = h("ul", { class: "plain" });
  const form = h("form", { class: "form", onsubmit: keep }, h("label", { for: "question-name" }, "Keep the statement in this browser as", name), h("button", { type: "submit" }, "Keep"));

  function keep(event) {
    event.preventDefault();
    const title = name.value.trim();
    if (!title) return;
    store([{ title, statement: text.value }, ...stored().filter((one) => one.title !== title)]);
    name.value = "";
    list();
  }

  function store(kept) {
    try {
      localStorage.setItem(KEPT, JSON.stringify(kept));
    } catch (error) {
      fill(said, `this browser keeps nothing: ${error.message}`);
    }
  }

  function take(one) {
    put(text, one.statement);
    ask();
  }

  const button = (one) => h("button", { type: "button", class: "question", onclick: () => take(one) }, one.title);
  function list() {
    const forget = (one) => h("button", { type: "button", "aria-label": `Forget ${one.title}`, onclick: () => (store(stored().filter((other) => other.title !== one.title)), list()) }, "×");
    fill(own, stored().map((one) => h("li", null, button(one), " ", forget(one))));
  }

  fetch("/static/questions.json").then((response) => response.json()).then((all) => fill(shipped, all.map((one) => h("li", null, button(one))))).catch((error) => fill(shipped, problem(error)));
  list();
  return h("section", null, h("h2", null, "Questions"), own, form, h("details", { open: true }, h("summary", null, "Worked questions"), shipped));
}

/** What this browser has kept; anything else that lies there is passed over. */
function stored() {
  try {
    const kept = JSON.parse(localStorage.getItem(KEPT) ?? "[]");
    return kept.filter((one) => typeof one.title === "string" && typeof one.statement === "string");
  } catch {
    return [];
  }
}
