"""``league arena`` plays a registered arena with a server or says in a paragraph why it cannot."""

import json

import pytest
from typer.testing import CliRunner

from arena.arenas import arena_names
from schemas.errors import ConfigError, EpisodeError, LeagueError, RemoteError, UsageError
from workers.commands import app


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["arena", *words])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def local(url: str, *words: str) -> str:
    return run("debate", "--local", "--port", url.split(":")[2].split("/")[0], "--model", "m", *words)


def test_the_list_names_every_arena():
    assert run("--list").split() == arena_names()


def test_an_arena_is_played_with_a_server_of_this_machine(chat_server, say):
    server = chat_server(lambda *_: say("Winner: Aff"))
    out = local(server.url, "--num-steps", "2", "--batch-size", "1", "--settings", "rounds=1", "--json")
    batches = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert [batch["step"] for batch in batches] == [0, 1]
    assert all(batch["counts"]["without_tokens"] == 2 for batch in batches)
    assert {asked.body["model"] for asked in server.asked} == {"m"}


def test_a_server_whose_every_reply_is_empty_ends_the_run_with_the_reason(chat_server, say):
    server = chat_server(lambda *_: say(""))
    with pytest.raises(EpisodeError, match="it is empty"):
        local(server.url, "--settings", "rounds=1", "--batch-size", "1")


@pytest.mark.parametrize(
    ("words", "error", "why"),
    [
        ((), UsageError, "which one"),
        (("chess960", "--model", "x"), ConfigError, "no arena is called"),
        (("debate", "--settings", "rounds"), UsageError, "KEY=VALUE"),
        (("debate", "--settings", "heat=1", "--model", "x"), ConfigError, "heat"),
        (("debate",), ConfigError, "nobody speaks"),
        (("debate", "--model", "x"), ConfigError, "OPENROUTER_API_KEY"),
        (("debate", "--local", "--port", "1"), RemoteError, "no connection"),
    ],
)
def test_bad_input_is_told_in_words(monkeypatch, words: tuple[str, ...], error: type[LeagueError], why: str):
    for name in ("OPENROUTER_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(error, match=why):
        run(*words)
