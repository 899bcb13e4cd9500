"""Populations of teachers and students: who sits where and meets whom, and who is replaced by whose offspring."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from arena.environments import make_arena
from arena.games.texts import evaluation_spec
from league.matchmaking.matchmaker import make_match, recompute_draw
from league.matchmaking.roles import reset_reason, select_parents
from league.samplers import bucket_shares, make_sampler
from league.state import LeagueState, LeagueStateSnapshot
from league.state.standings_rows import FEWEST_REWARDS, REWARD_WINDOW
from lifecycle.config_checks import check_config
from schemas import events as e
from schemas.config import LeagueConfig, Plugin, convert, load_config, to_builtins
from schemas.errors import ConfigError
from schemas.ids import split_agent
from tests.builders import fold_events
from workers.compatibility import required_policies

CONFIG = load_config(Path(__file__).parents[3] / "configs" / "proposer-solver-populations.toml")
TEACHERS, STUDENTS = ("teacher", "tutor"), ("main", "student")
OPENED = e.LeagueOpened(league="populations", config=to_builtins(CONFIG), model="artifact:0")


def published(policy: str, version: int = 0) -> e.PolicyPublished:
    return e.PolicyPublished(policy=policy, version=version, adapter=f"{version}" * 64, parent="base_model")


def checkpoint(policy: str, version: int) -> e.CheckpointAdded:
    name, adapter = f"{policy}@{version}", f"{version}" * 64
    return e.CheckpointAdded(agent=name, policy=policy, version=version, parent="", reason="recent", adapter=adapter)


def match(nth: int, hero: str, reward: float) -> e.MatchFinished:
    """A match that a hero is trained on, with the other population in the other seat."""
    seat = CONFIG.matchmaking.seats[(split_agent(hero) or ("", 0))[0]]
    agents = {seat: hero, 1 - seat: "tutor@0" if seat == 0 else "main@0"}
    seats = [
        e.SeatResult(each, str(each), agents[each], reward if each == seat else 9.0, 1, trainable=each == seat)
        for each in (0, 1)
    ]
    played: dict[str, Any] = {"game": "proposer_solver", "purpose": "training", "worker": "w", "reason": "scored"}
    return e.MatchFinished(
        match_id=f"{hero}-{nth}", seed=nth, seats=seats, winner=0, length=2, seconds=0.0, experience="0" * 64, **played
    )


def matches(hero: str, reward: float, count: int = FEWEST_REWARDS) -> list[e.MatchFinished]:
    return [match(nth, hero, reward) for nth in range(count)]


EVERYBODY = [published(policy) for policy in (*STUDENTS, *TEACHERS)]
PLAYED = fold_events(
    OPENED,
    *EVERYBODY,
    *(checkpoint(policy, version) for policy in (*STUDENTS, *TEACHERS) for version in (5, 10)),
    *matches("main@10", 0.5),
    *matches("student@10", 0.25),
    *matches("teacher@10", 1.0),
    *matches("tutor@10", 0.75),
)


def test_teachers_ask_students_and_students_are_asked_by_teachers() -> None:
    for policy in CONFIG.trained_policies:
        mine, theirs = (TEACHERS, STUDENTS) if policy in TEACHERS else (STUDENTS, TEACHERS)
        assert required_policies(CONFIG, policy) == {policy, *theirs}
        for index in range(40):
            job, drawn = make_match(PLAYED.standings(), CONFIG, f"rollout-{policy}", index, 2, policy)
            assert drawn.hero_seat == (1 if policy in TEACHERS else 0)
            assert job.match_id == drawn.match_id
            (pick,) = drawn.picks
            assert (split_agent(pick.agent) or ("", 0))[0] in theirs, mine
            assert pick.bucket in ("live", "past")
            assert recompute_draw(drawn, PLAYED.standings(), CONFIG).agrees


def test_nobody_but_the_hero_is_there_to_be_met_before_the_others_begin() -> None:
    alone = fold_events(OPENED, published("main"))
    sampler = make_sampler(Plugin("policies", {"policies": ["teacher"]}))
    assert bucket_shares(sampler.distribution(alone.standings(), "main")) == {"live": 0.0, "past": 0.0, "mirror": 1.0}
    only_live = make_sampler(Plugin("policies", {"policies": ["teacher"], "live": 1.0}))
    assert bucket_shares(only_live.distribution(PLAYED.standings(), "main")) == {
        "live": 1.0,
        "past": 0.0,
        "mirror": 0.0,
    }


def test_the_one_that_earned_least_is_replaced_by_offspring_of_those_that_earned_most() -> None:
    table = PLAYED.standings()
    assert dict(table.rewards) == {"main": 0.5, "student": 0.25, "teacher": 1.0, "tutor": 0.75}
    assert reset_reason(table, CONFIG, "student", 10) == "earned 0.25 a match, the least of 2; main earned 0.50"
    assert reset_reason(table, CONFIG, "tutor", 10) == "earned 0.75 a match, the least of 2; teacher earned 1.00"
    assert reset_reason(table, CONFIG, "teacher", 10) is None
    assert reset_reason(table, CONFIG, "tutor", 9) is None
    assert [agent.name for agent in select_parents(table, CONFIG, "tutor", 2, 1)] == ["teacher@10", "tutor@10"]
    assert [agent.name for agent in select_parents(table, CONFIG, "student", 1, 1)] == ["main@10"]


def test_rewards_are_those_of_the_newest_matches_since_a_reset() -> None:
    state = fold_events(
        OPENED, *EVERYBODY, *matches("tutor@3", 0.0, REWARD_WINDOW), *matches("tutor@4", 1.0, REWARD_WINDOW // 2)
    )
    assert state.standings().rewards == {"tutor": 0.5}
    void = e.MatchVoided(match=match(0, "tutor@4", 1.0), match_sequence=70, reason="x")
    state.apply(state.sequence + 1, void)
    assert state.standings().rewards["tutor"] == pytest.approx(31 / 63)
    saved = msgspec.msgpack.decode(msgspec.msgpack.encode(state.to_snapshot()), type=LeagueStateSnapshot)
    assert LeagueState.from_snapshot(saved).standings() == state.standings()
    state.apply(state.sequence + 1, e.PolicyReset(policy="tutor", version=5, reason="weakest"))
    assert not state.standings().rewards
    for late in matches("tutor@5", 0.3) + matches("tutor@6", 0.9, FEWEST_REWARDS - 1):
        state.apply(state.sequence + 1, late)
    assert not state.standings().rewards, "from before the reset, or too few"
    state.apply(state.sequence + 1, match(FEWEST_REWARDS, "tutor@6", 0.9))
    assert state.standings().rewards == {"tutor": pytest.approx(0.9)}


def test_without_a_population_that_chooses_by_reward_no_rewards_are_kept() -> None:
    opened = msgspec.structs.replace(OPENED, config=to_builtins(msgspec.structs.replace(CONFIG, policies={})))
    state = fold_events(opened, *EVERYBODY, *matches("main@1", 0.5))
    assert state.to_snapshot().rewards == {}


def test_evaluations_are_of_students_alone() -> None:
    spec = make_arena("proposer_solver", CONFIG.game.settings)
    assert list(spec.seats) == ["Solver", "Proposer"]
    assert [list(spec.roles_in(seat)) for seat in (0, 1)] == [["Solver"], ["Proposer"]]
    assert list(evaluation_spec(spec).seats) == ["Solver"]
    together = make_arena("proposer_solver", {})
    assert evaluation_spec(together) is together


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"matchmaking": {"seats": {"nobody": 0}}}, "matchmaking.seats: 'nobody'; expected"),
        ({"matchmaking": {"seats": {"main": 2}}}, "matchmaking.seats.main: 2; expected 0 to 1"),
        ({"game": {"settings": {"practice": 2}}}, "practice: 2 with populations; expected 0"),
        ({"policies": {"tutor": {"reset_by": "age"}}}, "reset_by: 'age'; expected 'rating' or 'reward'"),
        (
            {"policies": {"tutor": {"sampler": {"settings": {"policies": ["nobody"]}}}}},
            "policies.tutor.sampler.settings.policies: 'nobody'; expected",
        ),
        ({"matchmaking": {"sampler": {"settings": {"live": 2.0}}}}, "live: 2.0; expected 0 to 1"),
    ],
)
def test_populations_that_make_no_sense_are_refused(change: dict[str, Any], says: str) -> None:
    def merged(table: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        nested = {key: merged(table[key], value) for key, value in other.items() if isinstance(table.get(key), dict)}
        return {**table, **other, **nested} if "seats" not in other else {**table, **other}

    with pytest.raises(ConfigError) as error:
        check_config(convert(merged(to_builtins(CONFIG), change), LeagueConfig, ""))
    assert says in str(error.value)
