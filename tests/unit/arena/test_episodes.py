"""Episodes: what enters a record, what fails, what nests, and what a role never gets to see."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.arena import Arena
from arena.bots import RandomBot
from arena.clients import ScriptedClient
from arena.episodes import Episode
from arena.episodes.chat import AlternatingRolesEpisode, MultiTurnEpisode, SingleTurnEpisode
from arena.episodes.game import GameEpisode
from arena.games import make_game
from arena.games.kuhn_poker import CARDS
from arena.model_call import Limits
from arena.rubrics import Rubric
from schemas.episodes import (
    EpisodeRequest,
    EpisodeState,
    Message,
    ModelResponse,
    Role,
    Rollout,
    unconstrained_model_call,
)
from schemas.errors import EpisodeError, UsageError, describe_error
from schemas.ids import derive_seed

Reward = Callable[[Rollout, Arena], Mapping[str, float] | Awaitable[Mapping[str, float]]]


def one(rollout: Rollout, arena: Arena) -> dict[str, float]:
    return {"Solver": 1.0}


class Ask(SingleTurnEpisode):
    """One question to the solver."""

    def __init__(self, reward: Reward = one, timeout_s: float | None = None) -> None:
        super().__init__("Solver")
        self._rubric = Rubric([reward], timeout_s=timeout_s)

    @property
    def episode_type(self) -> str:
        return "ask"

    @property
    def rubric(self) -> Rubric:
        return self._rubric

    def get_prompt(self, artifact: Any) -> str:
        return f"What is {artifact}?"


def arena_of(client: ScriptedClient | None = None, limits: Limits | None = None, **episodes: Episode) -> Arena:
    arena = Arena(client or ScriptedClient("four"), limits=limits)
    for role in ("Solver", "Proposer", "A", "B", "C"):
        arena.add_role(Role(role, f"You are {role}."))
    for name, episode in episodes.items():
        arena.add_episode(name, episode)
    return arena


def run(arena: Arena, kind: str = "ask", artifact: Any = "2 + 2") -> Rollout:
    return asyncio.run(arena.run_episode(kind, artifact)).rollout


def test_a_single_turn_is_recorded_scored_and_tokenised() -> None:
    arena = arena_of(ask=Ask())
    rollout = run(arena)
    (step,) = rollout.steps
    assert step.prompt == [Message("system", "You are Solver."), Message("user", "What is 2 + 2?")]
    assert (step.completion_text, step.reward, rollout.rewards) == ("four", 1.0, {"Solver": 1.0})
    assert rollout.metrics == {"one/Solver": 1.0}
    assert (rollout.id, rollout.parent, rollout.failure, rollout.artifact) == ("arena-0", "", "", "2 + 2")
    assert step.completion_token_ids is not None
    assert step.completion_logprobs == [-0.5]
    assert rollout.ended_at >= rollout.started_at > 0


def test_ids_and_seeds_are_the_same_on_every_day() -> None:
    asked = []
    for _ in range(2):
        client = ScriptedClient("four")
        arena = arena_of(client, ask=Ask())
        results = asyncio.run(arena.generate_rollouts([EpisodeRequest("ask", n) for n in range(4)], concurrency=2))
        asked.append(([result.rollout.id for result in results], sorted(call.seed for call in client.calls)))
    assert asked[0] == asked[1]
    assert len(set(asked[0][1])) == 4


# What nests


class Propose(Episode):
    """A proposal, then solvers; to any depth."""

    def __init__(self, depth: int = 1, trainable: bool = True, width: int = 2) -> None:
        self.depth, self.trainable, self.width = depth, trainable, width

    @property
    def episode_type(self) -> str:
        return "propose"

    @property
    def rubric(self) -> Rubric:
        return Rubric([lambda rollout, arena: {"Proposer": rollout.extras["pass_rate"]}])

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState) -> EpisodeState:
        response = await self.call_model("Proposer", f"Level {artifact}", arena)
        deeper = artifact < self.depth
        request = (
            EpisodeRequest("propose", artifact + 1)
            if deeper
            else EpisodeRequest("ask", response.text, is_trainable=self.trainable)
        )
        state.child_results.extend(await arena.generate_rollouts([request] * self.width))
        return state

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        return {"pass_rate": sum(r.rewards.get("Solver", 1.0) for r in state.child_results) / self.width}


def test_episodes_nest_to_any_depth_with_room_for_one_at_a_time() -> None:
    arena = arena_of(propose=Propose(depth=6), ask=Ask())
    (result,) = asyncio.run(arena.generate_rollouts([EpisodeRequest("propose", 1)], concurrency=1))
    rollouts = result.all_rollouts()
    assert len(rollouts) == 2**7 - 1
    assert max(rollout.depth for rollout in rollouts) == 6
    assert len({rollout.id for rollout in rollouts}) == len(rollouts)
    assert {rollout.parent for rollout in rollouts if rollout.depth == 1} == {result.rollout.id}
    assert all(rollout.parent == rollout.id.rpartition(".")[0] for rollout in rollouts)
    assert [rollout.id for rollout in rollouts[:3]] == ["arena-0", "arena-0.0", "arena-0.0.0"]


def test_each_call_enters_the_trajectory_of_the_episode_that_made_it() -> None:
    arena = arena_of(propose=Propose(), ask=Ask())
    (result,) = asyncio.run(arena.generate_rollouts([EpisodeRequest("propose", 1)]))
    assert [[s.role_id for s in r.steps] for r in result.all_rollouts()] == [["Proposer"], ["Solver"], ["Solver"]]


@given(st.lists(st.booleans(), min_size=1, max_size=4), st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_no_step_under_an_untrainable_episode_reaches_a_batch(flags: list[bool], depth: int) -> None:
    class Tree(Propose):
        async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState) -> EpisodeState:
            await self.call_model("Proposer", "Go", arena)
            kind = "propose" if artifact < depth else "ask"
            requests = [EpisodeRequest(kind, artifact + 1, is_trainable=flag) for flag in flags]
            state.child_results.extend(await arena.generate_rollouts(requests))
            return state

    arena = arena_of(propose=Tree(width=len(flags)), ask=Ask())
    (result,) = asyncio.run(arena.generate_rollouts([EpisodeRequest("propose", 1)]))
    batch = arena.build_training_batch([result])

    def allowed(id: str) -> bool:
        return all(flags[int(number)] for number in id.split(".")[1:])

    ids = [rollout.id for rollout in result.all_rollouts()]
    assert sorted({record.rollout_id for record in batch.records}) == sorted(filter(allowed, ids))
    assert batch.counts.of_untrainable == sum(not allowed(id) for id in ids)


def test_a_judge_is_asked_and_never_trained_on() -> None:
    async def judged(rollout: Rollout, arena: Arena) -> dict[str, float]:
        verdict = await arena.call_model([Message("user", f"Is it right? {rollout.steps[0].completion_text}")])
        return {"Solver": float(verdict.text == "yes")}

    client = ScriptedClient.from_function(lambda messages: "yes" if "right" in messages[-1].content else "four")
    arena = arena_of(client, ask=Ask(judged))
    result = asyncio.run(arena.run_episode("ask"))
    batch = arena.build_training_batch([result])
    assert [call.return_tokens for call in client.calls] == [True, False]
    assert result.rewards == {"Solver": 1.0}
    assert [record.role_id for record in batch.records] == ["Solver"]


# What only one role sees


class Secrets(AlternatingRolesEpisode):
    """Roles in any order, each with a secret of each turn."""

    def __init__(self, order: Sequence[str], answers: bool) -> None:
        super().__init__(("A", "B", "C"), max_turns=len(order))
        self.order, self.answers = order, answers

    @property
    def episode_type(self) -> str:
        return "secrets"

    @property
    def rubric(self) -> Rubric:
        return Rubric([])

    def get_initial_actor(self, artifact: Any, state: EpisodeState) -> str:
        return self.order[0]

    def get_initial_prompt(self, arena: Arena, artifact: Any, state: EpisodeState) -> str:
        return "Begin" if self.answers else ""

    def get_next_actor(self, state: EpisodeState, artifact: Any) -> str:
        return self.order[state.turn]

    def get_observation(self, state: EpisodeState, arena: Arena, artifact: Any) -> str:
        return f"secret-{state.current_actor}-{state.turn}."

    def env_response(self, state: EpisodeState, arena: Arena, artifact: Any) -> str:
        return f"Turn {state.turn} is over" if self.answers else ""


@given(st.lists(st.sampled_from("ABC"), min_size=1, max_size=8), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_private_observation_is_in_its_own_prompt_and_in_no_other(order: list[str], answers: bool) -> None:
    count = iter(range(100))
    arena = arena_of(ScriptedClient.from_function(lambda _: f"word-{next(count)}."), secrets=Secrets(order, answers))
    steps = run(arena, "secrets").steps
    assert [step.role_id for step in steps] == order
    prompts = ["\n".join(message.content for message in step.prompt) for step in steps]
    for turn, actor in enumerate(order):
        assert [f"secret-{actor}-{turn}." in prompt for prompt in prompts] == [at == turn for at in range(len(order))]
        # What was said aloud is heard by everybody from then on.
        assert [f"word-{turn}." in prompt for prompt in prompts] == [at > turn for at in range(len(order))]


def test_a_role_sees_its_own_words_as_the_assistants_and_sides_take_turns() -> None:
    arena = arena_of(ScriptedClient("hi", "ho", "hey"), secrets=Secrets("ABA", answers=True))
    last = run(arena, "secrets").steps[2]
    assert last.prompt == [
        Message("system", "You are A."),
        Message("user", "Begin"),
        Message("assistant", "hi"),
        Message("user", "Turn 1 is over\n\nB: ho\n\nTurn 2 is over\n\nsecret-A-2."),
    ]


def test_a_role_that_speaks_twice_in_a_row_is_told_to_go_on() -> None:
    class Monologue(MultiTurnEpisode):
        episode_type = "monologue"
        rubric = Rubric([])

        def get_initial_actor(self, artifact: Any, state: EpisodeState) -> str:
            return "A"

        def get_initial_prompt(self, arena: Arena, artifact: Any, state: EpisodeState) -> str:
            return "Speak"

    steps = run(arena_of(monologue=Monologue(2)), "monologue").steps
    assert [message.role for message in steps[1].prompt] == ["system", "user", "assistant", "user"]


# What fails


class Raises(SingleTurnEpisode):
    episode_type = "raises"
    rubric = Rubric([one])

    def get_prompt(self, artifact: Any) -> str:
        raise RuntimeError("no words")


async def never(rollout: Rollout, arena: Arena) -> dict[str, float]:
    await asyncio.Event().wait()
    return {}


BAD_REWARDS: dict[str, tuple[Any, str]] = {
    "nan": (lambda r, a: {"Solver": float("nan")}, "nan for 'Solver'"),
    "infinite": (lambda r, a: {"Solver": float("inf")}, "inf for 'Solver'"),
    "unknown role": (lambda r, a: {"Judge": 1.0}, "'Judge', which is not a role"),
    "raises": (lambda r, a: 1 / 0, "ZeroDivisionError"),
    "no rewards": (lambda r, a: None, "expected rewards by role"),
    "no number": (lambda r, a: {"Solver": "much"}, "expected a number"),
    "too late": (never, "did not end within 0.02 s"),
}


@pytest.mark.parametrize("name", BAD_REWARDS)
def test_a_bad_reward_fails_its_episode_and_no_other(name: str) -> None:
    reward, why = BAD_REWARDS[name]
    # The others may take their time on a busy machine.
    arena = arena_of(ask=Ask(), bad=Ask(reward, timeout_s=0.02 if reward is never else None))
    results = asyncio.run(arena.generate_rollouts([EpisodeRequest(kind) for kind in ("ask", "bad", "ask")]))
    assert [bool(result.failure) for result in results] == [False, True, False]
    assert why in results[1].failure
    batch = arena.build_training_batch(results)
    assert (batch.counts.records, batch.counts.of_failed, batch.counts.failed) == (2, 1, 1)
    assert list(batch.failures) == [results[1].rollout.id]
    assert results[1].rewards == {}


BAD_REPLIES: dict[str, tuple[Any, str]] = {
    "empty": ("", "it is empty"),
    "blank": (" \n", "it is empty"),
    "too long": ("x" * 101, "101 characters; expected 100"),
    "not text": (ModelResponse(b"four"), "expected text"),  # type: ignore[arg-type]
    "nothing": (ModelResponse(None), "expected text"),  # type: ignore[arg-type]
    "without tokens": (ModelResponse("four"), "no token ids"),
    "uneven": (ModelResponse("four", unconstrained_model_call([1], [2, 3], [-0.5])), "expected one of each"),
    "not finite": (ModelResponse("four", unconstrained_model_call([1], [2], [float("nan")])), "not a finite number"),
    "no tokens": (ModelResponse("four", unconstrained_model_call([1], [], [])), "expected some of each"),
}


@pytest.mark.parametrize("name", BAD_REPLIES)
def test_a_bad_reply_fails_its_episode_and_no_other(name: str) -> None:
    reply, why = BAD_REPLIES[name]
    client = ScriptedClient.from_function(lambda messages: reply if "bad" in messages[-1].content else "four")
    arena = arena_of(client, Limits(reply_chars=100), ask=Ask())
    requests = [EpisodeRequest("ask", artifact) for artifact in ("good", "bad", "good")]
    results = asyncio.run(arena.generate_rollouts(requests))
    assert [bool(result.failure) for result in results] == [False, True, False]
    assert why in results[1].failure
    assert len(arena.build_training_batch(results).records) == 2


@pytest.mark.parametrize("text", ["", " \n"])
def test_silence_can_be_a_turn_that_is_scored_and_trained_on(text: str) -> None:
    client = ScriptedClient.from_function(lambda _: ModelResponse(text, unconstrained_model_call([1], [2], [-0.5])))
    arena = arena_of(client, Limits(empty="count"), ask=Ask())
    result = asyncio.run(arena.run_episode("ask"))
    (record,) = arena.build_training_batch([result]).records
    assert (result.failure, record.reward, record.step.completion_ids) == ("", 1.0, [2])


@pytest.mark.parametrize("reply", [ModelResponse(""), ModelResponse("", unconstrained_model_call([1], [], []))])
def test_silence_that_was_not_sampled_stays_a_failure(reply: ModelResponse) -> None:
    arena = arena_of(
        ScriptedClient.from_function(lambda _: reply), Limits(empty="count", needs_tokens=False), ask=Ask()
    )
    assert "it is empty" in run(arena, "ask").failure


def test_limits_say_what_becomes_of_silence() -> None:
    with pytest.raises(UsageError, match="limits: empty = 'ignore'; expected 'count' or 'fail'"):
        Limits(empty="ignore")


def test_replies_without_tokens_can_be_played_with_and_are_not_trained_on() -> None:
    client = ScriptedClient.from_function(lambda _: ModelResponse("four"))
    arena = arena_of(client, Limits(needs_tokens=False), ask=Ask())
    result = asyncio.run(arena.run_episode("ask"))
    batch = arena.build_training_batch([result])
    assert (result.failure, batch.records, batch.counts.without_tokens) == ("", [], 1)


def test_an_untrainable_episode_needs_no_tokens() -> None:
    arena = arena_of(ScriptedClient.from_function(lambda _: ModelResponse("four")), ask=Ask())
    (result,) = asyncio.run(arena.generate_rollouts([EpisodeRequest("ask", is_trainable=False)]))
    assert result.failure == ""


def test_an_environment_that_raises_is_a_recorded_failure() -> None:
    assert run(arena_of(raises=Raises("Solver")), "raises").failure == "RuntimeError: no words"


class Endless(MultiTurnEpisode):
    episode_type = "endless"
    rubric = Rubric([])

    def get_initial_actor(self, artifact: Any, state: EpisodeState) -> str:
        return "A"

    def get_initial_prompt(self, arena: Arena, artifact: Any, state: EpisodeState) -> str:
        return "Speak"


def test_an_episode_that_never_ends_is_ended_by_its_calls_or_by_time() -> None:
    by_calls = run(arena_of(limits=Limits(calls=5), endless=Endless()), "endless")
    assert (len(by_calls.steps), "more than 5 model calls" in by_calls.failure) == (5, True)
    by_time = run(arena_of(limits=Limits(episode_s=0.05), endless=Endless()), "endless")
    assert by_time.failure == "not over after 0.05 s"


def test_an_error_without_a_message_has_a_reason() -> None:
    class Large(Ask):
        def get_initial_prompt(self, arena: Arena, artifact: Any, state: EpisodeState) -> str:
            raise MemoryError

    arena = arena_of(ask=Large())
    (result,) = asyncio.run(arena.generate_rollouts([EpisodeRequest("ask", 1)]))
    assert result.failure == "MemoryError: the operating system refused this process memory"
    assert describe_error(ValueError()) == "ValueError"
    assert describe_error(ValueError("no rate")) == "ValueError: no rate"


def test_an_empty_store_fails_the_episode_that_wanted_to_draw() -> None:
    arena = arena_of(ask=Ask())
    arena.add_store("questions")
    results = asyncio.run(arena.generate_rollouts([EpisodeRequest("ask", store="questions"), EpisodeRequest("ask", 1)]))
    assert "store 'questions': it is empty" in results[0].failure
    assert results[1].failure == ""


def test_children_that_came_to_an_end_keep_their_scores_where_the_parent_fails() -> None:
    class Spoilt(Propose):
        def get_extras(self, state: EpisodeState) -> dict[str, Any]:
            raise ValueError("no rate")

    arena = arena_of(propose=Spoilt(), ask=Ask())
    (result,) = asyncio.run(arena.generate_rollouts([EpisodeRequest("propose", 1)]))
    batch = arena.build_training_batch([result])
    assert result.failure == "ValueError: no rate"
    assert [record.role_id for record in batch.records] == ["Solver", "Solver"]


def test_a_failed_child_does_not_fail_its_parent_and_is_not_trained_on() -> None:
    count = iter(range(10))

    def sometimes(rollout: Rollout, arena: Arena) -> dict[str, float]:
        return {"Solver": 1.0 if next(count) else float("nan")}

    arena = arena_of(propose=Propose(width=3), ask=Ask(sometimes))
    (result,) = asyncio.run(arena.generate_rollouts([EpisodeRequest("propose", 1)]))
    assert [bool(child.failure) for child in result.children] == [True, False, False]
    assert result.failure == ""
    assert len(arena.build_training_batch([result]).records) == 3


def test_cancelling_a_step_cancels_what_runs() -> None:
    arena = arena_of(ScriptedClient("four", latency_s=30), ask=Ask())

    async def cancelled() -> int:
        task = asyncio.create_task(arena.generate_rollouts([EpisodeRequest("ask")] * 5))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return len(asyncio.all_tasks())

    assert asyncio.run(cancelled()) == 1


def test_an_unknown_episode_is_refused_before_anything_runs() -> None:
    client = ScriptedClient("four")
    arena = arena_of(client, ask=Ask())
    with pytest.raises(UsageError, match="no episode 'asks'; expected 'ask'"):
        asyncio.run(arena.generate_rollouts([EpisodeRequest("ask"), EpisodeRequest("asks")]))
    assert client.calls == []


def test_names_are_registered_once() -> None:
    arena = arena_of(ask=Ask())
    with pytest.raises(UsageError, match="'ask' is registered twice"):
        arena.add_episode("ask", Ask())
    with pytest.raises(EpisodeError, match="no role 'Nobody'"):
        arena.role("Nobody")


def test_calls_made_side_by_side_are_kept_in_the_order_in_which_they_were_made() -> None:
    class Slow(ScriptedClient):
        async def complete(self, messages: Sequence[Message], *args: Any, **kwargs: Any) -> ModelResponse:
            await asyncio.sleep(0.03 if "first" in messages[-1].content else 0.0)
            return await super().complete(messages, *args, **kwargs)

    class Both(Episode):
        episode_type = "both"
        rubric = Rubric([])

        async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState) -> EpisodeState:
            await asyncio.gather(*(self.call_model("A", text, arena) for text in ("first", "second")))
            return state

    steps = run(arena_of(Slow("ok"), both=Both()), "both").steps
    assert [step.prompt[-1].content for step in steps] == ["first", "second"]
    assert [step.tokens.clock for step in steps if step.tokens] == [0, 1]


# Rubrics


def test_a_rubric_weighs_sync_and_async_functions_and_changes_nothing() -> None:
    async def slow(rollout: Rollout, arena: Arena) -> dict[str, float]:
        await asyncio.sleep(0)
        return {"Solver": 2.0, "A": -1.0}

    arena = arena_of(ask=Ask())
    rollout = run(arena)
    before = msgspec.msgpack.encode(rollout)
    scores = asyncio.run(Rubric([one, slow, slow], [1.0, 0.5, 0.25]).score(rollout, arena))
    assert scores.rewards == {"Solver": 2.5, "A": -0.75}
    assert scores.metrics == {
        "one/Solver": 1.0,
        "slow/Solver": 2.0,
        "slow/A": -1.0,
        "slow#2/Solver": 2.0,
        "slow#2/A": -1.0,
    }
    assert msgspec.msgpack.encode(rollout) == before


@pytest.mark.parametrize("weights", [[1.0], [1.0, float("nan")], []])
def test_a_rubric_needs_a_finite_weight_for_each_function(weights: list[float]) -> None:
    with pytest.raises(UsageError, match="expected a finite one each"):
        Rubric([one, one], weights)


def test_a_role_that_no_function_scores_is_counted_and_not_trained_on() -> None:
    arena = arena_of(ask=Ask(lambda rollout, arena: {"A": 1.0}))
    result = asyncio.run(arena.run_episode("ask"))
    batch = arena.build_training_batch([result])
    assert (batch.records, batch.counts.unscored) == ([], 1)


# Games


def test_a_game_is_an_episode_in_which_seats_are_roles_or_bots() -> None:
    arena = arena_of(ScriptedClient("MOVE 1:1"), nim=GameEpisode(make_game("nim", {}), ["A"], bots={1: RandomBot()}))
    rollout = run(arena, "nim", None)
    extras = rollout.extras
    assert {step.role_id for step in rollout.steps} == {"A"}
    assert rollout.rewards == extras["scores"]
    assert extras["invalid"]["A"] == sum(step.tokens.invalid for step in rollout.steps if step.tokens)
    clocks = [step.tokens.clock for step in rollout.steps if step.tokens]
    assert clocks == list(range(len(clocks)))
    assert "You are A." in rollout.steps[0].prompt[0].content


def test_the_same_seed_and_replies_play_the_same_game() -> None:
    def played(seed: int) -> Any:
        arena = Arena(ScriptedClient("no idea"), seed=seed)
        arena.add_role(Role("A"))
        arena.add_role(Role("B"))
        arena.add_episode("nim", GameEpisode(make_game("nim", {}), ["A", "B"]))
        return [(step.role_id, step.prompt) for step in run(arena, "nim", None).steps]

    assert played(1) == played(1)
    assert len({str(played(seed)) for seed in range(5)}) > 1


def test_no_prompt_of_a_game_shows_the_card_that_another_role_holds() -> None:
    spec = make_game("kuhn_poker", {})
    arena = arena_of(ScriptedClient("as you like"), poker=GameEpisode(spec, ["A", "B"]))
    results = asyncio.run(arena.generate_rollouts([EpisodeRequest("poker") for _ in range(60)]))
    shown: set[tuple[str, ...]] = set()
    for rollout in (result.rollout for result in results):
        seed = derive_seed(derive_seed(arena.seed, "episode", rollout.id), "game")
        cards = msgspec.json.decode(spec.new(seed).save())["cards"]
        for step in rollout.steps:
            mine, other = cards if step.role_id == "A" else cards[::-1]
            # The rules, which name all cards, are the system's.
            assert [card in step.prompt[1].content for card in CARDS] == [at == mine for at in range(len(CARDS))]
            shown.add((step.role_id, CARDS[mine], CARDS[other]))
    assert len(shown) == 12, "every deal was seen by both"


def test_a_game_that_is_not_over_in_time_is_a_failure() -> None:
    episode = GameEpisode(make_game("nim", {}), ["A", "B"], max_turns=2)
    assert "not over after 2 turns" in run(arena_of(nim=episode), "nim", None).failure


def test_a_game_needs_a_player_in_each_seat_and_a_role_for_each() -> None:
    for seats in (["A"], ["A", "A"]):
        with pytest.raises(UsageError, match="no role twice"):
            GameEpisode(make_game("nim", {}), seats)


# Batches


def test_a_batch_says_what_it_holds_and_a_wrong_one_is_found() -> None:
    arena = arena_of(ask=Ask(), propose=Propose())
    results = asyncio.run(arena.generate_rollouts([EpisodeRequest("propose", 1)]))
    batch = arena.build_training_batch(results)
    assert batch.rewards == {"ask/Solver": 1.0, "propose/Proposer": 1.0}
    twice = msgspec.structs.replace(batch, records=[batch.records[0]] * 2)
    with pytest.raises(EpisodeError, match="twice"):
        arena.sanity_check_batch(results, twice)
    wrong = msgspec.structs.replace(batch, records=[msgspec.structs.replace(batch.records[0], role_id="A")])
    with pytest.raises(EpisodeError, match="not what that step says"):
        arena.sanity_check_batch(results, wrong)


def test_a_batch_prints_an_example_of_each_group_first(capsys: pytest.CaptureFixture[str]) -> None:
    arena = arena_of(ask=Ask(), propose=Propose())
    results = asyncio.run(arena.generate_rollouts([EpisodeRequest("propose", 1)]))
    arena.sanity_check_batch(results, arena.build_training_batch(results), num_examples=2)
    printed = capsys.readouterr().out
    assert "records 3" in printed
    assert "── Proposer in arena-0, step 0: reward +1.000" in printed
    assert "── Solver in arena-0.0, step 0" in printed
    assert "user: Level 1" in printed


def test_the_action_mask_is_one_where_the_model_chose() -> None:
    arena = arena_of(ScriptedClient("four or five"), ask=Ask())
    (record,) = arena.build_training_batch([asyncio.run(arena.run_episode("ask"))]).records
    prompt, said = record.step.prompt_ids, record.step.completion_ids
    assert record.input_ids == prompt + said
    assert record.action_mask == [0] * len(prompt) + [1] * 3
    forced = msgspec.structs.replace(
        record, step=msgspec.structs.replace(record.step, branches=[1], logprobs=[-1.0], allowed=[[said[1]]])
    )
    assert forced.action_mask == [0] * len(prompt) + [0, 1, 0]
