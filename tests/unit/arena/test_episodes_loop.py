"""The arena's loop, its hooks and limits; artifact stores; the scripted client."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arena.arena import Arena
from arena.clients import ScriptedClient
from arena.episodes.chat import SingleTurnEpisode
from arena.model_call import Limits
from arena.rubrics import Rubric
from arena.stores import ArtifactStore
from schemas.batches import TrainingBatch
from schemas.episodes import (
    Artifact,
    ArtifactAdded,
    EpisodeRequest,
    EpisodeState,
    GenerateResult,
    Message,
    ModelResponse,
    Role,
)
from schemas.errors import EpisodeError, UsageError


class Ask(SingleTurnEpisode):
    """One question from a store."""

    episode_type = "ask"
    rubric = Rubric([lambda rollout, arena: {"Solver": float(len(rollout.steps))}])

    def get_prompt(self, artifact: Any) -> str:
        return str(artifact)


class Loop(Arena):
    """Asks from its store, and writes down which hooks were called."""

    def __init__(self, client: ScriptedClient, **settings: Any) -> None:
        super().__init__(client, **settings)
        self.called: list[str] = []
        self.most_at_once = 0
        self.add_role(Role("Solver", "Think.", temperature=0.7, max_tokens=9))
        self.add_episode("ask", Ask("Solver"))
        self.add_store("questions").add(Artifact("why"))

    def get_batch(self) -> list[EpisodeRequest]:
        self.called.append("batch")
        return [EpisodeRequest("ask", store="questions") for _ in range(4)]

    async def startup(self) -> None:
        self.called.append("startup")

    async def shutdown(self) -> None:
        self.called.append("shutdown")

    async def on_train_start(self) -> None:
        self.called.append("start")

    async def on_train_end(self) -> None:
        self.called.append("end")

    async def on_step_end(self, results: Sequence[GenerateResult], batch: TrainingBatch) -> None:
        self.called.append("step")
        self.stores["questions"].add(Artifact(f"why {batch.step}"))


async def batches(arena: Arena, steps: int | None = None, **options: Any) -> list[TrainingBatch]:
    return [batch async for batch in arena.run(steps, **options)]


def test_a_run_goes_through_its_hooks_in_order() -> None:
    arena = Loop(ScriptedClient("since"))
    made = asyncio.run(batches(arena, 2))
    assert arena.called == ["startup", "start", "batch", "step", "batch", "step", "end", "shutdown"]
    assert [batch.step for batch in made] == [0, 1]
    assert [len(batch.records) for batch in made] == [4, 4]
    assert arena.stores["questions"].count() == 3


def test_a_run_without_an_end_can_be_closed_and_shuts_down() -> None:
    arena = Loop(ScriptedClient("since"))

    async def three() -> None:
        run = arena.run()
        for _ in range(3):
            await anext(run)
        await run.aclose()

    asyncio.run(three())
    assert arena.called[-1] == "shutdown"
    assert arena.called.count("step") == 3
    assert "end" not in arena.called


def test_a_step_that_cannot_be_taken_ends_the_run_and_still_shuts_down() -> None:
    class Odd(Loop):
        def get_batch(self) -> list[EpisodeRequest]:
            return [EpisodeRequest("unheard of")]

    arena = Odd(ScriptedClient("since"))
    with pytest.raises(UsageError, match="unheard of"):
        asyncio.run(batches(arena, 1))
    assert arena.called == ["startup", "start", "shutdown"]
    with pytest.raises(UsageError, match="no get_batch"):
        asyncio.run(Arena(ScriptedClient()).step())


def test_a_roles_settings_reach_the_client_unless_a_call_has_its_own() -> None:
    client = ScriptedClient("since")
    arena = Loop(client)
    asyncio.run(arena.run_episode("ask", "why"))
    asyncio.run(arena.call_model([Message("user", "x")], "Solver", temperature=0.0, max_tokens=3))
    asyncio.run(arena.call_model([Message("user", "x")]))
    assert [(call.temperature, call.max_tokens, call.return_tokens) for call in client.calls] == [
        (0.7, 9, True),
        (0.0, 3, True),
        (1.0, None, False),
    ]


@pytest.mark.parametrize("concurrency", [1, 3, 20])
def test_no_more_episodes_run_at_once_than_asked_for(concurrency: int) -> None:
    class Counting(ScriptedClient):
        now, most = 0, 0

        async def complete(self, messages: Sequence[Message], *args: Any, **kwargs: Any) -> Any:
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                return await super().complete(messages, *args, **kwargs)
            finally:
                self.now -= 1

    client = Counting("since", latency_s=0.001)
    arena = Loop(client)
    asyncio.run(arena.generate_rollouts([EpisodeRequest("ask", n) for n in range(12)], concurrency))
    assert client.most == min(concurrency, 12)


class Later(Ask):
    """Waits, then has one question drawn; the first waits longest."""

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState) -> EpisodeState:
        await asyncio.sleep(0.01 * (5 - artifact))
        state.child_results.extend(await arena.generate_rollouts([EpisodeRequest("ask", store="questions")]))
        return state


def test_a_draw_does_not_depend_on_what_runs_beside_it() -> None:
    def drawn(concurrency: int) -> list[Any]:
        arena = Loop(ScriptedClient("since"))
        arena.add_episode("later", Later("Solver"))
        for n in range(20):
            arena.stores["questions"].add(Artifact(n))
        requests = [EpisodeRequest("later", n) for n in range(5)]
        results = asyncio.run(arena.generate_rollouts(requests, concurrency))
        return [result.children[0].rollout.artifact for result in results]

    assert drawn(1) == drawn(5)
    assert len(set(map(str, drawn(1)))) > 2


@pytest.mark.parametrize("settings", [{"calls": 0}, {"reply_chars": -1}, {"episode_s": float("nan")}])
def test_limits_that_allow_nothing_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"limits: {next(iter(settings))}"):
        Limits(**settings)


# Stores


def test_a_restart_that_replays_the_additions_keeps_the_curriculum() -> None:
    added: list[ArtifactAdded] = []
    store = ArtifactStore("questions", seed=3, sink=added.append)
    for n in range(9):
        store.add(Artifact({"question": n}, weight=n + 1))
    known = store.add(Artifact({"question": 4}, weight=0.5))
    again = ArtifactStore("questions", seed=3)
    again.replay([*added, ArtifactAdded("others", Artifact("x", "x"))])
    assert again.count() == store.count() == 9
    assert again.get(known.id) == known == Artifact({"question": 4}, known.id, 0.5)
    for weighted in (True, False):
        assert again.sample(5, weighted) == store.sample(5, weighted)


@given(st.integers(1, 6), st.integers(0, 20), st.integers(0, 100))
def test_an_unweighted_draw_takes_all_before_any_twice(size: int, k: int, seed: int) -> None:
    store = ArtifactStore(seed=seed)
    for n in range(size):
        store.add(Artifact(n))
    drawn = [artifact.data for artifact in store.sample(k)]
    counts = [drawn.count(n) for n in range(size)]
    assert sum(counts) == k
    assert max(counts) - min(counts) <= 1


def test_a_weighted_draw_keeps_to_the_weights() -> None:
    store = ArtifactStore(seed=1)
    for n, weight in enumerate((1.0, 0.0, 3.0)):
        store.add(Artifact(n, weight=weight))
    drawn = [artifact.data for artifact in store.sample(4_000, weighted=True)]
    assert drawn.count(1) == 0
    # Three standard deviations of a binomial with p = 3/4.
    assert abs(drawn.count(2) - 3_000) < 3 * (4_000 * 0.75 * 0.25) ** 0.5


def test_an_empty_store_has_nothing_to_draw() -> None:
    store = ArtifactStore("topics")
    assert store.sample(0) == []
    assert store.get("x") is None
    with pytest.raises(EpisodeError, match="store 'topics': it is empty"):
        store.sample(2)
    store.add(Artifact("x", weight=0.0))
    with pytest.raises(EpisodeError, match="all 1 weights are 0"):
        store.sample(1, weighted=True)


@pytest.mark.parametrize("artifact", [Artifact(1, weight=-1.0), Artifact(1, weight=float("nan")), Artifact(object())])
def test_an_artifact_that_cannot_be_kept_is_refused(artifact: Artifact) -> None:
    added: list[ArtifactAdded] = []
    with pytest.raises(UsageError, match="store 'topics'"):
        ArtifactStore("topics", sink=added.append).add(artifact)
    assert added == []


# The scripted client


def test_a_script_says_one_thing_all_in_turn_or_by_the_conversation() -> None:
    async def said(client: ScriptedClient) -> list[str]:
        return [(await client.complete([Message("user", text)])).text for text in "abc"]

    assert asyncio.run(said(ScriptedClient("x"))) == ["x", "x", "x"]
    assert asyncio.run(said(ScriptedClient("x", "y"))) == ["x", "y", "x"]
    assert asyncio.run(said(ScriptedClient.from_function(lambda messages: messages[-1].content.upper()))) == [
        "A",
        "B",
        "C",
    ]


def test_scripted_tokens_are_words_and_their_version_is_the_clients() -> None:
    client = ScriptedClient("so it is", version=4)
    response = asyncio.run(client.complete([Message("user", "is it so")], temperature=0.5))
    assert response.tokens is not None
    assert sorted(response.tokens.prompt_ids) == sorted(response.tokens.completion_ids)
    assert (response.tokens.version, response.tokens.temperature, response.tokens.branches) == (4, 0.5, [0, 1, 2])
    assert asyncio.run(client.complete([], return_tokens=False)).tokens is None


# What it costs


class _OverlappingClient(ScriptedClient):
    """Answers once so many calls are under way."""

    def __init__(self, calls: int) -> None:
        super().__init__("since")
        self._barrier = asyncio.Barrier(calls)

    async def complete(self, *arguments: Any, **options: Any) -> ModelResponse:
        await self._barrier.wait()
        return await super().complete(*arguments, **options)


def test_calls_of_256_episodes_overlap() -> None:
    arena = Loop(_OverlappingClient(256))
    requests = [EpisodeRequest("ask", n) for n in range(256)]
    # One after the other, the first call would wait for ever.
    results = asyncio.run(asyncio.wait_for(arena.generate_rollouts(requests, concurrency=256), 60.0))
    assert len(results) == 256
