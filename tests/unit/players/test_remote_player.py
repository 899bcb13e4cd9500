"""A remote agent is asked as it should be: patiently, a few at a time, with its key, and without losing it."""

import asyncio
import email.utils
import json
import re
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from arena.games import make_game
from arena.games.texts import words_of
from arena.match import BotPlayer, play
from lifecycle.config_checks import check_config
from players.remote import model as model_module
from players.remote.http_client import HttpClient
from players.remote.model import RemoteModel, RemoteReply, RemoteUsage
from players.remote.remote_player import RemoteAgents, RemotePlayer, check_api_keys, remote_agents_in_evaluation
from schemas.config import AgentConfig, LeagueConfig, RemoteAgentConfig, convert
from schemas.errors import ConfigError, RemoteError, UsageError

KEY = "sk-very-secret-0123456789"


def config(url: str, **other: Any) -> RemoteAgentConfig:
    return RemoteAgentConfig(url=url, model="big-model", **other)


def with_model(settings: RemoteAgentConfig, work: Callable[[RemoteModel], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        model = RemoteModel("gpt", settings, first_pause_s=0.01)
        try:
            return await work(model)
        finally:
            await model.close()

    return asyncio.run(run())


def ask(settings: RemoteAgentConfig) -> tuple[str, RemoteUsage]:
    tally = RemoteUsage()
    return with_model(settings, lambda model: model.ask("the rules", "the question", tally)).text, tally


def test_a_question_is_a_chat_request(chat_server, say, monkeypatch):
    monkeypatch.setenv("A_KEY", f" {KEY}\n")
    server = chat_server(lambda asked, number: say("MOVE 1:1", tokens=42))
    settings = config(
        server.url + "/", key_variable="A_KEY", temperature=0.25, max_tokens=77, extra={"reasoning_effort": "low"}
    )
    text, tally = ask(settings)
    assert (text, tally.requests, tally.tokens) == ("MOVE 1:1", 1, 42)
    (asked,) = server.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.headers["Authorization"] == f"Bearer {KEY}"
    assert asked.body == {
        "model": "big-model",
        "messages": [{"role": "system", "content": "the rules"}, {"role": "user", "content": "the question"}],
        "temperature": 0.25,
        "max_tokens": 77,
        "reasoning_effort": "low",
    }


def test_a_server_without_a_key_and_with_another_name_for_the_limit(chat_server, say):
    server = chat_server(lambda asked, number: say("yes"))
    ask(config(server.url, limit_field="max_completion_tokens", max_tokens=5))
    assert "Authorization" not in server.asked[0].headers
    assert server.asked[0].body["max_completion_tokens"] == 5
    assert "max_tokens" not in server.asked[0].body


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 529])
def test_what_may_pass_is_tried_again(chat_server, say, status):
    server = chat_server(lambda asked, number: say("no", status=status) if number < 3 else say("yes"))
    text, tally = ask(config(server.url))
    assert (text, tally.requests) == ("yes", 3)
    assert server.asked[0] == server.asked[2]


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 422])
def test_what_will_not_pass_is_not_tried_again(chat_server, say, status):
    server = chat_server(lambda asked, number: say("no", status=status, headers={"Location": "/v1/elsewhere"}))
    with pytest.raises(RemoteError, match=rf"agent 'gpt' at 127\.0\.0\.1:\d+: status {status}.* \(1 request\)"):
        ask(config(server.url))
    assert len(server.asked) == 1


def test_after_so_many_tries_it_is_an_error_that_names_agent_host_and_status(chat_server, say):
    server = chat_server(lambda asked, number: say(raw=b'{"error": "too busy"}', status=503))
    with pytest.raises(RemoteError, match=r"'gpt' at 127\.0\.0\.1:\d+: status 503, .*too busy.*\(2 requests\)"):
        ask(config(server.url, tries=2))
    assert len(server.asked) == 2


@pytest.mark.parametrize("date", [False, True])
def test_everybody_waits_as_long_as_the_server_asks(chat_server, say, date):
    came: list[float] = []

    def answer(asked, number):
        came.append(time.monotonic())
        # A date counts whole seconds only.
        wait = email.utils.formatdate(time.time() + 2, usegmt=True) if date else "0.6"
        return say("no", status=429, headers={"Retry-After": wait}) if number == 1 else say("yes")

    server = chat_server(answer)

    async def two(model: RemoteModel) -> list[RemoteReply]:
        first = asyncio.create_task(model.ask("", "first", RemoteUsage()))
        # Until the refusal of the first has come.
        while not model._resume_at:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        return [await model.ask("", "second", RemoteUsage()), await first]

    replies = with_model(config(server.url), two)
    assert [reply.text for reply in replies] == ["yes", "yes"]
    assert min(came[1:]) - came[0] >= 0.55


def test_a_server_that_wants_to_be_left_alone_for_long_is(chat_server, say):
    server = chat_server(lambda asked, number: say("no", status=429, headers={"Retry-After": "86400"}))
    with pytest.raises(RemoteError, match=r"status 429.*asks to wait 86400 s \(1 request\)"):
        ask(config(server.url))


@pytest.mark.parametrize(
    "header", ["", "soon", "-3", "nan", "inf", "Thu, 99 Foo", "Thu, 01 Jan 99999999999999 00:00:00 GMT"]
)
def test_a_retry_after_that_makes_no_sense_is_passed_over(chat_server, say, header):
    server = chat_server(
        lambda asked, number: say("no", status=429, headers={"Retry-After": header}) if number == 1 else say("yes")
    )
    assert ask(config(server.url))[1].requests == 2


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"<html>", b"[]", b'{"choices": []}', b'{"choices": [{"message": 3}]}', b"\xff\xfe", b"null"),
        *(start + b"[" * 100_000 for start in (b"", b'{"usage": ', b'{"x": ')),
    ],
)
def test_an_answer_that_is_no_completion_is_tried_again_and_then_an_error(chat_server, say, body):
    server = chat_server(lambda asked, number: say(raw=body))
    with pytest.raises(RemoteError, match="2 requests"):
        ask(config(server.url, tries=2))


@pytest.mark.parametrize("usage", ["null", '"many"', '{"total_tokens": null}', '{"total_tokens": -1}', "[1]"])
def test_nobody_has_to_count_tokens(chat_server, say, usage):
    body = f'{{"choices": [{{"message": {{"content": null}}}}], "usage": {usage}}}'.encode()
    server = chat_server(lambda asked, number: say(raw=body))
    text, tally = ask(config(server.url))
    assert (text, tally.tokens) == ("", 0)


def test_an_endless_answer_is_cut(chat_server, say, monkeypatch):
    monkeypatch.setattr(model_module, "HttpClient", partial(HttpClient, max_body_bytes=100_000))
    server = chat_server(lambda asked, number: say(raw=b"x" * 10_000, endless=True))
    with pytest.raises(RemoteError, match="an answer of more than 100,000 bytes"):
        ask(config(server.url, tries=1))


def test_a_reply_has_to_come_in_time_even_if_it_trickles(chat_server, say):
    slow = chat_server(lambda asked, number: say("yes", after_s=1.0))
    with pytest.raises(RemoteError, match=r"no reply within 0\.2 s \(2 requests\)"):
        ask(config(slow.url, timeout_s=0.2, tries=2))


def test_a_server_that_is_not_there(chat_server, say):
    server = chat_server(lambda asked, number: say("yes"))
    server.stop()
    with pytest.raises(RemoteError, match=r"no connection or a broken one, ConnectError \(2 requests\)"):
        ask(config(server.url, tries=2))


def test_no_more_requests_are_under_way_than_allowed(chat_server, say):
    together = threading.Barrier(3)

    def answer(asked, number):
        if number <= 3:
            together.wait(300)
        return say("yes", after_s=0.05)

    server = chat_server(answer)

    async def many(model: RemoteModel) -> list[RemoteReply]:
        return await asyncio.gather(*(model.ask("", str(index), RemoteUsage()) for index in range(12)))

    assert len(with_model(config(server.url, requests=3), many)) == 12
    assert server.most_at_once == 3


def test_what_was_cancelled_frees_its_place(chat_server, say):
    server = chat_server(lambda asked, number: say("yes", after_s=0.3 if number == 1 else 0.0))

    async def cancel(model: RemoteModel) -> RemoteReply:
        first = asyncio.create_task(model.ask("", "first", RemoteUsage()))
        await asyncio.sleep(0.1)
        first.cancel()
        return await asyncio.wait_for(model.ask("", "second", RemoteUsage()), 300)

    assert with_model(config(server.url, requests=1), cancel).text == "yes"


@pytest.mark.parametrize("status", [400, 401, 403, 500])
def test_the_key_is_in_no_message(chat_server, say, monkeypatch, status):
    monkeypatch.setenv("A_KEY", KEY)
    echo = json.dumps({"error": f"{'x' * 170} incorrect key {KEY}"}).encode()
    server = chat_server(lambda asked, number: say(raw=echo, status=status))
    with pytest.raises(RemoteError) as raised:
        ask(config(server.url, key_variable="A_KEY", tries=1))
    assert "sk-" not in str(raised.value)
    assert server.asked[0].headers["Authorization"].endswith(KEY)


@pytest.mark.parametrize("value", [None, "", "  ", "ключ", "a\nb"])
def test_a_missing_or_broken_key_is_refused_by_the_name_of_its_variable(monkeypatch, value):
    monkeypatch.delenv("A_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("A_KEY", value)
    with pytest.raises(ConfigError, match=r"agents\.gpt\.remote\.key_variable: .*A_KEY.*expected") as raised:
        with_model(config("http://host/v1", key_variable="A_KEY"), lambda model: model.ask("", "", RemoteUsage()))
    assert not value or not value.strip() or value not in str(raised.value)


def agents(url: str, **other: Any) -> dict[str, Any]:
    return {
        "base_model": {"kind": "base", "rating": 1000.0, "baseline": True},
        "random_bot": {"kind": "bot", "rating": 800.0, "baseline": True},
        "gpt": {"kind": "remote", "rating": 1200.0, "remote": {"url": url, "model": "m", **other}},
    }


def league(url: str = "http://host/v1", more: dict[str, Any] | None = None, **other: Any) -> LeagueConfig:
    tables = {"game": {"name": "nim"}, "agents": agents(url, **other), **(more or {})}
    return convert(tables, LeagueConfig, "")


@pytest.mark.parametrize(
    "url", ["", "host/v1", "ftp://host/v1", "http://", "https://me:key@host/v1", "https://host/v1?key=x", "http://h:x/"]
)
def test_an_address_that_is_none_or_holds_a_key_is_refused(url):
    with pytest.raises(ConfigError, match=r"agents\.gpt\.remote\.url: expected an address like 'https://host/v1'"):
        league(url)


@pytest.mark.parametrize(
    ("key", "value"),
    [("model", ""), ("temperature", -1.0), ("max_tokens", 0), ("timeout_s", 0.0), ("tries", 0), ("requests", 0)],
)
def test_settings_out_of_range_are_refused_by_name(key, value):
    with pytest.raises(ConfigError, match=rf"agents\.gpt\.remote\.{key}: .*expected"):
        league(**{key: value})


def test_an_agent_that_no_sampler_may_draw_cannot_be_named_by_one():
    sampler = {"matchmaking": {"sampler": {"name": "fixed", "settings": {"agents": ["gpt"]}}}}
    with pytest.raises(ConfigError, match=r"agents\.gpt\.remote\.training: false, but .*expected true"):
        check_config(league(more=sampler))
    check_config(league(more=sampler, training=True))
    check_config(league(more={"evaluation": {"gatekeepers": ["gpt"], "benchmark_opponents": ["gpt"]}}))


def test_keys_are_looked_for_where_an_agent_will_be_played(monkeypatch):
    monkeypatch.delenv("A_KEY", raising=False)
    named = league(more={"evaluation": {"gatekeepers": ["gpt"]}}, key_variable="A_KEY")
    assert remote_agents_in_evaluation(league(key_variable="A_KEY")) == []
    assert remote_agents_in_evaluation(named) == ["gpt"]
    with pytest.raises(ConfigError, match="A_KEY"):
        check_api_keys(named, remote_agents_in_evaluation(named))
    monkeypatch.setenv("A_KEY", KEY)
    check_api_keys(named, remote_agents_in_evaluation(named))


def test_an_agent_that_the_configuration_does_not_know_is_refused():
    remotes = RemoteAgents({"gpt": AgentConfig(kind="remote", rating=0.0, remote=config("http://host/v1"))})
    with pytest.raises(UsageError, match=r"agents\.claude: no remote agent of that name; expected 'gpt'"):
        asyncio.run(remotes.make_player("claude", words_of(make_game("nim", {})), "m-0"))


def test_a_seat_counts_what_it_asked_and_what_it_got_wrong(chat_server, say):
    nim = make_game("nim", {"seats": 2, "heaps": [1] * 6, "shuffle": False})

    def answer(asked, number):
        first_legal = re.findall(r"holds 1: (\S+)", asked.question)[0]
        answers = [say("MOVE 4:1", tokens=7), say("no", status=500), say("MOVE 9:9", tokens=7)]
        return answers[number - 1] if number <= 3 else say(f"MOVE {first_legal}", tokens=7)

    server = chat_server(answer)

    async def match(model: RemoteModel) -> tuple[RemotePlayer, list[tuple[str, ...]]]:
        player, game = RemotePlayer(model, words_of(nim)), nim.new(5)
        await play(game, [player, BotPlayer(nim.bot("random_bot"))], 5)
        return player, [turn[0] for turn in nim.open_record(game.record()).turns if 0 in turn]

    player, moves = with_model(config(server.url), match)
    counted = player.metrics()
    assert counted.pop("remote_seconds") > 0
    # The refused request tells its tokens too; nothing has a price.
    asked = {"requests": 4, "tokens": 31, "prompt_tokens": 0, "completion_tokens": 0, "uncounted": 0, "cost": 0.0}
    assert counted == {f"remote_{name}": value for name, value in (asked | {"choices": 3, "illegal": 1}).items()}
    assert moves[0] == ("4:1",)
    assert (re.findall(r"holds 1: (\S+)", server.asked[-1].question)[0],) == moves[2]
