// Play against agents of the league: choose seats, then answer the game's questions.

import { decimal } from "../format.js";
import { figures, fill, h, link, part, problem, shown } from "../dom.js";
import { get, post } from "../league.js";

export const title = "Play";
export const at = false;

const KEPT = "league-game";
const RETRY_MS = 1000;

export async function show(main) {
  const place = h("div");
  fill(main, h("h1", null, "Play"), place);
  const here = { open: true };
  const game = kept();
  if (game) follow(place, game, here);
  else await choose(place, here);
  return {
    close: () => {
      here.open = false;
    },
  };
}

// ---- before the game

async function choose(place, here) {
  const offer = await get("/play");
  if (offer.why_not) return fill(place, problem(offer.why_not));
  const seat = h("select", { name: "seat" }, offer.seats.map((name, i) => h("option", { value: i }, name)));
  const others = offer.seats.map((name, i) => h("label", null, name, agents(offer, i)));
  const said = h("div", { role: "status" });
  const mine = () => others.forEach((label, i) => (label.hidden = i === Number(seat.value)));
  seat.addEventListener("change", mine);
  mine();

  async function begin(event) {
    event.preventDefault();
    fill(said, "beginning …");
    try {
      const chosen = others.map((label) => label.querySelector("select").value);
      const game = await post("/play/begin", { seat: Number(seat.value), agents: chosen });
      keep(game.secret);
      if (here.open) follow(place, game.secret, here);
    } catch (error) {
      fill(said, problem(error));
    }
  }

  return fill(place,
    h("p", null, `A game of ${offer.game}. You are asked as a remote agent is, and can take half an hour for a move. `, notes(offer)),
    h("form", { onsubmit: begin }, h("div", { class: "form" }, h("label", null, "your seat", seat)), h("fieldset", { class: "form" }, h("legend", null, "the others"), others), h("button", { type: "submit" }, "Begin"), said));
}

function notes(offer) {
  const rated = offer.rated ? "Games played here are rated, as this league's configuration says." : "Games played here are recorded as exhibitions and not rated.";
  return offer.unrecorded ? h("strong", { class: "warn" }, `Nothing is recorded: ${offer.unrecorded}`) : rated;
}

function agents(offer, seat) {
  const order = [...offer.agents].sort((a, b) => (b.rating ?? 0) - (a.rating ?? 0));
  const bots = order.filter((one) => one.kind === "bot");
  const usual = bots[seat % Math.max(bots.length, 1)]?.agent;
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

async function follow(place, secret, here) {
  const view = board(secret, () => {
    keep(null);
    choose(place, here).catch((error) => fill(place, problem(error)));
  });
  let since = -1;
  fill(place, view.node);
  while (here.open) {
    let seen;
    try {
      seen = await post("/play/look", { secret, since });
    } catch (error) {
      if (/no such game/.test(error.message)) {
        keep(null);
        fill(place, problem(error), h("p", null, again(place, here)));
        return;
      }
      view.say(problem(`${error.message}; trying again`));
      await new Promise((wake) => setTimeout(wake, RETRY_MS));
      continue;
    }
    if (!here.open) return;
    if (seen.changes !== since || seen.over) view.update(seen);
    since = seen.changes;
    if (seen.over) {
      keep(null);
      return;
    }
  }
}

function again(place, here) {
  return h("button", { type: "button", onclick: () => choose(place, here).catch((error) => fill(place, problem(error))) }, "Another game");
}

/** Everything about one game: {node, update(seen), say(what)}. */
function board(secret, another) {
  const heading = h("p", { class: "soft" });
  const state = h("p", { role: "status", "aria-live": "polite" });
  const picture = h("figure", { class: "figure", hidden: true });
  const question = h("section");
  const moves = h("section");
  const rules = h("details", null);
  const said = h("div");
  const leave = h("button", { type: "button", onclick: () => confirm("Leave this game? It is recorded as failed.") && post("/play/leave", { secret }).catch((error) => fill(said, problem(error))) }, "Leave the game");
  const node = h("div", { class: "beside" }, h("div", null, heading, state, picture, question, said, h("p", null, leave)), h("aside", null, rules, moves));
  let drawn = -1;
  let asked = null;

  function update(seen) {
    const you = seen.seats[seen.seat];
    fill(heading, `You are ${you.role}. `, seen.seats.filter((_, i) => i !== seen.seat).map((one) => `${one.role}: ${shown(one.agent)}`).join(", "));
    fill(rules, h("summary", null, "Rules"), h("pre", null, seen.rules));
    if (moves.childElementCount !== seen.moves.length + 1) fill(moves, h("h2", null, "Moves"), seen.moves.map(turn).reverse());
    if (seen.moves.length !== drawn) {
      drawn = seen.moves.length;
      draw();
    }
    leave.hidden = seen.over;
    if (seen.over) return over(seen);
    fill(state, seen.question ? "It is your move." : "The others are thinking …");
    if (seen.question?.number === asked) return undefined;
    asked = seen.question?.number ?? null;
    fill(said, "");
    fill(question, seen.question && ask(seen.question));
    question.querySelector("button, select, textarea")?.focus({ preventScroll: true });
    return undefined;
  }

  async function draw() {
    try {
      const found = await post("/play/pictures", { secret });
      picture.hidden = !found.length;
      fill(picture, found.map(drawing));
    } catch (error) {
      fill(said, problem(error));
    }
  }

  function ask(one) {
    const send = async (reply) => {
      try {
        fill(said, "");
        await post("/play/answer", { secret, number: one.number, reply });
        fill(question, "");
      } catch (error) {
        fill(said, problem(error));
      }
    };
    const told = h("pre", { tabindex: 0 }, one.text);
    if (!one.choices.length) return [told, written(send, false)];
    if (!one.choices[0].name) return [told, buttons(one.choices[0], send), written(send, true)];
    return [selects(one.choices, send), written(send, true), h("details", null, h("summary", null, "The position and the legal orders in words"), told)];
  }

  function over(seen) {
    fill(question, "");
    const result = seen.outcome;
    if (!result) {
      fill(state, "The game is over.");
      fill(said, problem(seen.problem || "it came to no end"));
    } else {
      const won = result.winner === seen.seat ? "You won." : result.winner === null ? "Nobody won." : `${shown(seen.seats[result.winner].agent)} (${seen.seats[result.winner].role}) won.`;
      fill(state, h("strong", null, won), ` ${result.reason}`);
      fill(said, figures(seen.seats.map((one, i) => [`${one.role}: ${shown(one.agent)}`, `${decimal(result.scores[i], 2)} (rank ${result.ranks[i]})`])), seen.problem && problem(seen.problem));
    }
    add(said, seen.recorded && h("p", null, link(`/match/${part(seen.match_id)}`, "The match in the history")));
    add(said, h("p", null, h("button", { type: "button", onclick: another }, "Another game")));
    said.querySelector("button")?.focus({ preventScroll: true });
  }

  return { node, update, say: (what) => fill(said, what) };
}

/** What happened is below the position, and closed. As a picture, no script and no style of a drawing reaches this page. */
function drawing(one, i) {
  const image = h("img", { src: `data:image/svg+xml,${encodeURIComponent(one.svg)}`, alt: one.text, class: "map" });
  return i ? h("details", null, h("summary", null, `Orders of ${one.title}`), image) : image;
}

function add(node, child) {
  if (child) node.append(child);
}

function turn(one) {
  return h("details", null, h("summary", null, one.title, " ", h("span", { class: "soft" }, Object.values(one.moves).flat().length === 1 ? Object.entries(one.moves).map(([who, said]) => `${who}: ${said.join(", ")}`).join("; ") : "")),
    h("ul", { class: "plain" }, Object.entries(one.moves).map(([who, said]) => h("li", null, h("strong", null, who), ": ", said.join(", "))), one.notes.map((note) => h("li", { class: "soft" }, note))));
}

function buttons(choice, send) {
  return h("div", { class: "form", role: "group", "aria-label": "Legal moves" }, choice.options.map((option, i) => h("button", { type: "button", onclick: () => send(option) }, choice.labels[i])));
}

/** A select for every line of the answer: in Diplomacy one for each unit. */
function selects(choices, send) {
  const lists = choices.map((choice) => h("select", null, choice.options.map((option, i) => h("option", { value: option, selected: i === choice.usual }, choice.labels[i]))));
  const submit = (event) => {
    event.preventDefault();
    send(lists.map((list) => list.value).join("\n"));
  };
  return h("form", { onsubmit: submit }, h("div", { class: "form" }, choices.map((choice, i) => h("label", null, choice.name, lists[i]))), h("button", { type: "submit" }, "Give these orders"));
}

function written(send, closed) {
  const text = h("textarea", { rows: 3, class: "statement", "aria-label": "Your answer in words" });
  const submit = (event) => {
    event.preventDefault();
    send(text.value);
  };
  return h("details", { open: !closed }, h("summary", null, "Answer in words"), h("form", { onsubmit: submit }, text, h("button", { type: "submit" }, "Send")));
}
