"""Standings: as the state has them now, and never changed once handed out."""

from random import Random

import msgspec
import pytest

from league.state import LeagueState, LeagueStateSnapshot
from schemas import events as e
from schemas.config import (
    CheckpointScheduleConfig,
    EvaluationConfig,
    LeagueConfig,
    MatchmakingConfig,
    Plugin,
    RatingsConfig,
    to_builtins,
)
from schemas.standings import Agent, Standings
from tests.simulated_history import Simulation

CONFIG = LeagueConfig(
    # No recent gatekeeper: a checkpoint stands where its predecessor does for a while.
    evaluation=EvaluationConfig(
        every=4, gatekeepers=("random_bot", "base_model"), gatekeeper_games=4, benchmark_games=4
    ),
    schedule=CheckpointScheduleConfig(recent_every=2, recent_window=12, landmark_every=5),
    matchmaking=MatchmakingConfig(max_active_adapters=4),
    ratings=RatingsConfig(system=Plugin(name="elo"), also=(Plugin(name="trueskill"),)),
)


def history(seed: int) -> list[e.Event | None]:
    """A league with everything that moves standings: voids, corrections, a pool, a reset, another official system."""
    config, rng = msgspec.structs.replace(CONFIG, seed=seed), Random(seed)
    simulation = Simulation(config, seats=4)
    simulation.open()
    for version in range(18):
        simulation.publish(version)
        simulation.play_training_match()
        if version % 4 != 1:
            simulation.evaluate()
        if rng.random() < 0.4:
            simulation.void(rng.choice(simulation._finished_matches()), "a bad worker")
        if rng.random() < 0.4:
            simulation.correct_ratings()
        if version == 11:
            simulation.append(e.PolicyReset(policy="main", version=version, reason="strong enough"))
    simulation.append(e.AgentRegistered(agent="late_bot", kind="bot", baseline=False, rating=777.0))
    other = RatingsConfig(system=Plugin(name="trueskill"), also=(Plugin(name="elo"),))
    changed = msgspec.structs.replace(config, ratings=other)
    simulation.append(e.LeagueConfigured(config=to_builtins(changed), config_digest="", after=1))
    simulation.publish(18)
    simulation.evaluate()
    return [recorded.event for recorded in simulation.history]


HISTORIES = [history(seed) for seed in range(3)]


def agents_from_scratch(state: LeagueState) -> list[Agent]:
    """Every agent of the state with its rating looked up now."""
    table = state.rating_table
    return [
        msgspec.structs.replace(
            agent, rating=table.rating(name), games=table.games.get(name, 0), deviation=table.deviation(name)
        )
        for name, agent in state.agents.items()
    ]


def restored(state: LeagueState) -> LeagueState:
    """The state after a snapshot, in which nothing has been kept from before."""
    return LeagueState.from_snapshot(
        msgspec.msgpack.decode(msgspec.msgpack.encode(state.to_snapshot()), type=LeagueStateSnapshot)
    )


def in_full(standings: Standings) -> str:
    """Everything in them as text."""
    return repr([getattr(standings, name) for name in standings.__struct_fields__])


@pytest.mark.parametrize("events", HISTORIES)
@pytest.mark.parametrize("every", [1, 7])
def test_standings_are_those_made_from_scratch_after_every_event(events: list[e.Event], every: int) -> None:
    state = LeagueState()
    for sequence, event in enumerate(events, start=1):
        state.apply(sequence, event)
        if sequence % every == 0:
            assert list(state.standings().agents.values()) == agents_from_scratch(state)
        if sequence % (29 * every) == 0:
            assert restored(state).standings() == state.standings()
    kinds = {type(event) for event in events}
    assert kinds >= {e.RatingsCorrected, e.PolicyReset, e.AgentRetired, e.MatchVoided, e.LeagueConfigured}


@pytest.mark.parametrize("events", HISTORIES)
def test_standings_that_were_handed_out_never_change(events: list[e.Event]) -> None:
    state, given_out = LeagueState(), list[tuple[Standings, str]]()
    for sequence, event in enumerate(events, start=1):
        state.apply(sequence, event)
        standings = state.standings()
        given_out.append((standings, in_full(standings)))
    assert len({id(standings.agents) for standings, _ in given_out}) > 50
    for standings, before in given_out[::5]:
        assert in_full(standings) == before


def test_an_agent_that_was_never_rated_moves_with_the_one_it_stands_at() -> None:
    def rated(sequence: int, agent: str, rating: float) -> e.RatingUpdated:
        change = e.RatingChange(agent, 0.0, rating)
        return e.RatingUpdated(
            match_id=f"w-{sequence}", match_sequence=sequence, game="diplomacy", system="elo", changes=[change]
        )

    def joined(version: int) -> e.CheckpointAdded:
        return e.CheckpointAdded(
            agent=f"main@{version}", policy="main", version=version, parent="x", reason="recent", adapter="0" * 64
        )

    state = LeagueState()
    base = e.AgentRegistered(agent="base_model", kind="base", baseline=True, rating=1000.0)
    steps: list[tuple[e.Event, list[float]]] = [
        (base, [1000.0]),
        (joined(10), [1000.0, 1000.0]),
        (joined(20), [1000.0, 1000.0, 1000.0]),
        (joined(30), [1000.0, 1000.0, 1000.0, 1000.0]),
        (rated(5, "base_model", 990.0), [990.0, 990.0, 990.0, 990.0]),
        (rated(6, "main@15", 1200.0), [990.0, 990.0, 1200.0, 1200.0]),
        (rated(7, "main@20", 1100.0), [990.0, 990.0, 1100.0, 1100.0]),
        (rated(8, "main@15", 1300.0), [990.0, 990.0, 1100.0, 1100.0]),
        (rated(9, "base_model", 980.0), [980.0, 980.0, 1100.0, 1100.0]),
    ]
    for sequence, (event, ratings) in enumerate(steps, start=1):
        state.apply(sequence, event)
        assert [agent.rating for agent in state.standings().agents.values()] == ratings
