"""What one role is shown reaches nobody else: random conversations, nested and side by side, and hidden cards.

Each property is also put to mutants that leak, which it has to find.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from arena.arena import Arena
from arena.clients import ScriptedClient
from arena.episodes import Episode
from arena.episodes.chat import AlternatingRolesEpisode, ChatEpisode, MultiTurnEpisode
from arena.episodes.game import GameEpisode
from arena.games import make_game
from arena.games.kuhn_poker import CARDS, KuhnPoker, KuhnPokerSpec
from arena.games.texts import words_of
from arena.rubrics import Rubric
from schemas.episodes import (
    EpisodeRequest,
    EpisodeState,
    GenerateResult,
    Message,
    ModelResponse,
    Role,
    Rollout,
    TranscriptEntry,
)
from schemas.ids import derive_seed

ROLES = ("A", "B", "C")
KINDS = ("alternating", "chat", "monologue")


class Plan(NamedTuple):
    """How a conversation goes."""

    kind: str
    speakers: tuple[str, ...]
    secrets: tuple[bool, ...]
    """Whether who speaks in a turn is shown something of its own; as long as ``speakers``."""
    append_latencies: bool = False
    """Whether what is shown has to be waited for."""
    aloud: bool = False
    """Whether the environment says something after each turn."""
    told: bool = False
    """Whether the judge is handed what was shown."""
    children: tuple["Plan", ...] = ()
    """Asked for, side by side, after the first turn."""
    opening: str = "Begin."


def plans() -> st.SearchStrategy[Plan]:
    return st.recursive(_plan(st.just(())), lambda below: _plan(st.lists(below, max_size=2).map(tuple)), max_leaves=3)


def _plan(children: st.SearchStrategy[tuple[Plan, ...]]) -> st.SearchStrategy[Plan]:
    turns = st.lists(st.tuples(st.sampled_from(ROLES), st.booleans()), min_size=1, max_size=5)
    flags = st.tuples(st.booleans(), st.booleans(), st.booleans())
    return st.builds(
        lambda kind, turns, flags, below: Plan(kind, *map(tuple, zip(*turns, strict=True)), *flags, below),
        st.sampled_from(KINDS),
        turns,
        flags,
        children,
    )


def marker(rollout_id: str, role_id: str, turn: int) -> str:
    return f"[secret of {role_id} in {rollout_id}, turn {turn}]"


def markers(texts: Iterable[str]) -> set[str]:
    return set(re.findall(r"\[secret [^]]*]", "\n".join(texts)))


async def judged(rollout: Rollout, arena: Arena) -> dict[str, float]:
    """A judge reads what was said, and what an episode hands over to it."""
    heard = [step.completion_text for step in rollout.steps] + rollout.extras["heard"] + rollout.extras["shown"]
    await arena.call_model([Message("user", "\n".join([f"Judge {rollout.id}.", *heard]))])
    return {step.role_id: 1.0 for step in rollout.steps}


class Told:
    """Conversations by plan: the hooks that all three kinds share."""

    rubric = Rubric([judged])

    def get_initial_prompt(self, arena: Arena, artifact: Plan, state: EpisodeState) -> str:
        return artifact.opening

    def get_observation(self, state: EpisodeState, arena: Arena, artifact: Plan) -> Any:
        return _later(self.shown(state, artifact)) if artifact.append_latencies else self.shown(state, artifact)

    def shown(self, state: EpisodeState, plan: Plan) -> str:
        secret = marker(state.rollout_id, state.current_actor, state.turn) if plan.secrets[state.turn] else ""
        if secret and plan.told:
            state.data.setdefault("shown", []).append(secret)
        return secret

    async def env_response(self, state: EpisodeState, arena: Arena, artifact: Plan) -> str:
        if state.turn == 1:
            requests = [EpisodeRequest(below.kind, self.handed_down(below, state)) for below in artifact.children]
            state.child_results += await arena.generate_rollouts(requests)
        return f"Turn {state.turn} is over." if artifact.aloud else ""

    def handed_down(self, below: Plan, state: EpisodeState) -> Plan:
        return below

    def is_done(self, state: EpisodeState, artifact: Plan) -> bool:
        return state.turn == len(artifact.speakers)

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        return {"heard": [said.text for said in state.transcript], "shown": state.data.get("shown", [])}


async def _later(text: str) -> str:
    await asyncio.sleep(0)
    return text


def episodes(hooks: type[Told]) -> dict[str, Episode]:
    class Chat(hooks, ChatEpisode):
        episode_type = "chat"

        def get_initial_actor(self, artifact: Plan, state: EpisodeState) -> str:
            return artifact.speakers[0]

        def get_next_actor(self, state: EpisodeState, artifact: Plan) -> str:
            return artifact.speakers[state.turn]

    class Monologue(hooks, MultiTurnEpisode):
        episode_type = "monologue"

        def get_initial_actor(self, artifact: Plan, state: EpisodeState) -> str:
            return artifact.speakers[0]

    class Alternating(hooks, AlternatingRolesEpisode):
        episode_type = "alternating"

    return {"chat": Chat(), "monologue": Monologue(), "alternating": Alternating(ROLES, 99)}


def played(plan: Plan, hooks: type[Told] = Told) -> tuple[list[GenerateResult], ScriptedClient]:
    """The same plan twice, side by side."""
    words = iter(range(1_000))
    client = ScriptedClient.from_function(lambda _: f"word {next(words)}.")
    arena = Arena(client)
    for role in ROLES:
        arena.add_role(Role(role, f"You are {role}."))
    for kind, episode in episodes(hooks).items():
        arena.add_episode(kind, episode)
    return asyncio.run(arena.generate_rollouts([EpisodeRequest(plan.kind, plan)] * 2)), client


def leaks(plan: Plan, hooks: type[Told] = Told) -> list[str]:
    """Where something private is that should not be there, or is not where it should be."""
    results, client = played(plan, hooks)
    rollouts = {rollout.id: rollout for result in results for rollout in result.all_rollouts()}
    assert not any(rollout.failure for rollout in rollouts.values())
    asked = [call.messages for call in client.calls if call.return_tokens]
    assert len(asked) == sum(len(rollout.steps) for rollout in rollouts.values()), "every prompt is looked at"
    return [*_of_prompts(rollouts), *_of_judges(rollouts, client)]


def _own(rollout: Rollout, turn: int) -> set[str]:
    return {marker(rollout.id, rollout.steps[turn].role_id, turn)} if rollout.artifact.secrets[turn] else set()


def _of_prompts(rollouts: Mapping[str, Rollout]) -> list[str]:
    found = []
    for rollout in rollouts.values():
        if markers(rollout.extras["heard"]):
            found.append(f"transcript of {rollout.id}")
        for turn, step in enumerate(rollout.steps):
            if markers(message.content for message in step.prompt) != _own(rollout, turn):
                found.append(f"turn {turn} of {rollout.id}")
    return found


def _of_judges(rollouts: Mapping[str, Rollout], client: ScriptedClient) -> list[str]:
    found = []
    for question in (call.messages[-1].content for call in client.calls if not call.return_tokens):
        rollout = rollouts[question.splitlines()[0].removeprefix("Judge ").removesuffix(".")]
        turns = range(len(rollout.steps)) if rollout.artifact.told else ()
        if markers([question]) != {secret for turn in turns for secret in _own(rollout, turn)}:
            found.append(f"judge of {rollout.id}")
    return found


@given(plans())
@settings(max_examples=60, deadline=None)
def test_what_is_private_is_in_the_one_prompt_it_is_for_and_nowhere_else(plan: Plan) -> None:
    assert leaks(plan) == []


# What leaks is found


class Aloud(Told):
    """Says to all what it shows to one."""

    def shown(self, state: EpisodeState, plan: Plan) -> str:
        text = super().shown(state, plan)
        state.transcript += [TranscriptEntry("", text)] if text else []
        return text


class Echo(Told):
    """Its environment lets slip what was shown."""

    async def env_response(self, state: EpisodeState, arena: Arena, artifact: Plan) -> str:
        said = await super().env_response(state, arena, artifact)
        last = state.turn - 1
        return said + (marker(state.rollout_id, state.current_actor, last) if artifact.secrets[last] else "")


class Mixed(Told):
    """Keeps what it showed last in the episode object, which all episodes of the kind share."""

    last = ""

    def shown(self, state: EpisodeState, plan: Plan) -> str:
        found, self.last = self.last, super().shown(state, plan)
        return found + self.last


class Inherits(Told):
    """Begins the conversations below with what was shown above."""

    def handed_down(self, below: Plan, state: EpisodeState) -> Plan:
        return below._replace(opening=marker(state.rollout_id, state.current_actor, 0))


class Tells(Told):
    """Hands its judge what it showed, though its plan says no."""

    def shown(self, state: EpisodeState, plan: Plan) -> str:
        return super().shown(state, plan._replace(told=True))


class Withholds(Told):
    """Shows nothing: a property that only looks for leaks would be content."""

    def shown(self, state: EpisodeState, plan: Plan) -> str:
        return ""


@pytest.mark.parametrize("mutant", [Aloud, Echo, Mixed, Inherits, Tells, Withholds])
def test_an_episode_that_leaks_is_found(mutant: type[Told]) -> None:
    how = settings(max_examples=200, derandomize=True, database=None, phases=[Phase.generate])
    assert leaks(find(plans(), lambda plan: bool(leaks(plan, mutant)), settings=how)) == []


# A game of hidden cards

Shown = dict[tuple[str, str, tuple[str, ...]], dict[str, set[str]]]
"""Prompts by role, its own card and what was said so far, then by the card of the other."""


class Chooses(ScriptedClient):
    """Takes one of the choices, by what it reads and by a number."""

    def __init__(self, salt: int) -> None:
        super().__init__()
        self.salt = salt

    async def choose(
        self, messages: Sequence[Message], choices: Sequence[str], *how: Any, **more: Any
    ) -> ModelResponse:
        await asyncio.sleep(0)
        read = f"{self.salt} {messages[-1].content}".encode()
        return self._respond_with_tokens(choices[crc32(read) % len(choices)], messages, 1.0)


def shown(spec: KuhnPokerSpec, salt: int) -> Shown:
    arena = Arena(Chooses(salt), seed=salt)
    arena.add_role(Role("A"))
    arena.add_role(Role("B"))
    arena.add_episode("poker", GameEpisode(spec, ["A", "B"], constrained=True))
    found: Shown = {}
    for result in asyncio.run(arena.generate_rollouts([EpisodeRequest("poker")] * 40)):
        rollout = result.rollout
        assert rollout.failure == ""
        seed = derive_seed(derive_seed(arena.seed, "episode", rollout.id), "game")
        cards = [CARDS[card] for card in msgspec.json.decode(spec.new(seed).save())["cards"]]
        for turn, step in enumerate(rollout.steps):
            mine, other = cards if step.role_id == "A" else cards[::-1]
            said = tuple(before.completion_text for before in rollout.steps[:turn])
            read = "\n".join(message.content for message in step.prompt)
            found.setdefault((step.role_id, mine, said), {}).setdefault(other, set()).add(read)
    return found


def differing(prompts: Shown) -> list[tuple[str, str, tuple[str, ...]]]:
    """Where what is asked of a seat is not the same whatever the other holds."""
    return [known for known, by_other in prompts.items() if len(set.union(*by_other.values())) > 1]


@given(st.integers(0, 2**32))
@settings(max_examples=5, deadline=None)
def test_what_is_asked_of_a_seat_does_not_depend_on_the_card_of_the_other(salt: int) -> None:
    prompts = shown(make_kuhn(KuhnPokerSpec), salt)
    assert differing(prompts) == []
    compared = [known for known, by_other in prompts.items() if len(by_other) == 2]
    assert len(compared) >= 6, "the same was known to a seat while the other held one card, and the other"


def make_kuhn(kind: Callable[[Any], KuhnPokerSpec]) -> KuhnPokerSpec:
    spec = make_game("kuhn_poker", {})
    assert isinstance(spec, KuhnPokerSpec)
    return kind(spec.settings)


class Peeking(KuhnPoker):
    """Tells a seat what the other holds."""

    def tells(self, seat: int) -> str:
        return f"{super().tells(seat)} The other holds the {CARDS[self.state.cards[1 - seat]]}."


class PeekingSpec(KuhnPokerSpec):
    game_type = Peeking


def test_a_game_that_shows_the_other_card_is_found() -> None:
    assert differing(shown(make_kuhn(PeekingSpec), 1))


OPENSPIEL = ("leduc_poker", "liars_dice", "kuhn_poker(players=3)", "goofspiel(num_cards=4,imp_info=True)")


@pytest.mark.parametrize("name", OPENSPIEL)
def test_what_is_asked_of_a_seat_in_openspiels_games_says_what_openspiel_says_it_knows(name: str) -> None:
    pytest.importorskip("pyspiel")
    spec = make_game("openspiel", {"game": name})
    words = words_of(spec)
    asked: dict[tuple[int, str], set[str]] = {}
    positions: dict[tuple[int, str], set[str]] = {}
    for seed in range(150):
        game, rng = spec.new(seed), Random(seed)
        while moving := game.to_move():
            for seat in moving:
                knows = (seat, game.position.information_state_string(seat))
                asked.setdefault(knows, set()).add(words.question(game, seat))
                positions.setdefault(knows, set()).add(str(game.position.history()))
            game.apply({seat: game.random_action(seat, rng) for seat in moving})
    assert all(len(questions) == 1 for questions in asked.values())
    assert sum(len(found) > 1 for found in positions.values()) > 5, "the same is known in more positions than one"
