"""Matches accounted for from the history alone, under the configuration that held when they were made."""

import asyncio

import msgspec
import pytest

from league.blobs import FolderBlobStore
from league.matchmaking.audit import explain_draw, explain_evaluation
from schemas.config import EvaluationConfig, LeagueConfig, MatchmakingConfig, Plugin, to_builtins
from schemas.errors import ReplayError, UsageError
from schemas.events import LeagueConfigured, MatchFinished, OpponentsSampled
from tests.memory_log import MemoryLog
from tests.simulated_history import Simulation

CONFIG = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))
UNIFORM = msgspec.structs.replace(CONFIG, matchmaking=MatchmakingConfig(Plugin(name="uniform")))


class Reconfigured(Simulation):
    """After step 12, another sampler is in force."""

    def publish(self, version: int, policy: str | None = None) -> None:
        if version == 13:
            self.append(
                LeagueConfigured(config=to_builtins(UNIFORM), config_digest="u", after=self.state.config_sequence)
            )
            self.config = UNIFORM
        super().publish(version, policy)


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    made = Reconfigured(CONFIG)
    made.run(25, 2)
    return made


@pytest.fixture
def artifacts(tmp_path) -> FolderBlobStore:
    return FolderBlobStore(tmp_path)


async def log_of(simulation: Simulation) -> MemoryLog:
    log = MemoryLog(simulation.config.name)
    await log.copy(simulation.history)
    return log


def finished(simulation: Simulation) -> dict[str, MatchFinished]:
    events = [recorded.event for recorded in simulation.history]
    return {event.match_id: event for event in events if isinstance(event, MatchFinished)}


def test_every_draw_is_reproduced_under_the_configuration_of_its_time(
    simulation: Simulation, artifacts: FolderBlobStore
) -> None:
    async def main() -> None:
        log, results = await log_of(simulation), finished(simulation)
        draws = [r.event for r in simulation.history if isinstance(r.event, OpponentsSampled)]
        samplers = []
        for draw in draws[::3]:
            explained = await explain_draw(log, artifacts, draw, results[draw.match_id])
            assert explained.agrees, explained.differences
            assert explained.explanation.picks == draw.picks
            samplers.append(draw.sampler)
            eligible = {a for bucket in explained.explanation.distribution.values() for a in bucket.weights}
            assert set(explained.ratings) == eligible
        assert samplers == sorted(samplers)
        assert set(samplers) == {"pfsp", "uniform"}

    asyncio.run(main())


def test_every_evaluation_match_is_reproduced_from_its_request(
    simulation: Simulation, artifacts: FolderBlobStore
) -> None:
    async def main() -> None:
        log = await log_of(simulation)
        played = [match for match in finished(simulation).values() if match.purpose == "evaluation"]
        for match in played[::5]:
            explained = await explain_evaluation(log, artifacts, match.match_id, match, lambda _: 7)
            assert explained is not None
            assert explained.agrees, explained.differences
            assert explained.requested.evaluation_id == match.evaluation_id
            assert explained.requested.matches[explained.index] == match.match_id

    asyncio.run(main())


def test_an_altered_match_is_told_from_its_draw_and_from_its_request(
    simulation: Simulation, artifacts: FolderBlobStore
) -> None:
    async def main() -> None:
        log, results = await log_of(simulation), finished(simulation)
        draw = next(r.event for r in simulation.history if isinstance(r.event, OpponentsSampled))
        assert isinstance(draw, OpponentsSampled)
        match = msgspec.structs.replace(results[draw.match_id], seed=1)
        assert (
            (await explain_draw(log, artifacts, draw, match))
            .differences[0]
            .startswith("seed of the match: recorded 1,")
        )
        other = msgspec.structs.replace(draw, standings_sequence=draw.standings_sequence + 30)
        assert not (await explain_draw(log, artifacts, other, None)).agrees
        rated = next(match for match in results.values() if match.purpose == "evaluation")
        swapped = msgspec.structs.replace(rated, seats=[*rated.seats[1:], rated.seats[0]])
        explained = await explain_evaluation(log, artifacts, rated.match_id, swapped, lambda _: 7)
        assert explained is not None
        assert explained.differences[0].startswith("line-up of the match")

    asyncio.run(main())


def test_what_nobody_asked_for_is_not_explained(simulation: Simulation, artifacts: FolderBlobStore) -> None:
    async def main() -> None:
        log = await log_of(simulation)
        assert await explain_evaluation(log, artifacts, "imported-1", None, lambda _: 7) is None
        draw = next(r.event for r in simulation.history if isinstance(r.event, OpponentsSampled))
        assert isinstance(draw, OpponentsSampled)
        with pytest.raises(UsageError, match="expected <worker>-<number>"):
            await explain_draw(log, artifacts, msgspec.structs.replace(draw, match_id="odd"), None)
        with pytest.raises(ReplayError, match="no configuration up to event 0"):
            await explain_draw(log, artifacts, msgspec.structs.replace(draw, standings_sequence=0), None)

    asyncio.run(main())
