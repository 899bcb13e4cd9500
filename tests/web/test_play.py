"""Playing against agents in the browser: asked, answered, recorded as an exhibition that can be played again."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from league.simulation import Simulation
from schemas.config import LeagueConfig, Plugin
from schemas.events import MatchFailed, MatchFinished
from tests.web.conftest import CONFIG, Site
from workers.reading.accounts import resimulated
from workers.reading.matches import find_match

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


async def recorded(site: Site, kind: type) -> Any:
    """The newest event of a type."""
    return [r.event async for r in site.log.read() if isinstance(r.event, kind)][-1]


def test_a_game_is_played_to_its_end_and_its_record_plays_again(on_site: Callable[..., None]) -> None:
    async def body(site: Site) -> None:
        choices = await site.get("/play")
        assert (choices["game"], len(choices["seats"]), choices["why_not"]) == ("nim", 3, "")
        assert not choices["rated"]
        secret = await begun(site)
        seen = await asked(site, secret)
        assert [row["agent"] for row in seen["seats"]] == ["random_bot", "human", "random_bot"]
        while not seen["over"]:
            question = seen["question"]
            options = question["choices"][0]["options"]
            assert options, question
            await posted(site, "answer", secret=secret, number=question["number"], reply=options[0])
            seen = await asked(site, secret)
        assert seen["recorded"]
        assert seen["outcome"]["length"] == len(seen["moves"])
        result = await recorded(site, MatchFinished)
        assert (result.purpose, result.match_id) == ("exhibition", seen["match_id"])
        assert result.seats[1].agent == "human"
        found = await find_match(site.league.run, site.log, result.match_id)
        assert (await resimulated(site.league.run, site.log, found, None)).identical

    on_site(league_of(NIM).records, body)


def test_what_is_no_legal_move_is_asked_again(on_site: Callable[..., None]) -> None:
    async def body(site: Site) -> None:
        secret = await begun(site)
        seen = await asked(site, secret)
        number = seen["question"]["number"]
        wrong = await posted(site, "answer", 400, secret=secret, number=number, reply="MOVE 9:99")
        assert "nothing legal" in wrong["error"]
        late = await posted(site, "answer", 400, secret=secret, number=number + 1, reply="MOVE 1:1")
        assert "does not wait" in late["error"]
        assert (await asked(site, secret))["question"]["number"] == number
        assert "no such game" in (await posted(site, "answer", 400, secret="x", number=1, reply=""))["error"]

    on_site(league_of(NIM).records, body)


def test_leaving_ends_the_match_with_its_reason(on_site: Callable[..., None]) -> None:
    async def body(site: Site) -> None:
        secret = await begun(site)
        await asked(site, secret)
        await posted(site, "leave", secret=secret)
        seen = await asked(site, secret)
        assert seen["over"]
        assert "the person left" in seen["problem"]
        failed = await recorded(site, MatchFailed)
        assert (failed.purpose, failed.error) == ("exhibition", "GameError: the person left")

    on_site(league_of(NIM).records, body)


def test_when_the_server_stops_games_under_way_are_failed_matches(on_site: Callable[..., None]) -> None:
    async def body(site: Site) -> None:
        secret = await begun(site)
        await asked(site, secret)
        async with asyncio.timeout(20):
            await site.client.server.close()
        assert "server stopped" in (await recorded(site, MatchFailed)).error

    on_site(league_of(NIM).records, body)


def test_only_agents_of_the_league_can_be_played_with(on_site: Callable[..., None]) -> None:
    async def body(site: Site) -> None:
        hostile = "<b>nobody</b>"
        refused = await posted(site, "begin", 400, seat=0, agents=["human", hostile, "random_bot"])
        assert hostile in refused["error"]
        assert "each of 3 seats" in (await posted(site, "begin", 400, seat=0, agents=["human"]))["error"]
        assert "each of 3 seats" in (await posted(site, "begin", 400, seat=7, agents=["random_bot"] * 3))["error"]

    on_site(league_of(NIM).records, body)
