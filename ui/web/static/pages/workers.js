// Workers: the processes of the league, their activity, queues, and total throughput.

import { lines } from "../charts.js";
import { figures, fill, h, link, part, problem } from "../dom.js";
import { decimal, percent, seconds, whole } from "../format.js";
import { get } from "../league.js";
import { again } from "../pace.js";
import { table } from "../table.js";

export const title = "Workers";
export const at = false;

const EVERY_MS = 2000; // Processes say something new every five seconds.
const KEPT = 300; // Measurements in the charts: ten minutes.
const HEALTH = { ok: ["good", "well"], silent: ["bad", "silent"], left: ["soft", "left"] };

const beat = (of) => (r) => (r.heartbeat ? of(r.heartbeat) : "–");
const inference = (of) => beat((b) => (b.inference ? of(b.inference) : ""));
const play = (of) => beat((b) => (b.play ? of(b.play) : ""));

const WORKERS = [
  { name: "worker", of: (r) => link(`/matches?worker=${part(r.worker)}`, r.worker), sort: (r) => r.worker },
  { name: "role", of: (r) => r.role, sort: (r) => r.role },
  { name: "host", of: (r) => `${r.host}, ${r.pid}`, sort: (r) => r.host },
  { name: "health", of: health, sort: (r) => r.health },
  { name: "cores", of: beat((b) => decimal(b.cpu_share, 2)), number: true, sort: (r) => r.heartbeat?.cpu_share ?? -1 },
  { name: "memory", of: beat((b) => bytes(b.memory_bytes)), number: true, sort: (r) => r.heartbeat?.memory_bytes ?? -1 },
  { name: "games/s", of: play((p) => decimal(p.games_s, 2)), number: true, sort: (r) => r.heartbeat?.play?.games_s ?? -1 },
  { name: "in flight", of: play((p) => whole(p.games_in_flight)), number: true },
  { name: "tokens/s", of: beat((b) => rate(b)), number: true, sort: (r) => r.heartbeat?.inference?.tokens_s ?? r.heartbeat?.training?.tokens_s ?? -1 },
  { name: "computing", of: inference((i) => percent(i.busy_share)), number: true },
  { name: "waiting", of: beat((b) => (b.training ? percent(b.training.wait_share) : "")), number: true },
  { name: "queued", of: inference((i) => `${whole(i.queued)} + ${whole(i.running)}`), number: true },
  { name: "adapters", of: inference((i) => `${whole(i.adapters)}${i.slots ? ` of ${whole(i.slots)}` : ""}`), number: true },
  { name: "GPU", of: beat(gpus), number: true, sort: (r) => busiest(r.heartbeat?.gpus) },
  { name: "behind", of: beat((b) => whole(b.lag)), number: true, sort: (r) => r.heartbeat?.lag ?? -1 },
  { name: "up for", of: beat((b) => seconds(b.uptime_s)), number: true },
];

const POLICIES = [
  { name: "policy", of: (r) => r.policy },
  { name: "version", of: (r) => whole(r.version), number: true },
  { name: "step", of: (r) => whole(r.step), number: true },
  { name: "trajectories waiting", of: (r) => whole(r.pending), number: true },
  { name: "matches ahead", of: (r) => whole(r.ahead), number: true },
  { name: "trainer waits", of: (r) => percent(r.wait_share), number: true },
  { name: "state", text: true, of: (r) => (r.finished ? `ended: ${r.finished}` : r.paused !== undefined ? `paused ${r.paused}` : "trains") },
];

export async function show(main) {
  const workers = table(WORKERS, { key: (r) => r.worker, caption: "Processes", empty: "no worker serves this league now" });
  const policies = table(POLICIES, { key: (r) => r.policy, caption: "What waits for the trainers", empty: "no policy" });
  const totals = h("div", { role: "status", "aria-live": "off" });
  const more = h("p", { class: "soft" });
  const trouble = h("div");
  const gone = h("input", { type: "checkbox", onchange: () => update() });
  const games = lines({ label: "Games a second, lately", x: "time (UTC)", y: "", height: 180, floor: 0, format: clockOf });
  const tokens = lines({ label: "Tokens a second, lately", x: "time (UTC)", y: "", height: 180, floor: 0, format: clockOf });
  const live = h("div", { class: "columns" }, games.node, tokens.node);
  const seen = [];

  async function update() {
    try {
      const found = await get("/workers", { left: gone.checked ? "yes" : "no" });
      workers.update(found.workers);
      policies.update(found.policies.map((p) => ({ ...p, paused: found.paused[p.policy] ?? found.paused[""] })));
      fill(totals, summary(found));
      fill(more, found.left_out > 0 && `and ${whole(found.left_out)} more`);
      fill(trouble);
      live.hidden = !found.workers.length;
      if (!live.hidden) chart(found.rates);
    } catch (error) {
      fill(trouble, problem(error));
    }
  }

  function chart(rates) {
    seen.push([Date.now() / 1000, rates]);
    if (seen.length > KEPT) seen.shift();
    const of = (name) => seen.map(([time, each]) => [time, each[name]]);
    games.update([{ name: "played", points: of("games_s") }]);
    tokens.update([{ name: "sampled", points: of("sampled_tokens_s") }, { name: "trained on", points: of("trained_tokens_s") }]);
  }

  await update();
  fill(main, h("h1", null, "Workers"), trouble, totals, h("div", { class: "form" }, h("label", { class: "check" }, gone, "those that have left too")),
    h("section", null, workers.node, more), live, h("section", null, policies.node));
  return { close: again(update, EVERY_MS) };
}

function summary(found) {
  const { rates } = found;
  const since = ["last gradient step", found.since_step_s === null ? "none yet" : `${seconds(found.since_step_s)} ago`];
  const letters = ["dead letters", found.dead_letters ? link("/problems", whole(found.dead_letters)) : "0"];
  if (!found.workers.length) return figures([since, ["evaluation jobs waiting", whole(found.jobs)], letters]);
  return figures([
    ["working", whole(found.workers.filter((w) => w.health === "ok").length)],
    ["silent", found.silent ? h("strong", { class: "bad" }, whole(found.silent)) : "0"],
    ["games/s", decimal(rates.games_s, 2)], ["games in flight", whole(rates.games_in_flight)],
    ["tokens/s sampled", whole(Math.round(rates.sampled_tokens_s))], ["tokens/s trained on", whole(Math.round(rates.trained_tokens_s))],
    ["evaluation jobs waiting", whole(found.jobs)], ["events behind", whole(found.lag)],
    since,
    ["cores", decimal(rates.cores, 1)], ["memory", bytes(rates.memory_bytes)], ...together(found.gpus), ["store", found.store_share === null ? "–" : percent(found.store_share)],
    letters,
  ]);
}

function health(r) {
  const [kind, said] = HEALTH[r.health] ?? ["", r.health];
  const since = r.health === "silent" ? (r.silent_s === null ? " for over a minute" : ` for ${seconds(r.silent_s)}`) : "";
  return h("span", { class: kind }, `${said}${since}${r.left ? `: ${r.left}` : ""}`);
}

function rate(b) {
  const found = [b.inference?.tokens_s, b.training?.tokens_s].filter((each) => each !== undefined);
  return found.map((each) => whole(Math.round(each))).join(" / ");
}

/** A line for each GPU that a process computes on; nothing where there is none. */
function gpus(b) {
  return b.gpus.map((gpu) => h("div", { title: gpu.name }, `${gpu.index}: ${gpuSaid(gpu).join(", ") || gpu.name}`));
}

function gpuSaid(gpu) {
  return [gpu.busy_share === null ? "" : percent(gpu.busy_share), gpu.used_bytes === null ? "" : bytes(gpu.used_bytes)].filter(Boolean);
}

function busiest(found) {
  return Math.max(-1, ...(found ?? []).map((gpu) => gpu.busy_share ?? -1));
}

/** Of all GPUs together; no figure where no process has one. */
function together(found) {
  if (!found.length) return [];
  const sum = (name) => found.reduce((total, gpu) => total + (gpu[name] ?? 0), 0);
  const said = found.filter((gpu) => gpu.busy_share !== null);
  const busy = said.length ? `, ${percent(sum("busy_share") / said.length)} busy` : "";
  const memory = sum("memory_bytes") ? [["GPU memory", `${bytes(sum("used_bytes"))} of ${bytes(sum("memory_bytes"))}`]] : [];
  return [["GPUs", `${whole(found.length)}${busy}`], ...memory];
}

function bytes(value) {
  return value >= 2 ** 30 ? `${decimal(value / 2 ** 30, 1)} GiB` : `${whole(Math.round(value / 2 ** 20))} MiB`;
}

function clockOf(value) {
  return new Date(value * 1000).toISOString().slice(11, 19);
}
