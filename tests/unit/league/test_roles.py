"""Several policies in roles: whom each plays, when an exploiter begins anew, and what a reset does to folds."""

from collections import Counter
from random import Random
from typing import Any

import msgspec
import pytest

from league.matchmaking.matchmaker import make_match, recompute_draw
from league.matchmaking.roles import exploiter_points_share, reset_reason, sampler_of, select_parents
from league.matchmaking.schedule import RESET, make_checkpoint_added
from league.ratings.fold import RatingFold, RatingsSnapshot
from league.samplers import bucket_shares, make_sampler
from league.samplers.alphastar import newest_record, points_share
from league.state import LeagueState, LeagueStateSnapshot
from lifecycle.config_checks import check_config
from schemas import events as e
from schemas.config import EvaluationConfig, LeagueConfig, Plugin, PolicyConfig, convert, to_builtins
from schemas.errors import ConfigError
from schemas.ids import split_agent
from schemas.standings import Agent, LivePolicy, Standings, WinLoss
from tests.builders import fold_events, match_finished
from tests.simulated_history import Simulation
from workers.supervisor import make_worker_specs

ROLES = {
    "exploiter": PolicyConfig(role="main_exploiter", reset_steps=6, reset_min_steps=2),
    "rogue": PolicyConfig(role="league_exploiter", reset_steps=4),
}
CONFIG = LeagueConfig(
    seed=4, policies=ROLES, evaluation=EvaluationConfig(every=3, gatekeeper_games=3, benchmark_games=3)
)


def simulated(steps: int = 16) -> Simulation:
    simulation = Simulation(CONFIG, seats=3)
    simulation.run(steps, 3)
    return simulation


SIMULATED = simulated()


def of(kind: type[e.Event]) -> list[Any]:
    return [record.event for record in SIMULATED.history if isinstance(record.event, kind)]


def policy_of(agent: str) -> str:
    return agent.partition("@")[0]


def standings(
    records: dict[str, dict[str, WinLoss]], checkpoints: tuple[str, ...] = (), live: tuple[str, ...] = ("main@40",)
) -> Standings:
    agents = {"random_bot": Agent("random_bot", "bot", 800.0, 9, baseline=True)}
    for name in checkpoints:
        policy, version = split_agent(name) or ("", 0)
        agents[name] = Agent(name, "checkpoint", 1000.0, 9, policy=policy, version=version)
    now = {}
    for name in (*live, "exploiter@7", "rogue@7"):
        policy, version = split_agent(name) or ("", 0)
        now[policy] = LivePolicy(policy, version, "0" * 64, 1000.0)
    return Standings(5, agents, now, records)


def exploiter_shares(table: Standings) -> dict[str, float]:
    return bucket_shares(make_sampler(sampler_of(CONFIG, "exploiter")).distribution(table, "exploiter"))


# Whom a role plays.


def test_every_policy_draws_whom_its_role_says() -> None:
    drawn = Counter(
        (event.hero.partition("@")[0], pick.bucket) for event in of(e.OpponentsSampled) for pick in event.picks
    )
    for event in of(e.OpponentsSampled):
        hero = policy_of(event.hero)
        assert event.worker == ("rollout-0" if hero == "main" else f"rollout-{hero}-0")
        assert event.sampler == {"main": "pfsp", "exploiter": "main_exploiter", "rogue": "win_rate"}[hero]
        if hero == "exploiter":
            assert {policy_of(pick.agent) for pick in event.picks} == {"main"}
    assert drawn["exploiter", "live"] > 0
    assert {bucket for hero, bucket in drawn if hero == "rogue"} == {"members"}
    met = {policy_of(pick.agent) for event in of(e.OpponentsSampled) for pick in event.picks}
    assert {"main", "exploiter", "rogue", "random_bot", "base_model"} <= met


def test_the_live_version_that_is_drawn_is_the_one_published_then() -> None:
    state, place = LeagueState(), 0
    for event in sorted(of(e.OpponentsSampled), key=lambda event: event.standings_sequence):
        while state.sequence < event.standings_sequence:
            state.apply(SIMULATED.history[place].sequence, SIMULATED.history[place].event)
            place += 1
        explanation = recompute_draw(event, state.standings(), CONFIG)
        assert explanation.agrees, explanation.differences
        live = state.live_version("main")
        assert live is not None
        assert all(pick.agent == f"main@{live.version}" for pick in event.picks if pick.bucket == "live")


def test_a_main_exploiter_plays_the_live_version_until_it_is_too_strong() -> None:
    past = ("main@10", "main@20", "main@30")
    unknown = standings({}, past)
    beaten = {"exploiter": {"main@39": WinLoss(losses=60), "main@10": WinLoss(10, 0, 10), "main@20": WinLoss(1, 0, 19)}}
    assert exploiter_shares(unknown) == {"live": 1.0, "past": 0.0, "mirror": 0.0}
    assert exploiter_shares(standings(beaten, past)) == {"live": 0.0, "past": 1.0, "mirror": 0.0}
    assert exploiter_shares(standings(beaten)) == {"live": 1.0, "past": 0.0, "mirror": 0.0}, "nobody else is there"
    members = make_sampler(sampler_of(CONFIG, "exploiter")).distribution(standings(beaten, past), "exploiter")["past"]
    # Never met counts as a half, and so does even; 2 of 22 points are 1 in 11.
    assert members.weights == pytest.approx({"main@10": 0.25, "main@30": 0.25, "main@20": 1 / 11 * 10 / 11})


def test_a_main_exploiter_without_anybody_to_exploit_plays_itself() -> None:
    sampler = make_sampler(Plugin(name="main_exploiter", settings={"against": "absent"}))
    picks = sampler.sample(standings({}, ("rogue@3",)), "exploiter", [1, 2], Random(1))
    assert {(pick.agent, pick.bucket) for pick in picks} == {("exploiter@7", "mirror")}


def test_only_the_newest_results_against_a_policy_count() -> None:
    records = {"exploiter": {"main@9": WinLoss(losses=90), "main@11": WinLoss(wins=30), "main@10": WinLoss(15, 10, 5)}}
    found = newest_record(standings(records), "exploiter", "main", 50)
    assert found == WinLoss(45, 10, 5)
    assert points_share(found) == pytest.approx((45 + 5 + 1) / 62)
    assert points_share(newest_record(standings(records), "exploiter", "rogue", 50)) == 0.5


def test_a_policys_own_sampler_wins_and_main_roles_share_the_leagues() -> None:
    own = Plugin(name="uniform")
    config = LeagueConfig(policies={"twin": PolicyConfig(role="main"), "x": PolicyConfig(role="main", sampler=own)})
    assert sampler_of(config, "twin") == sampler_of(config, "main") == config.matchmaking.sampler
    assert sampler_of(config, "x") == own
    against = LeagueConfig(policies={**config.policies, "y": PolicyConfig(role="main_exploiter", against="twin")})
    assert sampler_of(against, "y").settings == {"against": "twin"}
    assert list(against.trained_policies) == ["main", "twin", "x", "y"]


def test_one_policys_draws_are_recorded_under_its_own_samplers_digest() -> None:
    table = standings({}, ("main@10", "main@20"))
    digests = set()
    for policy in CONFIG.trained_policies:
        _, sampled = make_match(table, CONFIG, f"rollout-{policy}-1", 5, 3, policy)
        assert sampled.match_id == f"rollout-{policy}-1-5"
        assert recompute_draw(sampled, table, CONFIG).agrees
        digests.add(sampled.sampler_digest)
    assert len(digests) == 3


# When an exploiter begins anew.


@pytest.mark.parametrize(
    ("policy", "records", "steps", "reason"),
    [
        ("exploiter", {}, 5, None),
        ("exploiter", {}, 6, "6 steps"),
        ("exploiter", {"main@40": WinLoss(45, 0, 5)}, 1, None),
        ("exploiter", {"main@40": WinLoss(45, 0, 5)}, 2, "took 0.88 of the points from main"),
        ("exploiter", {"main@40": WinLoss(40, 0, 0)}, 2, None),
        ("exploiter", {"main@40": WinLoss(30, 0, 20), "main@10": WinLoss(90, 0, 0)}, 2, None),
        ("exploiter", {"main@10": WinLoss(50, 0, 0), "random_bot": WinLoss(0, 0, 90)}, 2, "took 0.98 of the points"),
        ("rogue", {"main@10": WinLoss(60, 0, 0)}, 2, None),
        ("rogue", {"main@10": WinLoss(60, 0, 0), "random_bot": WinLoss(5, 0, 5)}, 2, None),
        ("rogue", {"main@10": WinLoss(60, 0, 0), "random_bot": WinLoss(8, 0, 2)}, 2, "the least from random_bot"),
        ("rogue", {"main@10": WinLoss(60, 0, 0), "random_bot": WinLoss(8, 0, 2)}, 1, None),
        ("main", {"main@10": WinLoss(900, 0, 0), "random_bot": WinLoss(900, 0, 0)}, 900, None),
    ],
)
def test_resets_are_due_by_points_taken_or_by_steps(
    policy: str, records: dict[str, WinLoss], steps: int, reason: str | None
) -> None:
    found = reset_reason(standings({policy: records}, ("main@10",)), CONFIG, policy, steps)
    assert found is None if reason is None else found is not None and reason in found


POPULATION = LeagueConfig(
    seed=4,
    policies={
        "second": PolicyConfig(role="population", reset_steps=4, reset_operator=Plugin(name="crossover")),
        "third": PolicyConfig(
            role="population", reset_steps=4, reset_operator=Plugin(name="mutation"), reset_parents=["second", "third"]
        ),
        "apart": PolicyConfig(role="main"),
    },
    evaluation=EvaluationConfig(every=3, gatekeeper_games=3, benchmark_games=3),
)


def rated(live: dict[str, float], checkpoints: dict[str, float] | None = None) -> Standings:
    agents = {}
    for name, rating in (checkpoints or {}).items():
        policy, version = split_agent(name) or ("", 0)
        agents[name] = Agent(name, "checkpoint", rating, 9, adapter=name, policy=policy, version=version)
    lives = {policy: LivePolicy(policy, 40, "0" * 64, rating) for policy, rating in live.items()}
    return Standings(1, agents, lives, {})


@pytest.mark.parametrize(
    ("policy", "live", "steps", "reason"),
    [
        (
            "second",
            {"main": 1100.0, "second": 900.0, "third": 1000.0},
            8,
            "rated 900, the weakest of 3; main is at 1100",
        ),
        ("second", {"main": 1100.0, "second": 900.0, "third": 1000.0}, 7, None),
        ("second", {"main": 1100.0, "second": 900.0, "third": 1000.0}, 0, None),
        ("second", {"main": 800.0, "second": 900.0, "third": 1000.0}, 8, None),
        ("second", {"main": 900.0, "second": 900.0}, 8, None),
        ("second", {"second": 900.0, "apart": 1000.0}, 8, None),
        ("third", {"main": 800.0, "second": 950.0, "third": 900.0}, 4, "rated 900, the weakest of 2; second is at 950"),
    ],
)
def test_the_weakest_member_of_a_population_is_reset(
    policy: str, live: dict[str, float], steps: int, reason: str | None
) -> None:
    assert reset_reason(rated(live), POPULATION, policy, steps) == reason


def test_parents_are_the_best_of_different_policies_or_drawn_by_the_seed() -> None:
    checkpoints = {"main@10": 1200.0, "main@20": 1300.0, "second@10": 1100.0, "third@10": 1150.0}
    table = rated({}, checkpoints)

    def selected(policy: str, count: int, config: LeagueConfig = POPULATION, seed: int = 0) -> list[str]:
        return [agent.name for agent in select_parents(table, config, policy, count, seed)]

    assert selected("second", 2) == ["main@20", "third@10"]
    assert selected("second", 4) == ["main@20", "third@10", "second@10", "main@10"]
    assert selected("second", 5) == []
    assert selected("third", 2) == ["third@10", "second@10"]
    drawing = msgspec.structs.replace(POPULATION.policies["second"], reset_selection="uniform")
    config = msgspec.structs.replace(POPULATION, policies=POPULATION.policies | {"second": drawing})
    draws = {tuple(selected("second", 2, config, seed)) for seed in range(60)}
    assert len(draws) == 6, "every pair, the better rated parent first"
    assert selected("second", 2, config, 7) == selected("second", 2, config, 7)
    assert selected("second", 5, config) == []


def test_a_simulated_population_replaces_its_weakest_by_offspring_of_its_best() -> None:
    simulation = Simulation(POPULATION, seats=3)
    simulation.run(16, 3)
    resets = [record.event for record in simulation.history if isinstance(record.event, e.PolicyReset)]
    crossed = [reset for reset in resets if reset.operator]
    assert {reset.policy for reset in resets} <= {"second", "third"}
    assert crossed
    for reset in crossed:
        assert len({parent.agent for parent in reset.parents}) == 2
        first = simulation.state.published[reset.policy][reset.version + 1]
        assert first.parent == reset.parents[0].agent


def test_the_points_on_the_way_to_a_reset_can_be_shown() -> None:
    table = standings({"exploiter": {"main@40": WinLoss(20, 20, 20)}, "main": {"random_bot": WinLoss(90, 0, 0)}})
    assert exploiter_points_share(table, CONFIG, "exploiter") == 0.5
    assert exploiter_points_share(table, CONFIG, "rogue") is None
    assert exploiter_points_share(table, CONFIG, "main") is None


def test_a_simulated_exploiter_is_reset_on_time_and_its_last_version_stays() -> None:
    resets: dict[str, list[int]] = {}
    for event in of(e.PolicyReset):
        resets.setdefault(event.policy, []).append(event.version)
    # Four steps each: versions 0 to 4, then 5 is untrained and 9 the next last one.
    assert resets["rogue"] == [4, 9, 14, 19]
    assert set(resets) == {"rogue", "exploiter"}
    state = SIMULATED.state
    assert state.resets("rogue") == [4, 9, 14, 19]
    assert [state.training_start("rogue", version) for version in (4, 5, 9, 10)] == [0, 5, 5, 10]
    assert (state.training_start("rogue"), state.training_start("main")) == (20, 0)
    for policy, versions in resets.items():
        for version in versions:
            agent = state.agents[f"{policy}@{version}"]
            assert agent.active
            assert agent.reason in ("first", "landmark", "elite", RESET)
            assert version + 1 in state.published[policy]


# What a reset does to folds.


def published(name: str) -> e.PolicyPublished:
    policy, version = split_agent(name) or ("", 0)
    return e.PolicyPublished(policy=policy, version=version, adapter="0" * 64, parent="")


def match(match_id: str, *seats: tuple[str, float], purpose: str = "training") -> e.MatchFinished:
    return match_finished(*seats, match_id=match_id, game="diplomacy", purpose=purpose)


BASE = e.AgentRegistered(agent="base_model", kind="base", baseline=True, rating=1000.0)
OPENED = e.LeagueOpened(league="t", config=to_builtins(CONFIG), model="m")
RESET_AT_5 = e.PolicyReset(policy="exploiter", version=5, reason="enough")


def test_a_version_after_a_reset_stands_at_the_base_agent_and_the_ones_before_stay() -> None:
    update = e.RatingUpdated(
        match_id="x-0",
        match_sequence=1,
        game="diplomacy",
        system="elo",
        changes=[e.RatingChange("exploiter@5", 1000.0, 1200.0), e.RatingChange("base_model", 1000.0, 980.0)],
    )
    state = fold_events(OPENED, BASE, published("exploiter@5"), update, RESET_AT_5, published("exploiter@6"))
    live = state.live_version("exploiter")
    assert live is not None
    assert (live.version, live.rating) == (6, 980.0)
    assert [state.rating(f"exploiter@{version}") for version in (5, 6, 7, 900)] == [1200.0, 980.0, 980.0, 980.0]
    assert state.standings().live["exploiter"].rating == 980.0
    later = e.RatingUpdated(
        match_id="x-1",
        match_sequence=2,
        game="diplomacy",
        system="elo",
        changes=[e.RatingChange("exploiter@7", 980.0, 1010.0)],
    )
    state.apply(8, later)
    assert [state.rating(f"exploiter@{version}") for version in (5, 6, 8)] == [1200.0, 980.0, 1010.0]


def test_a_reset_policys_record_begins_anew_and_old_matches_stay_out_of_it() -> None:
    early, late = (
        match("w-0", ("exploiter@5", 1.0), ("main@3", 0.0)),
        match("w-1", ("exploiter@4", 1.0), ("main@3", 0.0)),
    )
    fresh = match("w-2", ("exploiter@6", 0.0), ("main@3", 1.0), ("exploiter@5", 1.0))
    void = e.MatchVoided(match=early, match_sequence=3, reason="x")
    state = fold_events(OPENED, BASE, early, RESET_AT_5, RESET_AT_5, late, fresh)
    expected = {"main@3": WinLoss(losses=1), "exploiter@5": WinLoss(losses=1)}
    assert state.standings().records["exploiter"] == expected
    assert state.standings().records["main"]["exploiter@5"] == WinLoss(draws=1, losses=1)
    state.apply(90, void)
    assert state.standings().records["exploiter"] == expected, "what no longer counted cannot be taken back"
    assert state.resets("exploiter") == [5]


def test_the_parent_of_a_checkpoint_lies_this_side_of_the_reset() -> None:
    def checkpoint(version: int) -> e.CheckpointAdded:
        return e.CheckpointAdded(
            agent=f"exploiter@{version}", policy="exploiter", version=version, parent="", reason="recent", adapter=""
        )

    state = fold_events(OPENED, BASE, checkpoint(2), checkpoint(5), RESET_AT_5)
    assert make_checkpoint_added(state, "exploiter", 8, "0" * 64, "recent").parent == "base_model"
    assert make_checkpoint_added(state, "exploiter", 4, "0" * 64, "elite").parent == "exploiter@2"
    state.apply(90, checkpoint(8))
    assert make_checkpoint_added(state, "exploiter", 10, "0" * 64, "recent").parent == "exploiter@8"
    offspring = e.PolicyPublished(policy="exploiter", version=6, adapter="1" * 64, parent="exploiter@2")
    crossed = fold_events(OPENED, BASE, checkpoint(2), checkpoint(5), RESET_AT_5, offspring)
    assert make_checkpoint_added(crossed, "exploiter", 8, "0" * 64, "recent").parent == "exploiter@2"


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_saved_folds_remember_resets(share: float) -> None:
    records = SIMULATED.history
    cut = int(len(records) * share)
    state, fold = LeagueState(), RatingFold()
    for record in records[:cut]:
        state.apply(record.sequence, record.event)
        fold.apply(record.sequence, record.event)
    assert state.resets("rogue")
    saved = msgspec.msgpack.decode(msgspec.msgpack.encode(state.to_snapshot()), type=LeagueStateSnapshot)
    ratings = msgspec.msgpack.decode(msgspec.msgpack.encode(fold.to_snapshot()), type=RatingsSnapshot)
    again, refold = LeagueState.from_snapshot(saved), RatingFold.from_snapshot(ratings)
    for record in records[cut:]:
        for one in (state, again, fold, refold):
            one.apply(record.sequence, record.event)
    assert again.digest() == state.digest() == SIMULATED.state.digest()
    assert again.standings() == state.standings()
    assert refold.to_snapshot() == fold.to_snapshot()


def test_resets_seen_twice_change_nothing() -> None:
    once, twice = LeagueState(), LeagueState()
    sequence = 0
    for record in SIMULATED.history:
        once.apply(record.sequence, record.event)
        for _ in range(2 if isinstance(record.event, e.PolicyReset) else 1):
            sequence += 1
            twice.apply(sequence, record.event)
    assert twice.resets("rogue") == once.resets("rogue")
    assert twice.standings().records == once.standings().records
    assert twice.standings().agents == once.standings().agents


# Configuration.


@pytest.mark.parametrize(
    ("policies", "says"),
    [
        (
            {"x": {"role": "hero"}},
            "role: 'hero'; expected 'league_exploiter', 'main', 'main_exploiter' or 'population'",
        ),
        ({"x": {"role": "main_exploiter", "against": "y"}}, "policies.x.against: 'y'; expected 'main'"),
        ({"x": {"role": "main_exploiter", "against": "x"}}, "policies.x.against: 'x'; expected 'main'"),
        ({"x": {"role": "main", "against": "main"}}, "against: 'main'; expected it for the role 'main_exploiter' only"),
        ({"main": {"role": "main"}}, "policies.main: the name is taken"),
        ({"a b": {"role": "main"}}, "cannot be a name"),
        ({"x": {"role": "league_exploiter", "reset_steps": 0}}, "reset_steps: 0; expected 1 or more"),
        ({"x": {"role": "league_exploiter", "reset_win_rate": 1.5}}, "reset_win_rate: 1.5"),
        ({"x": {"role": "league_exploiter", "reset_steps": 3, "reset_min_steps": 4}}, "reset_min_steps: 4"),
        ({"x": {"role": "league_exploiter", "rollout_workers": -1}}, "rollout_workers: -1"),
        ({"x": {"role": "population", "reset_selection": "worst"}}, "reset_selection: 'worst'; expected 'best' or"),
        (
            {"x": {"role": "population", "reset_parents": ["y"]}},
            "policies.x.reset_parents: 'y'; expected 'main' or 'x'",
        ),
    ],
)
def test_policies_that_make_no_sense_are_refused(policies: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        convert({"policies": policies}, LeagueConfig, "")
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("sampler", "says"),
    [
        ({"name": "nobody"}, "policies.x.sampler.name: 'nobody'"),
        ({"name": "fixed", "settings": {"agents": ["kaos_bot"]}}, "policies.x.sampler.settings.agents: 'kaos_bot'"),
        ({"name": "main_exploiter", "settings": {"against": "y"}}, "policies.x.sampler.settings.against"),
    ],
)
def test_a_policys_sampler_is_checked_before_anything_starts(sampler: dict[str, Any], says: str) -> None:
    config = convert({"policies": {"x": {"role": "main", "sampler": sampler}}}, LeagueConfig, "")
    with pytest.raises(ConfigError) as error:
        check_config(config)
    assert says in str(error.value)


def test_every_policy_has_its_trainer_and_its_rollout_workers() -> None:
    policies = {"b": PolicyConfig(role="main", rollout_workers=2), "a": PolicyConfig(role="main", rollout_workers=0)}
    names = [process.name for process in make_worker_specs(LeagueConfig(policies=policies))]
    assert names == [
        "archivist-1",
        "rater-1",
        "trainer-1",
        "trainer-a-1",
        "trainer-b-1",
        "evaluator-1",
        "rollout-1",
        "rollout-b-1",
        "rollout-b-2",
    ]
    assert [process.policy for process in make_worker_specs(LeagueConfig())] == [None] * 5
