"""Who is in the league from its first day, and who of them can be drawn for training."""

from random import Random

import msgspec
import pytest

from league.samplers import SAMPLERS, make_sampler
from schemas.config import AgentConfig, EvaluationConfig, LeagueConfig, MatchmakingConfig, Plugin, RemoteAgentConfig
from schemas.events import MatchFinished
from tests.simulated_history import Simulation

URL = "https://host/v1"


def league(training: bool, sampler: str = "pfsp", **other: object) -> LeagueConfig:
    hosted = AgentConfig(
        kind="remote", rating=800.0, remote=RemoteAgentConfig(url=URL, model="m", key_variable="K", training=training)
    )
    base = LeagueConfig(
        matchmaking=MatchmakingConfig(sampler=Plugin(name=sampler)),
        evaluation=EvaluationConfig(every=5, gatekeepers=("gpt", "recent"), gatekeeper_games=7, benchmark_games=7),
    )
    return msgspec.structs.replace(base, agents={**base.agents, "gpt": hosted}, **other)


def opened(config: LeagueConfig) -> Simulation:
    simulation = Simulation(config, seats=3)
    simulation.open()
    for version in range(25):
        simulation.publish(version)
    return simulation


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", sorted(set(SAMPLERS.names()) - {"mirror", "lagged"}))
def test_samplers_draw_a_remote_agent_only_where_training_is_allowed(name, training):
    config = league(training)
    standings = opened(config).state.standings()
    sampler = make_sampler(Plugin(name=name, settings={}))
    if name == "pfsp":
        # Near enough to be a peer, so that nothing but the setting keeps it out.
        live = standings.live["main"]
        agents = {**standings.agents, "gpt": msgspec.structs.replace(standings.agents["gpt"], rating=live.rating)}
        standings = msgspec.structs.replace(standings, agents=agents)
    drawn = {pick.agent for seed in range(200) for pick in sampler.sample(standings, "main", range(6), Random(seed))}
    buckets = sampler.distribution(standings, "main")
    weight = sum(bucket.share * bucket.probabilities().get("gpt", 0.0) for bucket in buckets.values())
    if not training:
        assert "gpt" not in drawn
        assert weight == 0
    elif name in ("fixed", "random", "uniform", "pfsp"):
        assert "gpt" in drawn
        assert weight > 0


def test_evaluations_place_a_remote_agent_that_is_set_aside():
    simulation = Simulation(league(training=False), seats=3)
    records = simulation.run(10, 3)
    matches = [r.event for r in records if isinstance(r.event, MatchFinished)]
    placed = [m for m in matches if any(seat.agent == "gpt" for seat in m.seats)]
    assert {match.purpose for match in placed} == {"evaluation"}
    assert len(placed) > 5
    assert not simulation.state.agents["gpt"].active


def test_a_league_in_which_all_may_be_drawn_begins_as_it_always_did():
    begun = [type(r.event).__name__ for r in opened(LeagueConfig(evaluation=EvaluationConfig(every=5))).history[:5]]
    assert begun[:4] == ["LeagueOpened", *["AgentRegistered"] * 3]
