"""Hosted models in a real league: placed in evaluations, drawn for training, rated, counted, and never trusted."""

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from arena.games import make_game
from arena.games.texts import words_of
from arena.match import play
from league.log.connection import connect
from league.log.jetstream import JetStreamLog, flush_and_close
from league.log.server import EmbeddedServer
from players.remote.model import RemoteModel
from players.remote.remote_player import RemotePlayer
from schemas.config import RemoteAgentConfig
from schemas.events import (
    AgentRetired,
    EvaluationFinished,
    EvaluationRequested,
    Event,
    MatchFailed,
    MatchFinished,
    RatingUpdated,
    RemoteAsked,
)

KEY = "sk-league-test-8d1f"
CONFIG = """
name = "nim"
seed = 3
game = {{ name = "nim", settings = {{ seats = 2, heaps = [2, 3] }} }}

[agents]
base_model = {{ kind = "base", rating = 1000.0, baseline = true }}
random_bot = {{ kind = "bot", rating = 800.0, baseline = true }}
sparring = {{ kind = "remote", rating = 900.0, remote = {{ url = "{url}", model = "odd", training = true }} }}
gone = {{ kind = "remote", rating = 900.0, remote = {{ url = "{gone}", model = "none", tries = 2 }} }}

[agents.gpt]
kind = "remote"
rating = 1000.0
remote = {{ url = "{url}", model = "good", key_variable = "LEAGUE_TEST_KEY", completion_price = 2.0 }}

[agents.dear]
kind = "remote"
rating = 1000.0
remote = {{ url = "{dear}", model = "dear", tries = 1, requests = 1, completion_price = 1e5, budget = 4.0 }}

[model]
cloning = {{ sequences = 128 }}

[rollout]
games_in_flight = 4

[matchmaking.sampler]
name = "fixed"
settings = {{ agents = ["random_bot", "sparring"] }}

[evaluation]
gatekeepers = ["gpt", "random_bot"]
gatekeeper_games = 8
benchmark_opponents = ["gpt", "gone", "dear"]
benchmark_games = 6

[trainer]
rollouts_per_step = 8

[stop]
steps = 1
"""


class NimMaster:
    """Plays Nim perfectly, as far as the model ``good`` goes; ``odd`` talks nonsense every third time."""

    def __init__(self, say):
        self._say = say
        self._lock = threading.Lock()
        self.wrong: Counter[str] = Counter()
        self._owed: Counter[str] = Counter()

    def _refuses(self, question, number):
        """Whether to send somebody away. Nobody is, again and again, until the match would fail."""
        with self._lock:
            if number % 5 == 4 and not self._owed[question]:
                self._owed[question] = 3
            elif self._owed[question]:
                self._owed[question] -= 1
                return False
            return number % 5 == 4

    def __call__(self, asked, number):
        if self._refuses(asked.question, number):
            if number % 3:
                return self._say("slow down", status=429, headers={"Retry-After": "0.05"})
            return self._say(raw=b"<html>oops", status=500 if number % 2 else 200)
        if asked.body["model"] == "odd" and number % 3 == 0:
            with self._lock:
                self.wrong["odd"] += 1
            return self._say(["I resign.", "MOVE 9:9", None, "{" * 30_000][number % 4])
        heap, stones = best_move(asked.question)
        return self._say(
            [f"MOVE {heap}:{stones}", f"Sure!\n```\n{heap}:{stones}\n```", f"I take {stones} from heap {heap}"][
                number % 3
            ]
        )


def best_move(question: str) -> tuple[int, int]:
    return perfect({int(heap): int(stones) for heap, stones in re.findall(r"heap (\d) holds (\d)", question)})


def perfect(heaps: dict[int, int]) -> tuple[int, int]:
    total = 0
    for stones in heaps.values():
        total ^= stones
    for heap, stones in heaps.items():
        if stones ^ total < stones:
            return heap, stones - (stones ^ total)
    return next(iter(heaps)), 1


def league(*arguments: str, run: Path, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ui", *arguments, "--run", str(run)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


def read(run: Path) -> list[Event]:
    async def body() -> list[Event]:
        with EmbeddedServer(run / "nats") as server:
            client = await connect(server.url, "test")
            events = [r.event async for r in JetStreamLog(client, "nim", "test").read() if r.event is not None]
            await flush_and_close(client)
            return events

    return asyncio.run(body())


@pytest.mark.slow
def test_a_league_with_hosted_models(chat_server, say, monkeypatch, tmp_path):
    master = NimMaster(say)
    server, gone = chat_server(master), chat_server(master)
    gone.stop()
    dear = chat_server(lambda asked, number: say("MOVE {}:{}".format(*best_move(asked.question))))
    config, run = tmp_path / "league.toml", tmp_path / "run"
    config.write_text(CONFIG.format(url=server.url, gone=gone.url, dear=dear.url))

    monkeypatch.delenv("LEAGUE_TEST_KEY", raising=False)
    refused = league("up", "--config", str(config), run=run)
    assert refused.returncode == 2
    assert "agents.gpt.remote.key_variable" in refused.stderr
    assert "LEAGUE_TEST_KEY" in refused.stderr
    assert not server.asked

    monkeypatch.setenv("LEAGUE_TEST_KEY", KEY)
    result = league("up", "--config", str(config), run=run)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "identical" in result.stdout

    events = read(run)
    played = [event for event in events if isinstance(event, MatchFinished)]
    check_who_met_whom(played, events)
    check_what_was_counted(played, server, master)
    check_what_failed(events, gone)
    check_what_it_cost(events, server, gone)
    check_who_paused(events, dear)
    check_ratings(played, events)

    against = next(m.match_id for m in played if any(seat.agent == "sparring" for seat in m.seats))
    again = league("match", "show", "--again", against, "--json", run=run)
    assert (again.returncode, json.loads(again.stdout)["identical"]) == (0, True), again.stdout + again.stderr

    moved = config.read_text().replace(server.url, server.url.replace("127.0.0.1", "localhost"))
    moved = moved.replace("budget = 4.0", "budget = 1000.0")
    config.write_text(moved)
    assert league("up", "--config", str(config), run=run).returncode == 0
    check_who_came_back(read(run), dear)
    config.write_text(moved.replace('model = "good"', 'model = "better"'))
    other = league("up", "--config", str(config), run=run)
    assert (other.returncode, "another agents" in other.stderr) == (2, True)

    monkeypatch.delenv("LEAGUE_TEST_KEY")
    worker = league("worker", "evaluator", run=run)
    assert (worker.returncode, "LEAGUE_TEST_KEY" in worker.stderr) == (1, True), worker.stderr

    kept = [path for path in run.rglob("*") if path.is_file()]
    assert len(kept) > 10
    assert not [path for path in kept if KEY.encode() in path.read_bytes()]
    assert {asked.headers["Authorization"] for asked in server.asked if asked.body["model"] == "good"} == {
        f"Bearer {KEY}"
    }


def check_who_met_whom(played, events):
    met = {purpose: Counter(s.agent for m in played if m.purpose == purpose for s in m.seats) for purpose in PURPOSES}
    assert met["evaluation"]["gpt"] > 10
    assert met["training"]["gpt"] == 0
    assert met["training"]["sparring"] > 0
    assert met["evaluation"]["sparring"] == 0
    retired = {event.agent: event.reason for event in events if isinstance(event, AgentRetired)}
    assert retired["gpt"] == retired["gone"] == "met in evaluation only"
    assert retired["dear"] == "pauses: it has cost 4 of its budget of 4"
    assert "sparring" not in retired
    finished = [event for event in events if isinstance(event, EvaluationFinished)]
    assert {("base_model", "gpt"), ("main@1", "gpt")} <= {(e.agent, e.opponents[0]) for e in finished if e.games}


PURPOSES = ("training", "evaluation")


def check_what_was_counted(played, server, master):
    """Every request that the server got is counted in a seat, and every wrong answer of it too."""
    counted: dict[str, Counter[str]] = {"gpt": Counter(), "sparring": Counter(), "dear": Counter()}
    for match in played:
        for seat in match.seats:
            remote = {name: value for name, value in seat.metrics.items() if name.startswith("remote_")}
            assert bool(remote) == (seat.agent in counted)
            if remote:
                counted[seat.agent].update(remote)
                assert "taken" in seat.metrics
    asked = Counter(asked.body["model"] for asked in server.asked)
    assert counted["gpt"]["remote_requests"] == asked["good"]
    assert counted["sparring"]["remote_requests"] == asked["odd"]
    assert counted["gpt"]["remote_illegal"] == 0
    assert counted["sparring"]["remote_illegal"] == master.wrong["odd"] > 0
    assert counted["gpt"]["remote_tokens"] >= 10 * counted["gpt"]["remote_choices"] > 0


def check_what_failed(events, gone):
    failed = [event for event in events if isinstance(event, MatchFailed) and "'dear'" not in event.error]
    host = gone.url.removeprefix("http://").removesuffix("/v1")
    # Base model and hero meet it in their benchmarks; nobody else is to blame, and nothing else fails.
    assert len(failed) == 12
    assert {event.error for event in failed} == {
        f"RemoteError: agent 'gone' at {host}: no connection or a broken one, ConnectError (2 requests); "
        "expected a chat completion"
    }


def check_what_it_cost(events, server, gone):
    """Every request that was sent is in the history, those of failed matches too."""
    asked = [event for event in events if isinstance(event, RemoteAsked)]
    ended = {
        event.match_id: place for place, event in enumerate(events) if isinstance(event, MatchFinished | MatchFailed)
    }
    assert all(events.index(event) < ended[event.match_id] for event in asked)
    sums = {name: Counter[str]() for name in ("gpt", "sparring", "gone")}
    for event in asked:
        if event.agent in sums:
            sums[event.agent].update({"requests": event.requests, "tokens": event.tokens, "uncounted": event.uncounted})
    got = Counter(asked.body["model"] for asked in server.asked)
    assert sums["gpt"]["requests"] == got["good"]
    assert sums["sparring"]["requests"] == got["odd"]
    # Never connected to.
    assert dict(sums["gone"]) == {"requests": 24, "tokens": 0, "uncounted": 0}
    for event in asked:
        if event.agent == "gpt":
            told = event.tokens * 2.0 / 1e6
            assert event.cost == pytest.approx(told) if not event.uncounted else event.cost > told
    assert all(event.cost == 0 for event in asked if event.agent in ("sparring", "gone"))


def check_who_paused(events, dear):
    """Ten tokens cost 1, so that four answers spend the budget: not one request more is sent."""
    assert len(dear.asked) == 4
    assert sum(event.cost for event in events if isinstance(event, RemoteAsked) and event.agent == "dear") == 4.0
    failed = [event for event in events if isinstance(event, MatchFailed) and "'dear'" in event.error]
    assert {event.evaluation_id for event in failed} == {"base_model-benchmark-dear"}
    assert all(
        event.error.endswith("pauses, since its budget is spent; expected agents.dear.remote.budget to be raised")
        for event in failed
    )
    assert not [e for e in events if isinstance(e, EvaluationRequested) and "main" in e.agent and "dear" in e.opponents]


def check_who_came_back(events, dear):
    reasons = [event.reason for event in events if isinstance(event, AgentRetired) and event.agent == "dear"]
    assert reasons == ["met in evaluation only", "pauses: it has cost 4 of its budget of 4", "met in evaluation only"]
    (benchmark,) = [
        e for e in events if isinstance(e, EvaluationFinished) and (e.agent, e.opponents) == ("main@1", ["dear"])
    ]
    assert (benchmark.games, benchmark.failed) == (6, 0)
    assert sum(e.requests for e in events if isinstance(e, RemoteAsked) and e.agent == "dear") == len(dear.asked) > 4


def check_ratings(played, events):
    rated = [change for e in events if isinstance(e, RatingUpdated) for change in e.changes if change.agent == "gpt"]
    meetings = [m for m in played if m.purpose == "evaluation" and any(s.agent == "gpt" for s in m.seats)]
    assert len(rated) == len(meetings)
    wins = sum(m.seats[m.winner].agent == "gpt" for m in meetings if m.winner is not None)
    # Heaps of 2 and 3 are won by whoever begins and plays well.
    assert wins / len(meetings) > 0.6
    assert rated[-1].after > 1000.0


def listed(question: str) -> dict[str, list[str]]:
    """Legal orders by unit, as a model would read them off the question."""
    orders: dict[str, list[str]] = {}
    for line in question.partition("Legal orders")[2].splitlines()[1:]:
        if line == "WAIVE":
            continue
        kind, place, verb, *rest = line.split(" ", 3)
        ways = rest[0].split(" | ") if rest else [""]
        orders.setdefault(f"{kind} {place}", []).extend(f"{kind} {place} {verb} {way}".rstrip() for way in ways)
    return orders


STYLES = ["{}", "- **{}**", "{}.", "`{}`", "* {} (good for us)"]


def test_seven_hosted_models_play_diplomacy(chat_server, say):
    pytest.importorskip("diplomacy")
    spec = make_game("diplomacy", {"max_year": 1902})
    chosen: dict[tuple[str, str], dict[str, str]] = {}
    forgotten: Counter[str] = Counter()
    lock = threading.Lock()

    def answer(asked, number):
        power, phase = re.search(r"You are ([A-Z]+)\. It is \w+ \d+ \((\w+)\)", asked.question).groups()
        rng = Random(f"{power}{phase}")
        orders = {unit: rng.choice(ways) for unit, ways in listed(asked.question).items()}
        if phase[-1] == "M" and rng.random() < 0.3:
            # One unit is forgotten, and one is sent where it cannot go.
            for unit in list(orders)[:2]:
                del orders[unit]
                forgotten[power] += 1
            lines = ["A MOS - PAR", *orders.values()]
        else:
            lines = list(orders.values())
        with lock:
            chosen[power, phase] = orders
        style = rng.choice(STYLES)
        return say("My orders:\n\n" + "\n".join(style.format(line) for line in lines))

    server = chat_server(answer)

    async def match():
        model = RemoteModel("gpt", RemoteAgentConfig(url=server.url, model="m", requests=4))
        players = [RemotePlayer(model, words_of(spec)) for _ in spec.seats]
        game = spec.new(1)
        outcome = await play(game, players, 1)
        await model.close()
        return game.record(), outcome, [player.metrics() for player in players]

    record, outcome, metrics = asyncio.run(match())
    assert outcome.reason == "year_cap"
    turns = spec.transcript(record)
    assert turns[-1].title.startswith(("W1902", "F1902"))
    for turn in turns:
        for power, lines in turn.moves.items():
            played = {" ".join(line.split()[:2]): line.partition(" (")[0] for line in lines}
            wanted = chosen[power, turn.title]
            if turn.title[-1] == "M":
                assert played == {unit: wanted.get(unit, f"{unit} H") for unit in played}
            elif turn.title[-1] == "R":
                assert played == wanted
    for power, counted in zip(spec.seats, metrics, strict=True):
        adjusted = [turn for turn in turns if turn.title[-1] == "A" and power in turn.moves]
        if not adjusted:
            assert counted["remote_illegal"] == forgotten[power]
    assert server.most_at_once <= 4
    assert sum(forgotten.values()) > 3
