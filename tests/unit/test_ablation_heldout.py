"""The ablation's held-out population: bots that no arm met, met by what a finished run has left behind."""

from collections import Counter
from pathlib import Path
from shutil import copytree, rmtree

import msgspec
import pytest
import uvloop

from arena.games import make_game
from benchmarks.ablation import exploiters, heldout
from benchmarks.ablation.arms import ARMS, MAIN, SETTINGS, run_config
from benchmarks.ablation.driver import ADAPTERS, ensure_base_model, train_run
from benchmarks.ablation.exploiters import exploiter_trials
from benchmarks.ablation.exports import export_runs, unpack_export
from benchmarks.ablation.games import BENCHMARKS, GameBenchmark
from benchmarks.ablation.heldout import ALL_BOTS, bot_shares, held_out_trials, read_shares
from benchmarks.ablation.measures import read_events
from benchmarks.ablation.runs import TrainingJob
from benchmarks.ablation.tables import write_report
from benchmarks.ablation.trials import EARLY_VERSION, FINAL_VERSION, difference_lines, match_points, trial_versions
from schemas.errors import GameError
from schemas.events import AgentRegistered, GradientStepTaken, MatchFinished, SeatResult

PLAIN = SETTINGS["plain"]
BOTS = ("random_bot", "mover", "greedy")


def small(bench: GameBenchmark) -> GameBenchmark:
    """The bench with so little of everything that it is over in a second."""
    return msgspec.structs.replace(
        bench,
        game=msgspec.structs.replace(bench.game, settings={**bench.game.settings, "max_year": 1901}),
        **{"games": 12, "batch": 4, "checkpoints": 3, "resets": 1, "cloned": 64, "held_out_games": 4},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the two-power board, and what it took from the bots."""
    pytest.importorskip("diplomacy")
    folder, bench = tmp_path_factory.mktemp("held-out"), small(BENCHMARKS["diplomacy"])
    job = TrainingJob(folder, "diplomacy", "plain", "mirror", 1)
    config = run_config(bench, ARMS["mirror"], 1, PLAIN)
    uvloop.run(train_run(job.folder, config, ensure_base_model(job.model, config)))
    for one in held_out_trials(bench, ARMS["mirror"], PLAIN, 1, job.folder):
        uvloop.run(one.run_trial(job.model))
    return folder


def of_run(run: Path, version: str) -> list[MatchFinished]:
    return [event for event in read_events(run / f"held-out-{version}") if isinstance(event, MatchFinished)]


def matches(folder: Path, version: str) -> list[MatchFinished]:
    return of_run(folder / "diplomacy" / "plain" / "mirror" / "1", version)


def test_every_bot_is_met_equally_often_from_both_seats_with_the_same_seeds(folder: Path):
    played = matches(folder, FINAL_VERSION)
    assert Counter(seat.agent for match in played for seat in match.seats) == {
        f"{MAIN}@3": 12,
        **dict.fromkeys(BOTS, 4),
    }
    first, second = ({(m.seats[seat].agent, m.seed) for m in played if m.seats[seat].agent in BOTS} for seat in (0, 1))
    assert len(first) == 6
    assert first == second


def test_the_newest_version_plays_and_one_after_a_third_where_no_exploiters_shared_the_budget(folder: Path):
    assert {seat.agent for match in matches(folder, EARLY_VERSION) for seat in match.seats} - {*BOTS} == {f"{MAIN}@1"}
    assert [m.seed for m in matches(folder, EARLY_VERSION)] == [m.seed for m in matches(folder, FINAL_VERSION)]
    run, bench = folder / "diplomacy" / "plain" / "mirror" / "1", BENCHMARKS["diplomacy"]
    assert [one.version for one in held_out_trials(bench, ARMS["league"], PLAIN, 1, run)] == [FINAL_VERSION]
    assert held_out_trials(BENCHMARKS["kuhn"], ARMS["mirror"], PLAIN, 1, run) == []


def test_nothing_is_trained_on_what_is_held_out_and_no_run_ever_met_it(folder: Path):
    run = folder / "diplomacy" / "plain" / "mirror" / "1"
    assert not any(isinstance(event, GradientStepTaken) for event in read_events(run / "held-out-end"))
    assert list((run / "held-out-end" / ADAPTERS).iterdir()) == []
    registered = {event.agent for event in read_events(run) if isinstance(event, AgentRegistered)}
    assert not registered & {*BOTS}


def test_playing_again_gives_the_same_matches(folder: Path, tmp_path: Path):
    run = Path(copytree(folder / "diplomacy" / "plain" / "mirror" / "1", tmp_path / "1"))
    rmtree(run / "held-out-end")
    (again,) = held_out_trials(small(BENCHMARKS["diplomacy"]), ARMS["league"], PLAIN, 1, run)
    uvloop.run(again.run_trial(folder / "models" / "diplomacy-1"))
    assert again.is_done
    once, twice = (
        [(m.match_id, m.record, m.seats) for m in told]
        for told in (matches(folder, FINAL_VERSION), of_run(run, FINAL_VERSION))
    )
    assert once == twice


def test_figures_are_shares_of_the_points_and_the_report_has_them(folder: Path, capsys: pytest.CaptureFixture[str]):
    found = bot_shares(folder / "diplomacy" / "plain" / "mirror" / "1" / "held-out-end")
    played = matches(folder, FINAL_VERSION)
    for bot in BOTS:
        won = [match_points(m, MAIN) for m in played if bot in {seat.agent for seat in m.seats}]
        assert found[bot] == sum(won) / 4
        assert sum(won) + sum(match_points(m, bot) for m in played if bot in {s.agent for s in m.seats}) == 4
    assert found[ALL_BOTS] == pytest.approx(sum(found[bot] for bot in BOTS) / 3)
    arms = read_shares(folder, "diplomacy", "plain")
    assert arms["mirror", FINAL_VERSION].shares[ALL_BOTS].mean == found[ALL_BOTS]
    assert set(arms) == {("mirror", FINAL_VERSION), ("mirror", EARLY_VERSION)}
    write_report(folder, folder, folder)
    said = capsys.readouterr().out
    assert "| who plays | steps | seeds | random_bot | mover | greedy | all |" in said
    assert said.count("| mirror self-play |") == 2
    assert exploiters.render_tables(folder, "diplomacy") == []


def test_what_was_held_out_is_exported_with_its_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(BENCHMARKS, "diplomacy", msgspec.structs.replace(BENCHMARKS["diplomacy"], exploiter_games=0))
    job = TrainingJob(folder, "diplomacy", "plain", "mirror", 1)
    assert job.is_done
    assert "1 runs" in export_runs([job], tmp_path / "runs.tar")
    unpack_export(tmp_path / "runs.tar", tmp_path / "elsewhere")
    assert heldout.render_tables(tmp_path / "elsewhere", "diplomacy") == heldout.render_tables(folder, "diplomacy")
    (job.folder / "held-out-third" / "done.json").rename(tmp_path / "done.json")
    try:
        assert [one.folder.name for one in job.trials] == ["held-out-third"]
    finally:
        (tmp_path / "done.json").rename(job.folder / "held-out-third" / "done.json")


def test_a_match_that_fails_is_no_figure(folder: Path, tmp_path: Path):
    bench = msgspec.structs.replace(small(BENCHMARKS["diplomacy"]), held_out=("first_move",))
    run = Path(copytree(folder / "diplomacy" / "plain" / "mirror" / "1", tmp_path / "1"))
    rmtree(run / "held-out-end")
    (trial,) = held_out_trials(bench, ARMS["league"], PLAIN, 1, run)
    with pytest.raises(GameError, match=r"held-out-first_move-0 failed \(GameError: diplomacy: no bot is called"):
        uvloop.run(trial.run_trial(folder / "models" / "diplomacy-1"))
    assert not trial.is_done


def test_a_run_that_imitates_search_learns_from_all_of_its_decisions_and_no_other_does(tmp_path: Path):
    """In a league: labels are made where matches are played, travel with the trajectories, and steps count them."""
    bench = msgspec.structs.replace(BENCHMARKS["nim"], games=24, batch=8, checkpoints=3, cloned=64)
    imitated: dict[str, list[float]] = {}
    for arm in ("mirror", "imitation"):
        config = run_config(bench, ARMS[arm], 1, PLAIN)
        uvloop.run(train_run(tmp_path / arm, config, ensure_base_model(tmp_path / "model", config)))
        steps = [event for event in read_events(tmp_path / arm) if isinstance(event, GradientStepTaken)]
        assert [step.skip_reason for step in steps] == [""] * 3
        imitated[arm] = [step.metrics["imitated"] for step in steps]
    assert imitated["mirror"] == [0.0] * 3
    assert min(imitated["imitation"]) >= 8


def test_a_draw_is_half_a_point_to_each():
    seats = [SeatResult(0, "A", "main@3", 4.0, 1), SeatResult(1, "F", "greedy", 4.0, 1)]
    played = {"game": "diplomacy", "purpose": "evaluation", "worker": "w", "reason": "year_cap"}
    match = MatchFinished(match_id="m", seed=1, seats=seats, winner=None, length=2, seconds=0.0, **played)
    assert match_points(match, MAIN) == match_points(match, "greedy") == 0.5


@pytest.mark.parametrize(
    ("scores", "alone", "others"),
    [
        *[((3.0, 5.0, 4.0), 0.0, 1.0), ((5.0, 3.0, 4.0), 1.0, 0.0), ((4.0, 4.0, 1.0), 1 / 2, 1 / 2)],
        *[((4.0, 4.0, 4.0), 1 / 3, 2 / 3), ((1.0, 4.0, 4.0), 0.0, 1.0)],
    ],
)
def test_of_three_seats_the_highest_share_the_point(scores: tuple[float, ...], alone: float, others: float):
    agents = "exploiter@2", "main@9", "main@9"
    seats = [SeatResult(seat, "AIT"[seat], agents[seat], score, 1) for seat, score in enumerate(scores)]
    played = {"game": "diplomacy", "purpose": "training", "worker": "w", "reason": "year_cap"}
    match = MatchFinished(match_id="m", seed=1, seats=seats, winner=None, length=2, seconds=0.0, **played)
    assert (match_points(match, "exploiter"), match_points(match, MAIN)) == pytest.approx((alone, others))


def test_of_three_seats_an_exploiter_or_the_policy_has_one_in_turn(tmp_path: Path):
    """The two others are of one opponent: the frozen policy, or a bot."""
    pytest.importorskip("diplomacy")
    bench = msgspec.structs.replace(small(BENCHMARKS["three"]), exploiter_games=12, held_out_games=3)
    job = TrainingJob(tmp_path, "three", "plain", "lean", 1)
    config = run_config(bench, ARMS["lean"], 1, PLAIN)
    uvloop.run(train_run(job.folder, config, ensure_base_model(job.model, config)))
    (exploiter,) = exploiter_trials(bench, ARMS["lean"], PLAIN, 1, job.folder)
    (met,) = held_out_trials(bench, ARMS["lean"], PLAIN, 1, job.folder)
    for trial, alone in (exploiter, "exploiter"), (met, MAIN):
        uvloop.run(trial.run_trial(job.model))
        played = [event for event in read_events(trial.folder) if isinstance(event, MatchFinished)]
        seated = [[seat.agent.startswith(alone) for seat in match.seats] for match in played]
        assert {tuple(one) for one in seated} == {(True, False, False), (False, True, False), (False, False, True)}
        assert {len({seat.agent for seat in match.seats}) for match in played} == {2}
    assert [len({m.seed for m in played if bot in {s.agent for s in m.seats}}) for bot in BOTS] == [1] * 3
    assert [name for name, steps in trial_versions(bench, ARMS["mirror"]).items() if steps == 2] == [EARLY_VERSION]


def test_shares_are_compared_over_the_seeds_that_both_arms_have():
    mirror, league = {1: 0.5, 2: 0.75, 3: 1.0}, {3: 0.5, 2: 0.75, 4: 0.0}
    found = {("mirror", FINAL_VERSION): mirror, ("mirror", EARLY_VERSION): league, ("lean", FINAL_VERSION): league}
    (line, _) = difference_lines("three", found)
    assert line.startswith(
        "Seed by seed: mirror self-play after 48 steps minus league, exploiters a third of it 0.250 ±"
    )
    assert "mirror self-play after 32 steps minus league, exploiters a third of it 0.000 ± 0.000." in line
    assert difference_lines("three", {("mirror", FINAL_VERSION): mirror}) == []


def test_held_out_bots_play_the_game_and_are_met_equally_often_from_every_seat():
    pytest.importorskip("diplomacy")
    for bench in (bench for bench in BENCHMARKS.values() if bench.held_out):
        spec = make_game(bench.game.name, bench.game.settings)
        assert {*bench.held_out} <= {*spec.bots}
        assert bench.held_out_games > 0
        assert bench.held_out_games % len(spec.seats) == 0
