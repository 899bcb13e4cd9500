"""What is wrong with one episode stays with it: its reason is recorded, and all others are as if it had been sound."""

import asyncio
import contextlib
import selectors
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import msgspec
import pytest

from arena.arena import Arena
from arena.clients import ScriptedClient
from arena.episodes import Episode
from arena.episodes.chat import MultiTurnEpisode
from arena.episodes.game import GameEpisode
from arena.games import make_game
from arena.model_call import Limits
from arena.rubrics import Rubric
from schemas.config import Plugin
from schemas.episodes import (
    Artifact,
    EpisodeRequest,
    EpisodeState,
    GenerateResult,
    Message,
    ModelResponse,
    Role,
    Rollout,
    unconstrained_model_call,
)
from trainer.advantages.total_reward import CREDIT_ASSIGNERS

CALLS, REPLY_CHARS, EPISODE_S, RUBRIC_S = 20, 100, 60.0, 20.0
OVER = f"not over after {EPISODE_S:g} s"
LIMITS = Limits(reply_chars=REPLY_CHARS, calls=CALLS, episode_s=EPISODE_S)


async def judged(rollout: Rollout, arena: Arena) -> dict[str, float]:
    verdict = await arena.call_model([Message("user", f"Judge {rollout.artifact}")])
    return {"A": float(len(verdict.text)), "B": 1.0}


class Talk(MultiTurnEpisode):
    """Two turns, or what takes the place of its hooks."""

    episode_type = "talk"
    rubric = Rubric([judged])

    def __init__(self, **hooks: Any) -> None:
        super().__init__(2)
        for name, hook in hooks.items():
            setattr(self, name, hook)

    def get_initial_actor(self, artifact: Any, state: EpisodeState) -> str:
        return "A"

    def get_next_actor(self, state: EpisodeState, artifact: Any) -> str:
        return "B"

    def get_initial_prompt(self, arena: Arena, artifact: Any, state: EpisodeState) -> str:
        return f"Talk about {artifact}"


class Asks(Episode):
    """Has others talk; with ``strict`` it fails where one of them did."""

    episode_type = "asks"
    rubric = Rubric([lambda rollout, arena: {"A": float(rollout.extras["well"])}])

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState) -> EpisodeState:
        await self.call_model("A", "Who shall talk?", arena)
        state.child_results += await arena.generate_rollouts(artifact)
        if failed := [child.failure for child in state.child_results if child.failure]:
            await self.call_model("B", "That went wrong", arena)
            if self.strict:
                raise ValueError(f"a child failed: {failed[0]}")
        return state

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        return {"well": sum(not child.failure for child in state.child_results)}


class Client(ScriptedClient):
    """Says which call it is asked for; where the conversation has a bad end, that."""

    def __init__(self, bad: Any) -> None:
        super().__init__()
        self.bad = bad
        self.keep_calls = False

    async def complete(self, messages: Sequence[Message], *how: Any) -> ModelResponse:
        await asyncio.sleep(0)
        _, _, wants, seed = how
        if any("bad" in message.content for message in messages) and self.bad is not None:
            return await self.bad(messages, wants) if callable(self.bad) else self.bad
        return self._respond_with_tokens(f"Call {seed}", messages, 1.0) if wants else ModelResponse(f"Verdict {seed}")


class Bad(NamedTuple):
    """What is wrong, and how it is told."""

    why: str
    episode: Episode = Talk()
    reply: Any = None
    request: EpisodeRequest = EpisodeRequest("bad", "bad")
    steps: int | None = None
    """Calls that came before, where it matters."""


def raising(error: BaseException) -> Callable[..., NoReturn]:
    def hook(*_: Any, **__: Any) -> NoReturn:
        raise error

    return hook


def later(found: Any) -> Callable[..., Any]:
    """A hook that has to be waited for: what it finds, or raises."""

    async def hook(*_: Any, **__: Any) -> Any:
        await asyncio.sleep(0)
        if isinstance(found, BaseException):
            raise found
        return found

    return hook


async def never(*_: Any) -> Any:
    await asyncio.Event().wait()


async def judge_only(messages: Sequence[Message], wants: bool) -> ModelResponse:
    """The judge never answers, the roles do."""
    return await never() if not wants else ModelResponse("said", unconstrained_model_call([1], [2], [-0.5]))


def said(text: Any, *tokens: Sequence[Any]) -> ModelResponse:
    return ModelResponse(text, unconstrained_model_call(*tokens) if tokens else None)


def scored(*funcs: Any, timeout_s: float | None = None, weights: Sequence[float] | None = None) -> Talk:
    return Talk(rubric=Rubric(funcs, weights, timeout_s))


def gives(**rewards: Any) -> Callable[..., dict[str, Any]]:
    return lambda *_: rewards


def hands_back(state: EpisodeState, *_: Any) -> str:
    state.child_results.append("done")  # type: ignore[arg-type]
    return ""


BROKEN = RuntimeError("it broke")
REWARDS = {
    "raises": Bad("RuntimeError: it broke", scored(raising(BROKEN)), steps=2),
    "raises later": Bad("RuntimeError: it broke", scored(later(BROKEN)), steps=2),
    "raises beside a judge": Bad("RuntimeError: it broke", scored(judged, raising(BROKEN)), steps=2),
    "two raise": Bad("RuntimeError: it broke", scored(later(BROKEN), later(BROKEN)), steps=2),
    "is cancelled": Bad("CancelledError", scored(later(asyncio.CancelledError())), steps=2),
    "nan": Bad("nan for 'A'", scored(gives(A=float("nan")))),
    "infinite together": Bad("rewards add up to", scored(*[gives(A=1e308)] * 2)),
    "unknown role": Bad("'Judge', which is not a role", scored(gives(A=1.0, Judge=1.0))),
    "no rewards": Bad("expected rewards by role", scored(lambda *_: 1.0)),
    "no number": Bad("expected a number", scored(gives(A=None))),
    "never": Bad("never did not end within 20 s", scored(never, timeout_s=RUBRIC_S)),
    "never and no bound": Bad(OVER, scored(never)),
    "judge never answers": Bad("judged did not end within 20 s", scored(judged, timeout_s=RUBRIC_S), judge_only),
    "judge never answers and no bound": Bad(OVER, reply=judge_only, steps=2),
}
REPLIES = {
    "empty": Bad("it is empty", reply=said("")),
    "blank": Bad("it is empty", reply=said(" \n")),
    "too long": Bad("101 characters; expected 100", reply=said("x" * 101)),
    "bytes": Bad("expected text", reply=said(b"four")),
    "nothing": Bad("expected text", reply=later(None)),
    "bare text": Bad("expected text", reply="four"),
    "no tokens": Bad("no token ids", reply=said("four")),
    "no ids": Bad("expected some of each", reply=said("four", [1], [], [])),
    "no prompt": Bad("expected some of each", reply=said("four", [], [1], [-0.5])),
    "too few log-probabilities": Bad("expected one of each", reply=said("four", [1], [2, 3], [-0.5])),
    "too many log-probabilities": Bad("expected one of each", reply=said("four", [1], [2], [-0.5, -0.5])),
    "nan": Bad("not a finite number", reply=said("four", [1], [2], [float("nan")])),
    "a place beyond the reply": Bad(
        "beyond the reply's 1 tokens",
        reply=ModelResponse("four", msgspec.structs.replace(unconstrained_model_call([1], [2], [-0.5]), branches=[5])),
    ),
    "tokens of no kind": Bad("AttributeError", reply=ModelResponse("four", {"ids": [1]})),  # type: ignore[arg-type]
    "no answer": Bad("TimeoutError: the server is away", reply=later(TimeoutError("the server is away"))),
    "cancelled": Bad("CancelledError", reply=later(asyncio.CancelledError())),
    "never": Bad(OVER, reply=never),
}
HOOKS = ("get_initial_actor", "get_initial_prompt", "get_observation", "is_done", "env_response", "get_extras")
ENVIRONMENTS = {
    **{f"{hook} raises": Bad("RuntimeError: it broke", Talk(**{hook: raising(BROKEN)})) for hook in HOOKS},
    "get_next_actor raises": Bad("RuntimeError: it broke", Talk(get_next_actor=raising(BROKEN)), steps=1),
    "new_state raises": Bad("RuntimeError: it broke", Talk(new_state=raising(BROKEN)), steps=0),
    "new_state gives none": Bad("AttributeError", Talk(new_state=lambda: None), steps=0),
    "raises later": Bad("RuntimeError: it broke", Talk(env_response=later(BROKEN)), steps=1),
    "wants to end the process": Bad("SystemExit: 3", Talk(env_response=raising(SystemExit(3))), steps=1),
    "is cancelled": Bad("CancelledError", Talk(env_response=later(asyncio.CancelledError())), steps=1),
    "nests too deep": Bad("RecursionError", Talk(env_response=raising(RecursionError("too deep"))), steps=1),
    "names nobody": Bad("no role 'Nobody'", Talk(get_next_actor=lambda *_: "Nobody"), steps=1),
    "shows no text": Bad("TypeError", Talk(get_observation=lambda *_: 5), steps=0),
    "gives another state": Bad("returned another state", Talk(rollout=later(EpisodeState()))),
    "hands back no results": Bad("expected results of other episodes", Talk(env_response=hands_back), steps=2),
    "never ends by itself": Bad(f"more than {CALLS} model calls", Talk(is_done=lambda *_: False), steps=CALLS),
    "never ends": Bad(OVER, Talk(env_response=never), steps=1),
    "a game that is too long": Bad(
        "not over after 2 turns", GameEpisode(make_game("nim", {}), ["A", "B"], max_turns=2), steps=2
    ),
    "an empty store": Bad("store 'empty': it is empty", request=EpisodeRequest("bad", store="empty"), steps=0),
    "a store without weights": Bad("all 1 weights are 0", request=EpisodeRequest("bad", store="dull", weighted=True)),
    "no store": Bad("no store 'lost'", request=EpisodeRequest("bad", store="lost"), steps=0),
    "wants what there is not": Bad(
        "no episode 'lost'", Asks(), request=EpisodeRequest("bad", [EpisodeRequest("lost")]), steps=1
    ),
}
ALL = {
    f"{kind}: {name}": bad
    for kind, bads in (("reward", REWARDS), ("reply", REPLIES), ("environment", ENVIRONMENTS))
    for name, bad in bads.items()
}


def arena_of(bad: Bad, limits: Limits = LIMITS) -> Arena:
    arena = Arena(Client(bad.reply), CREDIT_ASSIGNERS.build(Plugin("grpo")), limits=limits)
    for role in ("A", "B"):
        arena.add_role(Role(role))
    for name, episode in {"talk": Talk(), "bad": bad.episode, "asks": Asks(), "strict": Asks(strict=True)}.items():
        arena.add_episode(name, episode)
    arena.add_store("empty")
    arena.add_store("dull").add(Artifact("bad", weight=0.0))
    return arena


def requests(*middle: EpisodeRequest) -> list[EpisodeRequest]:
    return [EpisodeRequest("talk", "first"), *middle, EpisodeRequest("talk", "last")]


def timeless(result: GenerateResult) -> GenerateResult:
    rollout = msgspec.structs.replace(result.rollout, started_at=0.0, ended_at=0.0)
    return GenerateResult(rollout, [timeless(child) for child in result.children])


class OwnTime(asyncio.SelectorEventLoop):
    """A loop that skips what it would wait for, so that limits are reached at once, and by nothing else."""

    def __init__(self) -> None:
        self.now_s = 0.0
        selector = selectors.DefaultSelector()
        select = selector.select

        def skip(timeout: float | None = None) -> Any:
            assert timeout is not None, "nothing will ever happen"
            self.now_s += max(timeout, 0.0)
            return select(0)

        selector.select = skip  # type: ignore[method-assign]
        super().__init__(selector)

    def time(self) -> float:
        return self.now_s


def run(arena: Arena, asked: Sequence[EpisodeRequest]) -> list[GenerateResult]:
    with asyncio.Runner(loop_factory=OwnTime) as runner:
        return [timeless(result) for result in runner.run(arena.generate_rollouts(asked))]


@pytest.mark.parametrize("name", ALL)
def test_what_is_wrong_with_an_episode_is_its_reason_and_changes_no_other(name: str) -> None:
    bad = ALL[name]
    arena = arena_of(bad)
    with_it, without = run(arena, requests(bad.request)), run(arena_of(bad), requests(EpisodeRequest("talk", "fine")))
    assert bad.why in with_it[1].failure
    assert with_it[1].rewards == {}
    assert bad.steps is None or len(with_it[1].rollout.steps) == bad.steps
    assert [with_it[0], with_it[2]] == [without[0], without[2]]
    assert not any(result.failure for result in without)
    batch, other = (arena.build_training_batch(results) for results in (with_it, without))
    assert batch.records == [record for record in other.records if record.rollout_id != "arena-1"]
    assert (len(batch.records), batch.counts.failed, list(batch.failures)) == (4, 1, ["arena-1"])


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", [name for name, bad in ALL.items() if bad.why != OVER])
def test_a_parent_goes_on_or_fails_as_it_likes_and_other_children_are_as_they_were(name: str, strict: bool) -> None:
    bad, kind = ALL[name], "strict" if strict else "asks"
    (with_it,) = run(arena_of(bad), [EpisodeRequest(kind, requests(bad.request))])
    (without,) = run(arena_of(bad), [EpisodeRequest(kind, requests(EpisodeRequest("talk", "fine")))])
    assert bad.why in with_it.children[1].failure
    assert with_it.children[::2] == without.children[::2]
    assert with_it.failure == (f"ValueError: a child failed: {with_it.children[1].failure}" if strict else "")
    assert with_it.rewards == ({} if strict else {"A": 2.0})
    taught = [record.rollout_id for record in arena_of(bad).build_training_batch([with_it]).records]
    assert taught == ["arena-0"] * (not strict) + ["arena-0.0"] * 2 + ["arena-0.2"] * 2


def test_a_parent_whose_child_takes_all_its_time_is_over_with_it_and_its_siblings_go_on() -> None:
    late = EpisodeRequest("asks", requests(EpisodeRequest("bad", "fine")))
    results = run(arena_of(Bad(OVER, Talk(env_response=never))), requests(late))
    assert [result.failure for result in results] == ["", OVER, ""]
    assert results[1].children == [], "what was not handed back is nobody's"


def test_a_child_that_is_handed_back_twice_fails_its_parent_and_is_trained_on_once() -> None:
    class Twice(Asks):
        async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState) -> EpisodeState:
            state = await super().rollout(arena, artifact, state)
            state.child_results += state.child_results[:1]
            return state

    arena = arena_of(Bad("", Twice()))
    (result,) = run(arena, [EpisodeRequest("bad", requests())])
    assert "each once" in result.failure
    taught = [record.rollout_id for record in arena.build_training_batch([result]).records]
    assert taught == ["arena-0.0"] * 2 + ["arena-0.1"] * 2


# Told to stop


class Stops(Client):
    """Answers so many calls, and no more until it is let go on."""

    def __init__(self, answers: int) -> None:
        super().__init__(None)
        self.answers = answers
        self.wait_for_sequence = asyncio.Event()

    async def complete(self, messages: Sequence[Message], *how: Any) -> ModelResponse:
        self.answers -= 1
        if self.answers < 0:
            self.wait_for_sequence.set()
            await never()
        return await super().complete(messages, *how)


class Loop(Arena):
    """Two talks, and an episode that asks for two more."""

    ended = 0
    closed = False

    def get_batch(self) -> list[EpisodeRequest]:
        return requests(EpisodeRequest("asks", requests()))

    async def on_step_end(self, results: Sequence[GenerateResult], batch: Any) -> None:
        self.ended += 1

    async def shutdown(self) -> None:
        self.closed = True


def loop_of(client: Client, talk: Episode) -> Loop:
    arena = Loop(client, CREDIT_ASSIGNERS.build(Plugin("rae")))
    for role in ("A", "B"):
        arena.add_role(Role(role))
    arena.add_episode("talk", talk)
    arena.add_episode("asks", Asks())
    return arena


CALLS_OF_A_STEP = 4 * 3 + 1
"""Of each talk two and its judge's, and the one that asks for two of them."""


async def stubborn(rollout: Rollout, arena: Arena) -> dict[str, float]:
    """Gives a reward even where it is told to stop."""
    with contextlib.suppress(asyncio.CancelledError):
        return await judged(rollout, arena)
    return {"A": 1.0, "B": 1.0}


@pytest.mark.parametrize("reward", [judged, stubborn])
@pytest.mark.parametrize("answers", range(CALLS_OF_A_STEP))
def test_a_step_that_is_cut_short_leaves_nothing_and_the_next_is_whole(answers: int, reward: Any) -> None:
    async def cut_short() -> None:
        client = Stops(answers)
        arena = loop_of(client, scored(reward))
        step = asyncio.create_task(arena.step())
        await client.wait_for_sequence.wait()
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        assert len(asyncio.all_tasks()) == 1, "nothing plays on"
        assert (arena.steps, arena.credit_state, arena.ended) == (0, {}, 0)
        client.answers = 1_000
        batch = await arena.step()
        assert (batch.step, batch.counts.records, batch.counts.failed, arena.ended) == (0, 9, 0, 1)
        assert {record.rollout_id.split(".")[0] for record in batch.records} == {"arena-3", "arena-4", "arena-5"}

    with asyncio.Runner(loop_factory=OwnTime) as runner:
        runner.run(cut_short())


def test_a_run_that_is_cut_short_shuts_down_and_keeps_the_batches_it_gave() -> None:
    async def cut_short() -> None:
        client = Stops(CALLS_OF_A_STEP + 5)
        arena, batches = loop_of(client, Talk()), []

        async def keep() -> None:
            async for batch in arena.run():
                batches.append(batch)  # noqa: PERF401 - what came before must be kept

        running = asyncio.create_task(keep())
        await client.wait_for_sequence.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert ([batch.counts.records for batch in batches], arena.steps, arena.closed) == ([9], 1, True)

    with asyncio.Runner(loop_factory=OwnTime) as runner:
        runner.run(cut_short())


def test_a_call_that_an_episode_does_not_wait_for_is_in_no_record() -> None:
    left: list[asyncio.Task[Any]] = []

    class Forgets(Talk):
        async def env_response(self, state: EpisodeState, arena: Arena, artifact: Any) -> str:  # type: ignore[override]
            left.append(asyncio.create_task(self.call_model("A", "And by the way?", arena)))
            if artifact == "bad":
                raise BROKEN
            return ""

    async def played() -> list[GenerateResult]:
        arena = arena_of(Bad("", Forgets()))
        results = await arena.generate_rollouts([EpisodeRequest("bad", kind) for kind in ("fine", "bad")])
        before = [timeless(result) for result in results]
        await asyncio.gather(*left)
        assert [timeless(result) for result in results] == before
        return results

    with asyncio.Runner(loop_factory=OwnTime) as runner:
        fine, bad = runner.run(played())
    assert fine.failure == ""
    assert all(step.reward for step in fine.rollout.steps)
    assert bad.failure == "RuntimeError: it broke"
