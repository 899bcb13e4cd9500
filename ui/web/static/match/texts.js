// Transcripts: turns of a game with the model calls behind them, and conversations.

import { fill, h, link, part, problem } from "../dom.js";
import { percent, whole } from "../format.js";
import { get } from "../league.js";

function choice(one, number) {
  const chance = one.logprob === null ? [] : [h("strong", null, percent(Math.exp(one.logprob), 1)), ` (log-probability ${one.logprob.toFixed(3)}) `];
  const allowed = one.allowed.length ? `one of ${whole(one.allowed.length + one.more)}: ${one.allowed.join(", ")}${one.more ? `, and ${whole(one.more)} more` : ""}` : "anything could be said";
  return h("li", { value: number + 1 }, h("code", null, one.said), " ", chance, h("span", { class: "soft" }, allowed));
}

/** A reply's thoughts, folded: they are often longer than all else. */
export function thoughts(reply) {
  return reply?.thoughts && h("details", { class: "thoughts" }, h("summary", null, "thoughts"), h("pre", null, reply.thoughts));
}

function decisionText(found) {
  const source = found.source === "kept" ? `As it was sampled, by version ${found.version}.` : found.source === "rollout" ? `As it was sampled, by version ${found.version} at temperature ${found.temperature}.` : "";
  return [
    (source || found.note) && h("p", { class: "soft" }, [source, found.note].filter(Boolean).join(" ")),
    found.credit && h("p", null, h("strong", null, found.credit)),
    found.fault && h("p", { class: "problem" }, `No legal move in the reply: ${found.fault}.`),
    h("h4", null, "Prompt"), h("pre", null, found.prompt),
    h("h4", null, "Reply"), thoughts(found), h("pre", null, found.reply),
    found.choices.length > 0 && [h("h4", null, "Choices"), h("ol", { class: "choices" }, found.choices.map(choice))],
  ];
}

/** The model calls of a seat in a turn, loaded when opened. */
function decision(match, turn, seat, open = false) {
  const said = h("div");
  let asked = false;
  return h("details", { open, "data-seat": seat, ontoggle: async () => {
    if (asked) return;
    asked = true;
    fill(said, h("p", { class: "soft" }, "reading …"));
    try {
      fill(said, decisionText(await get(`/match/${part(match.match_id)}/decision`, { turn, seat })));
    } catch (error) {
      asked = false;
      fill(said, problem(error));
    }
  } }, h("summary", null, "asked and replied"), said);
}

/** A reply as it was kept, with its thoughts and what it earned. */
function kept(reply) {
  return reply && [
    thoughts(reply),
    h("pre", null, reply.reply),
    reply.fault && h("p", { class: "problem" }, `No legal move in the reply: ${reply.fault}.`),
    reply.credit && h("p", { class: "credit" }, reply.credit),
  ];
}

/** Finds replies by their seats, one after the other. */
function inOrder(replies) {
  const calls = new Map();
  return (seat) => {
    const call = calls.get(seat) ?? 0;
    calls.set(seat, call + 1);
    return replies.find((one) => one.seat === seat && one.call === call);
  };
}

function seated({ seats }, name, place) {
  return seats.find((one) => one.role === name) ?? seats[place];
}

/** One seat's moves in a turn, its `reply`, and what it was asked if it is a model's: at once for the seats in `open`. */
export function moved(match, turn, name, moves, { heading = "h3", open = new Set(), reply = null } = {}) {
  const seat = seated(match.finished, name, Object.keys(turn.moves).indexOf(name));
  return h("div", { class: "card" },
    h(heading, null, name, seat && h("span", { class: "soft" }, ` ${seat.agent}`)),
    h("ul", { class: "moves" }, moves.map((move) => h("li", null, move))),
    kept(reply),
    seat && match.kinds[seat.agent] !== "bot" && decision(match, turn.number, seat.seat, open.has(String(seat.seat))));
}

/** Every turn of a game, in order, each with an address: decisions, and what they led to beside them. */
export function transcript(match, turns, replies) {
  const next = inOrder(replies);
  const reply = (name, place) => next(seated(match.finished, name, place)?.seat);
  return h("ol", { class: "turns" }, turns.map((turn, number) => h("li", null,
    h("h3", { id: `phase-${number}` }, link(`?phase=${number}`, turn.title)),
    h("div", { class: "beside" },
      h("div", { class: "cards" }, Object.entries(turn.moves).map(([name, moves], place) => moved(match, { ...turn, number }, name, moves, { heading: "h4", reply: reply(name, place) }))),
      turn.notes.length > 0 && h("div", null, turn.notes.map((note) => h("pre", null, note)))))));
}

function call(one, reply) {
  return h("div", { class: "card" },
    h("h4", null, one.role),
    thoughts(reply),
    h("pre", null, one.said),
    reply?.credit && h("p", { class: "credit" }, reply.credit),
    h("details", null, h("summary", null, "prompt"), one.prompt.map((message) => [h("h5", null, message.role), h("pre", null, message.content)])));
}

function earned(episode) {
  const rewards = Object.entries(episode.rewards).map(([role, reward]) => `${role} earns ${+reward.toPrecision(6)}`);
  const metrics = Object.entries(episode.metrics).map(([name, value]) => `${name} ${+value.toPrecision(6)}`);
  return [...rewards, ...metrics].join(", ");
}

/** Episodes with what was said in them; those under another stand further in. */
export function conversations(match, episodes, replies) {
  const next = inOrder(replies);
  const reply = (role) => next(match.finished.seats.find((one) => one.role === role)?.seat);
  return episodes.map((episode) => {
    const node = h("section", { class: "episode" },
      h("h3", null, `${episode.id}: ${episode.episode_type}`, !episode.trainable && h("span", { class: "soft" }, " not trained on")),
      episode.about && h("pre", null, episode.about),
      episode.calls.map((one) => call(one, reply(one.role))),
      episode.failure && h("p", { class: "problem" }, `Failed: ${episode.failure}`),
      h("p", { class: "soft" }, earned(episode)));
    node.style.setProperty("margin-left", `${Math.min(episode.depth, 6) * 20}px`);
    return node;
  });
}
