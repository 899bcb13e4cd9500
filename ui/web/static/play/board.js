// A match under way: position, question with its answers, and moves.

import { decimal, phased, spoken } from "../format.js";
import { fill, h, link, part, problem, shown } from "../dom.js";
import { post } from "../league.js";

/**
 * Everything about one game. `another` is called to start another one.
 * Returns {node, update(seen), trouble(error or null)}.
 */
export function board(secret, another) {
  const heading = h("p", { class: "soft" }, "Your game");
  const busy = h("progress", { "aria-hidden": "true" });
  const words = h("span", null, "Setting up the table …");
  const state = h("p", { class: "state", role: "status", "aria-live": "polite" }, words, " ", busy);
  const result = h("section", { hidden: true });
  const picture = h("figure", { class: "figure", hidden: true });
  const question = h("section");
  const moves = h("section");
  const rules = h("details", { hidden: true });
  const said = h("div");
  const troubled = h("div");
  const leave = h("button", { type: "button", onclick: leaving }, "Leave the game");
  const node = h("div", { class: "playing" }, h("div", { class: "stack" }, heading, state, result, picture), h("div", { class: "stack" }, question, said, troubled, h("p", null, leave), moves, rules));
  let drawn = 0;
  let asked = null;

  async function leaving() {
    if (!confirm("Leave this game? It is recorded as failed.")) return;
    try {
      await post("/play/leave", { secret });
      another();
    } catch (error) {
      fill(said, problem(error));
    }
  }

  function say(text, isBusy) {
    fill(words, text);
    busy.hidden = !isBusy;
  }

  function update(seen) {
    const you = seen.seats[seen.seat];
    const others = seen.seats.filter((_, i) => i !== seen.seat).map((one) => `${one.role}: ${shown(one.agent)}`).join(", ");
    fill(heading, `You are ${you.role}. `, others);
    rules.hidden = !seen.rules;
    if (!rules.childElementCount) fill(rules, h("summary", null, "Rules"), h("pre", null, seen.rules));
    if (moves.childElementCount !== seen.moves.length + 1) fill(moves, seen.spoken ? conversation(seen.moves) : seen.moves.length > 0 && [h("h2", null, "Moves"), seen.moves.map(turn).reverse()]);
    if (seen.positions !== drawn) {
      drawn = seen.positions;
      draw();
    }
    leave.hidden = seen.over;
    if (seen.over) over(seen);
    else ask(seen);
  }

  function ask(seen) {
    say(seen.question ? "It is your move." : seen.stage || "The others are thinking …", !seen.question);
    if ((seen.question?.number ?? null) === asked) return;
    asked = seen.question?.number ?? null;
    fill(said);
    fill(question, seen.question && answering(seen.question, send));
    question.querySelector("button, select, textarea")?.focus({ preventScroll: true });
  }

  async function send(number, reply) {
    try {
      fill(said);
      await post("/play/answer", { secret, number, reply });
      fill(question);
      say("The others are thinking …", true);
    } catch (error) {
      fill(said, problem(error));
    }
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

  function over(seen) {
    const { outcome } = seen;
    fill(question);
    fill(said);
    result.hidden = false;
    say(outcome ? h("strong", null, won(seen)) : "The game is over.", false);
    fill(result,
      outcome && [h("p", null, ending(outcome)), standing(seen)],
      seen.problem || !outcome ? problem(seen.problem || "it came to no end") : null,
      seen.recorded && h("p", null, link(`/match/${part(seen.match_id)}`, "The match in the history")),
      h("p", null, h("button", { type: "button", onclick: another }, "Another game")));
    result.querySelector("button").focus();
  }

  const trouble = (error) => fill(troubled, error && [problem(`${error.message}; trying again`), h("p", null, h("button", { type: "button", onclick: another }, "Another game"))]);
  return { node, update, trouble };
}

function ending({ reason, length }) {
  // What is said in an arena has no end of its own.
  return reason === "scored" ? `It was scored after ${length} replies.` : `It ended by ${spoken(reason)}, after ${length} turns.`;
}

function won(seen) {
  const { winner } = seen.outcome;
  if (winner === null) return seen.seats.length > 1 ? "No winner." : "Not passed.";
  if (seen.seats.length === 1) return "Passed.";
  return winner === seen.seat ? "You won." : `${shown(seen.seats[winner].agent)} (${seen.seats[winner].role}) won.`;
}

function standing(seen) {
  const { scores, ranks } = seen.outcome;
  const order = seen.seats.map((one, i) => ({ ...one, i })).sort((a, b) => ranks[a.i] - ranks[b.i]);
  const line = ({ role, agent, i }) => h("tr", null, h("td", { class: "number" }, ranks[i]), h("td", null, role), h("td", null, i === seen.seat ? h("strong", null, "you") : shown(agent)), h("td", { class: "number" }, decimal(scores[i], 2)));
  return h("table", null, h("caption", null, "Result"), h("thead", null, h("tr", null, ["rank", "seat", "agent", "score"].map((name) => h("th", { scope: "col", class: (name === "rank" || name === "score") && "number" }, name)))), h("tbody", null, order.map(line)));
}

/** What happened is below the position, and closed. As a picture, no script and no style of a drawing reaches this page. */
function drawing(one, i) {
  const image = h("img", { src: `data:image/svg+xml,${encodeURIComponent(one.svg)}`, alt: one.text, class: "map" });
  return i ? h("details", null, h("summary", null, `Orders of ${phased(one.title)}`), image) : image;
}

/** What was said, in its order. */
function conversation(turns) {
  const said = turns.flatMap((one) => Object.entries(one.moves));
  return said.length > 0 && [h("h2", null, "What was said"), said.map(([who, words]) => [h("h3", null, who.trim()), h("pre", null, words.join("\n"))])];
}

function turn(one) {
  const few = Object.values(one.moves).flat().length === 1 && Object.entries(one.moves).map(([who, said]) => `${who}: ${said.join(", ")}`).join("; ");
  return h("details", null, h("summary", null, phased(one.title), " ", h("span", { class: "soft" }, few)),
    h("ul", { class: "plain" }, Object.entries(one.moves).map(([who, said]) => h("li", null, h("strong", null, who), ": ", said.join(", "))), one.notes.map((note) => h("li", { class: "soft" }, note))));
}

/** A question with its answers; `send` is called with its number and the reply. */
function answering(question, send) {
  const answer = (reply) => send(question.number, reply);
  const text = h("pre", { tabindex: 0 }, question.text);
  if (!question.choices.length) return [text, written(answer, false)];
  if (!question.choices[0].name) return [text, buttons(question.choices[0], answer), written(answer, true)];
  return [lists(question.choices, answer), written(answer, true), h("details", null, h("summary", null, "The position and the legal orders in words"), text)];
}

function buttons(choice, answer) {
  return h("div", { class: "form", role: "group", "aria-label": "Legal moves" }, choice.options.map((option, i) => h("button", { type: "button", onclick: () => answer(option) }, choice.labels[i])));
}

/** A list for every line of the answer: in Diplomacy one for each unit. */
function lists(choices, answer) {
  const all = choices.map((choice) => h("select", null, choice.options.map((option, i) => h("option", { value: option, selected: i === choice.usual }, choice.labels[i]))));
  const submit = (event) => {
    event.preventDefault();
    answer(all.map((list) => list.value).join("\n"));
  };
  return h("form", { class: "orders", onsubmit: submit }, choices.map((choice, i) => h("label", null, choice.name, all[i])), h("button", { type: "submit" }, "Give these orders"));
}

function written(answer, closed) {
  const text = h("textarea", { rows: 3, class: "statement", "aria-label": "Your answer in words" });
  const submit = (event) => {
    event.preventDefault();
    answer(text.value);
  };
  return h("details", { open: !closed }, h("summary", null, "Answer in words"), h("form", { onsubmit: submit }, text, h("button", { type: "submit" }, "Send")));
}
