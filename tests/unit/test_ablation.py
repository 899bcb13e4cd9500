"""The ablation: exact values of small games, and runs whose figures come from what they left behind alone."""

from itertools import pairwise, product
from pathlib import Path
from random import Random
from shutil import copytree

import msgspec
import numpy as np
import pytest
import uvloop
import zstandard

from arena.bots import BET_PROBABILITIES
from arena.games import make_game
from arena.games.kuhn_poker import CARDS
from arena.games.texts import Pieces
from benchmarks.ablation.__main__ import parse_arguments, plan_jobs
from benchmarks.ablation.arms import ARMS, MAIN, SETTINGS, run_config
from benchmarks.ablation.driver import ADAPTERS, HISTORY, ensure_base_model, train_run
from benchmarks.ablation.exploiters import EXPLOITER, exploiter_trials, point_shares, read_shares
from benchmarks.ablation.exports import export_runs, unpack_export
from benchmarks.ablation.games import BENCHMARKS
from benchmarks.ablation.intervals import mean_interval
from benchmarks.ablation.local import InMemoryExperience
from benchmarks.ablation.measures import MEASURED_FILE, CurvePoint, MeasureReader, RunMeasures, measure_run, read_events
from benchmarks.ablation.plan import FIVE_SEEDS, PLAN, TEN_SEEDS
from benchmarks.ablation.policies import PolicyTabulator
from benchmarks.ablation.prediction import (
    SYSTEMS,
    PredictionReport,
    ablation_table,
    expected_share,
    log_table,
    predict_histories,
    predict_history,
)
from benchmarks.ablation.runs import TrainingJob
from benchmarks.ablation.tables import ArmRow, arm_rows, measure_titles, read_measures, render_table, write_report
from benchmarks.ablation.trees import GameTree
from benchmarks.ablation.trials import EARLY_VERSION, FINAL_VERSION
from league.log.queues import ExperienceStream
from league.matchmaking.matchmaker import recompute_draw
from league.state import LeagueState
from schemas.config import Plugin
from schemas.errors import UsageError
from schemas.events import CheckpointAdded, MatchFinished, OpponentsSampled, PolicyReset, SeatResult

PLAIN = SETTINGS["plain"]


def some_policy(tree: GameTree, seed: int) -> dict[Pieces, list[float]]:
    rng = Random(seed)
    drawn = {seen: [rng.random() ** 3 for _ in moves] for seen, moves in tree.moves.items()}
    return {seen: [share / sum(shares) for share in shares] for seen, shares in drawn.items()}


@pytest.mark.parametrize(("game", "expected"), [("kuhn", 0.458333), ("leduc", 2.373611), ("rps", 1 / 3)])
def test_uniform_play_is_as_exploitable_as_is_known(game: str, expected: float):
    tree = BENCHMARKS[game].tree()
    assert tree.exploitability(tree.uniform_policy()) == pytest.approx(expected, abs=1e-6)


def test_the_dilemma_is_exploited_beyond_what_a_policy_wins_from_itself():
    """Four rounds, by hand: against random play a defector wins 3 a round, and random play 2.25 from itself."""
    tree = BENCHMARKS["dilemma"].tree()
    uniform = tree.uniform_policy()
    always = [{seen: [float(move == 0), float(move == 1)] for seen in tree.moves} for move in (0, 1)]
    assert not tree.is_zero_sum
    assert not BENCHMARKS["dilemma"].is_zero_sum
    assert tree.exploitability(uniform) == pytest.approx(4 * (3 - 2.25))
    assert [tree.own_value(policy) for policy in always] == [12.0, 4.0]
    assert [tree.exploitability(policy) for policy in always] == [20.0 - 12.0, 0.0]
    # Tit for tat: a best response cooperates until the last round.
    tit_for_tat = {seen: [1.0, 0.0] if not seen or seen[-1] == "cooperate" else [0.0, 1.0] for seen in tree.moves}
    assert tree.exploitability(tit_for_tat) == pytest.approx(3 * 3 + 5 - 12)
    with pytest.raises(UsageError, match="not zero-sum"):
        tree.payoff_matrix([uniform])


def test_equilibria_cannot_be_exploited():
    kuhn, rps = BENCHMARKS["kuhn"].tree(), BENCHMARKS["rps"].tree()
    policy = {}
    for seen in kuhn.moves:
        eager = BET_PROBABILITIES[seen[1:]][CARDS.index(seen[0])]
        policy[seen] = [eager, 1 - eager]
    assert kuhn.exploitability(policy) == pytest.approx(0.0, abs=1e-12)
    assert rps.exploitability({(): [0.25, 0.5, 0.25]}) == pytest.approx(0.0, abs=1e-12)


def test_kuhn_policies_are_as_exploitable_as_openspiel_finds():
    pyspiel = pytest.importorskip("pyspiel")
    from open_spiel.python.algorithms.exploitability import exploitability
    from open_spiel.python.policy import TabularPolicy

    tree, theirs = BENCHMARKS["kuhn"].tree(), TabularPolicy(pyspiel.load_game("kuhn_poker"))
    for seed in range(5):
        policy = some_policy(tree, seed)
        for known in theirs.state_lookup:
            # OpenSpiel writes "1pb": the card, then passes and bets; a call is a bet there, and moves are Pass and Bet.
            said = tuple("bet" if letter == "b" else "check" for letter in known[1:])
            eager, shy = policy[(CARDS[int(known[0])], *said)]
            theirs.policy_for_key(known)[:] = [shy, eager]
        assert tree.exploitability(policy) == pytest.approx(exploitability(theirs.game, theirs), abs=1e-9)


def test_a_mixture_wins_what_its_members_win_on_average():
    tree = BENCHMARKS["leduc"].tree()
    members, other = [some_policy(tree, seed) for seed in range(3)], some_policy(tree, 9)
    weights = [0.5, 0.3, 0.2]
    points = tree.payoff_matrix([tree.mixture_policy(members, weights), other, *members])
    assert points[0, 1] == pytest.approx(float(np.dot(weights, points[2:, 1])), abs=1e-12)
    assert np.allclose(points, -points.T)
    assert abs(points[2:, 1]).max() > 0.1


def test_no_policy_wins_more_than_the_best_response():
    tree = BENCHMARKS["kuhn"].tree()
    policies = [some_policy(tree, seed) for seed in range(40)]
    points = tree.payoff_matrix(policies)
    for nth, policy in enumerate(policies):
        assert points[:, nth].max() <= tree.exploitability(policy) + 1e-12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two arms, two seeds, a few steps; exploiters are reset after each, since the last of three may come too late."""
    folder = tmp_path_factory.mktemp("ablation")
    bench = msgspec.structs.replace(BENCHMARKS["kuhn"], games=24 * 9, batch=24, checkpoints=3, resets=3)
    for arm in ("mirror", "league"):
        for seed in (1, 2):
            config = run_config(bench, ARMS[arm], seed, PLAIN)
            config = msgspec.structs.replace(
                config, model=msgspec.structs.replace(config.model, cloning={"sequences": 256})
            )
            model = ensure_base_model(folder / "models" / f"kuhn-{seed}", config)
            uvloop.run(train_run(folder / "kuhn" / "plain" / arm / str(seed), config, model))
    return folder


def test_an_adapter_is_asked_what_it_would_sample(folder: Path):
    tree = BENCHMARKS["kuhn"].tree()
    asked = PolicyTabulator(BENCHMARKS["kuhn"].game, tree, folder / "models" / "kuhn-1")
    base = asked.tabulate(None)
    assert set(base) == set(tree.moves)
    assert all(sum(shares) == pytest.approx(1.0) and min(shares) > 0.2 for shares in base.values()), (
        "cloned from random"
    )
    newest = max((folder / "kuhn" / "plain" / "mirror" / "1" / ADAPTERS).iterdir())
    moved = asked.tabulate(asked.load_adapter(newest.read_bytes()))
    assert max(abs(a - b) for seen in base for a, b in zip(base[seen], moved[seen], strict=True)) > 0.01


def test_the_stream_in_memory_can_be_asked_whatever_the_brokers_can():
    asked = {name for name in vars(ExperienceStream) if not name.startswith("_")}
    assert asked <= set(vars(InMemoryExperience)), "workers ask for all of it, some only after a while"


def test_figures_come_from_what_a_run_left_behind(folder: Path):
    tree = BENCHMARKS["kuhn"].tree()
    asked = PolicyTabulator(BENCHMARKS["kuhn"].game, tree, folder / "models" / "kuhn-1")
    run = folder / "kuhn" / "plain" / "league" / "1"
    once, again = measure_run(run, tree, asked), measure_run(run, tree, asked)
    assert once == again
    assert once.games >= 24 * 9
    assert len(once.curve) >= 2
    assert once.curve[0].last == once.curve[0].mean == once.curve[0].nash
    assert all(before.games < after.games for before, after in pairwise(once.curve))


def test_all_policies_of_a_league_share_its_budget_of_games(folder: Path):
    budget, batch = 24 * 9, 24
    for arm, policies in (("mirror", 1), ("league", 3)):
        events = read_events(folder / "kuhn" / "plain" / arm / "1")
        finished = sum(isinstance(event, MatchFinished) for event in events)
        # A policy plays two batches more at most: the one it had begun when the budget was spent, and the one that it
        # begins between that batch's step and the end of its training.
        assert budget <= finished <= budget + 2 * batch * policies, arm
    events = list(read_events(folder / "kuhn" / "plain" / "league" / "2"))
    assert {event.policy for event in events if isinstance(event, CheckpointAdded)} == {MAIN, "hunter", "rogue"}
    assert any(isinstance(event, PolicyReset) for event in events)


def test_exploiters_with_fewer_workers_leave_the_main_policy_more_of_the_budget(folder: Path, tmp_path: Path):
    bench = msgspec.structs.replace(BENCHMARKS["kuhn"], games=24 * 12, batch=24, checkpoints=3, resets=1, cloned=256)
    config = run_config(bench, ARMS["lean"], 1, PLAIN)
    uvloop.run(train_run(tmp_path / "lean", config, folder / "models" / "kuhn-1"))
    heroes = [event.hero for event in read_events(tmp_path / "lean") if isinstance(event, OpponentsSampled)]
    mine = sum(hero.startswith(f"{MAIN}@") for hero in heroes) / len(heroes)
    assert mine == pytest.approx(ARMS["lean"].share, abs=0.1)


def test_the_weakest_of_a_population_is_replaced_by_an_offspring(folder: Path, tmp_path: Path):
    """Ratings of training matches decide, so a rater is at work beside the trainers."""
    bench = msgspec.structs.replace(BENCHMARKS["kuhn"], games=24 * 24, batch=24, checkpoints=24, cloned=256)
    config = run_config(bench, ARMS["crossover"], 1, PLAIN)
    assert {policy.reset_steps for policy in config.policies.values()} == {1}
    mutated = run_config(bench, ARMS["mutation"], 1, PLAIN).policies["second"].reset_operator
    assert mutated == Plugin("mutation", {"noise": 0.02})
    uvloop.run(train_run(tmp_path / "crossover", config, folder / "models" / "kuhn-1"))
    events = list(read_events(tmp_path / "crossover"))
    resets = [event for event in events if isinstance(event, PolicyReset)]
    assert {event.policy for event in resets} <= {"second", "third"}
    assert any(len(event.parents) == 2 for event in resets)
    assert run_config(bench, ARMS["population"], 1, PLAIN).policies["third"].reset_operator is None


def test_every_draw_can_be_computed_again(folder: Path):
    """What was kept is a league's history like any other."""
    state, checked = LeagueState(), 0
    standings = {}
    for sequence, event in enumerate(read_events(folder / "kuhn" / "plain" / "league" / "1"), 1):
        if isinstance(event, OpponentsSampled):
            assert state.config is not None
            assert recompute_draw(event, standings[event.standings_sequence], state.config).agrees
            checked += 1
        state.apply(sequence, event)
        standings[sequence] = state.standings()
    assert checked >= 24 * 9


def test_the_report_compares_arms_seed_by_seed(folder: Path, capsys: pytest.CaptureFixture[str]):
    write_report(folder, folder, folder)
    said = capsys.readouterr().out
    assert "Kuhn poker" in said
    assert "| league with exploiters | 2 |" in said, "seeds are said"
    assert (folder / "ablation-kuhn.png").stat().st_size > 5_000
    assert msgspec.json.decode((folder / "report.json").read_bytes())["kuhn"]["rows"]["plain"][0]["seeds"] == 2


def test_intervals_are_students(folder: Path):
    found = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.mean, round(found.half, 3)) == (3.0, 1.963)
    assert mean_interval([1.0]).half == float("inf")


def test_what_a_policy_wins_from_itself_is_a_column_where_the_game_is_not_zero_sum():
    curve = [CurvePoint(32 * at, at, 2.0, 1.0, 0.0, own=6.0 + at) for at in range(5)]
    table = arm_rows({"mirror": {1: RunMeasures(curve, 128, 4, 4, 0.0)}}, measure_titles("dilemma"))
    said = render_table("dilemma", "entropy", table)
    assert "| 9.000 ± inf |" in said
    assert "wins from itself" in said
    assert "equilibrium of its population" not in said


def test_an_arm_is_below_mirror_only_where_the_intervals_are_apart():
    def row(mean: float, half: float) -> ArmRow:
        return ArmRow(
            "league",
            5,
            {"late": msgspec.convert({"mean": mean, "half": half}, type=type(mean_interval([1, 2])))},
            {},
            0,
            0,
            0,
        )

    mirror = row(0.5, 0.1)
    assert row(0.2, 0.1).is_below(mirror, "late")
    assert not row(0.35, 0.1).is_below(mirror, "late")


def test_games_are_configured_as_they_can_be_played():
    for bench in BENCHMARKS.values():
        if bench.deals is None:
            continue
        spec = make_game(bench.game.name, bench.game.settings)
        assert sum(chance for chance, _ in bench.deals()) == pytest.approx(1.0)
        assert len(spec.seats) == 2
        for arm, setting in product((arm for arm in ARMS.values() if not arm.pairs), SETTINGS.values()):
            assert run_config(bench, arm, 1, setting).trainer.rollouts_per_step == bench.batch


def test_rows_leave_out_the_difference_of_mirror_from_itself(folder: Path):
    tree = BENCHMARKS["kuhn"].tree()
    asked = PolicyTabulator(BENCHMARKS["kuhn"].game, tree, folder / "models" / "kuhn-1")
    runs = {arm: {1: measure_run(folder / "kuhn" / "plain" / arm / "1", tree, asked)} for arm in ("mirror", "league")}
    table = {row.arm: row for row in arm_rows(runs)}
    assert table["mirror"].less == {}
    assert table["league"].less["late"].mean == pytest.approx(
        table["mirror"].found["late"].mean - table["league"].found["late"].mean
    )


def test_little_known_agents_are_expected_to_be_more_alike():
    assert expected_share(0.0, [50.0, 50.0]) == 0.5
    assert expected_share(400.0, []) == pytest.approx(10 / 11)
    assert 0.5 < expected_share(400.0, [350.0, 350.0]) < expected_share(400.0, [30.0, 30.0]) < 10 / 11
    assert expected_share(-120.0, [80.0]) == pytest.approx(1 - expected_share(120.0, [80.0]))


def test_a_match_is_predicted_before_it_is_rated_and_the_stronger_one_is_found():
    def match(nth: int) -> MatchFinished:
        seats = [SeatResult(0, "P1", "main@1", 1.0, 1), SeatResult(1, "P2", "main@2", -1.0, 2)]
        played = {"game": "kuhn_poker", "purpose": "training", "worker": "w", "reason": "call"}
        return MatchFinished(match_id=f"m-{nth}", seed=nth, seats=seats, winner=0, length=2, seconds=0.0, **played)

    for name, by_least in predict_history(map(match, range(40))).losses.items():
        assert by_least[0].matches == 1
        assert by_least[0].mean == pytest.approx(0.6931, abs=1e-4), name
        assert by_least[32].mean < by_least[8].mean < by_least[1].mean < 0.6931, name


def test_every_match_between_different_agents_is_predicted_once(folder: Path):
    run = folder / "kuhn" / "plain" / "league" / "1"
    matches = [event for event in read_events(run) if isinstance(event, MatchFinished)]
    different = sum(match.seats[0].agent != match.seats[1].agent for match in matches)
    found = predict_histories([run])
    assert set(found.losses) == set(SYSTEMS)
    for name, by_least in found.losses.items():
        assert sum(loss.matches for loss in by_least.values()) == len(found.matches[name]) == different > 0
    said = ablation_table(folder, "kuhn", [1])
    assert all(f"| {name} | 0." in said for name in SYSTEMS)
    assert ablation_table(folder, "leduc", [1]) == ""


def test_a_match_of_seven_counts_once_however_many_pairs_it_has():
    agents = ["main@3", "bot", "bot", "bot", "greedy", "greedy", "greedy"]
    seats = [SeatResult(nth, f"P{nth}", agent, float(-nth), 1) for nth, agent in enumerate(agents)]
    played = {"game": "diplomacy", "purpose": "training", "worker": "w", "reason": "year"}
    matches = [
        MatchFinished(match_id=f"m-{nth}", seed=nth, seats=seats, winner=0, length=2, seconds=0.0, **played)
        for nth in range(3)
    ]
    for name, by_least in predict_history(matches).losses.items():
        assert sum(loss.matches for loss in by_least.values()) == pytest.approx(3.0), name
        assert by_least[0].mean > by_least[1].mean, f"{name}: the same comes again"


def test_an_exported_event_log_is_predicted_as_the_run_that_it_is_of(folder: Path, tmp_path: Path):
    run = folder / "kuhn" / "plain" / "league" / "1"
    log = tmp_path / "events.jsonl"
    log.write_bytes(zstandard.decompress((run / HISTORY).read_bytes()))
    assert predict_histories([log]) == predict_histories([run])
    assert "| events: matches known | 0+ |" in log_table(log)


def test_an_export_holds_all_that_the_figures_are_computed_from(folder: Path, tmp_path: Path):
    jobs = [
        TrainingJob(folder, "kuhn", "plain", arm, seed) for arm, seed in product(("mirror", "league", "pfsp"), (1, 2))
    ]
    assert "4 runs" in export_runs(jobs, tmp_path / "runs.tar")
    unpack_export(tmp_path / "runs.tar", tmp_path / "elsewhere")
    assert not list((tmp_path / "elsewhere").rglob(MEASURED_FILE)), "figures are not handed on, they are computed"
    figures = [
        read_measures(place, "kuhn", "plain", MeasureReader(place / "models", "kuhn"))
        for place in (folder, tmp_path / "elsewhere")
    ]
    assert figures[0] == figures[1]
    assert set(figures[0]) == {"mirror", "league"}


def test_figures_are_computed_again_where_the_history_is_another_one(folder: Path, tmp_path: Path):
    run = Path(copytree(folder / "kuhn" / "plain" / "mirror" / "1", tmp_path / "1"))
    (run / MEASURED_FILE).unlink(missing_ok=True)
    reader = MeasureReader(folder / "models", "kuhn")
    once = reader.read(run, 1)
    kept = (run / MEASURED_FILE).read_bytes()
    (run / MEASURED_FILE).write_bytes(kept.replace(f'"steps":{once.steps},'.encode(), b'"steps":77,'))
    assert reader.read(run, 1).steps == 77, "kept, not computed"
    events = zstandard.decompress((run / HISTORY).read_bytes()).splitlines(keepends=True)
    (run / HISTORY).write_bytes(zstandard.compress(b"".join(events[:-1])))
    assert reader.read(run, 1).steps <= once.steps


def test_an_exploiter_meets_nobody_but_the_frozen_policy(folder: Path, tmp_path: Path):
    bench = msgspec.structs.replace(
        BENCHMARKS["kuhn"], games=24 * 9, batch=24, checkpoints=3, resets=1, cloned=256, exploiter_games=24 * 4
    )
    run = folder / "kuhn" / "plain" / "mirror" / "1"
    whole, third = exploiter_trials(bench, ARMS["mirror"], PLAIN, 1, run)
    assert [one.version for one in exploiter_trials(bench, ARMS["league"], PLAIN, 1, run)] == [FINAL_VERSION]
    assert third.frozen_policy().version <= 3 < whole.frozen_policy().version == 9
    left = tmp_path / "kuhn" / "plain" / "mirror" / "1" / f"exploited-{EARLY_VERSION}"
    uvloop.run(train_run(left, third.config, folder / "models" / "kuhn-1", third.frozen_policy()))
    met = {seat.agent for event in read_events(left) if isinstance(event, MatchFinished) for seat in event.seats}
    assert {agent for agent in met if not agent.startswith(EXPLOITER)} == {f"{MAIN}@{third.frozen_policy().version}"}
    assert f"{EXPLOITER}@0" in met
    assert all(0 < share < 1 for share in point_shares(left))
    assert read_shares(tmp_path, "kuhn", "plain")["mirror", EARLY_VERSION].last.mean == point_shares(left)[1]


def test_games_with_a_tree_need_no_exploiter():
    assert [
        name
        for name, bench in BENCHMARKS.items()
        if (bench.deals is None) != bool(bench.exploiter_games or bench.held_out or bench.attempts)
    ] == []


def test_textarenas_game_of_one_round_is_over_after_both_have_chosen():
    pytest.importorskip("textarena")
    bench = BENCHMARKS["textarena"]
    bench.prepare()
    bench.prepare()
    game, rng = make_game(bench.game.name, bench.game.settings).new(3), Random(1)
    for turn in range(2):
        (seat,) = game.to_move()
        assert seat == turn
        game.apply({seat: game.random_action(seat, rng)})
    assert not game.to_move()


def asked_for(folder: Path, *given: str) -> list[tuple[str, str, str, int]]:
    jobs = plan_jobs(parse_arguments(["run", str(folder), *given]))
    return [(job.game, job.setting, job.arm, job.seed) for job in jobs]


def test_what_is_planned_is_trained_where_nothing_else_is_asked_for(tmp_path: Path):
    planned = {(*cell, arm, seed) for cell, arms in PLAN.items() for arm, seeds in arms.items() for seed in seeds}
    every = asked_for(tmp_path)
    assert len(every) == len(planned)
    assert set(every) == planned
    assert {cell[0] for cell in PLAN} == set(BENCHMARKS)
    assert {arm for _, _, arm, _ in every} == set(ARMS)


def test_seeds_of_all_arms_come_in_turn(tmp_path: Path):
    seeds = [seed for _, _, _, seed in asked_for(tmp_path, "--games", "five")]
    assert seeds == sorted(seeds)
    assert [arm for _, _, arm, seed in asked_for(tmp_path, "--games", "five") if seed == 10] == ["mirror", "league"]


def test_names_choose_among_what_is_planned_and_all_three_ask_for_anything(tmp_path: Path):
    kuhn = asked_for(tmp_path, "--games", "kuhn")
    assert {(setting, arm) for _, setting, arm, _ in kuhn} == {
        *(("entropy", arm) for arm in PLAN["kuhn", "entropy"]),
        *(("annealed", arm) for arm in ("mirror", "league")),
    }
    assert len(asked_for(tmp_path, "--arms", "lean")) == 2 * len(FIVE_SEEDS) + len(TEN_SEEDS)
    assert asked_for(tmp_path, "--games", "five", "--settings", "plain") == []
    chosen = "--games", "five", "--settings", "plain", "--arms", "lean"
    assert [seed for *_, seed in asked_for(tmp_path, *chosen)] == list(FIVE_SEEDS)
    assert asked_for(tmp_path, *chosen, "--seeds", "77") == [("five", "plain", "lean", 77)]
    named = asked_for(tmp_path, "--games", "rps", "--settings", "entropy", "--seeds", "12")
    assert [arm for _, _, arm, _ in named] == list(PLAN["rps", "entropy"])
    assert PLAN["rps", "entropy"]["mirror"] == TEN_SEEDS


def test_arms_are_also_compared_by_equal_steps_of_the_main_policy():
    def run(every: int, mine: int) -> RunMeasures:
        curve = [CurvePoint(32 * at * every // mine, at, at / 100, 0.0, 0.0) for at in range(0, mine + 1, 10)]
        return RunMeasures(curve, 32 * every, mine, every, 0.0)

    whole, shared = run(300, 300), run(300, 100)
    assert whole.alike == shared.alike == shared.late == pytest.approx(0.75)
    assert whole.late == pytest.approx(2.25)


def test_a_system_that_predicts_no_better_than_another_is_not_called_better():
    found = PredictionReport(
        {}, {"one": [0.5, 0.7, 0.6, 0.8], "same": [0.5, 0.7, 0.6, 0.8], "worse": [0.9, 0.9, 0.9, 0.9]}
    )
    assert found.loss_difference("same", "one") == "+0.0000 ± 0.0000"
    gap, half = map(float, found.loss_difference("worse", "one").split(" ± "))
    assert gap == -0.25
    assert 0 < half < 0.25
