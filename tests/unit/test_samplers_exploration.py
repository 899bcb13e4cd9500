"""Exploration: drawn are those who show the policy what it has not met, for as long as they do."""

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from league.samplers import make_sampler
from schemas.config import (
    AgentConfig,
    CheckpointScheduleConfig,
    EvaluationConfig,
    LeagueConfig,
    MatchmakingConfig,
    Plugin,
)
from schemas.errors import ConfigError
from schemas.events import MatchFinished, OpponentsSampled
from schemas.sketches import decode_sketch
from schemas.standings import Agent, LivePolicy, Standings
from tests.simulated_history import Simulation

SEATS = 3


def table(novelty: dict[str, float]) -> Standings:
    agents = [Agent("base_model", "base", 1000.0, 9), Agent("a_bot", "bot", 800.0, 9), Agent("b_bot", "bot", 0.0, 9)]
    live = {"main": LivePolicy("main", 7, None, 1200.0)}
    return Standings(3, {agent.name: agent for agent in agents}, live, {}, novelty={"main": novelty, "second": {}})


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


def test_without_sketches_everybody_is_as_likely() -> None:
    assert shares(table({})) == pytest.approx(dict.fromkeys(("base_model", "a_bot", "b_bot"), 1 / 3))


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"uniform": 1.1}, {"uniform": -0.1}, {"n": 0}])
def test_bad_settings_are_refused_by_name(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=rf"matchmaking\.sampler\.settings\.{next(iter(settings))}: .*expected"):
        make_sampler(Plugin(name="exploration", settings=settings))


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


def met(simulation: Simulation) -> int:
    """Different n-grams of all training matches, which are short enough to be sketched whole."""
    texts = [r.event.ngrams for r in simulation.history if isinstance(r.event, MatchFinished) and r.event.ngrams]
    return len({number for text in texts for seat in decode_sketch(text).seats for number in seat})


def test_the_diverse_are_drawn_more_than_who_always_plays_the_same(exploring: Simulation) -> None:
    counts = drawn(exploring, 20, 300)
    assert counts["endless"] > 5 * counts["dull"] > 0
    assert counts["base_model"] > 0


def test_the_share_of_who_runs_out_of_new_things_falls(exploring: Simulation) -> None:
    counts = [drawn(exploring, first, first + 35) for first in (5, 40, 75)]
    assert all(earlier["openings"] > later["openings"] for earlier, later in pairwise(counts))
    assert counts[0]["openings"] > 2 * counts[2]["openings"]
    novelty = played("exploration", 250).state.standings().novelty["main"]
    assert novelty["dull"] < 0.2
    assert novelty["openings"] < 0.2
    assert novelty["endless"] == 1.0


def test_more_that_is_new_is_met_than_under_uniform_draws() -> None:
    assert met(played("exploration", 300)) > 1.5 * met(played("exploration", 300, uniform=1.0))


def test_only_training_matches_are_sketched_and_only_for_a_sampler_that_asks(exploring: Simulation) -> None:
    exploring.evaluate()
    results = [recorded.event for recorded in exploring.history if isinstance(recorded.event, MatchFinished)]
    assert {(event.purpose, event.ngrams != "") for event in results} == {("training", True), ("evaluation", False)}
    others = [recorded.event for recorded in played("random", 5).history]
    assert all(event.ngrams == "" for event in others if isinstance(event, MatchFinished))
