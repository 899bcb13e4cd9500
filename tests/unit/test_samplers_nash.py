"""Rectified Nash: who matters in the league's own game, and whom the hero beats."""

import os
import subprocess
import sys
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from league.samplers import OpponentSampler, make_sampler
from league.state import LeagueState
from schemas import events as e
from schemas.config import LeagueConfig, Plugin
from schemas.errors import ConfigError
from schemas.standings import Agent, LivePolicy, Standings, WinLoss
from tests.builders import bot, match_finished
from tests.simulated_history import Simulation

Results = Mapping[tuple[str, str], tuple[int, int]]


def make(**settings: Any) -> OpponentSampler:
    return make_sampler(Plugin(name="rectified_nash", settings=settings))


def checkpoint(version: int, rating: float = 1000.0) -> Agent:
    return Agent(f"main@{version}", "checkpoint", rating, 9, policy="main", version=version)


def league(*agents: Agent, results: Results, rating: float = 1000.0) -> Standings:
    """Standings with so many wins of the first named agent over the second, and so many losses."""
    pairs: dict[str, dict[str, WinLoss]] = {}
    for (one, other), (wins, losses) in results.items():
        pairs.setdefault(one, {})[other] = WinLoss(wins, 0, losses)
        pairs.setdefault(other, {})[one] = WinLoss(losses, 0, wins)
    live = {"main": LivePolicy("main", 200, None, rating)}
    return Standings(5, {agent.name: agent for agent in agents}, live, {}, pairs=pairs)


def drawn(standings: Standings, sampler: OpponentSampler | None = None) -> tuple[str, dict[str, float]]:
    """The one bucket with a share, and who is in it."""
    buckets = (sampler or make()).distribution(standings, "main")
    ((name, bucket),) = [(name, bucket) for name, bucket in buckets.items() if bucket.share]
    return name, {agent: share for agent, share in bucket.probabilities().items() if share}


CYCLE = {("rock", "scissors"): (40, 0), ("paper", "rock"): (40, 0), ("scissors", "paper"): (40, 0)}
GAME = (bot("rock"), bot("paper"), bot("scissors"), bot("fool", 700.0))


def test_of_a_cycle_the_hero_plays_those_whom_it_beats() -> None:
    results = {("main@200", "rock"): (30, 10), ("main@200", "paper"): (10, 30), ("main@200", "scissors"): (20, 20)}
    name, shares = drawn(league(*GAME, results={**CYCLE, **results}))
    assert name == "rectified"
    assert shares == pytest.approx({"rock": 0.5, "scissors": 0.5}, abs=1e-4)


def test_when_it_beats_nobody_of_the_equilibrium_it_plays_all_of_it() -> None:
    lost = {("main@200", name): (0, 40) for name in ("rock", "paper", "scissors")}
    name, shares = drawn(league(*GAME, results={**CYCLE, **lost, ("main@200", "fool"): (40, 0)}))
    assert name == "nash"
    assert shares == pytest.approx(dict.fromkeys(("rock", "paper", "scissors"), 1 / 3), abs=1e-4)


def test_a_ladder_is_played_at_its_top() -> None:
    ladder = [checkpoint(10 * n, 1000.0 + 100.0 * n) for n in range(8)]
    assert drawn(league(*ladder, results={}, rating=1700.0)) == ("rectified", {"main@70": 1.0})
    assert drawn(league(*ladder, results={}, rating=1000.0)) == ("nash", {"main@70": 1.0})


def test_clones_share_what_one_of_them_would_have() -> None:
    clones = [bot(f"rock{n}") for n in range(4)]
    same = {
        pair: won
        for n in range(4)
        for pair, won in {(f"rock{n}", "scissors"): (40, 0), ("paper", f"rock{n}"): (40, 0)}.items()
    }
    results = {**same, ("scissors", "paper"): (40, 0)}
    _, shares = drawn(league(*clones, bot("paper"), bot("scissors"), results=results))
    assert shares["paper"] == pytest.approx(1 / 3, abs=1e-3)
    assert sum(shares[clone.name] for clone in clones) == pytest.approx(1 / 3, abs=1e-3)


def test_results_count_for_more_than_what_ratings_predict_once_there_are_enough() -> None:
    rock, paper = bot("rock", 1400.0), bot("paper", 1000.0)
    for games, top in ((0, "rock"), (1, "rock"), (40, "paper")):
        _, shares = drawn(league(rock, paper, results={("paper", "rock"): (games, 0)}, rating=3000.0))
        assert shares == {top: 1.0}


def test_the_heros_place_is_that_of_its_newest_evaluated_version() -> None:
    results = {("main@90", "rock"): (0, 40), ("main@150", "rock"): (40, 0), ("main@150", "paper"): (0, 40)}
    agents = [*GAME, checkpoint(90, 0.0), checkpoint(150, 0.0), checkpoint(170, 0.0)]
    name, shares = drawn(league(*agents, results={**CYCLE, **results}))
    assert name == "rectified"
    assert "rock" in shares
    assert "paper" not in shares
    newer = {("main@200", "rock"): (0, 40), ("main@200", "paper"): (40, 0)}
    _, shares = drawn(league(*agents, results={**CYCLE, **results, **newer}))
    assert "rock" not in shares
    assert "paper" in shares


def test_of_a_large_league_the_strongest_are_in_the_game_and_who_beats_one_of_them() -> None:
    crowd = [bot(f"bot{n}", 1000.0 + n) for n in range(100)]
    results = {("bot3", f"bot{n}"): (90, 0) for n in range(95, 100)}
    assert drawn(league(*crowd, results=results, rating=5000.0), make(most_agents=6)) == ("rectified", {"bot3": 1.0})
    beaten = dict.fromkeys(results, (0, 90))
    _, shares = drawn(league(*crowd, results=beaten, rating=5000.0), make(most_agents=6))
    assert set(shares) <= {f"bot{n}" for n in range(94, 100)}


def test_without_anybody_of_finite_rating_the_hero_plays_itself() -> None:
    agents = [bot("lost", float("nan")), bot("far", float("inf")), bot("retired", active=False)]
    assert drawn(league(*agents, results={})) == ("mirror", {"main@200": 1.0})
    assert drawn(league(*agents, bot("only", 0.0), results={})) == ("rectified", {"only": 1.0})


def test_what_was_solved_before_changes_no_draw() -> None:
    sampler, tables = make(), [league(*GAME, results={("rock", "paper"): (n, 40 - n)}) for n in range(0, 41, 4)]
    for seed, table in enumerate([*tables, *reversed(tables)]):
        draws = sampler.draws(table, "main", [1, 2, 3], Random(seed))
        assert draws == make().draws(table, "main", [1, 2, 3], Random(seed))


def test_the_game_is_solved_again_only_when_a_payoff_moves_by_a_hundredth(monkeypatch: pytest.MonkeyPatch) -> None:
    from league.analysis import population
    from league.samplers import rectified_nash

    solved: list[int] = []
    solve = population.nash_average
    monkeypatch.setattr(population, "nash_average", lambda payoff: solved.append(len(payoff)) or solve(payoff))
    rectified_nash._solve_equilibrium.cache_clear()
    sampler = make()
    for rating in (1000.0, 1000.01, 1000.5, 1100.0):
        sampler.distribution(league(bot("rock", rating), bot("paper"), results={}), "main")
    assert len(solved) == 2


SCRIPT = """
from random import Random
from league.samplers import make_sampler
from schemas.config import Plugin
from schemas.standings import Agent, Live, Record, Standings
rng = Random(8)
agents = {f"b{n}": Agent(f"b{n}", "bot", rng.gauss(1000, 60), 9) for n in range(40)}
pairs = {a: {b: Record(rng.randrange(9), 0, rng.randrange(9)) for b in agents if a < b} for a in agents}
table = Standings(1, agents, {"main": Live("main", 3, None, 5000.0)}, {}, pairs=pairs)
print(make_sampler(Plugin(name="rectified_nash")).distribution(table, "main"))
"""


def run(script: str, **variables: str) -> str:
    environment = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_another_process_with_other_threads_and_hashes_finds_the_same_bits() -> None:
    one = run(SCRIPT, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", PYTHONHASHSEED="1")
    assert one == run(SCRIPT, OMP_NUM_THREADS="2", OPENBLAS_NUM_THREADS="2", PYTHONHASHSEED="2")
    assert one.count(":") > 5


def test_other_samplers_load_no_numerics() -> None:
    told = "import sys; print({'numba', 'scipy', 'league.analysis'} & set(sys.modules))"
    script = SCRIPT.replace("rectified_nash", "pfsp") + told
    assert run(script).splitlines()[-1] == "set()"


@pytest.mark.parametrize("settings", [{"most_agents": 1}, {"most_agents": 65}, {"prior_games": 0.0}, {"scale": -1.0}])
def test_bad_settings_are_refused_by_name(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=rf"matchmaking\.sampler\.settings\.{next(iter(settings))}: .*expected"):
        make(**settings)


# Standings.pairs, which the game is made of.


def match(index: int, *seats: tuple[str, float], purpose: str = "evaluation") -> e.MatchFinished:
    return match_finished(*seats, match_id=f"w-{index}", purpose=purpose)


def test_pairs_count_evaluation_matches_seat_by_seat_and_from_both_sides() -> None:
    state = LeagueState()
    events = [
        match(1, ("a", 2.0), ("b", 1.0), ("b", 2.0), ("c", float("nan"))),
        match(2, ("a", 0.0), ("b", 1.0), purpose="training"),
        match(1, ("a", 2.0), ("b", 1.0)),
    ]
    for sequence, event in enumerate(events, start=1):
        state.apply(sequence, event)
    assert state.standings().pairs == {"a": {"b": WinLoss(1, 1, 0)}, "b": {"a": WinLoss(0, 1, 1)}}
    handed_out, before = state.standings(), repr(state.standings())
    state.apply(4, e.MatchVoided(match=match(1, ("a", 2.0), ("b", 1.0), ("b", 2.0)), match_sequence=1, reason="old"))
    assert state.standings().pairs == {"a": {"b": WinLoss()}, "b": {"a": WinLoss()}}
    assert repr(handed_out) == before


def test_pairs_survive_a_snapshot() -> None:
    simulation = Simulation(LeagueConfig(seed=4), seats=3)
    simulation.run(3, 1)
    again = LeagueState.from_snapshot(simulation.state.to_snapshot())
    assert again.standings().pairs == simulation.state.standings().pairs
    assert again.standings().pairs["random_bot"]["base_model"].wins > 0
    assert again.digest() == simulation.state.digest()
