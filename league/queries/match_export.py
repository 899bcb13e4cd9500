"""Matches in the forms of other systems, from their records.

A record holds the actions; what each seat was shown is written again in the game's plain language. Of an episode the
record has the conversations themselves.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from arena.games import make_game
from arena.games.texts import SupportsWords
from arena.prompts import build_game_messages
from arena.records import RecordedEpisode, decode_record, is_episode_record
from league.queries.decisions import game_settings
from schemas.config import LeagueConfig
from schemas.episodes import Message
from schemas.errors import UsageError
from schemas.events import MatchFinished, SeatResult


class PlayedCall(NamedTuple):
    """A seat's observation and its answer."""

    prompt: Sequence[Message]
    reply: str
    action: str | list[str]
    """The answer, or the parts of the action that was read in it."""


PlayedTurn = Mapping[str, PlayedCall]
"""Calls of one turn by role."""


def kaggle_replay(result: MatchFinished, turns: Sequence[PlayedTurn]) -> dict[str, Any]:
    """A match as Kaggle's environments save theirs: a list of steps, each with a state for every seat.

    A step has the actions that led to it and what the seats to move are shown then. Rewards are the match's scores, on
    the last step.
    """
    padded: list[PlayedTurn] = [{}, *turns, {}]
    steps = [
        [_kaggle_state(seat, number, before, turn) for seat in result.seats]
        for number, (before, turn) in enumerate(pairwise(padded))
    ]
    for state, seat in zip(steps[-1], result.seats, strict=True):
        state |= {"reward": seat.score, "status": "DONE"}
    return {
        "id": result.match_id,
        "name": result.game,
        "title": f"{result.game} {result.environment}".strip(),
        "description": "",
        "version": str(result.rules),
        "module_version": "",
        "configuration": {"episodeSteps": len(steps), "seed": result.seed},
        "specification": {
            "action": {
                "description": "One move, or the parts of an action.",
                "type": ["string", "array", "null"],
                "default": None,
            },
            "agents": [len(result.seats)],
            "configuration": {},
            "info": {},
            "observation": {},
            "reward": {"description": "The game's own score, at its end.", "type": ["number", "null"], "default": None},
        },
        "steps": steps,
        "rewards": [seat.score for seat in result.seats],
        "statuses": ["DONE"] * len(result.seats),
        "schema_version": 1,
        "info": {"TeamNames": [seat.agent for seat in result.seats], "reason": result.reason},
    }


def _kaggle_state(seat: SeatResult, number: int, before: PlayedTurn, turn: PlayedTurn) -> dict[str, Any]:
    played, call = before.get(seat.role), turn.get(seat.role)
    observation: dict[str, Any] = {"step": number, "player": seat.seat}
    if call is not None and call.prompt:
        observation["observationString"] = call.prompt[-1].content
    return {
        "action": None if played is None else played.action,
        "reward": None,
        "info": {},
        "observation": observation,
        "status": "INACTIVE" if call is None else "ACTIVE",
    }


def verifiers_episode(result: MatchFinished, turns: Sequence[PlayedTurn]) -> dict[str, Any]:
    """A match as an episode of verifiers v1: a trace for each seat, with its conversations and its score.

    Roles without a seat, as judges, have traces without rewards.
    """
    task = {"type": "LeagueMatch", "data": {"id": result.match_id, "name": f"{result.game}, seed {result.seed}"}}
    others = sorted({role for turn in turns for role in turn} - {seat.role for seat in result.seats})
    return {
        "id": result.match_id,
        "env": {"id": f"league-{result.game}".replace("_", "-")},
        "task": task,
        "ok": True,
        "traces": [
            *(_verifiers_trace(task, result, turns, seat.role, seat) for seat in result.seats),
            *(_verifiers_trace(task, result, turns, role, None) for role in others),
        ],
    }


def _verifiers_trace(
    task: dict[str, Any], result: MatchFinished, turns: Sequence[PlayedTurn], role: str, seat: SeatResult | None
) -> dict[str, Any]:
    return {
        "version": 1,
        "id": f"{result.match_id}-{role}",
        "task": task,
        "agent": {
            "config": {} if seat is None else {"model": seat.agent},
            "name": role,
            "trainable": seat is not None and seat.trainable,
        },
        "nodes": _message_graph([turn[role] for turn in turns if role in turn]),
        "rewards": {} if seat is None else {"score": {"score": seat.score, "weight": 1.0}},
        "metrics": {} if seat is None else {**seat.metrics, "rank": float(seat.rank)},
        "info": {"reason": result.reason},
        "is_completed": True,
        "ok": True,
        "stop_condition": "agent_completed",
    }


def _message_graph(calls: Sequence[PlayedCall]) -> list[dict[str, Any]]:
    """Messages, each with the index of the one before it; conversations share the messages that they begin with."""
    nodes: list[dict[str, Any]] = []
    node_of: dict[tuple[int | None, str, str], int] = {}
    for call in calls:
        parent: int | None = None
        for message in call.prompt:
            key = (parent, message.role, message.content)
            if key not in node_of:
                node_of[key] = len(nodes)
                nodes.append({"parent": parent, "message": {"role": message.role, "content": message.content}})
            parent = node_of[key]
        # Two equal replies to one prompt are two samples.
        nodes.append({"parent": parent, "message": {"role": "assistant", "content": call.reply}, "sampled": True})
        node_of.setdefault((parent, "assistant", call.reply), len(nodes) - 1)
    return nodes


def export_match(form: str, result: MatchFinished, record: bytes, config: LeagueConfig | None) -> dict[str, Any]:
    """A match in a form of ``FORMATS``; ``config`` has the settings of the league's game.

    Raises:
        UsageError: the form is another game's.
        LeagueError: the record is damaged, or the game cannot be played here.
    """
    if form != SAVED_GAME:
        return _CONVERSIONS[form](result, played_turns(result, record, config))
    if result.game != SAVED_GAME:
        raise UsageError(f"match {result.match_id!r}: played {result.game}; expected a match of {SAVED_GAME}")
    from arena.games.diplomacy.saved_games import write_saved_game

    return write_saved_game(record, result.match_id)


SAVED_GAME = "diplomacy"
_CONVERSIONS: dict[str, Callable[[MatchFinished, Sequence[PlayedTurn]], dict[str, Any]]] = {
    "kaggle": kaggle_replay,
    "verifiers": verifiers_episode,
}
FORMATS = (SAVED_GAME, *_CONVERSIONS)
"""Names of the other systems' forms; ``diplomacy`` is the saved game of that package."""


def played_turns(result: MatchFinished, record: bytes, config: LeagueConfig | None) -> list[PlayedTurn]:
    """The turns of a match; ``config`` has the settings of the league's game. Raises as ``match_replay`` does."""
    if is_episode_record(record):
        return list(_episode_turns(decode_record(record).tree))
    spec = make_game(result.game, game_settings(config, result.game))
    words = spec.words() if isinstance(spec, SupportsWords) else None
    recording = spec.open_record(record)
    game = recording.start
    turns: list[PlayedTurn] = []
    for actions in recording.turns:
        calls = {}
        for seat, action in actions.items():
            if words is not None:
                prompt = build_game_messages(words, game, seat)
            else:
                prompt = [Message("user", " ".join(spec.text().prompt(game, seat)))]
            parts = action[0] if len(action) == 1 else list(action)
            calls[game.seats[seat]] = PlayedCall(prompt, "; ".join(action), parts)
        turns.append(calls)
        game.apply(actions)
    return turns


def _episode_turns(episode: RecordedEpisode) -> Iterator[PlayedTurn]:
    """A turn for each call; child episodes follow their parent."""
    for call in episode.calls:
        yield {call.role: PlayedCall(call.prompt, call.said, call.said)}
    for child in episode.children:
        yield from _episode_turns(child)
