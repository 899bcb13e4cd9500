// The search of the header: pages, agents and matches by name, events by number. "/" leads there from everywhere.

import { here } from "./address.js";
import { fill, h } from "./dom.js";
import { whole } from "./format.js";
import { exists, manifest } from "./frozen.js";
import { get } from "./league.js";
import { PAGES } from "./pages.js";

const PAUSE_MS = 150;
const MOST = 8; // Of each kind.

/** Agents and matches that have a page in the file. */
function inFile(words) {
  const pages = Object.keys(manifest.pages).map((path) => [path, /^\/(agent|match)\/(.*)$/s.exec(path)]);
  const found = pages.filter(([, parts]) => parts?.[2].toLowerCase().includes(words));
  return found.slice(0, 2 * MOST).map(([, [, kind, name]]) => ({ name, kind, path: `/${kind}/${encodeURIComponent(name)}` }));
}

async function hits(text) {
  const words = text.toLowerCase();
  const pages = PAGES.filter((p) => p.name?.toLowerCase().includes(words) && exists(`/${p.path}`)).map((p) => ({ name: p.name, kind: "page", path: `/${p.path}` }));
  if (manifest) return [...pages, ...inFile(words)];
  const event = /^\d{1,16}$/.test(text) ? [{ name: `As of event ${whole(Number(text))}`, kind: "time", path: `${here().pathname}?at=${text}` }] : [];
  const found = await get("/search", { search: text, limit: MOST });
  return [
    ...pages, ...event,
    ...found.agents.map((one) => ({ name: one.agent, kind: one.kind, path: `/agent/${encodeURIComponent(one.agent)}` })),
    ...found.matches.map((one) => ({ name: one.match_id, kind: `match, ${one.purpose}`, path: `/match/${encodeURIComponent(one.match_id)}` })),
  ];
}

/** Fill a form with the search; `go` is called with the address that is chosen. */
export function search(form, go) {
  const list = h("ul", { class: "hits", id: "hits", role: "listbox", "aria-label": "Results", hidden: true });
  const input = h("input", { type: "search", role: "combobox", "aria-expanded": "false", "aria-controls": "hits", "aria-autocomplete": "list", "aria-label": "Search agents, matches, pages and events", placeholder: "Search ( / )", autocomplete: "off", maxlength: 200, oninput: later, onkeydown: keys, onblur: close });
  let shown = [];
  let picked = -1;
  let turns = 0;
  let asked = "";
  let waiting = null;

  function later() {
    clearTimeout(waiting);
    waiting = setTimeout(look, PAUSE_MS);
  }

  async function look() {
    const turn = ++turns;
    const text = (asked = input.value.trim());
    const found = text ? await hits(text).catch(() => []) : [];
    if (turn !== turns) return;
    shown = found;
    const none = text && !found.length && h("li", { class: "soft" }, "Nothing has that in its name.");
    fill(list, none, found.map((one, i) => h("li", { role: "option", id: `hit-${i}`, onmousedown: (event) => { event.preventDefault(); take(i); } }, one.name, " ", h("span", { class: "soft" }, one.kind))));
    list.hidden = !text;
    input.setAttribute("aria-expanded", String(Boolean(text)));
    pick(found.length ? 0 : -1);
  }

  function pick(n) {
    picked = n;
    [...list.children].forEach((line, i) => line.setAttribute("aria-selected", String(i === n)));
    if (n < 0) input.removeAttribute("aria-activedescendant");
    else input.setAttribute("aria-activedescendant", `hit-${n}`);
    list.children[n]?.scrollIntoView({ block: "nearest" });
  }

  function close() {
    turns += 1;
    clearTimeout(waiting);
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
  }

  function clear() {
    input.value = asked = "";
    close();
    input.blur();
  }

  function take(n) {
    const one = shown[n];
    if (!one) return;
    clear();
    go(one.path);
  }

  async function keys(event) {
    const moves = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key in moves && shown.length) {
      event.preventDefault();
      pick((picked + moves[event.key] + shown.length) % shown.length);
    } else if (event.key === "Enter") {
      event.preventDefault();
      // The results of what is written by now, not of a part of it.
      clearTimeout(waiting);
      if (input.value.trim() !== asked) await look();
      take(picked);
    } else if (event.key === "Escape") {
      clear();
    }
  }

  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    event.preventDefault();
    input.focus();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  fill(form, input, list);
}
