"""Playing against agents in the browser: asked, answered, recorded as an exhibition that can be played again."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from arena.games import make_game
from arena.games.texts import Words, words_of
from league.auth.authority import Authority
from league.log.access import BrokerCredentials
from league.matchmaking.schedule import initial_agent_events
from league.queries.match_text import resimulate_from_record
from league.queries.matches import find_match
from league.queries.playable import match_options, unrecorded_reason, wait_until_folded
from league.run import Run
from players.human import HumanSeat, answer_fields
from schemas.config import LeagueConfig, ModelConfig, Plugin, to_builtins
from schemas.errors import UsageError, escape_unprintable
from schemas.events import ExternalVersionAdded, LeagueOpened, MatchFailed, MatchFinished, RatingUpdated
from schemas.jobs import PlayMatch
from tests.simulated_history import Simulation
from tests.web.conftest import CONFIG, Site
from ui.play.human_match import HumanMatch, HumanMatchLobby
from ui.play.terminal import play_in_terminal

NIM = msgspec.structs.replace(CONFIG, game=Plugin(name="nim", settings={"seats": 3, "heaps": [2, 3, 4]}))


def league_of(config: LeagueConfig) -> Simulation:
    """A league of a game that real bots play; nothing has been played in it."""
    simulation = Simulation(config, seats=3)
    simulation.open()
    return simulation


async def posted(site: Site, path: str, status: int = 200, **body: Any) -> Any:
    """An answer's JSON."""
    async with site.client.post(f"/api/play/{path}", json=body) as response:
        assert response.status == status, await response.text()
        return await response.json()


async def begun(site: Site, seat: int = 1) -> str:
    """The secret of a game against bots."""
    agents = ["random_bot", "random_bot", "random_bot"]
    return str((await posted(site, "begin", seat=seat, agents=agents))["secret"])


async def asked(site: Site, secret: str) -> Any:
    """What a person sees once it is their turn, or the game is over."""
    seen = await posted(site, "look", secret=secret)
    while seen["question"] is None and not seen["over"]:
        seen = await posted(site, "look", secret=secret, since=seen["changes"])
    return seen


async def played(site: Site, secret: str) -> Any:
    """What a person sees at the end of a game in which they took the first move each time."""
    seen = await asked(site, secret)
    while not seen["over"]:
        question = seen["question"]
        reply = question["choices"][0]["options"][0]
        await posted(site, "answer", secret=secret, number=question["number"], reply=reply)
        seen = await asked(site, secret)
    return seen


async def recorded(site: Site, kind: type) -> Any:
    """The newest event of a type."""
    return [r.event async for r in site.log.read() if isinstance(r.event, kind)][-1]


def test_a_game_is_played_to_its_end_and_its_record_plays_again(on_site: Callable[..., None]) -> None:
    async def body(site: Site) -> None:
        choices = await site.get("/play")
        assert (choices["game"], len(choices["seats"]), choices["why_not"]) == ("nim", 3, "")
        assert not choices["rated"]
        secret = await begun(site)
        seen = await played(site, secret)
        assert [row["agent"] for row in seen["seats"]] == ["random_bot", "human", "random_bot"]
        assert seen["recorded"]
        assert seen["outcome"]["length"] == len(seen["moves"])
        result = await recorded(site, MatchFinished)
        assert (result.purpose, result.match_id) == ("exhibition", seen["match_id"])
        assert result.seats[1].agent == "human"
        found = await find_match(site.league.run, site.log, result.match_id)
        assert (await resimulate_from_record(site.league.run, site.log, found, None)).identical

    on_site(league_of(NIM).history, body)


def test_what_is_not_legal_is_refused_and_leaving_ends_the_match_with_its_reason(on_site: Callable[..., None]) -> None:
    async def body(site: Site) -> None:
        hostile = "<b>nobody</b>"
        refused = await posted(site, "begin", 400, seat=0, agents=["human", hostile, "random_bot"])
        assert hostile in refused["error"]
        assert "each of 3 seats" in (await posted(site, "begin", 400, seat=0, agents=["human"]))["error"]
        assert "each of 3 seats" in (await posted(site, "begin", 400, seat=7, agents=["random_bot"] * 3))["error"]
        secret = await begun(site)
        seen = await asked(site, secret)
        number = seen["question"]["number"]
        wrong = await posted(site, "answer", 400, secret=secret, number=number, reply="MOVE 9:99")
        assert "nothing legal" in wrong["error"]
        late = await posted(site, "answer", 400, secret=secret, number=number + 1, reply="MOVE 1:1")
        assert "does not wait" in late["error"]
        assert (await asked(site, secret))["question"]["number"] == number
        assert "no such game" in (await posted(site, "answer", 400, secret="x", number=1, reply=""))["error"]
        await posted(site, "leave", secret=secret)
        seen = await asked(site, secret)
        assert seen["over"]
        assert "the person left" in seen["problem"]
        failed = await recorded(site, MatchFailed)
        assert (failed.purpose, failed.error) == ("exhibition", "GameError: the person left")

    on_site(league_of(NIM).history, body)


def test_what_is_chosen_in_every_phase_of_diplomacy_is_understood_as_legal() -> None:
    pytest.importorskip("diplomacy")
    spec = make_game("diplomacy", {"max_year": 1907})
    words, game, rng, kinds, said = words_of(spec), spec.new(9), Random(9), set(), set()
    while game.to_move():
        for seat in game.to_move():
            choices = answer_fields(words, game, seat)
            kinds.update(choice.name.partition(" ")[0] for choice in choices)
            said.update(label.partition(" ")[0] for choice in choices for label in choice.labels)
            reply = "\n".join(choice.options[choice.usual] for choice in choices)
            understood = words.understand(game, seat, reply, rng)
            assert (understood.illegal, understood.choices) == (0, len(choices)), (choices, reply)
        game.apply({seat: game.random_action(seat, rng) for seat in game.to_move()})
    assert kinds == {"army", "fleet", "build", "disband"}
    assert said == {"hold", "move", "support", "convoy", "retreat", "disband", "army", "fleet", "nothing"}


def test_games_whose_replies_cannot_be_listed_are_answered_in_words() -> None:
    spec = make_game("kuhn_poker", {})
    game, words = spec.new(1), words_of(spec)
    seat = game.to_move()[0]
    (choice,) = answer_fields(words, game, seat)
    assert choice.labels == [option.removeprefix("MOVE: ") for option in choice.options]
    assert answer_fields(_Unlisted(words), game, seat) == []


def test_orders_are_offered_by_the_full_names_of_places() -> None:
    pytest.importorskip("diplomacy")
    spec = make_game("diplomacy", {})
    game = spec.new(5)
    seat = spec.seats.index("RUSSIA")
    offered = {choice.name: choice for choice in answer_fields(words_of(spec), game, seat)}
    fleet = offered["fleet in St Petersburg, south coast (STP/SC)"]
    labels = dict(zip(fleet.options, fleet.labels, strict=True))
    assert labels["F STP/SC - BOT"] == "move to Gulf of Bothnia (BOT)"
    assert fleet.labels[fleet.usual] == "hold"
    army = offered["army in Moscow (MOS)"]
    labels = dict(zip(army.options, army.labels, strict=True))
    assert labels["A MOS S A WAR - UKR"] == "support army from Warsaw (WAR) to Ukraine (UKR)"
    assert labels["A MOS S A WAR"] == "support army in Warsaw (WAR)"


class _Unlisted:
    """Words without a list of replies."""

    def __init__(self, words: Words) -> None:
        self.rules = words.rules
        self.question = words.question
        self.understand = words.understand


def test_the_best_that_learned_is_the_usual_opponent(simulated: Simulation) -> None:
    pytest.importorskip("diplomacy")
    offered = match_options(simulated.state)
    learned = {
        row["agent"]: row["rating"] for row in offered["agents"] if row["kind"] == "checkpoint" and row["active"]
    }
    assert offered["usual"] == max(learned, key=lambda name: learned[name])


def test_who_may_not_publish_results_is_told_so_and_others_are_not(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "auth")

    def said(role: str) -> str:
        creds = authority.add(role, [f"{role}-1"], days=1.0)[0]
        return unrecorded_reason(Run(tmp_path / "run", access=BrokerCredentials(creds)), "league")

    assert unrecorded_reason(Run(tmp_path / "run", access=BrokerCredentials()), "league") == ""
    assert (said("evaluator"), said("operator")) == ("", "")
    assert "dashboard-1 (dashboard) do not let this page record" in said("dashboard")


def test_before_the_first_question_the_table_is_seen_and_what_is_waited_for() -> None:
    spec = make_game("nim", {"seats": 3, "heaps": [2, 3, 4]})
    person = HumanSeat(patience_s=60.0)
    job = PlayMatch("m", "exhibition", ["human", "main@1", "random_bot"], 1)
    sitting = HumanMatch(job, 0, person, spec, unrecorded="", away_s=None)

    async def body() -> None:
        seen = await sitting.wait_for_view(-1, 60.0)
        assert (seen.stage, seen.positions, seen.over) == ("", 0, False)
        await person.show_stage("The model of main@1 is being loaded …", spec.new(1))
        seen = await sitting.wait_for_view(seen.changes, 60.0)
        assert (seen.stage, seen.positions) == ("The model of main@1 is being loaded …", 1)
        await person.show_stage("", spec.new(1))
        assert (await sitting.wait_for_view(seen.changes, 60.0)).stage == ""

    asyncio.run(body())


def test_what_is_not_recorded_is_played_all_the_same(on_site: Callable[..., None], tmp_path: Path) -> None:
    creds = Authority.create(tmp_path / "auth").add("dashboard", ["dashboard-1"], days=1.0)[0]

    async def body(site: Site) -> None:
        site.league.run._access = BrokerCredentials(creds)
        assert "dashboard-1" in (await site.get("/play"))["unrecorded"]
        before = await site.log.last_sequence()
        seen = await played(site, await begun(site))
        assert seen["outcome"] is not None
        assert not seen["recorded"]
        assert "do not let this page record" in seen["problem"]
        assert await site.log.last_sequence() == before

    on_site(league_of(NIM).history, body)


def test_who_stays_away_has_left_and_a_server_that_stops_ends_its_games(on_site: Callable[..., None]) -> None:
    async def body(site: Site) -> None:
        room = HumanMatchLobby(site.league.run, site.log, site.league.state, away_s=0.1)
        await wait_until_folded(site.league.state, site.league.position)
        _, sitting = room.start_match(0, ["", "random_bot", "random_bot"])
        async with asyncio.timeout(300):
            # A look in between would say that somebody is here.
            while not sitting.is_over:
                await sitting.person.wait_for_change(sitting.person.changes, 1.0)
        await room.close()
        assert "have not looked for 0.1 s" in (await recorded(site, MatchFailed)).error
        secret = await begun(site)
        await asked(site, secret)
        async with asyncio.timeout(300):
            await site.client.server.close()
        assert "server stopped" in (await recorded(site, MatchFailed)).error

    on_site(league_of(NIM).history, body)


def test_no_agent_that_plays_elsewhere_can_be_played_with(on_site: Callable[..., None]) -> None:
    async def body(site: Site) -> None:
        joined = ExternalVersionAdded(agent="gpt@0", policy="gpt", version=0, worker="elsewhere")
        await wait_until_folded(site.league.state, await site.log.append(joined))
        room = HumanMatchLobby(site.league.run, site.log, site.league.state)
        with pytest.raises(UsageError, match="'gpt@0' cannot be played with"):
            room.start_match(0, ["", "gpt@0", "random_bot"])
        await room.close()

    on_site(league_of(NIM).history, body)


def test_a_game_in_the_terminal_is_asked_and_recorded_as_on_the_page(on_site: Callable[..., None]) -> None:
    async def body(site: Site) -> None:
        shown: list[str] = []
        lines = iter(["9:9", *["1"] * 20])

        async def ask(prompt: str) -> str | None:
            return next(lines, None)

        run = site.league.run
        assert await play_in_terminal(run, site.log, "P2", ["random_bot"], shown.append, ask)
        result = await recorded(site, MatchFinished)
        assert [seat.agent for seat in result.seats] == ["random_bot", "human", "random_bot"]
        assert any("nothing legal" in text for text in shown)
        assert f"recorded: league match show {result.match_id}" in shown

        async def gone(prompt: str) -> str | None:
            return None

        assert not await play_in_terminal(run, site.log, None, ["random_bot"], shown.append, gone)
        assert (await recorded(site, MatchFailed)).error == "GameError: the person left"
        with pytest.raises(UsageError, match="each of 2 other seats"):
            await play_in_terminal(run, site.log, None, ["random_bot"] * 3, shown.append, gone)

    on_site(league_of(NIM).history, body)


def test_a_terminal_is_given_no_control_characters() -> None:
    assert escape_unprintable("a\x1b[31m\u202eb\nc", lines=True) == "a\\u001b[31m\\u202eb\nc"


def test_a_debate_is_spoken_in_with_a_model_on_the_other_side(
    on_site: Callable[..., None], speaker: Callable[..., Path]
) -> None:
    model = speaker(["Topic: cats or dogs. Opening. Rebuttal. Winner: Aff"], 300, 1024)
    debate = Plugin(name="debate", settings={"rounds": 1, "max_tokens": 4, "judging": {"max_tokens": 4}})
    config = msgspec.structs.replace(CONFIG, game=debate, model=ModelConfig(base=str(model)))

    async def body(site: Site) -> None:
        offered = await site.get("/play")
        assert (offered["spoken"], offered["seats"], offered["why_not"]) == (True, ["Aff", "Neg"], "")
        secret = (await posted(site, "begin", seat=1, agents=["base_model", ""]))["secret"]
        seen = await asked(site, secret)
        question = seen["question"]
        assert "Topic: " in question["text"]
        assert (question["choices"], seen["moves"], seen["rules"], seen["spoken"]) == ([], [], "", True)
        empty = await posted(site, "answer", 400, secret=secret, number=question["number"], reply="  ")
        assert "nothing was written" in empty["error"]
        await posted(site, "answer", secret=secret, number=question["number"], reply="Cats <b>sleep</b>.")
        seen = await asked(site, secret)
        assert (seen["over"], seen["problem"], seen["recorded"]) == (True, "", True)
        assert "Cats <b>sleep</b>." in [
            line for turn in seen["moves"] for said in turn["moves"].values() for line in said
        ]
        result = await recorded(site, MatchFinished)
        assert (result.purpose, [seat.agent for seat in result.seats]) == ("exhibition", ["base_model", "human"])
        assert not [r for r in await everything(site) if isinstance(r, RatingUpdated)]

    simulation = Simulation(config, seats=2)
    simulation.append(LeagueOpened(league=config.name, config=to_builtins(config), model=str(model)))
    for event in initial_agent_events(config):
        simulation.append(event)
    on_site(simulation.history, body)


async def everything(site: Site) -> list[Any]:
    """All events."""
    return [r.event async for r in site.log.read()]
