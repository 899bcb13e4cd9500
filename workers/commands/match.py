"""``league match show``, ``explain`` and ``resimulate``: one match, read, accounted for and played again."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import uvloop
from rich.console import Console

from arena.games import make_game
from arena.games.base import Bot, Outcome, Turn
from arena.records import is_episode, turns_of
from arena.resimulation import Resimulation, resimulate
from league.explaining import DrawExplained, EvaluationExplained, explain_draw, explain_evaluation
from league.log.jetstream import JetStreamLog
from schemas.errors import LeagueError, UsageError, VersionError
from schemas.events import AgentRegistered, MatchFinished
from workers.asking import metering, players
from workers.commands.options import JsonOption, LeagueOption, NatsOption, RunOption, the_run
from workers.reading.match_text import (
    header,
    plain_explanation,
    print_draw,
    print_evaluation,
    print_match,
    print_resimulation,
)
from workers.reading.matches import FoundMatch, find_match, load_record
from workers.run import DEFAULT_RUN, Run

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The match's id, such as rollout-1-0.")]
RecordOption = Annotated[
    Path | None, typer.Option("--record", help="A copy of the record, for a league that keeps its digest only.")
]


def show(
    match_id: IdArgument,
    run: RunOption = DEFAULT_RUN,
    nats: NatsOption = None,
    league: LeagueOption = None,
    record: RecordOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a match: who played, what came of it, and every move."""

    async def work(history: JetStreamLog, found: FoundMatch) -> int:
        turns, problem = await _transcript(here, history, found, record)
        if as_json:
            _print_json({**header(found), "turns": turns, "problem": problem})
        else:
            print_match(Console(), found, turns, problem)
        return 0

    here = the_run(run, nats, league)
    _with_match(here, match_id, work)


def explain(
    match_id: IdArgument,
    run: RunOption = DEFAULT_RUN,
    nats: NatsOption = None,
    league: LeagueOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say why a match was what it was: who could have been drawn, and by which numbers; exits 1 if it disagrees."""

    async def work(history: JetStreamLog, found: FoundMatch) -> int:
        explained = await _explained(here, history, found)
        if as_json:
            _print_json({"match_id": found.match_id, "agrees": explained.agrees, **plain_explanation(explained)})
        elif isinstance(explained, DrawExplained):
            print_draw(Console(), explained)
        else:
            print_evaluation(Console(), explained)
        return 0 if explained.agrees else 1

    here = the_run(run, nats, league)
    _with_match(here, match_id, work)


def resimulate_match(
    match_id: IdArgument,
    run: RunOption = DEFAULT_RUN,
    nats: NatsOption = None,
    league: LeagueOption = None,
    record: RecordOption = None,
    as_json: JsonOption = False,
) -> None:
    """Play a match again from its record and compare with what was recorded; exits 1 at the first difference."""

    async def work(history: JetStreamLog, found: FoundMatch) -> int:
        outcome = await _resimulated(here, history, found, record)
        if as_json:
            value = {"match_id": found.match_id, "identical": outcome.identical, **msgspec.to_builtins(outcome)}
            _print_json(value)
        else:
            print_resimulation(Console(), found, outcome)
        return 0 if outcome.identical else 1

    here = the_run(run, nats, league)
    _with_match(here, match_id, work)


def _with_match(run: Run, match_id: str, work: Callable[[JetStreamLog, FoundMatch], Awaitable[int]]) -> None:
    """Find a match, do something with it, and exit with the code that this gives."""

    async def main() -> int:
        async with run.history() as history:
            return await work(history, await find_match(run, history, match_id))

    if code := uvloop.run(main()):
        raise typer.Exit(code)


async def _transcript(
    run: Run, history: JetStreamLog, found: FoundMatch, file: Path | None
) -> tuple[list[Turn] | None, str | None]:
    """What was played, or why that cannot be told: everything else about the match can."""
    try:
        record = await load_record(run, history, found, file)
        assert found.result is not None
        return turns_of(record) if is_episode(record) else make_game(found.result.game, {}).transcript(record), None
    except LeagueError as error:
        return None, str(error)


async def _explained(run: Run, history: JetStreamLog, found: FoundMatch) -> DrawExplained | EvaluationExplained:
    artifacts = run.artifacts(history.client)
    if found.draw is not None:
        return await explain_draw(history, artifacts, found.draw, found.result)
    seats = len(found.result.seats) if found.result is not None else 0
    explained = await explain_evaluation(history, artifacts, found.match_id, found.result, seats) if seats else None
    if explained is None:
        purpose = found.result.purpose if found.result is not None else "unknown, since it failed"
        raise UsageError(
            f"match {found.match_id!r}: nothing to explain: it was neither drawn for training nor asked for by an "
            f"evaluation (purpose: {purpose})"
        )
    return explained


async def _resimulated(run: Run, history: JetStreamLog, found: FoundMatch, file: Path | None) -> Resimulation:
    record = await load_record(run, history, found, file)
    result = found.result
    assert result is not None
    if is_episode(record):
        raise UsageError(
            f"match {found.match_id!r}: an episode of {result.game}, whose outcome is what was said in it and cannot "
            "be computed again; expected a match of a game (league match show prints what was said)"
        )
    spec = make_game(result.game, {})
    if spec.rules_version != result.rules:
        raise VersionError(
            f"match {found.match_id!r} was played by version {result.rules} of the rules of {result.game}, and this "
            f"package plays by version {spec.rules_version}; expected the package that played it"
        )
    scripted = {
        recorded.event.agent
        async for recorded in history.read(only=AgentRegistered)
        if isinstance(recorded.event, AgentRegistered) and recorded.event.kind == "bot"
    }
    bots: dict[int, Bot] = {seat.seat: spec.bot(seat.agent) for seat in result.seats if seat.agent in scripted}
    return resimulate(spec.open_record(record), result.seed, bots, _outcome(result))


def _outcome(result: MatchFinished) -> Outcome:
    return Outcome(
        scores=tuple(seat.score for seat in result.seats),
        ranks=tuple(seat.rank for seat in result.seats),
        winner=result.winner,
        metrics=tuple(_of_the_game(seat.metrics) for seat in result.seats),
        reason=result.reason,
        length=result.length,
    )


def _of_the_game(metrics: dict[str, float]) -> dict[str, float]:
    """Without how a model was asked and answered, which playing the match again does not tell."""
    asked = (players.METRICS, metering.METRICS)
    return {name: value for name, value in metrics.items() if not name.startswith(asked)}


def _print_json(value: Any) -> None:
    print(msgspec.json.encode(value).decode())
