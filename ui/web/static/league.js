// Questions to the server, or to the answers of a file; and the live stream.

import { here } from "./address.js";
import { answer, manifest, text } from "./frozen.js";

/** The address of an answer: about the run that the page shows, unless the query names another. */
export function api(path, query = {}) {
  const all = { run: here().searchParams.get("run"), ...query };
  const given = Object.entries(all).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return `/api${path}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

/** The answer to a question: get("/leaderboard", {at: 5}). What the server rejects is an error with its words. */
export async function get(path, query = {}, signal = undefined) {
  return manifest ? answer(path, query) : read(await fetch(api(path, query), { signal }));
}

/** The address of a drawing, for an image. */
export function drawingSource(path) {
  return manifest ? `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text(path))}` : api(path);
}

/** The text of a drawing. */
export async function drawingText(path) {
  return manifest ? text(path) : (await fetch(api(path))).text();
}

/** Ask for something to be done. */
export async function post(path, body, query = {}) {
  return read(await send(path, body, query));
}

/** The same, for answers that are not JSON. */
export function send(path, body, query = {}) {
  return fetch(api(path, query), { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}

async function read(response) {
  const said = await response.text();
  let value;
  try {
    value = JSON.parse(said);
  } catch {
    throw new Error(`${response.status}: ${said.slice(0, 500)}`);
  }
  if (!response.ok) throw new Error(value.error ?? `${response.status}`);
  return value;
}

/** Listen to what happens. on: {moved(counts), events(list), alive(bool)}. The browser connects again by itself. */
export function listen(on) {
  if (manifest) return on.moved(manifest.counts);
  let source = null;

  function open() {
    source = new EventSource(api("/live"));
    source.addEventListener("open", () => on.alive(true));
    source.addEventListener("error", () => on.alive(false));
    source.addEventListener("moved", (event) => on.moved(JSON.parse(event.data)));
    source.addEventListener("events", (event) => on.events(JSON.parse(event.data)));
  }

  // A page that a browser keeps for its back button would keep its connection too, of which a server gets six.
  addEventListener("pagehide", () => source.close());
  addEventListener("pageshow", (event) => event.persisted && open());
  open();
}
