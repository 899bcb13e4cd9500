// The time slider: the event as of which pages show the league.

import { fill, h } from "./dom.js";
import { clock, whole } from "./format.js";
import { get } from "./league.js";

/**
 * A slider in `form`. Calls `moved(at)` with a sequence, or null for now.
 * Returns {set(at), refresh()}.
 */
export function slider(form, moved) {
  let places = [];
  let chosen = null;
  let asked = null;
  const input = h("input", { type: "range", min: 0, max: 0, step: 1, id: "time", "aria-label": "Place in the history", oninput: slide });
  const said = h("output", { for: "time" });
  const now = h("button", { type: "button", onclick: () => { choose(null); input.value = input.max; input.focus(); } }, "back to now");
  form.addEventListener("submit", (event) => event.preventDefault());
  fill(form, h("label", { for: "time" }, "as of"), input, said, now);

  function slide() {
    const place = places[Number(input.value)];
    choose(!place || Number(input.value) === places.length - 1 ? null : place.sequence);
  }

  function choose(at) {
    chosen = at;
    say();
    clearTimeout(asked);
    asked = setTimeout(() => { asked = null; moved(at); }, 120);
  }

  function say() {
    const place = places.findLast((p) => chosen === null || p.sequence <= chosen);
    const text = chosen === null ? "now" : `event ${whole(chosen)}${place ? `, ${clock(place.time)}` : ""}`;
    fill(said, text);
    input.setAttribute("aria-valuetext", text);
    now.hidden = chosen === null;
    document.body.classList.toggle("past", chosen !== null);
  }

  function show() {
    input.max = Math.max(places.length - 1, 0);
    const index = chosen === null ? places.length - 1 : places.findLastIndex((p) => p.sequence <= chosen);
    input.value = Math.max(index, 0);
    say();
  }

  return {
    set(at) {
      // A page that finishes loading while somebody moves the slider leaves it where it is.
      if (asked !== null) return;
      chosen = at;
      show();
    },
    async refresh() {
      places = await get("/timeline");
      show();
    },
  };
}
