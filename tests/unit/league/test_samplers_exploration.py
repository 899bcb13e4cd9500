"""Exploration: agents are drawn while their play is new."""

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from league.samplers import make_sampler
from league.state import LeagueState
from league.state.novelty import PRIOR, NgramCount, NgramCounts
from schemas.config import (
    AgentConfig,
    CheckpointScheduleConfig,
    EvaluationConfig,
    LeagueConfig,
    MatchmakingConfig,
    Plugin,
)
from schemas.errors import ConfigError
from schemas.events import MatchFinished, OpponentsSampled, SeatResult
from schemas.metrics import NEW_NGRAMS, NGRAMS
from schemas.standings import Agent, LivePolicy, Standings
from tests.simulated_history import Simulation
from workers.match_runner.ngrams import NgramMemory

SEATS = 3


def table(novelty: dict[str, float]) -> Standings:
    agents = [Agent("base_model", "base", 1000.0, 9), Agent("a_bot", "bot", 800.0, 9), Agent("b_bot", "bot", 0.0, 9)]
    live = {"main": LivePolicy("main", 7, None, 1200.0)}
    return Standings(3, {agent.name: agent for agent in agents}, live, {}, novelty=novelty)


def shares(standings: Standings, **settings: float) -> dict[str, float]:
    sampler = make_sampler(Plugin(name="exploration", settings=settings))
    return sampler.distribution(standings, "main")["fixed"].probabilities()


def test_the_newer_is_the_likelier_and_who_was_never_met_comes_first() -> None:
    found = shares(table({"base_model": 0.1, "a_bot": 0.6}))
    assert found["b_bot"] > found["a_bot"] > found["base_model"] > 0.1 / 3
    assert found == pytest.approx(shares(table({"base_model": 0.1, "a_bot": 0.6, "b_bot": 1.0})))


def test_nobody_is_drawn_less_than_the_uniform_part() -> None:
    old_and_new = table({"base_model": 0.0, "a_bot": 0.0})
    assert shares(old_and_new, temperature=1e-6) == pytest.approx(
        {"base_model": 0.1 / 3, "a_bot": 0.1 / 3, "b_bot": 0.9 + 0.1 / 3}
    )
    assert shares(old_and_new, uniform=1.0) == pytest.approx(dict.fromkeys(("base_model", "a_bot", "b_bot"), 1 / 3))


def test_without_counts_everybody_is_as_likely() -> None:
    assert shares(table({})) == pytest.approx(dict.fromkeys(("base_model", "a_bot", "b_bot"), 1 / 3))


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"uniform": 1.1}, {"uniform": -0.1}])
def test_bad_settings_are_refused_by_name(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=rf"matchmaking\.sampler\.settings\.{next(iter(settings))}: .*expected"):
        make_sampler(Plugin(name="exploration", settings=settings))


def test_an_ngram_is_new_until_its_player_has_shown_it() -> None:
    memory = NgramMemory()
    assert memory.count("a", ["up", "down", "up"]) == {NGRAMS: 3.0, NEW_NGRAMS: 3.0}
    assert memory.count("a", ["up", "down", "down"]) == {NGRAMS: 3.0, NEW_NGRAMS: 1.0}
    assert memory.count("b", ["up", "down", "up"]) == {NGRAMS: 3.0, NEW_NGRAMS: 3.0}
    assert memory.count("a", []) == {}


def test_the_oldest_ngrams_are_forgotten() -> None:
    memory = NgramMemory(limit=2)
    assert memory.count("a", ["x"])[NEW_NGRAMS] == 1
    assert memory.count("a", ["y"])[NEW_NGRAMS] == 1
    assert memory.count("a", ["x"])[NEW_NGRAMS] == 0
    assert memory.count("a", ["z"])[NEW_NGRAMS] == 1
    assert memory.count("a", ["x"])[NEW_NGRAMS] == 0
    assert memory.count("a", ["y"])[NEW_NGRAMS] == 1


@pytest.mark.parametrize("new", [-1.0, 4.0, float("nan")])
def test_counts_that_make_no_sense_are_ignored(new: float) -> None:
    seats = [
        SeatResult(0, "A", "main@1", 1.0, 1, trainable=True, metrics={NGRAMS: 3.0, NEW_NGRAMS: 3.0}),
        SeatResult(1, "B", "bot", 0.0, 2, metrics={NGRAMS: 3.0, NEW_NGRAMS: new}),
    ]
    match = MatchFinished("w-1", "nim", "training", "w", 1, seats, None, "", 1, 0.0)
    counts = NgramCounts()
    assert not counts.count(match)
    assert counts.by_agent == {}


# A league in which one bot always plays the same line, one each time something of its own, one one of 20 openings.

AGENTS = ("base_model", "dull", "endless", "openings")
OPENINGS = [[f"{line}:{move}" for move in range(10)] for line in range(20)]


def lines(agent: str, rng: Random) -> list[str]:
    if agent == "endless":
        return [str(rng.randrange(10**9)) for _ in range(10)]
    return rng.choice(OPENINGS) if agent == "openings" else [f"{agent.partition('@')[0]} {move}" for move in range(10)]


def played(sampler: str, matches: int, **settings: float) -> Simulation:
    config = LeagueConfig(
        seed=5,
        agents={name: AgentConfig(kind="base" if name == "base_model" else "bot", rating=1000.0) for name in AGENTS},
        matchmaking=MatchmakingConfig(sampler=Plugin(name=sampler, settings=settings)),
        evaluation=EvaluationConfig(gatekeepers=("dull",), benchmark_opponents=("dull",), benchmark_games=3),
        schedule=CheckpointScheduleConfig(recent_every=1_000, landmark_every=1_000),
    )
    simulation = Simulation(config, SEATS, lines=lines)
    simulation.open()
    simulation.publish(0)
    for _ in range(matches):
        simulation.play_training_match()
    return simulation


@pytest.fixture(scope="module")
def exploring() -> Simulation:
    return played("exploration", 300)


def drawn(simulation: Simulation, first: int, last: int) -> Counter[str]:
    events = [recorded.event for recorded in simulation.history if isinstance(recorded.event, OpponentsSampled)]
    return Counter(pick.agent for event in events[first:last] for pick in event.picks)


def unique_ngrams(simulation: Simulation) -> float:
    return sum(count.new for count in simulation.state.ngrams.by_agent.values())


def test_the_diverse_are_drawn_more_than_who_always_plays_the_same(exploring: Simulation) -> None:
    counts = drawn(exploring, 20, 300)
    assert counts["endless"] > 5 * counts["dull"] > 0
    assert counts["base_model"] > 0


def test_the_share_of_who_runs_out_of_new_things_falls(exploring: Simulation) -> None:
    counts = [drawn(exploring, first, first + 35) for first in (5, 40, 75)]
    assert all(earlier["openings"] > later["openings"] for earlier, later in pairwise(counts))
    assert counts[0]["openings"] > 2 * counts[2]["openings"]


def test_the_state_holds_the_distinct_ngrams_of_every_agent_and_its_novelty(exploring: Simulation) -> None:
    counts = exploring.state.ngrams.by_agent
    assert counts["dull"].new == 10
    assert counts["endless"].new == counts["endless"].played
    novelty = exploring.state.standings().novelty
    assert novelty["dull"] == (10 + PRIOR) / (counts["dull"].played + PRIOR)
    assert novelty["openings"] < 0.4 < novelty["endless"] == 1.0
    restored = LeagueState.from_snapshot(exploring.state.to_snapshot())
    assert restored.ngrams.by_agent["dull"] == NgramCount(counts["dull"].played, 10.0)


def test_more_that_is_new_is_met_than_under_uniform_draws(exploring: Simulation) -> None:
    assert unique_ngrams(exploring) > 1.5 * unique_ngrams(played("exploration", 300, uniform=1.0))
