"""A match as text for a terminal, its explanation, and its resimulation."""

import asyncio
from pathlib import Path
from typing import Any

from arena.environments import evaluation_seat_counts
from arena.games import make_game
from arena.games.base import Bot, Outcome, Turn
from arena.match import Resimulation, resimulate
from arena.records import is_episode_record, make_transcript
from league.integrity.snapshots import BlobReader
from league.log.base import EventReader
from league.log.jetstream import JetStreamLog
from league.matchmaking.audit import DrawExplanation, EvaluationExplanation, explain_draw, explain_evaluation
from league.queries.matches import MatchEvents, event_position, load_record, void_fields
from league.queries.terminal import Console
from league.queries.text_table import number_columns, print_table
from league.run import Run
from schemas.config import LeagueConfig
from schemas.errors import ConfigError, LeagueError, UsageError, VersionError
from schemas.events import AgentRegistered, MatchFinished
from schemas.jobs import SeatCounts
from schemas.metrics import NGRAMS, REMOTE_METRICS, REPLY_METRICS

MatchExplanation = DrawExplanation | EvaluationExplanation
_WORKER_METRICS = (REPLY_METRICS, REMOTE_METRICS, NGRAMS)
"""Prefixes of the metrics that the worker adds and a resimulation cannot reproduce."""


def match_header(match: MatchEvents) -> dict[str, Any]:
    """The events of a match as a dict for JSON."""
    events = {"finished": match.finished, "failed": match.failed, "sampled": match.sampled}
    return {
        "match_id": match.match_id,
        **{name: None if at is None else {**event_position(at), "event": at.event} for name, at in events.items()},
        "voided": void_fields(match),
    }


def print_match(console: Console, match: MatchEvents, turns: list[Turn] | None, problem: str | None) -> None:
    """Print a match's seats, its outcome, and its moves, or why there are none to show."""
    result = match.result
    position = event_position(match.finished or match.failed or match.sampled)
    where = f"event {position['sequence']}, {position['time']}"
    if result is not None:
        game = f"{result.game} {result.environment}".strip()
        _print_line(console, f"match {match.match_id}: {game}, {result.purpose}, seed {result.seed}; {where}")
        _print_line(
            console,
            f"played by {result.worker} in {result.seconds:g} s, {result.length} turns, {result.tokens:,} tokens "
            f"written; ended by {result.reason}",
        )
    elif match.failure is not None:
        failure = match.failure
        _print_line(console, f"match {match.match_id}: {failure.purpose}, FAILED at {failure.worker}; {where}")
        _print_line(console, failure.error)
    else:
        _print_line(console, f"match {match.match_id}: drawn, and neither finished nor failed yet; {where}")
    if match.voiding is not None:
        voided = event_position(match.voided)["sequence"]
        _print_line(console, f"VOIDED by event {voided}: {match.voiding.reason}")
    if result is not None:
        rows = []
        for seat in result.seats:
            agent = seat.agent + (" (trained on)" if seat.trainable else "")
            metrics = ", ".join(f"{name} {value:g}" for name, value in seat.metrics.items() if value)
            rank = f"{seat.rank}{' (first)' if result.has_won(seat) else ''}"
            role = seat.role + (f", {seat.drawn_role}" if seat.drawn_role else "")
            rows.append([seat.seat, role, agent, seat.team, f"{seat.score:g}", rank, metrics])
        columns = [*number_columns("seat"), "role", "agent", "team", *number_columns("score", "rank"), "metrics ≠ 0"]
        print_table(console, columns, rows, ("seat",))
    if problem is not None:
        _print_line(console, f"no moves to show: {problem}")
    for turn in turns or ():
        _print_line(console, f"\n{turn.title}")
        width = max(map(len, turn.moves), default=0)
        for role, moves in turn.moves.items():
            _print_line(console, f"  {role:<{width}}  {'; '.join(moves)}")
        for note in turn.notes:
            _print_line(console, f"  {note}")


def _print_line(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def print_explanation(explained: MatchExplanation, console: Console) -> None:
    """Print why a match was what it was, and whether the history agrees."""
    if isinstance(explained, DrawExplanation):
        _print_draw(explained, console)
        agreement = "the draw and the match agree with the standings and the seed"
    else:
        requested, match = explained.requested, explained.match
        _print_line(
            console,
            f"match {match.match_id}: number {explained.index + 1} of {len(requested.matches)} of the evaluation "
            f"{requested.evaluation_id!r} ({requested.suite} of {requested.agent} against "
            f"{', '.join(requested.opponents)}), requested by event {explained.requested_sequence}",
        )
        _print_line(console, f"line-up: {', '.join(match.seats)}; seed {match.seed}")
        agreement = "line-up and seed agree with the request"
    _print_line(console, "DISAGREES:" if explained.differences else f"agrees: {agreement}")
    for difference in explained.differences:
        _print_line(console, f"  {difference}")


def _print_draw(explained: DrawExplanation, console: Console) -> None:
    """Print the eligible agents with their probabilities, and who was drawn."""
    sampled = explained.sampled
    _print_line(
        console,
        f"match {sampled.match_id}: {sampled.hero} (rating {explained.hero_rating:.1f}) in seat {sampled.hero_seat}, "
        f"drawn by {sampled.sampler} from the standings at event {sampled.standings_sequence}, draw {sampled.draw}",
    )
    rows = []
    for name, bucket in explained.explanation.distribution.items():
        for agent, probability in (bucket.probabilities() or {"(none)": 0.0}).items():
            rating = f"{explained.ratings[agent]:.1f}" if agent in explained.ratings else ""
            shares = [f"{share:.4f}" for share in (bucket.share, probability, bucket.share * probability)]
            rows.append([name, agent, rating, *shares])
    columns = ["bucket", "agent", *number_columns("rating", "share", "in bucket", "per seat")]
    print_table(console, columns, rows, ("rating",))
    for pick in explained.explanation.picks:
        _print_line(console, f"seat {pick.seat}: {pick.agent} from {pick.bucket}")


def print_resimulation(console: Console, match: MatchEvents, outcome: Resimulation) -> None:
    """Print the outcome of a resimulation."""
    _print_line(
        console,
        f"match {match.match_id}: {outcome.turns} turns played again, {outcome.positions} positions and "
        f"{outcome.decisions} decisions of bots compared",
    )
    divergence = outcome.divergence
    if divergence is None:
        _print_line(console, "identical")
        return
    where = [f"turn {divergence.turn}"] if divergence.turn is not None else []
    where += [f"seat {divergence.seat}"] if divergence.seat is not None else []
    _print_line(console, f"DIVERGES{' at ' if where else ''}{', '.join(where)}: {divergence.what}")
    _print_line(console, f"  recorded: {divergence.recorded}")
    _print_line(console, f"  replayed: {divergence.replayed}")


async def read_transcript(
    run: Run, history: JetStreamLog, match: MatchEvents, file: Path | None
) -> tuple[list[Turn] | None, str | None]:
    """The turns of a match, or why its record cannot be read."""
    try:
        record = await load_record(run, history, match, file)
        assert match.result is not None
        is_episode = is_episode_record(record)
        return make_transcript(record) if is_episode else make_game(match.result.game, {}).transcript(record), None
    except LeagueError as error:
        return None, str(error)


async def explain_match(history: EventReader, artifacts: BlobReader, match: MatchEvents) -> MatchExplanation:
    """Recompute a match's draw, or its place in the evaluation that requested it; ``UsageError`` if it has neither."""
    if match.draw is not None:
        return await explain_draw(history, artifacts, match.draw, match.result)
    played = match.result
    explained = None
    if played is not None:

        def count_seats(config: LeagueConfig) -> SeatCounts:
            """Seats of the evaluated game, or of the match where the game cannot be made on this machine."""
            try:
                return evaluation_seat_counts(config.game.name, config.game.settings)
            except ConfigError:
                return SeatCounts.constant(len(played.seats))

        explained = await explain_evaluation(history, artifacts, match.match_id, played, count_seats)
    if explained is None:
        purpose = match.result.purpose if match.result is not None else "unknown, since it failed"
        raise UsageError(
            f"match {match.match_id!r}: nothing to explain: it was neither drawn for training nor requested by an "
            f"evaluation (purpose: {purpose})"
        )
    return explained


async def resimulate_from_record(
    run: Run, history: JetStreamLog, match: MatchEvents, file: Path | None
) -> Resimulation:
    """Play a match again from its record, in a thread, and compare it with the recorded result.

    Raises:
        ArtifactError: there is no record.
        UsageError: it was an episode, whose outcome cannot be recomputed.
        VersionError: it was played under another version of the rules.
        LeagueError: the record is damaged, or the game's package is not installed.
    """
    record = await load_record(run, history, match, file)
    result = match.result
    assert result is not None
    if is_episode_record(record):
        raise UsageError(
            f"match {match.match_id!r}: an episode of {result.game}, whose outcome is what was said in it and cannot "
            "be computed again; expected a match of a game (league match show prints what was said)"
        )
    spec = make_game(result.game, {})
    if spec.rules_version != result.rules:
        raise VersionError(
            f"match {match.match_id!r} was played by version {result.rules} of the rules of {result.game}, and this "
            f"package plays by version {spec.rules_version}; expected the package that played it"
        )
    scripted = {agent.agent async for _, agent in history.read_events(AgentRegistered) if agent.kind == "bot"}
    bots: dict[int, Bot] = {seat.seat: spec.bot(seat.agent) for seat in result.seats if seat.agent in scripted}
    # In a thread: a long match takes a second of computing, during which pages must be served.
    return await asyncio.to_thread(
        lambda: resimulate(spec.open_record(record), result.seed, bots, _recorded_outcome(result))
    )


def _recorded_outcome(result: MatchFinished) -> Outcome:
    return Outcome(
        scores=tuple(seat.score for seat in result.seats),
        ranks=tuple(seat.rank for seat in result.seats),
        winner=result.winner,
        metrics=tuple(
            {name: value for name, value in seat.metrics.items() if not name.startswith(_WORKER_METRICS)}
            for seat in result.seats
        ),
        reason=result.reason,
        length=result.length,
        teams=tuple(seat.team for seat in result.seats if seat.team),
        roles=tuple(seat.drawn_role for seat in result.seats if seat.drawn_role),
    )
