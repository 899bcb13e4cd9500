// The shell: routing, the context of pages, and the header.
//
// A page is a module that exports `title`, `at` (whether it can show the past) and `show(main, context)`, which may
// return {update(): bring it up to date, events(list): the newest events, close(): it is left}. The context has
// `path` (parts of the address), `query` (URLSearchParams), `at` (a sequence, or null for now), `counts()` and `go(path)`.

import { here, href, put, target } from "./address.js";
import { fill, h, link, problem } from "./dom.js";
import { clock, whole } from "./format.js";
import { decoded, exists, loaded, manifest } from "./frozen.js";
import { get, listen } from "./league.js";
import { again } from "./pace.js";
import { PAGES } from "./pages.js";
import { search } from "./search.js";
import { slider } from "./slider.js";

const PACE_MS = 500; // A page is brought up to date so often, at most.
const SLIDER_MS = 10_000;
const LOADING_MS = 400;
const RUNNING_MS = 5000;
const MOST_EARLY = 100; // Events that are kept for a page that is on its way.

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const form = document.getElementById("slider");
const alive = document.getElementById("alive");
const runs = document.getElementById("runs");

let page = null;
let shows = 0;
let counts = {};
let stale = false;
let early = [];
let busy = false;
let connected = false;
let processes = 0;

const time = slider(form, (at) => {
  const address = here();
  if (at === null) address.searchParams.delete("at");
  else address.searchParams.set("at", at);
  put(address);
  show(false);
});

function found() {
  const path = here().pathname.split("/").filter(Boolean).map(decoded);
  return { entry: PAGES.find((p) => p.path === (path[0] ?? "")), path: path.slice(1) };
}

function place() {
  const text = manifest ? null : here().searchParams.get("at");
  return /^\d{1,16}$/.test(text ?? "") ? Number(text) : null;
}

/** An address of these pages at the run and the time that are shown, unless it has its own. */
function placed(path) {
  const to = new URL(path, here());
  const now = here().searchParams;
  const isOther = to.searchParams.has("run") && to.searchParams.get("run") !== now.get("run");
  for (const name of isOther ? [] : ["run", "at"]) if (now.has(name) && !to.searchParams.has(name)) to.searchParams.set(name, now.get(name));
  return to.pathname + to.search;
}

function markCurrent() {
  const { entry } = found();
  for (const a of nav.children) {
    const { pathname } = target(a);
    a.setAttribute("href", href(placed(pathname)));
    if (entry && pathname === `/${entry.path}`) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  }
  // Where the navigation is one line that scrolls, the current page is in its middle.
  const current = nav.querySelector("[aria-current]");
  if (current) nav.scrollLeft += current.getBoundingClientRect().left - nav.getBoundingClientRect().left - nav.clientWidth / 2;
}

async function show(isNew = true) {
  const turn = ++shows;
  page?.close?.();
  page = null;
  early = [];
  const { entry, path } = found();
  markCurrent();
  if (!entry || !exists(here().pathname)) {
    fill(main, h("h1", null, manifest ? "This file does not have the page" : "No such page"), h("p", null, link(manifest?.home ?? "/", "The league")));
    return;
  }
  // What takes long says so; what is shown at once does not flicker.
  const waiting = setTimeout(() => isNew && turn === shows && fill(main, h("p", { class: "soft", role: "status" }, "Loading …")), LOADING_MS);
  try {
    const [module] = await Promise.all([entry.load(), loaded(here().pathname)]);
    if (turn !== shows) return;
    document.title = `${module.title} · ${counts.league ?? "league"}`;
    form.hidden = !module.at || manifest !== null;
    time.set(module.at ? place() : null);
    const shown = h("div", { class: "page" });
    const context = { path, query: here().searchParams, at: module.at ? place() : null, counts: () => counts, go };
    const made = (await module.show(shown, context)) ?? {};
    if (turn !== shows) {
      made.close?.();
      return;
    }
    clearTimeout(waiting);
    if (entry.about) shown.querySelector("h1")?.after(h("p", { class: "soft about" }, entry.about));
    fill(main, shown);
    page = made;
    if (early.length && !(place() !== null && module.at)) page.events?.(early);
    if (isNew) main.focus({ preventScroll: true });
  } catch (error) {
    if (turn === shows) fill(main, problem(error));
  } finally {
    clearTimeout(waiting);
  }
}

/** Go to another address of these pages. */
function go(path) {
  const to = placed(path);
  const address = new URL(to, here());
  // Of another run, the whole page anew: nothing of this one is left on it.
  if (address.searchParams.get("run") !== here().searchParams.get("run")) return location.assign(href(to));
  put(address, true);
  show();
  scrollTo(0, 0);
}

document.addEventListener("click", (event) => {
  const a = event.target.closest?.("a");
  if (!a || a.target || event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
  // A place on this page: as an address of its own it would be shown anew, which takes the focus back.
  const place = /^#([\w-]+)$/.exec(a.getAttribute("href"));
  const to = place ? null : target(a);
  if (!place && !to) return;
  event.preventDefault();
  if (place) document.getElementById(place[1])?.focus();
  else go(to.pathname + to.search);
});
addEventListener("popstate", () => show());

async function bringUpToDate() {
  if (!stale || busy || document.hidden || !page?.update || (place() !== null && !form.hidden)) return;
  stale = false;
  busy = true;
  try {
    await page.update();
  } catch (error) {
    console.warn(error);
  } finally {
    busy = false;
  }
}

/** Live is a league with processes that run; others are shown as they were left. */
function showState() {
  alive.className = `alive ${connected ? "on" : "off"} ${processes ? "live" : ""}`;
  alive.title = processes ? `${whole(processes)} processes are running` : "No process of this league is running";
  fill(alive, connected ? (processes ? "● live" : "○ stopped") : "○ connecting");
}

async function running() {
  processes = (await get("/running").catch(() => ({ processes: 0 }))).processes;
  showState();
}

async function offerRuns() {
  const all = await get("/runs");
  const now = here().searchParams.get("run") ?? all[0].run;
  document.getElementById("league").hidden = !(runs.hidden = all.length < 2);
  fill(runs, all.map(({ run, league }) => h("option", { value: run, selected: run === now }, run === league ? run : `${run} (${league})`)));
  fill(nav, PAGES.filter((p) => p.name && (all.length > 1 || !p.several)).map((p) => link(placed(`/${p.path}`), p.name)));
  markCurrent();
}

runs.addEventListener("change", () => go(`${here().pathname}?${new URLSearchParams({ run: runs.value })}`));

function header() {
  document.getElementById("league").textContent = counts.league ?? "League";
  const paused = counts.paused ? " · paused" : counts.finished ? " · training done" : "";
  const text = `event ${whole(counts.sequence)} · step ${whole(counts.step)} · ${whole(counts.training_matches)} training matches · ${whole(counts.evaluation_matches)} evaluation${paused}`;
  fill(document.getElementById("counts"), text);
}

listen({
  alive(is) {
    connected = is;
    showState();
  },
  moved(now) {
    counts = now;
    stale = true;
    header();
    bringUpToDate();
  },
  events(list) {
    if (!page) early = [...early, ...list].slice(-MOST_EARLY);
    else if (place() === null || form.hidden) page.events?.(list);
  },
});

fill(nav, PAGES.filter((p) => p.name && !p.several && exists(`/${p.path}`)).map((p) => link(`/${p.path}`, p.name)));
if (manifest) {
  document.body.classList.add("file");
  fill(alive, `as of event ${whole(manifest.counts.sequence)}, ${clock(manifest.time)}`);
  document.getElementById("search").hidden = !nav.children.length;
} else {
  setInterval(bringUpToDate, PACE_MS);
  setInterval(() => form.hidden || time.refresh().catch(() => {}), SLIDER_MS);
  offerRuns().catch(() => {});
  running();
  again(running, RUNNING_MS);
  time.refresh().catch(() => {});
}
if (nav.children.length || !manifest) search(document.getElementById("search"), go);
// A newly opened page starts at its top, without the scroll position of another one.
show(false);
