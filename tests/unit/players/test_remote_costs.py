"""What a remote agent costs is never counted too low, however little its server says, and its budget bounds it."""

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any

import pytest

from arena.games import make_game
from arena.games.texts import words_of
from arena.match import BotPlayer, play
from players.remote import remote_player
from players.remote.model import RemoteModel, RemoteUsage, TokenUsage, parse_usage
from players.remote.remote_player import RemoteAgents
from schemas.config import AgentConfig, LeagueConfig, RemoteAgentConfig, convert
from schemas.errors import ConfigError, RemoteError


def priced(url: str, **other: Any) -> RemoteAgentConfig:
    fields = {"prompt_price": 3.0, "completion_price": 15.0, "max_tokens": 100, "tries": 2}
    return RemoteAgentConfig(url=url, model="big-model", **{**fields, **other})


def told(usage: object, text: str = "yes") -> bytes:
    return json.dumps({"choices": [{"message": {"content": text}}], "usage": usage}).encode()


def asking(config: RemoteAgentConfig, work: Callable[[RemoteModel], Awaitable[Any]], left: float = inf) -> Any:
    async def run() -> Any:
        model = RemoteModel("gpt", config, first_pause_s=0.01, left=lambda: left)
        try:
            return await work(model)
        finally:
            await model.close()

    return asyncio.run(run())


def tally(config: RemoteAgentConfig) -> RemoteUsage:
    counted = RemoteUsage()

    async def ask(model: RemoteModel) -> None:
        try:
            await model.ask("rules", "question", counted)
        except RemoteError:
            counted.requests += 100  # Marks what failed.

    asking(config, ask)
    return counted


FULL = {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010}


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (FULL, TokenUsage(1000, 10, 1010)),
        ({"prompt_tokens": 1000, "completion_tokens": 10}, TokenUsage(1000, 10, 1010)),
        # Some leave out of the completion what the model thought.
        ({**FULL, "total_tokens": 1200}, TokenUsage(1000, 10, 1200)),
        ({"total_tokens": 7}, TokenUsage(0, 0, 7)),
        ({"total_tokens": 7, "prompt_tokens": 5}, TokenUsage(5, 0, 7)),
        ({**FULL, "total_tokens": 3}, TokenUsage(1000, 10, 1010)),
        ({**FULL, "prompt_tokens": -4}, TokenUsage(0, 10, 1010)),
        ({"prompt_tokens": 5}, None),
        ({"total_tokens": True}, None),
        ({"total_tokens": 1e3}, None),
        ({"total_tokens": 1 << 60}, None),
        ([1], None),
        (None, None),
    ],
)
def test_token_counts_are_read_as_far_as_they_can_be_true(usage: object, expected: TokenUsage | None) -> None:
    assert parse_usage(told(usage)) == expected


@pytest.mark.parametrize("data", [b"", b"<html>", b"\xff", b"[]", b"null"])
def test_what_is_no_answer_tells_no_tokens(data: bytes) -> None:
    assert parse_usage(data) is None


def test_prompt_and_completion_have_their_prices_and_what_is_not_told_apart_the_higher_one() -> None:
    config = priced("http://host/v1")
    assert TokenUsage(1_000_000, 0, 1_000_000).cost(config) == 3.0
    assert TokenUsage(0, 1_000_000, 1_000_000).cost(config) == 15.0
    assert TokenUsage(1_000_000, 1_000_000, 3_000_000).cost(config) == 33.0


def test_a_failed_question_counts_its_requests_and_tokens_too(chat_server, say) -> None:
    server = chat_server(lambda asked, number: say(raw=json.dumps({"choices": [], "usage": FULL}).encode()))
    counted = tally(priced(server.url))
    assert counted == RemoteUsage(102, 2000, 20, 2020, 0, pytest.approx(2 * (1000 * 3 + 10 * 15) / 1e6))


def test_an_answer_without_counts_stands_with_the_most_that_it_can_have_cost(chat_server, say) -> None:
    server = chat_server(lambda asked, number: say(raw=told(None)))
    counted = tally(priced(server.url))
    assert (counted.requests, counted.tokens, counted.uncounted) == (1, 0, 1)
    # A token for every byte of the prompt, and a hundred of reply.
    assert counted.cost > (len("rulesquestion") * 3 + 100 * 15) / 1e6
    assert counted.cost < (500 * 3 + 100 * 15) / 1e6


def test_a_time_out_may_have_cost_and_a_refusal_or_a_server_that_is_not_there_has_not(chat_server, say) -> None:
    slow = chat_server(lambda asked, number: say("yes", after_s=3.0))
    counted = tally(priced(slow.url, timeout_s=1.0))
    assert (counted.requests, counted.uncounted) == (102, 2)
    assert counted.cost > 2 * 100 * 15 / 1e6
    busy = chat_server(lambda asked, number: say(raw=b"{}", status=503))
    assert tally(priced(busy.url)) == RemoteUsage(requests=102)
    gone = chat_server(lambda asked, number: say("yes"))
    gone.stop()
    assert tally(priced(gone.url)) == RemoteUsage(requests=102)


def test_a_cancelled_question_counts_as_one_that_may_have_cost(chat_server, say) -> None:
    arrived, counted = threading.Event(), RemoteUsage()

    def answer(asked: object, number: int) -> object:
        arrived.set()
        return say("yes", after_s=0.3)

    server = chat_server(answer)

    async def cancel(model: RemoteModel) -> None:
        task = asyncio.create_task(model.ask("", "", counted))
        await asyncio.to_thread(arrived.wait, 300)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asking(priced(server.url), cancel)
    assert (counted.requests, counted.uncounted) == (1, 1)
    assert counted.cost > 0


def test_questions_that_wait_for_their_turn_are_not_asked_once_the_budget_is_spent(chat_server, say) -> None:
    million = {"prompt_tokens": 0, "completion_tokens": 1_000_000, "total_tokens": 1_000_000}
    server = chat_server(lambda asked, number: say(raw=told(million)))

    async def many(model: RemoteModel) -> list[Any]:
        return await asyncio.gather(*(model.ask("", str(i), RemoteUsage()) for i in range(12)), return_exceptions=True)

    replies = asking(priced(server.url, requests=2, budget=45.0), many, left=45.0)
    refused = [reply for reply in replies if isinstance(reply, RemoteError)]
    # Three spend the budget; a fourth may be under way by then.
    assert 3 <= len(server.asked) <= 4
    assert len(refused) == 12 - len(server.asked)
    assert {str(reply).partition(": ")[2] for reply in refused} == {
        "pauses, since its budget is spent; expected agents.gpt.remote.budget to be raised"
    }


def test_a_match_is_accounted_for_by_agent_and_what_is_recorded_is_not_counted_twice(
    chat_server, say, monkeypatch
) -> None:
    monkeypatch.setattr(remote_player, "_OVER_BUDGET_DELAY_S", 0.2)
    nim = make_game("nim", {"seats": 3, "heaps": [1] * 6, "shuffle": False})
    half_a_million = {"prompt_tokens": 0, "completion_tokens": 500_000, "total_tokens": 500_000}
    server = chat_server(lambda asked, number: say(raw=told(half_a_million, "I pass")))
    left = {"gpt": 60.0}
    agents = {"gpt": AgentConfig(kind="remote", rating=0.0, remote=priced(server.url, budget=60.0))}

    async def match(remotes: RemoteAgents, name: str) -> None:
        seats = [await remotes.make_player("gpt", words_of(nim), name) for _ in range(2)]
        await play(nim.new(1), [*seats, BotPlayer(nim.bot("random_bot"))], 1)

    async def main() -> None:
        remotes = RemoteAgents(agents, left.__getitem__)
        await match(remotes, "m-0")
        (counted,) = [remotes.finish_match("m-0")]
        assert list(counted) == ["gpt"]
        assert (counted["gpt"].requests, counted["gpt"].cost) == (4, 30.0)
        assert remotes.finish_match("m-0") == remotes.drain_usage("m-0") == {}
        left["gpt"] -= counted["gpt"].cost
        remotes.mark_recorded("gpt", counted["gpt"].cost)
        await match(remotes, "m-1")
        # Spent, though not recorded yet: nobody is asked, and the failure takes its time.
        started = time.monotonic()
        with pytest.raises(RemoteError, match="pauses, since its budget is spent"):
            await match(remotes, "m-2")
        assert time.monotonic() - started > 0.1
        assert remotes.finish_match("m-2") == {}
        left["gpt"] = 90.0
        await match(remotes, "m-3")
        await remotes.close()

    asyncio.run(main())
    assert len(server.asked) == 12


def test_a_long_match_tells_in_parts_what_it_has_cost_and_nothing_twice(chat_server, say) -> None:
    nim = make_game("nim", {"seats": 2, "heaps": [1] * 6, "shuffle": False})
    server = chat_server(lambda asked, number: say(raw=told(FULL)))
    remotes = RemoteAgents({"gpt": AgentConfig(kind="remote", rating=0.0, remote=priced(server.url))})

    async def main() -> tuple[list[dict[str, RemoteUsage]], dict[str, float]]:
        player, game = await remotes.make_player("gpt", words_of(nim), "m-0"), nim.new(1)
        parts = [remotes.drain_usage("m-0")]
        for turn in range(3):
            await player.act(game, 0, turn)
            parts.append(remotes.drain_usage("m-0") if turn else {})
        assert remotes.active_matches == ["m-0"]
        parts.append(remotes.finish_match("m-0"))
        assert remotes.active_matches == []
        await remotes.close()
        return parts, player.metrics()

    parts, metrics = asyncio.run(main())
    assert [part["gpt"].requests if part else 0 for part in parts] == [0, 0, 2, 1, 0]
    assert metrics["remote_requests"] == 3
    assert metrics["remote_cost"] == pytest.approx(sum(part["gpt"].cost for part in parts if part))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompt_price": -1.0}, r"prompt_price: -1\.0; expected 0 or more"),
        ({"completion_price": float("inf")}, "completion_price: inf; expected a finite number"),
        ({"completion_price": 1.0, "budget": float("nan")}, "budget: nan; expected a finite number"),
        ({"budget": 5.0}, "budget: no price"),
    ],
)
def test_prices_and_budgets_that_cannot_be_are_refused_by_name(settings: dict[str, float], message: str) -> None:
    agents = {
        "base_model": {"kind": "base", "rating": 1000.0},
        "gpt": {"kind": "remote", "rating": 1.0, "remote": {"url": "http://host/v1", "model": "m", **settings}},
    }
    evaluation = {"gatekeepers": [], "benchmark_opponents": []}
    with pytest.raises(ConfigError, match=rf"agents\.gpt\.remote\.{message}"):
        convert({"agents": agents, "evaluation": evaluation}, LeagueConfig, "")
