"""``from arena import …``: what environments are written with, and the scripts and the page that show it."""

import asyncio
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import arena as package
from arena import (
    Actor,
    AlternatingRolesEpisode,
    Arena,
    Artifact,
    ArtifactStore,
    GRPOCredit,
    InferenceClient,
    Limits,
    Message,
    MockInferenceClient,
    ModelResponse,
    MultiTurnEpisode,
    OpenAIClient,
    Role,
    Rubric,
    SingleTurnEpisode,
    VerboseLogger,
    api,
    apply_credit,
)
from lifecycle.standalone import ArenaRunOptions, default_config
from lifecycle.standalone.session import _resolve_base_model
from schemas.config import LeagueConfig, convert
from schemas.errors import ConfigError, EpisodeError, ModelError, UsageError

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "write-environment.md").read_text(encoding="utf-8")
PROMISED = [
    "Arena",
    "Role",
    "Actor",
    "Episode",
    "SingleTurnEpisode",
    "MultiTurnEpisode",
    "AlternatingRolesEpisode",
    "EpisodeState",
    "EpisodeRequest",
    "Rollout",
    "Step",
    "GenerateResult",
    "Rubric",
    "ArtifactStore",
    "Artifact",
    "GRPOCredit",
    "RAECredit",
    "ConstantCredit",
    "EpisodicRewardCredit",
    "apply_credit",
    "ModelResponse",
    "InferenceClient",
    "MockInferenceClient",
    "OpenAIClient",
    "TrainingBatch",
    "TrainingRecord",
    "VerboseLogger",
]


def greeted(rollout: Any, arena: Any) -> dict[str, float]:
    return {"Guest": float("hello" in rollout.steps[0].completion_text)}


class Greeting(SingleTurnEpisode):
    episode_type = "greeting"
    rubric = Rubric([greeted])

    def get_prompt(self, artifact: Any) -> str:
        return f"Greet {artifact}."


def greeting_arena(client: Any, **options: Any) -> Arena:
    arena = Arena(client, **options)
    arena.add_actor(Actor(id="Guest"))
    arena.add_episode("greeting", Greeting())
    return arena


def run(arena: Arena, artifact: Any = "Ann", kind: str = "greeting") -> Any:
    return asyncio.run(arena.run_episode(kind, artifact))


def test_all_promised_names_are_there_and_on_the_page() -> None:
    assert set(PROMISED) <= set(api.__all__)
    for name in api.__all__:
        assert getattr(package, name) is getattr(api, name)
    assert not [name for name in PROMISED if f"`{name}`" not in PAGE.replace("`, `", "` `")]
    with pytest.raises(AttributeError, match="Nothing"):
        _ = package.Nothing
    assert Actor is Role


def test_the_page_shows_the_scripts() -> None:
    """One whole, of the others the part that a reader came for."""
    shown = dict(re.findall(r"^`examples/(\w+)\.py`\n\n```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
    scripts = {name: (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8") for name in shown}
    assert shown.keys() == {"run_debate", "run_proposer_solver", "run_negotiation", "run_gsm8k"}
    assert shown["run_debate"] == scripts["run_debate"]
    assert not [name for name in shown if shown[name] not in scripts[name]]


def test_the_first_block_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    block = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[0]
    space: dict[str, Any] = {}
    exec(block, space)
    assert [record.advantage for record in space["batch"].records] == [0.5, -0.5]
    assert "mean reward" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "flags", "said", "printed"),
    [
        ("run_debate", ["Tea", "Rain", "--batch-size", "2"], "Aff", "debate/Aff +1.00, debate/Neg -1.00"),
        (
            "run_proposer_solver",
            [
                "--questions",
                '[{"question": "2+2?", "ground_truth": "4"}]',
                "--solver-rollouts",
                "3",
                "--batch-size",
                "1",
            ],
            "1+1? | 2",
            "propose/Proposer +0.00, solve/Solver +1.00",
        ),
        ("run_negotiation", ["--batch-size", "1"], "I take 4 coins, 0 gems or accept", "Player0 +0.40"),
        ("run_gsm8k", ["--batch-size", "2", "--attempts", "2"], "It is 10", "gsm8k/Solver +0.74"),
    ],
)
def test_the_scripts_play_a_server_of_this_machine(
    script: str, flags: list[str], said: str, printed: str, chat_server: Callable[..., Any], say: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:  # fmt: skip
    server = chat_server(lambda *_: say(said))
    port = re.search(r":(\d+)/", server.url)
    assert port is not None
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    file = ROOT / "examples" / f"{script}.py"
    monkeypatch.setattr(sys, "argv", [str(file), *flags, "--local", "--port", port[1], "--model", "m", "--verbose"])
    runpy.run_path(str(file), run_name="__main__")
    out = capsys.readouterr().out
    assert printed in out, out
    assert "model call" in (tmp_path / f"{script.removeprefix('run_')}_run.log").read_text(encoding="utf-8")


def test_a_script_without_a_key_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENROUTER_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    file = str(ROOT / "examples" / "run_negotiation.py")
    monkeypatch.setattr(sys, "argv", [file])
    with pytest.raises(SystemExit, match=r"error: .* no key in the environment"):
        runpy.run_path(file, run_name="__main__")


def test_messages_may_be_dictionaries() -> None:
    arena = greeting_arena(MockInferenceClient("hello"))
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert asyncio.run(arena.call_model(talk)).text == "hello"
    role = Role("a", "b")
    assert role.build_messages("c", history=None) == [Message("system", "b"), Message("user", "c")]
    assert role.build_messages("c", [{"role": "assistant", "content": "x"}])[1] == Message("assistant", "x")
    message = Message("user", "hi")
    assert (message["role"], dict(message)) == ("user", {"role": "user", "content": "hi"})
    with pytest.raises(KeyError):
        _ = message["name"]


@pytest.mark.parametrize("bad", [{"content": "hi"}, {"role": "tool", "content": ""}, {"role": "user"}, "hi"])
def test_a_dictionary_that_is_no_message_is_named(bad: Any) -> None:
    arena = greeting_arena(MockInferenceClient("hello"))
    with pytest.raises(EpisodeError, match=r"message 2: found .*; expected a role"):
        asyncio.run(arena.call_model([{"role": "user", "content": "a"}, bad]))


class Unseeded(InferenceClient):
    """A client whose signature has no seed, as the self-play engine's."""

    async def complete(self, messages, temperature=1.0, max_tokens=None, return_tokens=True):  # type: ignore[no-untyped-def, override]
        assert messages[-1]["content"] == "Greet Ann."
        return ModelResponse("hello")


def test_a_client_needs_no_seed() -> None:
    result = run(greeting_arena(Unseeded(), limits=Limits(needs_tokens=False)))
    assert (result.failure, result.rewards) == ("", {"Guest": 1.0})


def test_a_role_is_registered_once() -> None:
    arena = greeting_arena(MockInferenceClient("hello"))
    with pytest.raises(UsageError, match="Guest"):
        arena.add_actor(Actor("Guest"))
    assert list(arena.actors) == ["Guest"]


def test_roles_are_arguments_attributes_or_the_arenas() -> None:
    class Talk(AlternatingRolesEpisode):
        episode_type = "talk"
        rubric = Rubric([])

    class Named(Talk):
        role_ids = ("B", "A")

    def order(episode: Talk) -> list[str]:
        arena = Arena(MockInferenceClient("yes"))
        for name in "ABC":
            arena.add_role(Role(name))
        arena.add_episode("talk", episode)
        return [step.actor_id for step in run(arena, kind="talk").rollout.steps]

    assert order(Talk(max_turns=4)) == ["A", "B", "C", "A"]
    assert order(Named(max_turns=3)) == ["B", "A", "B"]
    assert order(Talk(("C", "A"), 2)) == ["C", "A"]
    with pytest.raises(UsageError, match="two or more"):
        Talk(("A",), 2)
    arena = greeting_arena(MockInferenceClient("hello"))
    arena.add_role(Role("Host"))
    assert "expected a role_id" in run(arena).failure


def test_methods_of_a_conversation_get_what_they_name() -> None:
    class Chat(MultiTurnEpisode):
        episode_type = "chat"
        rubric = Rubric([])

        def get_initial_actor(self):  # type: ignore[no-untyped-def, override]
            return "Guest"

        def get_observation(self, state, artifact):  # type: ignore[no-untyped-def, override]
            return f"{artifact} {state.turn}"

        def is_done(self, state, arena, artifact):  # type: ignore[no-untyped-def, override]
            return state.turn >= self.max_turns

    arena = greeting_arena(MockInferenceClient("hello"))
    arena.add_episode("chat", Chat(max_turns=2))
    steps = run(arena, "board", "chat").rollout.steps
    assert [step.prompt[-1].content for step in steps] == ["board 0", "board 1"]


def test_an_episode_calls_by_either_name_and_shows_only_its_extras() -> None:
    class Asking(Greeting):
        async def rollout(self, arena: Any, artifact: Any, state: Any = None) -> Any:
            state.data["secret"] = 1
            await self.call_model(actor_id="Guest", prompt="Say hello", arena=arena)
            await self.call_model(role_id="Guest", messages=[{"role": "user", "content": "again"}], arena=arena)
            return state

    arena = Arena(MockInferenceClient("hello"))
    arena.add_role(Role("Guest"))
    rollout = asyncio.run(Asking().generate(arena, "Ann", meta={"day": 1})).rollout
    assert (rollout.failure, rollout.extras, rollout.meta, len(rollout.steps)) == ("", {}, {"day": 1}, 2)

    class Lost(Asking):
        async def rollout(self, arena: Any, artifact: Any, state: Any = None) -> Any:
            await self.call_model("Guest", "hi")

    assert "expected arena=" in asyncio.run(Lost().generate(arena, "Ann")).failure


def test_a_step_tells_the_version_and_credit_its_state() -> None:
    arena = greeting_arena(MockInferenceClient("hello", version=7))
    arena.get_batch = lambda: [api.EpisodeRequest("greeting", "Ann", meta=None)]  # type: ignore[method-assign, arg-type]
    batch = asyncio.run(arena.step())
    assert batch.records[0].meta["policy_version"] == batch.meta["policy_version"] == 7
    assert batch.records[0].input_ids == [*batch.records[0].prompt_token_ids, *batch.records[0].completion_token_ids]
    results = [run(arena), run(arena)]
    assert set(GRPOCredit().compute(results).weights.values()) == {0.0}
    assert apply_credit(results, {(results[0].rollout.id, 0): 2.0})[0].rollout.steps[0].advantage == 2.0


def test_a_store_gives_one_artifact_or_none() -> None:
    store = ArtifactStore("words")
    assert store.sample_one() is None
    store.add(Artifact("tea"))
    drawn = store.sample_one(weighted=True)
    assert drawn is not None
    assert drawn.data == "tea"


def test_a_client_is_made_as_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENROUTER_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="expected one in OPENROUTER_API_KEY or OPENAI_API_KEY, or api_key"):
        OpenAIClient()
    with pytest.raises(ConfigError, match="api_key is no key"):
        OpenAIClient("clé")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    assert OpenAIClient.for_openrouter("sk-2").model == "openai/gpt-4o-mini"
    assert OpenAIClient.for_openrouter().model == "gpt-4o-mini"
    local = OpenAIClient.for_local(port=9, timeout=3.0)
    assert (local.config.timeout_s, local.config.asks_tokens, local.model) == (3.0, True, "")
    # The key of a service goes to no other server.
    other = OpenAIClient(model="m", base_url="http://127.0.0.1:1/v1", timeout=2.0)
    assert (other.config.timeout_s, other._server._http_client._secret) == (2.0, "")


def test_only_replies_that_would_be_trained_on_are_warned_about(chat_server: Any, say: Any) -> None:
    server = chat_server(lambda *_: say("hello"))

    async def asked(role: str | None) -> None:
        client = OpenAIClient(None, "m", server.url)
        arena = greeting_arena(client, limits=Limits(needs_tokens=False))
        if role is None:
            await arena.call_model([Message("user", "Who won?")], temperature=0.1, return_tokens=True)
        else:
            await arena.run_episode("greeting", "Ann")
            await arena.run_episode("greeting", "Bob")
        await client.close()

    for role, warnings in ((None, 0), ("Guest", 1)):
        with capture_logs() as logs:
            asyncio.run(asked(role))
        assert sum("nothing can be trained on them" in line["event"] for line in logs) == warnings


def test_a_log_is_a_context(tmp_path: Path) -> None:
    arena = greeting_arena(MockInferenceClient("hello"))
    with VerboseLogger(tmp_path / "run.log") as arena.observer:
        run(arena)
    assert "episode ended" in (tmp_path / "run.log").read_text(encoding="utf-8")


def test_default_agents_fit_the_game() -> None:
    assert list(convert({"game": {"name": "nim"}}, LeagueConfig, "").agents) == ["base_model", "random_bot"]
    assert list(LeagueConfig().agents) == ["base_model", "random_bot", "chaos_bot"]
    named = {"base_model": {"kind": "base"}, "chaos_bot": {"kind": "bot"}}
    assert list(convert({"game": {"name": "nim"}, "agents": named}, LeagueConfig, "").agents) == list(named)


def test_a_hosted_model_without_its_flag_is_pointed_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    options = ArenaRunOptions(config=default_config("debate", {}), steps=1, seed=0, model="openai/gpt-4o-mini")
    with pytest.raises(ModelError, match="for a model of a service add --hosted, of a server here --local"):
        _resolve_base_model(options)
