"""Files of other programs: found by what they hold, read in whatever form they come, refused by name."""

import gzip
import json
from random import Random
from typing import Any

import pytest

from arena.games import make_game
from arena.games.diplomacy.saved_games import read_saved_game, write_saved_game
from arena.match import resimulate
from lifecycle.external_results import FORMATS, ExternalResult, parse_results
from schemas.errors import GameError, UsageError

diplomacy = pytest.importorskip("diplomacy")

TEXTARENA = {"env_id": "TicTacToe-v0", "players": ["a", "b"], "rewards": {"0": 1, "1": -1}}
TRACE = {"agent": {"config": {"model": "m"}}, "ok": True, "rewards": {"won": {"score": 1.0}}}
VERIFIERS = {"id": "e", "ok": True, "env": {"id": "kuhn"}, "traces": [TRACE]}
KAGGLE = {
    "id": "k-1",
    "name": "connectx",
    "configuration": {},
    "steps": [[{"action": 0}, {"action": 0}], [{"action": 3}, {"action": 0}]],
    "rewards": [1, -1],
    "statuses": ["DONE", "DONE"],
    "info": {"TeamNames": ["alpha", "beta"], "EpisodeId": 77},
}


def played(seed: int, phases: int, drawn: bool = False, **extra: Any) -> dict[str, Any]:
    """A game of the package with random orders, some of them missing, as it saves it."""
    from diplomacy.utils.export import to_saved_game_format

    random, game = Random(seed), diplomacy.Game(game_id=f"game-{seed}")
    while len(game.state_history) < phases and not game.is_game_done:
        possible = game.get_all_possible_orders()
        for power in game.powers:
            places = [place for place in sorted(game.get_orderable_locations(power)) if possible[place]]
            game.set_orders(power, [random.choice(sorted(possible[at])) for at in places if random.random() < 0.9])
        game.process()
    if drawn:
        game.draw()
    saved: dict[str, Any] = json.loads(json.dumps(to_saved_game_format(game)))
    return saved | extra


@pytest.fixture(scope="module")
def saved() -> dict[str, Any]:
    """A game of four years, which a year cap ended, by a program with keys of its own."""
    game = played(3, 40)
    end = next(at for at, phase in enumerate(game["phases"]) if phase["name"] == "S1903M")
    game["phases"] = [phase | {"phase_summary": "…"} for phase in game["phases"][: end + 1]]
    return game | {"power_models": {"FRANCE": "gpt-4o"}}


def parsed(text: str | bytes, form: str = "") -> tuple[str, list[ExternalResult]]:
    return parse_results(text.encode() if isinstance(text, str) else text, "file.json", form)


def test_formats_are_found(saved: dict[str, Any]) -> None:
    files = {"textarena": TEXTARENA, "verifiers": VERIFIERS, "kaggle": KAGGLE, "diplomacy": saved}
    assert files.keys() == FORMATS.keys()
    for name, value in files.items():
        form, (result,) = parsed(json.dumps(value))
        assert form == name
        assert parsed(json.dumps(value), name) == (name, [result])


@pytest.mark.parametrize("value", [TEXTARENA, VERIFIERS, KAGGLE], ids=["textarena", "verifiers", "kaggle"])
def test_files_may_be_compressed_and_begin_with_a_mark(value: dict[str, Any]) -> None:
    line = json.dumps(value).encode() + b"\r\n"
    expected = parsed(line)
    assert parsed(gzip.compress(line)) == expected
    assert parsed(b"\xef\xbb\xbf" + line) == expected
    assert parsed(gzip.compress(b"\xef\xbb\xbf" + line[:-2]) + gzip.compress(b"\r\n")) == expected


def test_a_compressed_file_that_is_cut_or_damaged_is_refused() -> None:
    data = gzip.compress(json.dumps(KAGGLE).encode())
    with pytest.raises(UsageError, match=r"file\.json: the gzip data ends early"):
        parsed(data[:-9])
    with pytest.raises(UsageError, match=r"file\.json: damaged gzip data"):
        parsed(data[:10] + b"\xff" + data[11:])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"phase": 1}', r"line 1: found the keys phase; expected a file of 'diplomacy', 'kaggle'"),
        (
            '\n{"map": "standard", "id": "g"}',
            r"line 2: nearly the format diplomacy: found map, id, but not phases, rules",
        ),
        ('{"steps": []}', r"line 1: nearly the format kaggle: found steps, but not rewards"),
        ('{"steps": [], "rewards": [1]}', r"line 1: nearly an episode of Kaggle, but .*`name`"),
        ("", "found no results"),
        ("[3]", "line 1: found 3; expected a JSON object"),
        ('{"steps": [],\n"rewards": [1}', "line 1: found .*; expected JSON"),
    ],
)
def test_what_is_nearly_a_known_format_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parsed(text)


def test_episodes_of_kaggle() -> None:
    failed = KAGGLE | {"info": {"EpisodeId": 78}, "rewards": [None, None], "statuses": ["TIMEOUT", "DONE"]}
    _, (won, lost) = parsed(json.dumps([KAGGLE, failed], indent=2))
    assert (won.id, won.environment, won.length, won.line) == ("77", "connectx", 1, 1)
    assert [(seat.role, seat.player, seat.score) for seat in won.seats] == [
        ("player 0", "alpha", 1.0),
        ("player 1", "beta", -1.0),
    ]
    assert (lost.error, lost.seats) == ("player 0: TIMEOUT", ())
    with pytest.raises(UsageError, match="2 rewards and 1 TeamNames"):
        parsed(json.dumps(KAGGLE | {"info": {"TeamNames": ["alpha"]}}))
    with pytest.raises(UsageError, match="episode 77 repeats line 1"):
        parsed(json.dumps(KAGGLE) + json.dumps(KAGGLE))


def test_a_saved_game_is_adjudicated_again_with_its_score(saved: dict[str, Any]) -> None:
    _, (result,) = parsed(json.dumps(saved, indent=1))
    final = saved["phases"][-1]["state"]
    for seat in result.seats:
        assert seat.metrics["centers"] == len(final["centers"][seat.role])
        assert seat.metrics["units"] == len(final["units"][seat.role])
    assert {seat.player for seat in result.seats} >= {"gpt-4o", "AUSTRIA"}
    assert (result.reason, result.length, result.id) == ("year_cap", len(saved["phases"]) - 1, "game-3")
    again = read_saved_game(json.loads(json.dumps(write_saved_game(result.record, "again"))))
    assert again.game.position.saved == read_saved_game(saved).game.position.saved


def test_several_games_in_one_file_and_one_that_was_drawn(saved: dict[str, Any]) -> None:
    drawn = played(5, 7, drawn=True)
    for text in (json.dumps(saved) + "\n" + json.dumps(drawn), json.dumps([saved, drawn])):
        _, (first, second) = parsed(text)
        assert (first.reason, second.reason) == ("year_cap", "draw")
        assert len({seat.score for seat in second.seats}) == 1
    assert _line_of_second(json.dumps(saved, indent=1) + "\n" + json.dumps(drawn)) > 1000
    with pytest.raises(UsageError, match=r"line 2: game game-3 repeats line 1"):
        parsed(json.dumps(saved) + "\n" + json.dumps(saved))


def _line_of_second(text: str) -> int:
    return parsed(text)[1][1].line


def test_games_with_a_declared_end_play_again_to_the_same_outcome(saved: dict[str, Any]) -> None:
    end = next(at for at, phase in enumerate(saved["phases"]) if phase["name"] == "F1902M")
    for value in (played(5, 7, drawn=True), saved | {"phases": saved["phases"][: end + 1]}, saved):
        game = read_saved_game(value).game
        recording = make_game("diplomacy", {}).open_record(game.record())
        assert resimulate(recording, 0, {}, game.outcome()).identical
        again = read_saved_game(json.loads(json.dumps(write_saved_game(game.record(), "again")))).game
        assert again.outcome() == game.outcome()


def test_a_game_that_stopped_within_a_year_counts_by_its_last_position(saved: dict[str, Any]) -> None:
    end = next(at for at, phase in enumerate(saved["phases"]) if phase["name"] == "F1902M")
    _, (result,) = parsed(json.dumps(saved | {"phases": saved["phases"][: end + 1]}))
    assert (result.reason, result.length) == ("stopped", end)


@pytest.mark.parametrize("random_seed", range(3))
def test_games_of_the_package_agree_with_this_adjudicator(random_seed: int) -> None:
    game = read_saved_game(played(random_seed, 25)).game
    assert len(game.history()) == 25


def test_a_saved_game_that_cannot_be_used_is_named(saved: dict[str, Any]) -> None:
    def refused(**changes: Any) -> str:
        with pytest.raises(GameError) as error:
            read_saved_game(saved | changes)
        return str(error.value)

    phases = saved["phases"]
    assert "its length is unknown; expected all" in refused(phases=phases[:1])
    assert "map 'ancmed'; expected 'standard'" in refused(map="ancmed")
    assert "phase 'F1901M'; expected S1901M" in refused(phases=phases[1:])
    assert "a saved game of Diplomacy, but" in refused(phases=[{"name": "S1901M"}])
    moved = json.loads(json.dumps(phases))
    moved[1]["state"]["units"]["FRANCE"] = ["A PAR"]
    assert "F1901M: units of FRANCE are A PAR; expected" in refused(phases=moved)
