"""Import of another system's results into a league: all results of a file, each once."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import zstandard

from arena.games.base import Outcome
from league.history.lineage import QueryFunction
from league.integrity.snapshots import load_state_at
from league.log.base import append_in_batches
from league.projections.tables import sql_literal
from league.queries.tables import open_tables
from league.run import Run
from league.state import LeagueState
from lifecycle.external_results import ExternalResult, parse_results
from schemas.codec import encode_event
from schemas.errors import DecodeError, UsageError, format_choices
from schemas.events import Event, ExternalVersionAdded, MatchFailed, MatchFinished, ResultsImported, SeatResult
from schemas.files import read_bounded
from schemas.ids import HUMAN, agent_name, digest, split_agent
from schemas.jobs import EXTERNAL_PURPOSE
from schemas.subjects import check_name

MAX_RESULTS_BYTES = 64 * 1024 * 1024
_PRODUCER = "import"
_KnownEnds = dict[str, dict[int, tuple[str, float]]]
"""Agent and score by seat, by match; no seats for a failed match."""


class ResultsImport(msgspec.Struct, frozen=True):
    """Summary of an import."""

    origin: str
    matches: int
    """Results in the file, failed ones included."""
    failed: int
    known: int
    """Results that the history held before."""
    agents: dict[str, str]
    """The league's agent by its name in the file."""
    added: list[str]
    """Agents that joined the league with these results."""
    is_rated: bool
    """Whether ``ratings.purposes`` names the purpose ``external``."""


async def import_results(
    run: Run, path: Path, form: str, origin: str, game: str, named: Mapping[str, str], dry_run: bool
) -> ResultsImport:
    """Append the results of a file that the history does not hold yet.

    ``form`` is found in the file where it is empty; ``origin`` and ``game`` are by default named as the format.
    ``named`` has the league's agent for a name in the file, where it is not the one of that name. An interrupted import
    is completed by the same command.

    Raises:
        UsageError: a line of the file is no result, an agent or the origin has a name that cannot be used, or the
            history holds a result with other agents or scores. Nothing is appended then.
    """
    try:
        data = read_bounded(path, MAX_RESULTS_BYTES)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    form, results = parse_results(data, path.name, form)
    origin, game = origin or form, game or form
    async with run.open_log(_PRODUCER) as history:
        state = await load_state_at(history, run.open_blob_store(history.client))
        check_name("--origin", origin)
        if origin in state.workers:
            raise UsageError(f"--origin {origin}: a worker of the league has that name; expected another one")
        agents = _resolve_agents(results, named, state)
        records = {result.id: zstandard.compress(result.record) for result in results if result.record}
        ends = [
            _external_event(result, origin, game, agents, digest(records[result.id]) if result.id in records else "")
            for result in results
        ]
        _check_recordable(results, ends, path.name)
        async with open_tables(run, history) as tables:
            recorded_ends = await _known_ends(tables.query, origin)
            is_same = f"origin = {sql_literal(origin)} AND digest = {sql_literal(digest(data))}"
            is_announced = bool(await tables.query(f"SELECT 1 FROM result_imports WHERE {is_same}"))
        fresh = [end for end in ends if not _is_known(end, recorded_ends)]
        added = sorted(set(agents.values()) - set(state.agents))
        if fresh and not dry_run:
            events: list[Event] = []
            blobs = run.open_blob_store(history.client)
            for data in records.values():
                await blobs.put(data, "record")
            if not is_announced:
                events.append(ResultsImported(origin, form, path.name, digest(data), len(ends), agents))
            for agent in added:
                policy, version = split_agent(agent) or (agent, 0)
                events.append(ExternalVersionAdded(agent=agent, policy=policy, version=version, worker=origin))
            await append_in_batches(history, [*events, *fresh])
    return ResultsImport(
        origin=origin,
        matches=len(ends),
        failed=sum(isinstance(end, MatchFailed) for end in ends),
        known=len(ends) - len(fresh),
        agents=agents,
        added=added,
        is_rated=state.config is not None and EXTERNAL_PURPOSE in state.config.ratings.purposes,
    )


def _resolve_agents(results: Sequence[ExternalResult], named: Mapping[str, str], state: LeagueState) -> dict[str, str]:
    """The league's agent for each name in a file: the given one, the one of that name, or an external agent."""
    names = sorted({seat.player for result in results for seat in result.seats})
    if unknown := sorted(set(named) - set(names)):
        raise UsageError(
            f"--agent {unknown[0]}=…: no player of that name in the file; expected {format_choices(names)}"
        )
    agents: dict[str, str] = {}
    for name in names:
        agents[name] = agent = named.get(name, name)
        if agent in state.agents:
            continue
        policy, version = split_agent(agent) or (agent, 0)
        if name == agent:
            policy = re.sub(r"[^A-Za-z0-9_-]+", "-", policy).strip("-")[:64]
        check_name(f"player {name!r}: external agent", policy)
        config = state.config
        if config is None:
            raise UsageError("the league's configuration was written by a newer version; expected that version here")
        if policy in (HUMAN, *config.agents, *config.trained_policies, *state.published):
            raise UsageError(
                f"player {name!r}: the league has an agent {policy}, but none {agent}; expected --agent {name}=AGENT "
                "with an agent of the league, or a new name"
            )
        agents[name] = agent_name(policy, version)
    names_by_agent: dict[str, str] = {}
    for name, agent in agents.items():
        if (other := names_by_agent.setdefault(agent, name)) != name:
            raise UsageError(
                f"players {other!r} and {name!r}: both would be {agent}; expected --agent {name}=… with another name"
            )
    return agents


def _external_event(
    result: ExternalResult, origin: str, game: str, agents: Mapping[str, str], record: str
) -> MatchFinished | MatchFailed:
    """The event of a result; ``agents`` has the league's agent for each name in the file, ``record`` is a digest."""
    # Names of workers have no dots: no match of a worker has such an id.
    match_id = f"external.{origin}.{result.id}"
    if result.error:
        return MatchFailed(match_id=match_id, purpose=EXTERNAL_PURPOSE, worker=origin, error=result.error)
    outcome = Outcome.of(
        [seat.score for seat in result.seats],
        [seat.team for seat in result.seats if seat.team],
        metrics=(),
        reason=result.reason,
        length=result.length,
    )
    results = zip(result.seats, outcome.scores, outcome.ranks, strict=True)
    return MatchFinished(
        match_id=match_id,
        game=game,
        purpose=EXTERNAL_PURPOSE,
        worker=origin,
        seed=0,
        seats=[
            SeatResult(
                *(number, seat.role, agents[seat.player], score, rank),
                metrics=dict(seat.metrics),
                team=seat.team,
                drawn_role=seat.drawn_role,
            )
            for number, (seat, score, rank) in enumerate(results)
        ],
        winner=outcome.winner,
        reason=outcome.reason,
        length=outcome.length,
        seconds=0.0,
        tokens=result.tokens,
        environment=result.environment,
        record=record,
        rules=result.rules,
    )


def _check_recordable(results: Sequence[ExternalResult], ends: Sequence[Event], source: str) -> None:
    for result, end in zip(results, ends, strict=True):
        try:
            encode_event(end)
        except DecodeError as error:
            raise UsageError(f"{source}, line {result.line}: {error}") from None


async def _known_ends(query: QueryFunction, origin: str) -> _KnownEnds:
    condition = f"purpose = '{EXTERNAL_PURPOSE}' AND worker = {sql_literal(origin)}"
    ends: _KnownEnds = {
        match_id: {} for (match_id,) in await query(f"SELECT match_id FROM match_failures WHERE {condition}")
    }
    rows = await query(
        f"SELECT match_id, seat, agent, score FROM match_seats JOIN matches USING (match_id) WHERE {condition}"
    )
    for match_id, seat, agent, score in rows:
        ends.setdefault(match_id, {})[seat] = (agent, score)
    return ends


def _is_known(end: MatchFinished | MatchFailed, recorded_ends: _KnownEnds) -> bool:
    if end.match_id not in recorded_ends:
        return False
    seats = {} if isinstance(end, MatchFailed) else {seat.seat: (seat.agent, seat.score) for seat in end.seats}
    if seats != recorded_ends[end.match_id]:
        raise UsageError(
            f"match {end.match_id}: the history has {_describe(recorded_ends[end.match_id])}, "
            f"the file {_describe(seats)}; expected the same, or --origin with another name for another source"
        )
    return True


def _describe(seats: Mapping[int, tuple[str, float]]) -> str:
    return ", ".join(f"{agent} {score:g}" for agent, score in seats.values()) or "a failure"
