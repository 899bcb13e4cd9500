"""Samplers that go on from draw to draw, while results come in, draw what a new one draws from the same standings."""

from collections.abc import Iterator
from random import Random

import pytest

from league.samplers import SAMPLERS, bucketed, make_sampler
from league.state import LeagueState
from schemas import events as e
from schemas.config import LeagueConfig, Plugin
from tests.builders import checkpoint_added, match_finished, opening_events, policy_published

SEATS = [1, 2, 3, 4, 5, 6]
AGENTS = 120
PLACED = ["pfsp", "random", "tiered", "win_rate"]


def beginning() -> Iterator[e.Event]:
    """A league with more than a hundred checkpoints; ratings that are no numbers among them."""
    config = LeagueConfig()
    yield from opening_events(config)
    yield policy_published(0)
    for version in range(1, AGENTS):
        yield checkpoint_added(version, "landmark")


def match(number: int, agents: list[str], rng: Random, purpose: str) -> e.MatchFinished:
    seats = [(agent, float(rng.randrange(3))) for agent in agents]
    return match_finished(*seats, match_id=f"w-{number}", game="diplomacy", purpose=purpose)


def rated(number: int, agents: list[str], rng: Random) -> e.RatingUpdated:
    after = [rng.choice([float("nan"), float("inf")]) if rng.random() < 0.02 else rng.gauss(1100, 150) for _ in agents]
    changes = [e.RatingChange(agent, 0.0, rating) for agent, rating in zip(agents, after, strict=True)]
    return e.RatingUpdated(
        match_id=f"w-{number}", match_sequence=number, game="diplomacy", system="elo", changes=changes
    )


def everything(state: LeagueState, rng: Random, number: int) -> Iterator[e.Event]:
    """Something that moves standings, most often a training match."""
    live = state.live_version("main")
    assert live is not None
    some = [*rng.sample(sorted(state.agents), 5)]
    kind = rng.random()
    if kind < 0.6:
        yield match(number, [f"main@{live.version}", *some], rng, "training")
    elif kind < 0.8:
        yield rated(number, some, rng)
    elif kind < 0.9:
        # Who is rated nearest below the live version moves it, a little or a lot.
        step = rng.gauss(0, 4) if rng.random() < 0.7 else rng.gauss(0, 300)
        change = e.RatingChange(f"main@{live.version}", 0.0, live.rating + step)
        yield e.RatingUpdated(
            match_id=f"w-{number}", match_sequence=number, game="diplomacy", system="elo", changes=[change]
        )
    elif kind < 0.94:
        yield policy_published(live.version + 1)
    elif kind < 0.97:
        after = state.activity(some[0]).sequence
        switched = e.AgentRetired if state.agents[some[0]].active else e.AgentActivated
        yield switched(agent=some[0], reason="x", after=after)
    else:
        yield e.AgentRegistered(agent=f"bot_{number}", kind="bot", baseline=rng.random() < 0.3, rating=1000.0)


def following(names: list[str], events: int, seed: int) -> Iterator[tuple[str, list[object], list[object]]]:
    """What each sampler draws when it goes on, and what a new one draws, after every event."""
    state, rng = LeagueState(), Random(seed)
    samplers = {name: make_sampler(Plugin(name=name)) for name in names}
    for event in beginning():
        state.apply(state.sequence + 1, event)
    for number in range(events):
        for event in everything(state, rng, state.sequence + 1):
            state.apply(state.sequence + 1, event)
        for name, sampler in samplers.items():
            if rng.random() < 0.7:
                drawn, again = (
                    one.draws(state.standings(), "main", SEATS, Random(number))
                    for one in (sampler, make_sampler(Plugin(name=name)))
                )
                yield name, [*drawn], [*again]


@pytest.mark.parametrize("seed", range(2))
def test_going_on_draws_the_same_bits_as_beginning_anew(seed: int) -> None:
    drawn_by = dict.fromkeys(SAMPLERS.names(), 0)
    for name, drawn, again in following(SAMPLERS.names(), 250, seed):
        assert drawn == again, name
        drawn_by[name] += 1
    assert min(drawn_by.values()) > 100


@pytest.mark.parametrize("name", PLACED)
def test_after_a_result_only_those_who_played_are_placed_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    build = bucketed._BucketIndex._rebuild

    def counted(self: bucketed._BucketIndex, *args: object) -> None:
        built.append(name)
        build(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(bucketed._BucketIndex, "_rebuild", counted)
    draws = sum(1 for _ in following([name], 150, 5))
    anew = draws
    assert anew < len(built) < anew + 0.2 * draws
