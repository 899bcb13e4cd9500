"""Matchmaking: the configured mix, its fallbacks, and draws that can be computed again."""

from collections import Counter
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from league.matchmaking.matchmaker import make_match, recompute_draw
from league.samplers import bucket_shares, make_sampler
from league.samplers.pfsp import Pfsp
from league.state import LeagueState
from schemas.config import EvaluationConfig, LeagueConfig, Plugin
from schemas.errors import ConfigError, UsageError
from schemas.events import OpponentsSampled
from schemas.ids import derive_seed
from schemas.standings import Agent, LivePolicy, Standings, WinLoss
from tests.simulated_history import Simulation

SMALL = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))
SEATS = [1, 2, 3, 4, 5, 6]


def pfsp(**settings: Any) -> Pfsp:
    sampler = make_sampler(Plugin(name="pfsp", settings=settings))
    assert isinstance(sampler, Pfsp)
    return sampler


def checkpoint(version: int, rating: float, active: bool = True) -> Agent:
    return Agent(f"main@{version}", "checkpoint", rating, 9, active=active, policy="main", version=version)


def table(*checkpoints: Agent, lost_to: tuple[str, ...] = (), rating: float = 1200.0) -> Standings:
    agents = {
        "base_model": Agent("base_model", "base", 1000.0, 9, baseline=True),
        "random_bot": Agent("random_bot", "bot", 800.0, 9, baseline=True),
        "chaos_bot": Agent("chaos_bot", "bot", 900.0, 9, baseline=True),
    } | {agent.name: agent for agent in checkpoints}
    records = {"main": {name: WinLoss(wins=1, losses=2) for name in lost_to}}
    return Standings(7, agents, {"main": LivePolicy("main", 200, "1" * 64, rating)}, records)


POPULATED = table(
    *(checkpoint(10 * place, 1100.0 + 20 * place) for place in range(1, 11)),
    checkpoint(110, 700.0),
    checkpoint(120, 1900.0),
    lost_to=("main@10", "main@20", "main@110", "main@120"),
)


def test_a_populated_league_meets_the_mix_of_30_40_20_10() -> None:
    counts, rng = Counter[str](), Random(11)
    for _ in range(5_000):
        counts.update(pick.bucket for pick in pfsp().sample(POPULATED, "main", SEATS, rng))
    target = {"mirror": 0.3, "peers": 0.4, "exploitable": 0.2, "baselines": 0.1}
    assert bucket_shares(pfsp().distribution(POPULATED, "main")) == pytest.approx(target)
    assert sum(abs(counts[b] / counts.total() - share) for b, share in target.items()) / 2 <= 0.02


def test_buckets_hold_whom_the_specification_names() -> None:
    buckets = pfsp().distribution(POPULATED, "main")
    assert set(buckets["mirror"].weights) == {"main@200"}
    assert set(buckets["peers"].weights) == {f"main@{10 * place}" for place in range(1, 11)}
    assert set(buckets["exploitable"].weights) == {"main@10", "main@20", "main@110"}
    assert set(buckets["baselines"].weights) == {"base_model", "random_bot", "chaos_bot"}


def test_retired_members_and_the_live_version_itself_are_no_opponents() -> None:
    league = table(checkpoint(10, 1200.0, active=False), checkpoint(20, 1200.0), checkpoint(200, 1200.0))
    assert set(pfsp().distribution(league, "main")["peers"].weights) == {"main@20"}


@pytest.mark.parametrize(
    ("league", "empty"),
    [
        (table(checkpoint(10, 1200.0), checkpoint(20, 1200.0)), {"exploitable"}),
        (table(checkpoint(10, 900.0), checkpoint(20, 1500.0), lost_to=("main@10",)), {"peers"}),
        (table(checkpoint(10, 900.0), checkpoint(20, 1500.0)), {"peers", "exploitable"}),
    ],
)
def test_an_empty_buckets_share_goes_to_the_others_in_proportion(league: Standings, empty: set[str]) -> None:
    mix = {"mirror": 0.3, "peers": 0.4, "exploitable": 0.2, "baselines": 0.1}
    left = sum(share for bucket, share in mix.items() if bucket not in empty)
    expected = {bucket: 0.0 if bucket in empty else share / left for bucket, share in mix.items()}
    assert bucket_shares(pfsp().distribution(league, "main")) == pytest.approx(expected)


@pytest.mark.parametrize("checkpoints", [[], [checkpoint(10, 1200.0)]])
def test_until_two_checkpoints_exist_only_baselines_are_drawn(checkpoints: list[Agent]) -> None:
    picks = pfsp().sample(table(*checkpoints), "main", SEATS, Random(1))
    assert {pick.bucket for pick in picks} == {"baselines"}


def test_weights_choose_among_baselines() -> None:
    sampler = pfsp(baseline_weights={"random_bot": 0.8, "chaos_bot": 0.2, "base_model": 0.0})
    counts = Counter(pick.agent for pick in sampler.sample(table(), "main", range(10_000), Random(1)))
    assert set(counts) == {"random_bot", "chaos_bot"}
    assert counts["random_bot"] / counts.total() == pytest.approx(0.8, abs=0.02)


def test_without_any_candidate_the_mirror_is_played() -> None:
    nobody = pfsp(baseline_weights={"random_bot": 0, "chaos_bot": 0, "base_model": 0}, mirror=0.0, peers=0.7)
    assert {pick.agent for pick in nobody.sample(table(), "main", SEATS, Random(1))} == {"main@200"}


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_cluster_sampling_clones_few_opponents_and_keeps_the_mix(limit: int) -> None:
    counts, rng = Counter[str](), Random(2)
    for _ in range(6_000):
        picks = pfsp(max_distinct=limit).sample(POPULATED, "main", SEATS, rng)
        assert len({pick.agent for pick in picks}) <= limit
        assert [pick.seat for pick in picks] == SEATS
        counts.update(pick.bucket for pick in picks)
    target = bucket_shares(pfsp().distribution(POPULATED, "main"))
    assert sum(abs(counts[b] / counts.total() - share) for b, share in target.items()) / 2 <= 0.02


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mirror": 0.5}, "sum is 1.2"),
        ({"mirror": -0.1, "peers": 0.8}, "mirror: -0.1"),
        ({"baseline_weights": {"random_bot": -1.0}}, "baseline_weights.random_bot: -1.0"),
        ({"peer_range": -1.0}, "peer_range"),
        ({"max_distinct": 0}, "max_distinct: 0"),
        ({"mirror": "much"}, "mirror: expected `float`"),
    ],
)
def test_settings_that_make_no_mix_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        pfsp(**settings)
    assert str(error.value).startswith("matchmaking.sampler.settings.")
    assert message in str(error.value)


def test_a_share_within_rounding_of_1_is_accepted() -> None:
    pfsp(mirror=0.1 + 0.2, peers=0.4, exploitable=0.2, baselines=0.1)


def test_matches_are_named_seeded_and_rotated_by_their_index() -> None:
    made = [make_match(POPULATED, SMALL, "rollout-3", index, 7) for index in range(14)]
    assert [sampled.hero_seat for _, sampled in made] == [0, 1, 2, 3, 4, 5, 6] * 2
    for index, (match, sampled) in enumerate(made):
        assert match.match_id == sampled.match_id == f"rollout-3-{index}"
        assert match.seed == derive_seed(SMALL.seed, "match", match.match_id)
        assert match.seats[sampled.hero_seat] == sampled.hero == "main@200"
        assert {pick.seat: pick.agent for pick in sampled.picks} == {
            seat: agent for seat, agent in enumerate(match.seats) if seat != sampled.hero_seat
        }


def test_matches_of_a_group_have_the_hero_in_one_seat() -> None:
    config = msgspec.structs.replace(SMALL, rollout=msgspec.structs.replace(SMALL.rollout, same_seat=4))
    made = [make_match(POPULATED, config, "rollout-1", index, 2)[1].hero_seat for index in range(12)]
    assert made == [0] * 4 + [1] * 4 + [0] * 4


def grouped(size: int) -> LeagueConfig:
    return msgspec.structs.replace(SMALL, rollout=msgspec.structs.replace(SMALL.rollout, group_size=size))


def test_matches_of_a_group_have_start_seat_and_line_up_in_common() -> None:
    config = grouped(4)
    made = [make_match(POPULATED, config, "rollout-1", index, 7) for index in range(12)]
    assert len({match.match_id for match, _ in made}) == 12
    groups = [made[at : at + 4] for at in (0, 4, 8)]
    for members in groups:
        assert (
            len({(match.seed, tuple(match.seats), sampled.hero_seat, sampled.draw) for match, sampled in members}) == 1
        )
    assert len({members[0][0].seed for members in groups}) == 3
    assert [members[0][1].hero_seat for members in groups] == [0, 1, 2]
    names = [(match.group, match.group_size) for match, _ in made]
    assert names == [(f"rollout-1-group-{first}", 4) for first in (0, 4, 8) for _ in range(4)]
    alone, _ = make_match(POPULATED, SMALL, "rollout-1", 7, 7)
    assert (alone.group, alone.group_size) == ("", 0)
    assert recompute_draw(made[5][1], POPULATED, config).agrees


@given(stages=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40)), min_size=2, max_size=5))
@example(stages=[(4, 40), (8, 40)])
@example(stages=[(8, 21), (4, 9), (8, 40)])
def test_no_group_has_the_name_or_start_of_another_after_the_group_size_has_changed(
    stages: list[tuple[int, int]],
) -> None:
    following, groups = 0, set[tuple[str, int, int]]()
    for stage, (size, count) in enumerate(stages):
        # As a rollout worker does: the next multiple of the size.
        first = -(-following // size) * size
        following = first + count
        for index in range(first, following):
            match, _ = make_match(POPULATED, grouped(size), "rollout-1", index, 7)
            groups.add((match.group or match.match_id, match.seed, stage))
    assert len({name for name, _, _ in groups}) == len({seed for _, seed, _ in groups}) == len(groups)


def test_every_recorded_draw_can_be_computed_again_from_the_history() -> None:
    simulation = Simulation(SMALL)
    draws = [r.event for r in simulation.run(40, 2) if isinstance(r.event, OpponentsSampled)]
    state, place = LeagueState(), 0
    for event in sorted(draws, key=lambda event: event.standings_sequence):
        while state.sequence < event.standings_sequence:
            recorded = simulation.history[place]
            state.apply(recorded.sequence, recorded.event)
            place += 1
        explanation = recompute_draw(event, state.standings(), SMALL)
        assert explanation.agrees, explanation.differences
        assert explanation.picks == event.picks
    assert len(draws) == 82


def test_a_draw_that_was_altered_is_noticed() -> None:
    _, sampled = make_match(POPULATED, SMALL, "w", 3, 7)
    altered = msgspec.structs.replace(sampled, picks=list(reversed(sampled.picks)))
    other_mix = msgspec.structs.replace(
        SMALL, matchmaking=msgspec.convert({"sampler": {"name": "uniform"}}, type(SMALL.matchmaking))
    )
    assert recompute_draw(sampled, POPULATED, SMALL).agrees
    assert not recompute_draw(altered, POPULATED, SMALL).agrees
    assert not recompute_draw(sampled, POPULATED, other_mix).agrees
    with pytest.raises(UsageError, match="expected <worker>-<number>"):
        recompute_draw(msgspec.structs.replace(sampled, match_id="w-x"), POPULATED, SMALL)
