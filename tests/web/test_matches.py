"""Matches in the browser: which there were, and one of them with its record, maps, questions and replies."""

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
import zstandard

import ui.web
from arena.games import make_game
from arena.games.base import Outcome
from arena.match import BotPlayer, play
from arena.records import EpisodeRecord, RecordedCall, RecordedEpisode
from league.integrity.snapshots import take_snapshot
from league.log.queues import ExperienceStream
from league.queries.match_list import build_page_query
from league.queries.pages import RequestParams
from league.queries.pages import matches as answers
from league.queries.stored import LeagueReader
from league.ratings.fold import RatingFold
from league.state import LeagueState
from schemas.episodes import Message
from schemas.events import MatchFailed, MatchFinished, MatchVoided, OpponentsSampled, SeatResult
from schemas.trajectories import ModelCall, Trajectory
from tests.builders import trajectory
from tests.simulated_history import Simulation
from tests.web.conftest import CONFIG, Site

HOSTILE = "'); DROP TABLE matches; --<img src=x onerror=alert(1)>\u202e\x1b[31m"
SEED = 5


@pytest.fixture(scope="module")
def simulated() -> Simulation:
    """A league that has trained for some steps; the tests add to copies of it."""
    simulation = Simulation(CONFIG, seats=3)
    simulation.run(4, 4)
    return simulation


def finished(simulated: Simulation) -> dict[int, MatchFinished]:
    """Results by sequence, newest first."""
    found = {r.sequence: r.event for r in simulated.history if isinstance(r.event, MatchFinished)}
    return dict(sorted(found.items(), reverse=True))


def sits(event: MatchFinished, agent: str) -> set[int]:
    return {seat.seat for seat in event.seats if seat.agent == agent}


FILTERS: dict[str, Callable[[MatchFinished], bool]] = {
    "purpose=training": lambda m: m.purpose == "training",
    "game=diplomacy": lambda m: m.game == "diplomacy",
    "game=chess": lambda m: False,
    "agent=random_bot": lambda m: bool(sits(m, "random_bot")),
    "agent=random_bot&outcome=won": lambda m: m.winner in sits(m, "random_bot"),
    "agent=random_bot&outcome=lost": lambda m: bool(sits(m, "random_bot")) and m.winner not in sits(m, "random_bot"),
    "worker=rollout-0&agent=base_model": lambda m: m.worker == "rollout-0" and bool(sits(m, "base_model")),
    "evaluation=main-2-benchmark-random_bot": lambda m: m.evaluation_id == "main-2-benchmark-random_bot",
    "voided=yes": lambda m: False,
}


def test_filters_and_pages_give_the_matches_that_the_history_holds(
    simulated: Simulation, on_site: Callable[..., None]
) -> None:
    matches, at = finished(simulated), len(simulated.history) // 2

    async def body(site: Site) -> None:
        for asked, wanted in FILTERS.items():
            rows = (await site.get(f"/matches?limit=500&{asked}"))["rows"]
            assert [row["sequence"] for row in rows] == [s for s, m in matches.items() if wanted(m)], asked
        first = (await site.get("/matches?limit=1"))["rows"][0]
        newest = next(iter(matches.values()))
        assert [seat["agent"] for seat in first["seats"]] == [seat.agent for seat in newest.seats]
        assert first["winner"] == newest.winner

        seen: list[int] = []
        page = await site.get(f"/matches?limit=7&at={at}")
        while page["next"] is not None:
            seen += [row["sequence"] for row in page["rows"]]
            page = await site.get(f"/matches?limit=7&at={at}&before={page['next']}")
        seen += [row["sequence"] for row in page["rows"]]
        assert seen == [sequence for sequence in finished(simulated) if sequence <= at]

    on_site(simulated.history, body)


def test_results_that_were_taken_back_and_matches_that_failed_are_found(
    simulated: Simulation, on_site: Callable[..., None]
) -> None:
    sequence, match = next(iter(finished(simulated).items()))
    drawn = next(r.event for r in simulated.history if isinstance(r.event, OpponentsSampled))
    lost = msgspec.structs.replace(drawn, match_id="lost-1")

    async def body(site: Site) -> None:
        voided = await site.log.append(MatchVoided(match=match, match_sequence=sequence, reason=HOSTILE))
        await site.league.wait_for_sequence(voided)
        rows = (await site.get("/matches?voided=yes"))["rows"]
        assert [(row["sequence"], row["voided"], row["void_reason"]) for row in rows] == [(sequence, voided, HOSTILE)]
        assert (await site.get(f"/matches?voided=yes&at={voided - 1}"))["rows"] == []
        assert (await site.get("/matches?limit=1&voided=no"))["rows"][0]["sequence"] < sequence
        assert (await site.get(f"/match/{match.match_id}"))["voided"]["reason"] == HOSTILE

        await site.log.append(lost)
        failure = MatchFailed(match_id="lost-1", purpose="training", worker="rollout-0", error=HOSTILE)
        await site.league.wait_for_sequence(await site.log.append(failure))
        for agent in (drawn.hero, drawn.picks[0].agent):
            rows = (await site.get(f"/matches?outcome=failed&agent={agent}"))["rows"]
            assert [(row["match_id"], row["error"]) for row in rows] == [("lost-1", HOSTILE)]
        page = await site.get("/match/lost-1")
        assert page["failed"]["error"] == HOSTILE
        assert page["sampled"]["hero"] == drawn.hero
        assert "was not played to its end" in (await site.get("/match/lost-1/replay"))["problem"]

    on_site(simulated.history, body)


def test_a_match_says_how_it_was_drawn_what_it_changed_and_that_the_draw_can_be_repeated(
    simulated: Simulation, on_site: Callable[..., None]
) -> None:
    match = next(m for m in finished(simulated).values() if m.purpose == "training")
    sampled = next(
        r.event
        for r in simulated.history
        if isinstance(r.event, OpponentsSampled) and r.event.match_id == match.match_id
    )
    asked = next(m for m in finished(simulated).values() if m.evaluation_id)

    async def body(site: Site) -> None:
        page = await site.get(f"/match/{match.match_id}")
        assert page["finished"]["seed"] == str(match.seed), "a browser's numbers would round it"
        assert [pick["bucket"] for pick in page["sampled"]["picks"]] == [pick.bucket for pick in sampled.picks]
        assert page["kinds"]["random_bot"] == "bot"
        explained = await site.get(f"/match/{match.match_id}/explain")
        assert (explained["kind"], explained["agrees"], explained["differences"]) == ("draw", True, [])
        evaluation = await site.get(f"/match/{asked.match_id}/explain")
        assert evaluation["requested"]["evaluation_id"] == asked.evaluation_id
        used = {(row["policy"], row["dropped"]) for row in page["used"]}
        assert used <= {("main", None)}

    on_site(simulated.history, body)


def test_explanations_fold_beside_the_pages_and_from_snapshots(
    simulated: Simulation, on_site: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    match = next(m for m in finished(simulated).values() if m.purpose == "training")
    folding: list[threading.Thread] = []
    read: list[str] = []
    explained_match, get = answers.explain_match, LeagueReader.get

    async def explained(history: Any, artifacts: Any, found: Any) -> Any:
        folding.append(threading.current_thread())
        return await explained_match(history, artifacts, found)

    async def read_artifact(self: LeagueReader, name: str) -> bytes:
        read.append(name)
        return await get(self, name)

    monkeypatch.setattr(answers, "explain_match", explained)
    monkeypatch.setattr(LeagueReader, "get", read_artifact)

    async def body(site: Site) -> None:
        log, artifacts = site.log, site.league.run.open_blob_store(site.log.client)
        (drawn,) = [r.event async for r in log.read() if _is_draw_of(r.event, match.match_id)]
        state, ratings = LeagueState(), RatingFold()
        async for recorded in log.read(last=drawn.standings_sequence - 1):
            state.apply(recorded.sequence, recorded.event)
            ratings.apply(recorded.sequence, recorded.event)
        taken = await take_snapshot(state, ratings, artifacts)
        await site.league.wait_for_sequence(await log.append(taken))
        assert (await site.get(f"/match/{match.match_id}/explain"))["agrees"]
        assert read == [taken.artifact]
        assert [thread is threading.main_thread() for thread in folding] == [False]

    on_site(simulated.history, body)


def _is_draw_of(event: Any, match_id: str) -> bool:
    return isinstance(event, OpponentsSampled) and event.match_id == match_id


def test_what_people_ask_for_never_becomes_sql() -> None:
    names = ("agent", "purpose", "game", "worker", "evaluation")
    asks = build_page_query(RequestParams({**dict.fromkeys(names, HOSTILE), "outcome": "lost"}, {}))
    assert "DROP" not in asks.sql
    assert len(asks.parameters) == asks.sql.count("?")


def bots_match(match_id: str, name: str, settings: dict[str, Any], agents: dict[int, str]) -> tuple[bytes, Any]:
    """A match of random bots, some of which the history calls by other names; its record, and what is recorded."""
    spec = make_game(name, settings)
    game, bot = spec.new(SEED), spec.bot("random_bot")
    outcome = asyncio.run(play(game, [BotPlayer(bot) for _ in spec.seats], SEED))
    names = [agents.get(seat, "random_bot") for seat in range(len(spec.seats))]
    return game.record(), (match_id, name, spec.rules_version, outcome, list(spec.seats), names)


async def recorded(site: Site, record: bytes, about: Any, experience: str = "", digest: str | None = None) -> None:
    """Append a match with its record."""
    match_id, game, rules, outcome, roles, names = about
    artifacts = site.league.run.open_blob_store(site.log.client)
    kept = await artifacts.put(zstandard.compress(record)) if digest is None else digest
    seats = [
        SeatResult(
            seat=seat,
            role=roles[seat],
            agent=names[seat],
            score=outcome.scores[seat],
            rank=outcome.ranks[seat],
            trainable="@" in names[seat],
            metrics=outcome.metrics[seat],
        )
        for seat in range(len(roles))
    ]
    match = MatchFinished(
        match_id=match_id,
        game=game,
        purpose="training",
        worker="rollout-0",
        seed=SEED,
        seats=seats,
        winner=outcome.winner,
        reason=outcome.reason,
        length=outcome.length,
        seconds=1.0,
        record=kept,
        experience=experience,
        rules=rules,
    )
    await site.league.wait_for_sequence(await site.log.append(match))


@pytest.fixture(scope="module")
def diplomacy() -> tuple[bytes, Any]:
    pytest.importorskip("diplomacy")
    return bots_match("dip-1", "diplomacy", {"max_year": 1902}, {2: "main@1"})


def test_a_match_of_diplomacy_is_shown_on_a_map_and_plays_again_identically_or_says_where_not(
    simulated: Simulation, on_site: Callable[..., None], diplomacy: tuple[bytes, Any]
) -> None:
    record, about = diplomacy
    checks = json.loads(record)["checks"]
    altered = json.dumps({**json.loads(record), "checks": [checks[0], "00000000", *checks[2:]]}).encode()

    async def body(site: Site) -> None:
        await recorded(site, record, about)
        replay = await site.get("/match/dip-1/replay")
        assert replay["problem"] is None
        assert [turn["title"] for turn in replay["turns"]] == [p["phase"] for p in replay["pictures"]][:-1]
        assert replay["pictures"][0]["centers"]["RUSSIA"] == 4
        assert "Turkey: 3 supply centres, A CON, A SMY, F ANK" in replay["pictures"][0]["words"]
        maps = [await _map(site, 0), await _map(site, 0), await _map(site, len(replay["turns"]))]
        assert maps[0] == maps[1]
        assert maps[0].count('class="unitrussia"') == 4
        moves = sum(" - " in order and " S " not in order for o in replay["turns"][0]["moves"].values() for order in o)
        assert maps[0].count("marker-end") > moves > 0
        assert "marker-end" not in maps[2].partition('id="OrderLayer"')[2], "nobody ordered anything after the end"
        assert "no turn 99" in (await site.get("/match/dip-1/map/99", 404))["error"]
        honest = await site.get("/match/dip-1/resimulate")
        assert (honest["identical"], honest["turns"], honest["divergence"]) == (True, about[3].length, None)
        await recorded(site, altered, ("dip-2", *about[1:]))
        other = await site.get("/match/dip-2/resimulate")
        assert not other["identical"]
        assert (other["divergence"]["turn"], other["divergence"]["what"]) == (2, "position")

    on_site(simulated.history, body)


async def _map(site: Site, turn: int) -> str:
    async with site.client.get(f"/api/match/dip-1/map/{turn}") as response:
        assert (response.status, response.content_type) == (200, "image/svg+xml")
        assert "default-src 'self'" in response.headers["Content-Security-Policy"], "opened by itself, no script runs"
        return await response.text()


def test_a_decision_is_shown_as_it_was_sampled_while_its_rollout_waits_and_then_written_again_from_the_record(
    simulated: Simulation, on_site: Callable[..., None], diplomacy: tuple[bytes, Any]
) -> None:
    record, about = diplomacy

    async def body(site: Site) -> None:
        experience = ExperienceStream(site.log.client, "league")
        others = [await experience.publish(rollout(f"other-{n}")) for n in range(3)]
        await recorded(site, record, about, experience=await experience.publish(rollout("dip-1")))
        found = await site.get("/match/dip-1/decision?turn=0&seat=2")
        assert (found["source"], found["version"]) == ("rollout", 1)
        assert found["choices"] == [{"said": "8", "allowed": ["8", "9"], "more": 0, "logprob": -0.5}]
        assert (found["prompt"], found["reply"]) == ("5 6", "7 8"), "no tokenizer here, so numbers"
        assert len(others) == 3
        await experience.purge_through("main", 4)
        # Answers stay until the history moves on.
        await site.league.wait_for_sequence(
            await site.log.append(MatchFailed("x", purpose="training", worker="w", error="e"))
        )
        found = await site.get("/match/dip-1/decision?turn=0&seat=2")
        assert found["source"] == "record"
        assert found["prompt"].startswith("<france> <spring> <left-1>")
        assert found["reply"].endswith("</orders>")
        assert all(choice["said"] in choice["allowed"] and len(choice["allowed"]) > 1 for choice in found["choices"])
        assert {choice["logprob"] for choice in found["choices"]} == {None}
        assert "The trajectory with the probabilities no longer exists" in found["note"]
        assert "is a bot" in (await site.get("/match/dip-1/decision?turn=0&seat=0", 400))["error"]
        assert "did not move" in (await site.get("/match/dip-1/decision?turn=999&seat=2", 400))["error"]
        assert "no seat 9" in (await site.get("/match/dip-1/decision?turn=0&seat=9", 400))["error"]

    on_site(simulated.history, body)


def rollout(match_id: str) -> Trajectory:
    step = ModelCall([5, 6], [7, 8], [1], [-0.5], [[8, 9]], version=1, clock=1901, progress=3.0)
    fields = {"game": "diplomacy", "seat": 2, "role": "FRANCE", "group": match_id, "final_clock": 1902}
    return trajectory(match_id, [step], final_progress=3.0, **fields)


def test_what_cannot_be_shown_is_told_in_words_and_the_rest_of_the_match_is_shown(
    simulated: Simulation, on_site: Callable[..., None]
) -> None:
    record, about = bots_match("nim-1", "nim", {}, {0: "main@1"})
    without = next(iter(finished(simulated).values())).match_id

    async def body(site: Site) -> None:
        assert "together with an agent" in (await site.get("/matches?outcome=won", 400))["error"]
        assert (await site.get(f"/matches?agent={quote(HOSTILE)}"))["rows"] == []
        assert "does not hold it" in (await site.get(f"/match/{quote(HOSTILE, safe='')}", 400))["error"]
        assert "has no record" in (await site.get(f"/match/{without}/replay"))["problem"]
        assert "has no record" in (await site.get(f"/match/{without}/resimulate", 404))["error"]
        assert "has no record" in (await site.get(f"/match/{without}/map/0", 404))["error"]
        await recorded(site, record, about)
        turns = (await site.get("/match/nim-1/replay"))["turns"]
        assert "takes" in next(iter(turns[0]["moves"].values()))[0]
        problems = {
            "gone": (record, about, "ab" * 32, "ab" * 6),
            "damaged": (record[:-20], about, None, "truncated"),
            "noise": (b"\x00\xff noise", about, None, "malformed"),
            "stranger": (record, ("x", "no_such_game", *about[2:]), None, "no_such_game"),
        }
        for match_id, (data, what, digest, words) in problems.items():
            await recorded(site, data, (match_id, *what[1:]), digest=digest)
            found = await site.get(f"/match/{match_id}/replay")
            assert words in found["problem"], match_id
            assert (await site.get(f"/match/{match_id}"))["finished"]["seats"]
            assert (await site.get(f"/match/{match_id}/resimulate", 400 if match_id == "stranger" else 404))["error"]

    on_site(simulated.history, body)


def test_what_was_said_in_an_episode_is_shown_as_it_was_said(
    simulated: Simulation, on_site: Callable[..., None]
) -> None:
    call = RecordedCall("pro", [Message("system", "Argue."), Message("user", HOSTILE)], HOSTILE)
    inner = RecordedEpisode("m.0", "judge", {"a": 1}, None, "", False, "", {"judge": 1.0}, {}, [call])
    tree = RecordedEpisode("m", "debate", HOSTILE, None, "", True, "", {"pro": 1.0}, {"length": 2.0}, [call], [inner])
    outcome = Outcome((1.0, 0.0), (1, 2), 0, ({}, {}), "over", 2)
    about = ("debate-1", "debate", 1, outcome, ["pro", "con"], ["main@1", "base_model"])

    async def body(site: Site) -> None:
        await recorded(site, msgspec.json.encode(EpisodeRecord(1, "debate", tree), order="sorted"), about)
        replay = await site.get("/match/debate-1/replay")
        assert [(e["id"], e["depth"]) for e in replay["episodes"]] == [("m", 0), ("m.0", 1)]
        assert replay["episodes"][0]["calls"][0]["said"] == HOSTILE
        assert replay["episodes"][0]["calls"][0]["prompt"][1]["content"] == HOSTILE
        assert "cannot be computed again" in " ".join(
            (await site.get("/match/debate-1/resimulate", 400))["error"].split()
        )

    on_site(simulated.history, body)


STATIC = Path(ui.web.__file__).parent / "static"


def test_the_pages_make_no_markup_of_what_they_are_told() -> None:
    for page in (*STATIC.glob("pages/match*.js"), *STATIC.glob("match/*.js")):
        text = page.read_text()
        assert not {word for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write") if word in text}
