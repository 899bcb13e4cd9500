"""Results of other systems become events once, with their origin; matches leave in the forms of other systems."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import zstandard
from msgspec.structs import replace
from typer.testing import CliRunner, Result

import schemas.events as e
from arena.games import make_game
from league.blobs import BrokerBlobStore
from league.log.base import RecordedEvent
from league.log.jetstream import JetStreamLog
from league.log.server import EmbeddedServer
from league.log.streams import ensure_streams
from league.ratings.fold import RatingFold
from league.run import Run
from league.state import LeagueState
from schemas.config import ExperienceConfig, LeagueConfig, Plugin, RatingsConfig
from schemas.errors import UsageError
from tests.builders import match_finished, opening_events
from ui.cli import app

CONFIG = LeagueConfig(
    name="league", game=Plugin(name="kuhn_poker"), ratings=RatingsConfig(purposes=("evaluation", "external"))
)
OBSERVATIONS = '{"2025-02-10 19:44:53+00":{"observation":"[[-1, \\"You are Player 0\\"]]","action":"[no]"}}'


def player_record(game: int, player: int, names: list[str], rewards: dict[str, float], **more: Any) -> dict[str, Any]:
    """A row of TextArena's published player records: nested values are JSON in strings."""
    others = {str(seat): {"model_name": name} for seat, name in enumerate(names) if seat != player}
    return {
        "player_game_id": 2 * game + player,
        "game_id": game,
        "env_name": "SpellingBee-v0",
        "model_name": names[player],
        "player_id": player,
        "opponent_names": json.dumps(others),
        "rewards": json.dumps(rewards),
        "observations": OBSERVATIONS,
        "num_turns": 2 + player,
        "status": "finished",
        "reason": "Invalid Move",
        **more,
    }


LLAMA, PERSON = "meta-llama/llama-3.3-70b-instruct", "Humanity"
GAMES: list[dict[str, Any]] = [
    player_record(469, 0, [LLAMA, PERSON], {"0": 0, "1": -1}),
    player_record(469, 1, [LLAMA, PERSON], {"0": 0, "1": -1}),
    player_record(470, 0, [LLAMA, "random"], {"0": -1, "1": 1}),
    {"env_id": "TicTacToe-v0", "players": [LLAMA, PERSON], "rewards": {"0": 1, "1": -1}},
    {"env_id": "TicTacToe-v0", "players": [LLAMA, PERSON], "rewards": {"0": 1, "1": -1}},
    player_record(471, 0, [LLAMA, PERSON], {}, status="timeout"),
]
EPISODE: dict[str, Any] = {
    "id": "5f2b",
    "env": {"id": "kuhn-poker"},
    "task": {"type": "KuhnTask", "data": {"idx": 3}},
    "ok": True,
    "traces": [
        {
            "agent": {"config": {"model": model}, "name": name},
            "ok": True,
            "nodes": [{"message": {"role": "user", "content": "bet?"}}, {"sampled": True}],
            "rewards": {"payoff": {"score": score, "weight": 0.5}},
            "num_output_tokens": 7,
        }
        for name, model, score in (("player1", "random_bot", -2.0), ("player0", "qwen3@40", 2.0))
    ],
}


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A league with one recorded match; its broker runs, so that no command has to start it."""

    async def body() -> None:
        game, rng = make_game("kuhn_poker", {}).new(5), Random(1)
        while moving := game.to_move():
            game.apply({seat: game.random_action(seat, rng) for seat in moving})
        outcome = game.outcome()
        async with Run(tmp_path).connect("test") as client:
            await ensure_streams(client.jetstream(), ExperienceConfig())
            record = await BrokerBlobStore(client, "league").put(zstandard.compress(game.record()))
            scored = [("random_bot", outcome.scores[0]), ("base_model", outcome.scores[1])]
            match = match_finished(*scored, match_id="played", game="kuhn_poker", purpose="exhibition", record=record)
            roles = zip(match.seats, game.seats, strict=True)
            played = replace(match, seats=[replace(seat, role=role) for seat, role in roles])
            await JetStreamLog(client, "league", "test").append_batch([*opening_events(CONFIG, "league"), played])

    with EmbeddedServer(tmp_path / "nats"):
        asyncio.run(body())
        yield tmp_path


def command(run: Path, *arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [*arguments, "--run", str(run)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def import_file(run: Path, text: str, form: str, *more: str) -> dict[str, Any]:
    file = run / "results.jsonl"
    file.write_text(text)
    answer: dict[str, Any] = json.loads(
        command(run, "match", "import", str(file), "--format", form, "--json", *more).stdout
    )
    return answer


def refuse(run: Path, text: str, form: str, *more: str) -> str:
    (run / "results.jsonl").write_text(text)
    result = CliRunner().invoke(
        app, ["match", "import", str(run / "results.jsonl"), "--format", form, "--run", str(run), *more]
    )
    assert isinstance(result.exception, UsageError), result.output
    return str(result.exception)


def history(run: Path) -> list[RecordedEvent]:
    async def body() -> list[RecordedEvent]:
        async with Run(run).open_log() as log:
            return [recorded async for recorded in log.read()]

    return asyncio.run(body())


def sql(run: Path, statement: str) -> list[list[Any]]:
    rows: list[dict[str, Any]] = json.loads(command(run, "sql", statement, "--json").stdout)
    return [list(row.values()) for row in rows]


def test_results_are_recorded_once_rated_and_sound(run: Path) -> None:
    found = import_file(run, lines(*GAMES), "textarena", "--origin", "mindgames", "--agent", "random=random_bot")
    agents = {LLAMA: "meta-llama-llama-3-3-70b-instruct@0", PERSON: "Humanity@0", "random": "random_bot"}
    assert (found["matches"], found["failed"], found["known"], found["agents"]) == (5, 1, 0, agents)
    assert found["added"] == ["Humanity@0", "meta-llama-llama-3-3-70b-instruct@0"]

    # The file after more games were added to it.
    longer = [*GAMES, player_record(472, 0, [PERSON, LLAMA], {"0": 1, "1": 0})]
    again = import_file(run, lines(*longer), "textarena", "--origin", "mindgames", "--agent", "random=random_bot")
    assert (again["matches"], again["known"], again["added"]) == (6, 5, [])
    verifiers = import_file(run, lines(EPISODE), "verifiers")
    assert (verifiers["agents"], verifiers["is_rated"]) == ({"qwen3@40": "qwen3@40", "random_bot": "random_bot"}, True)

    origins = "SELECT origin, format, i.matches, count(m.match_id) FROM result_imports i LEFT JOIN matches m"
    assert sql(run, f"{origins} ON m.worker = origin AND m.purpose = 'external' GROUP BY ALL ORDER BY ALL") == [
        ["mindgames", "textarena", 5, 5],
        ["mindgames", "textarena", 6, 5],
        ["verifiers", "verifiers", 1, 1],
    ]
    recorded = history(run)
    results = [r.event for r in recorded if isinstance(r.event, e.MatchFinished) and r.event.purpose == "external"]
    assert len(results) == 6
    first, last = results[0], results[-1]
    assert (first.match_id, first.environment, first.length) == ("external.mindgames.469", "SpellingBee-v0", 5)
    (failure,) = [r.event for r in recorded if isinstance(r.event, e.MatchFailed)]
    assert (failure.worker, failure.error) == ("mindgames", "status 'timeout'")
    assert [(seat.role, seat.agent, seat.score) for seat in last.seats] == [
        ("player0", "qwen3@40", 1.0),
        ("player1", "random_bot", -1.0),
    ]
    assert (last.game, last.environment, last.length, last.tokens, last.winner) == ("verifiers", "kuhn-poker", 2, 14, 0)
    fold = RatingFold()
    rated = [update.match_id for r in recorded if r.event for update in fold.apply(r.sequence, r.event)]
    assert rated == [result.match_id for result in results]
    assert json.loads(command(run, "verify", "--json").stdout)["sound"]


BAD = {
    "no JSON": ("{", "line 2", "expected JSON"),
    "no object": ("[1]", "line 2", "expected a JSON object"),
    "no environment": (lines({"rewards": {}}), "line 2", "env_name"),
    "a reward that is no number": (lines({**GAMES[3], "rewards": {"0": float("nan"), "1": 0}}), "line 2", "rewards"),
    "a player without a name": (lines({**GAMES[3], "players": ["a"]}), "line 2", "expected both for each"),
    "another account of a game": (
        *(lines(player_record(469, 1, [LLAMA, PERSON], {"0": 1, "1": 0})), "line 2", "another account of game 469"),
    ),
    "text with half a character": (lines({**GAMES[3], "reason": "\ud83d"}), "line 2", "cannot be recorded"),
}


@pytest.mark.parametrize("line", list(BAD), ids=list(BAD))
def test_a_bad_line_is_named_and_nothing_is_recorded(line: str, tmp_path: Path) -> None:
    from lifecycle.external_results import parse_results

    text, place, problem = BAD[line]
    with pytest.raises(UsageError) as refused:
        parse_results((lines(GAMES[0]) + text).encode(), "results.jsonl", "textarena")
    assert f"results.jsonl, {place}: " in str(refused.value)
    assert problem in str(refused.value)


def test_a_player_id_of_any_type_is_one_account_of_a_game() -> None:
    from lifecycle.external_results import parse_results

    text = lines({**GAMES[3], "player_id": [1], "num_turns": 5})
    _, results = parse_results(text.encode(), "results.jsonl", "textarena")
    assert [result.length for result in results] == [5]


@pytest.mark.parametrize(
    "part",
    [{"num_output_tokens": 2**70}, {"stop_condition": "\ud83d"}, {"\ud83d": 1}],
    ids=["too many tokens", "half a character", "half a character as a key"],
)
def test_an_episode_that_no_event_can_hold_is_refused(part: dict[str, Any]) -> None:
    from lifecycle.external_results import parse_results

    trace = {"agent": {"config": {"model": "m"}}, "ok": True, "rewards": {"won": {"score": 1.0}}, **part}
    with pytest.raises(UsageError, match=r"results\.jsonl, line 1: "):
        parse_results(lines({"id": "a", "ok": True, "traces": [trace]}).encode(), "results.jsonl", "verifiers")


def test_what_contradicts_the_history_is_refused_whole(run: Path) -> None:
    import_file(run, lines(GAMES[0]), "textarena")
    before = len(history(run))
    other = player_record(469, 0, [LLAMA, PERSON], {"0": 1, "1": -1})
    assert "match external.textarena.469: the history has" in refuse(run, lines(GAMES[3], other), "textarena")
    assert "line 2: not an episode" in refuse(run, lines(EPISODE, {"id": 4}), "verifiers")
    assert "both would be x@0" in refuse(
        run, lines(GAMES[3]), "textarena", "--agent", f"{LLAMA}=x", "--agent", f"{PERSON}=x@0"
    )
    assert "expected --agent main=AGENT" in refuse(run, lines({**GAMES[3], "players": ["main", "b"]}), "textarena")
    assert len(history(run)) == before


def test_a_match_leaves_as_steps_of_kaggle_and_returns_as_an_episode_of_verifiers(run: Path) -> None:
    replay = json.loads(command(run, "match", "export", "played", "--format", "kaggle").stdout)
    assert (replay["name"], replay["info"]["TeamNames"]) == ("kuhn_poker", ["random_bot", "base_model"])
    assert replay["statuses"] == ["DONE", "DONE"]
    assert replay["rewards"] == [state["reward"] for state in replay["steps"][-1]]
    first, second = replay["steps"][:2]
    assert [state["status"] for state in first] == ["INACTIVE", "ACTIVE"]
    assert [state["action"] for state in first] == [None, None]
    assert "Legal moves: bet, check" in first[1]["observation"]["observationString"]
    assert second[1]["action"] in ("check", "bet")
    assert all(len(step) == 2 for step in replay["steps"])

    episode = run / "episode.jsonl"
    command(run, "match", "export", "played", "played", "--format", "verifiers", "-o", str(episode))
    written = episode.read_text().splitlines()
    assert len(written) == 2
    assert written[0] == written[1]
    (trace, _) = json.loads(written[0])["traces"]
    assert trace["nodes"][0]["message"]["role"] == "system"
    assert [node["parent"] for node in trace["nodes"][:3]] == [None, 0, 1]
    found = import_file(run, written[0], "verifiers", "--origin", "ours", "--game", "kuhn_poker")
    assert found["agents"] == {"base_model": "base_model", "random_bot": "random_bot"}
    scores = "SELECT list(score ORDER BY seat) FROM match_seats GROUP BY match_id"
    (one, other) = sql(run, scores)
    assert one == other


def test_a_saved_game_of_diplomacy_is_imported_shown_adjudicated_and_exported(run: Path) -> None:
    pytest.importorskip("diplomacy")
    from arena.games.diplomacy.saved_games import write_saved_game

    game, rng = make_game("diplomacy", {"max_year": 1902}).new(1), Random(2)
    while moving := game.to_move():
        game.apply({seat: game.random_action(seat, rng) for seat in moving})
    (run / "game.json").write_text(json.dumps(write_saved_game(game.record(), "g"), indent=1))
    found = json.loads(command(run, "match", "import", str(run / "game.json"), "--json").stdout)
    assert (found["origin"], found["matches"], len(found["added"])) == ("diplomacy", 1, 7)
    assert "S1901M" in command(run, "match", "show", "external.diplomacy.g").stdout
    command(run, "match", "show", "--again", "external.diplomacy.g")
    exported = json.loads(command(run, "match", "export", "external.diplomacy.g", "--format", "diplomacy").stdout)
    assert [phase["orders"] for phase in exported["phases"]] == [
        phase["orders"] for phase in json.loads((run / "game.json").read_text())["phases"]
    ]
    assert json.loads(command(run, "match", "import", str(run / "game.json"), "--json").stdout)["known"] == 1
    result = CliRunner().invoke(app, ["match", "export", "played", "--format", "diplomacy", "--run", str(run)])
    assert "played kuhn_poker; expected a match of diplomacy" in str(result.exception)


def test_an_exported_episode_of_kaggle_returns(run: Path) -> None:
    command(run, "match", "export", "played", "--format", "kaggle", "-o", str(run / "episode.json"))
    found = json.loads(command(run, "match", "import", str(run / "episode.json"), "--json").stdout)
    assert (found["origin"], found["agents"]) == ("kaggle", {"base_model": "base_model", "random_bot": "random_bot"})


def test_players_of_a_league_with_a_newer_configuration_are_not_imported() -> None:
    from lifecycle.external_results import ExternalResult, ExternalSeat
    from lifecycle.import_results import _resolve_agents

    results = [ExternalResult(line=1, id="a", environment="", seats=(ExternalSeat("", "m", 1.0),))]
    with pytest.raises(UsageError, match="newer version"):
        _resolve_agents(results, {}, LeagueState())
