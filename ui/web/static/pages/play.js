// Play against agents of the league: choose seats, then answer the game's questions.

import { decimal } from "../format.js";
import { fill, h, link, problem, shown } from "../dom.js";
import { get, post } from "../league.js";
import { board } from "../play/board.js";

export const title = "Play";
export const at = false;

const KEPT = "league-game";
const RETRY_MS = 1000;

export async function show(main) {
  const place = h("div", { class: "stack" });
  fill(main, h("h1", null, "Play"), place);
  // `game` is the current match: views of an earlier one are ignored.
  const here = { place, open: true, game: null };
  const game = kept();
  // Not waited for: the page is there at once and says what it is doing.
  if (game) follow(here, game);
  else choose(here);
  return {
    close: () => {
      here.open = false;
    },
  };
}

// ---- before the game

async function choose(here) {
  here.game = null;
  fill(here.place, h("p", { role: "status" }, "Looking up what can be played …"));
  try {
    const offer = await get("/play");
    if (!here.open) return;
    fill(here.place, offer.why_not ? unplayable(offer) : offered(offer, here));
  } catch (error) {
    if (here.open) fill(here.place, problem(error), again(here, "Try again"));
  }
}

function again(here, text) {
  return h("p", null, h("button", { type: "button", onclick: () => choose(here) }, text));
}

function unplayable(offer) {
  return [
    problem(offer.why_not),
    h("p", null, "What its agents have played can be read: ", link("/matches", "every match with all that was said"), "."),
  ];
}

function offered(offer, here) {
  const seat = h("select", { name: "seat" }, offer.seats.map((name, i) => h("option", { value: i }, name)));
  const others = offer.seats.map((name, i) => h("label", null, name, agents(offer, i)));
  const said = h("div", { role: "status" });
  const button = h("button", { type: "submit" }, "Begin");
  const mine = () => others.forEach((label, i) => (label.hidden = i === Number(seat.value)));
  seat.addEventListener("change", mine);
  mine();

  async function begin(event) {
    event.preventDefault();
    button.disabled = true;
    fill(said, "Beginning …");
    try {
      const chosen = others.map((label) => label.querySelector("select").value);
      const game = await post("/play/begin", { seat: Number(seat.value), agents: chosen });
      keep(game.secret);
      if (here.open) follow(here, game.secret);
    } catch (error) {
      button.disabled = false;
      fill(said, problem(error));
    }
  }

  const alone = offer.seats.length < 2;
  return [
    h("p", null, `${about(offer, alone)} There is half an hour for each answer. `, notes(offer)),
    h("section", null, h("form", { onsubmit: begin }, h("div", { class: "form" }, h("label", null, "your seat", seat)), !alone && h("fieldset", { class: "form" }, h("legend", null, "the others"), others), button, said)),
  ];
}

function about(offer, alone) {
  const game = shown(offer.game);
  if (offer.spoken) return `${alone ? `Try ${game} yourself` : `Speak in ${game} for one side; agents of this league speak for the others`}. You see the same prompts, and answer in words.`;
  return `A game of ${game}${alone ? "" : " against any agents of this league"}. You choose from what is legal, or write.`;
}

function notes(offer) {
  const rated = offer.rated ? "Games played here are rated, as this league's configuration says." : "It is recorded as an exhibition, under the name human, and not rated.";
  return offer.unrecorded ? h("strong", { class: "warn" }, `Nothing is recorded: ${offer.unrecorded}`) : rated;
}

/** The agents for a seat: by default the best that learned, or bots in turn where none can play. */
function agents(offer, seat) {
  const order = [...offer.agents].sort((a, b) => (b.rating ?? 0) - (a.rating ?? 0));
  const bots = order.filter((one) => one.kind === "bot");
  const usual = offer.usual ?? bots[seat % Math.max(bots.length, 1)]?.agent;
  const option = (one) => h("option", { value: one.agent, selected: one.agent === usual }, `${shown(one.agent)} (${one.kind}${one.rating === null ? "" : `, ${decimal(one.rating, 0)}`}${one.active ? "" : ", retired"})`);
  return h("select", null, order.map(option));
}

function kept() {
  try {
    return sessionStorage.getItem(KEPT);
  } catch {
    return null;
  }
}

/** So that the game is found again when this page is loaded anew. */
function keep(secret) {
  try {
    if (secret === null) sessionStorage.removeItem(KEPT);
    else sessionStorage.setItem(KEPT, secret);
  } catch {
    // A browser that keeps nothing plays on as long as the page is open.
  }
}

// ---- the game

async function follow(here, secret) {
  const view = board(secret, () => {
    keep(null);
    choose(here);
  });
  here.game = secret;
  const isSeen = () => here.open && here.game === secret;
  let since = -1;
  fill(here.place, view.node);
  while (isSeen()) {
    try {
      const seen = await post("/play/look", { secret, since });
      if (!isSeen()) return;
      view.trouble(null);
      if (seen.changes !== since || seen.over) view.update(seen);
      since = seen.changes;
      if (seen.over) {
        keep(null);
        return;
      }
    } catch (error) {
      if (!isSeen()) return;
      if (/no such game/.test(error.message)) {
        keep(null);
        fill(here.place, problem(error), again(here, "Another game"));
        return;
      }
      view.trouble(error);
      await new Promise((wake) => setTimeout(wake, RETRY_MS));
    }
  }
}
