"""Matches: the list, and one match with its record, its maps and its decisions."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from league.queries.conversation import DECISION_COLUMNS, describe_credit
from league.queries.decisions import (
    Decision,
    decision_from_call,
    find_decision_point,
    find_pending_trajectory,
    load_tokenizer,
    reconstruct_decision,
    reconstruct_decisions,
)
from league.queries.live_league import LiveLeague
from league.queries.match_list import agent_kind, list_matches, load_match, match_details
from league.queries.match_text import explain_match, resimulate_from_record
from league.queries.matches import MAP_GAME, KeptReply, MatchEvents, MatchReplay, load_record, match_replay, render_map
from league.queries.pages import EncodedResponse, RequestParams, route
from league.queries.stored import LeagueReader
from schemas.errors import ArtifactError, LeagueError, LogError, UsageError
from schemas.events import SeatResult
from schemas.ids import split_agent
from schemas.trajectories import ModelCall

_record_executor = ThreadPoolExecutor(1, thread_name_prefix="records")
"""Records are parsed and drawn one at a time, so that other pages stay responsive."""

_fold_executor = ThreadPoolExecutor(1, thread_name_prefix="folds")
"""Explanations fold the history before a match: one at a time, outside the server's thread."""

T = TypeVar("T")

_RECORD_TTL_S = 3600.0
"""A record never changes."""


@route("/matches")
async def matches(league: LiveLeague, params: RequestParams) -> Any:
    """Matches, newest first, and where the next page begins; ``list_matches`` has the filters."""
    rows = await list_matches(league, params)
    return {"rows": rows, "next": rows[-1]["sequence"] if len(rows) == params.limit() else None}


@route("/matches/options", stays_s=10.0)
async def match_filters(league: LiveLeague, _: RequestParams) -> Any:
    """The values of the filters."""
    rows = await league.rows("SELECT DISTINCT game, purpose, worker FROM kept.all_matches")
    failures = await league.rows("SELECT DISTINCT purpose, worker FROM kept.all_match_failures")
    agents = await league.rows("SELECT agent FROM agents ORDER BY joined_sequence DESC LIMIT 500")
    return {
        "games": sorted({row["game"] for row in rows}),
        "purposes": sorted({row["purpose"] for row in [*rows, *failures]}),
        "workers": sorted({row["worker"] for row in [*rows, *failures]}),
        "agents": [row["agent"] for row in agents],
    }


@route("/match/{id}")
async def match(league: LiveLeague, params: RequestParams) -> Any:
    """One match: seats, result, draw, use in training, changed ratings; not its record."""
    return await match_details(league, await load_match(league, params.path_part("id")))


@route("/match/{id}/replay")
async def replay(league: LiveLeague, params: RequestParams) -> Any:
    """The turns or conversations of a match, or why its record cannot be read."""
    match = await load_match(league, params.path_part("id"))
    try:
        record = await load_record(league.run, league.log, match, None)
        played = await _load_replay(league, match, record)
    except LeagueError as error:
        return {"problem": str(error), **msgspec.to_builtins(MatchReplay())}
    return {"problem": None, **msgspec.to_builtins(played)}


@route("/match/{id}/map/{turn}", stays_s=_RECORD_TTL_S)
async def map_image(league: LiveLeague, params: RequestParams) -> Any:
    """The map at a turn as an SVG image: scripts in it cannot run inside ``<img>``."""
    match_id, number = params.path_part("id"), params.path_part("turn")
    match = await load_match(league, match_id)
    record = await load_record(league.run, league.log, match, None)
    if _game_name(match) != MAP_GAME or not (number.isascii() and number.isdigit() and len(number) < 5):
        raise ArtifactError(f"match {match_id!r}, turn {number!r}: expected a turn of a match of diplomacy")
    svg = await _run_in_record_thread(render_map, record, int(number))
    if svg is None:
        raise ArtifactError(f"match {match_id!r} has no turn {number}")
    return EncodedResponse(svg.encode(), "image/svg+xml", int(_RECORD_TTL_S))


@route("/match/{id}/explain")
async def explain(league: LiveLeague, params: RequestParams) -> Any:
    """``league match explain``: the draw or the evaluation behind a match, recomputed."""
    match = await load_match(league, params.path_part("id"))
    reader = LeagueReader(league, league.position, _fold_executor)
    explained = await reader.fold(lambda history: explain_match(history, history, match))
    return {"kind": explained.kind, "agrees": explained.agrees, **explained.to_builtins()}


@route("/match/{id}/resimulate", stays_s=_RECORD_TTL_S)
async def resimulate(league: LiveLeague, params: RequestParams) -> Any:
    """``league match show --again``: the match played again and compared with its result."""
    match = await load_match(league, params.path_part("id"))
    outcome = await resimulate_from_record(league.run, league.log, match, None)
    return {"identical": outcome.identical, **msgspec.to_builtins(outcome)}


@route("/match/{id}/decision")
async def decision(league: LiveLeague, params: RequestParams) -> Any:
    """The decision of a model in a ``turn`` at a ``seat``: prompt, reply, and the alternatives at each choice."""
    turn, seat = params.integer("turn"), params.integer("seat")
    if turn is None or seat is None:
        raise UsageError("decision: expected a turn and a seat, both from 0")
    match = await load_match(league, params.path_part("id"))
    if match.result is None or seat >= len(match.result.seats):
        raise UsageError(f"match {match.match_id!r}: it has no seat {seat}, or was not played to its end")
    seated = match.result.seats[seat]
    kind = agent_kind(league, seated.agent)
    if kind == "bot":
        raise UsageError(f"seat {seat}: {seated.agent} is a bot, which has no prompts")
    record = await load_record(league.run, league.log, match, None)
    config = league.state.config
    moment = await _run_in_record_thread(find_decision_point, record, _game_name(match), config, turn, seat)
    calls, problem = await _sampled_calls(league, match, seated)
    kept = await _kept_decisions(league, match.match_id)
    if moment.decision_index < len(calls):
        tokenizer = await asyncio.to_thread(load_tokenizer, league.run, league.state.model)
        found = decision_from_call(calls[moment.decision_index], tokenizer)
        return msgspec.to_builtins(_with_kept(found, kept, seat, moment.decision_index))
    in_words = kind in ("remote", "person")
    again = await _run_in_record_thread(reconstruct_decision, moment, seat, config, in_words)
    again = msgspec.structs.replace(again, note=again.note + problem)
    return msgspec.to_builtins(_with_kept(again, kept, seat, moment.decision_index))


async def _load_replay(league: LiveLeague, match: MatchEvents, record: bytes) -> MatchReplay:
    """What was played, with the replies that were kept; beside a map they are read one by one."""
    played: MatchReplay = await _run_in_record_thread(match_replay, record, _game_name(match))
    if played.pictures:
        return played
    kept = await _kept_decisions(league, match.match_id)
    replies = [
        KeptReply(seat, call, row["reply"], row["thoughts"], row["fault"], describe_credit(row))
        for (seat, call), row in kept.items()
    ]
    return msgspec.structs.replace(played, replies=replies)


KeptDecisions = Mapping[tuple[int, int], Mapping[str, Any]]
"""Rows of ``decisions`` by seat and number of the decision in it."""


async def _kept_decisions(league: LiveLeague, match_id: str) -> KeptDecisions:
    rows = await league.decisions(f"SELECT {DECISION_COLUMNS} FROM decisions WHERE match_id = ?", match_id)
    return {(row["seat"], row["call"]): row for row in rows}


def _with_kept(found: Decision, kept: KeptDecisions, seat: int, index: int) -> Decision:
    row = kept.get((seat, index))
    return found if row is None else found.with_kept(row)


async def _sampled_calls(league: LiveLeague, match: MatchEvents, seat: SeatResult) -> tuple[Sequence[ModelCall], str]:
    """A seat's model calls while its trajectory waits for a trainer; else none, and why they could not be read."""
    named = split_agent(seat.agent)
    if named is None or not seat.trainable or match.result is None or not match.result.experience:
        return (), ""
    log = league.log
    try:
        trajectory = await find_pending_trajectory(log.client, log.league, named[0], match.match_id, seat.seat)
    except LogError as error:
        # Credentials that may read the league may still be denied its experience.
        return (), f" Waiting jobs could not be read: {error}."
    return (trajectory.steps if trajectory is not None else ()), ""


class WholeMatch(msgspec.Struct, frozen=True):
    """A match with everything that a file of it shows."""

    details: dict[str, Any]
    replay: MatchReplay
    problem: str | None
    """Why the record cannot be read; None if it was."""
    maps: list[str]
    """The map of each turn as SVG, where the game has maps."""
    decisions: dict[tuple[int, int], Decision]
    """Prompts and replies of models and people by turn and seat; of an episode they are in ``replay``."""
    decision_problem: str = ""
    """Why ``decisions`` cannot be given, if they cannot."""


async def load_whole_match(league: LiveLeague, match_id: str, file: Path | None = None) -> WholeMatch:
    """A match with its record, its maps and its decisions; raises as ``load_match`` does.

    ``file`` is a copy of the record for leagues that keep none.
    """
    match = await load_match(league, match_id)
    details = await match_details(league, match)
    try:
        record = await load_record(league.run, league.log, match, file)
        played = await _load_replay(league, match, record)
    except LeagueError as error:
        return WholeMatch(details, MatchReplay(), str(error), [], {})
    drawn = [await _run_in_record_thread(render_map, record, number) for number in range(len(played.pictures))]
    maps = [drawing for drawing in drawn if drawing is not None]
    decisions, problem = dict[tuple[int, int], Decision](), ""
    if not played.episodes:
        try:
            decisions = await _load_decisions(league, match, record, bool(details["used"]))
        except LeagueError as error:
            problem = str(error)
    return WholeMatch(details, played, None, maps, decisions, problem)


async def _load_decisions(
    league: LiveLeague, match: MatchEvents, record: bytes, is_consumed: bool
) -> dict[tuple[int, int], Decision]:
    """The decisions of all seats but bots', from waiting trajectories where a trainer has not consumed them."""
    assert match.result is not None
    kinds = {seat.seat: agent_kind(league, seat.agent) for seat in match.result.seats}
    replies_in_text = {seat: kind in ("remote", "person") for seat, kind in kinds.items() if kind != "bot"}
    config = league.state.config
    decisions: dict[tuple[int, int], Decision] = await _run_in_record_thread(
        reconstruct_decisions, record, _game_name(match), config, replies_in_text
    )
    for seat in () if is_consumed else match.result.seats:
        calls, _ = await _sampled_calls(league, match, seat) if seat.seat in replies_in_text else ((), "")
        moments = [moment for moment in sorted(decisions) if moment[1] == seat.seat]
        tokenizer = await asyncio.to_thread(load_tokenizer, league.run, league.state.model) if calls else None
        decisions |= {moment: decision_from_call(call, tokenizer) for moment, call in zip(moments, calls, strict=False)}
    kept = await _kept_decisions(league, match.match_id)
    for seat in match.result.seats:
        moments = [moment for moment in sorted(decisions) if moment[1] == seat.seat]
        decisions |= {
            moment: _with_kept(decisions[moment], kept, seat.seat, index) for index, moment in enumerate(moments)
        }
    return decisions


def _game_name(match: MatchEvents) -> str:
    """The game of a match that has a record."""
    assert match.result is not None
    return match.result.game


async def _run_in_record_thread(work: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(_record_executor, partial(work, *arguments))
