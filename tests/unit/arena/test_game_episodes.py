"""Games as episodes: who sits where, and roles that can only say what is legal."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from arena.arena import Arena
from arena.bots import RandomBot
from arena.clients import InferenceClient, ScriptedClient, SupportsChoices
from arena.episodes.game import GameEpisode
from arena.games import make_game
from arena.games.base import GameSpec
from arena.games.texts import Listing, words_of
from arena.prompts import make_template
from inference import make_backend
from models import Tokenizer
from models.decoder import Decoder
from players.policy import BackendClient
from schemas.config import PromptsConfig
from schemas.episodes import EpisodeRequest, Message, ModelResponse, Role, Rollout
from schemas.errors import ConfigError, ModelError
from trainer.loss_inputs import recompute_logprobs

LISTED = {
    "kuhn_poker": {},
    "nim": {"heaps": [5, 2]},
    "rock_paper_scissors": {},
    "openspiel": {"game": "leduc_poker"},
    "textarena": {"env": "KuhnPoker-v0-train"},
}


def arena_of(client: InferenceClient, episode: GameEpisode, seed: int = 0) -> Arena:
    arena = Arena(client, seed=seed)
    for role in ("A", "B"):
        arena.add_role(Role(role, max_tokens=8))
    arena.add_episode("game", episode)
    return arena


def played(arena: Arena, *artifacts: Any) -> list[Rollout]:
    requests = [EpisodeRequest("game", artifact) for artifact in artifacts]
    return [result.rollout for result in asyncio.run(arena.generate_rollouts(requests))]


def seats_of(rollouts: Sequence[Rollout]) -> list[dict[str, int]]:
    return [rollout.extras["seats"] for rollout in rollouts]


def poker(*roles: str, **how: bool) -> GameEpisode:
    return GameEpisode(make_game("kuhn_poker", {}), roles, **how)


def test_roles_keep_their_seats_unless_they_are_to_move_on() -> None:
    rollouts = played(arena_of(ScriptedClient("MOVE: check"), poker("A", "B")), None, 1, None)
    assert seats_of(rollouts) == [{"A": 0, "B": 1}] * 3


def test_roles_move_on_by_what_the_artifact_says() -> None:
    spec = make_game("nim", {"seats": 3})
    episode = GameEpisode(spec, ["A", "B"], bots={2: RandomBot()}, rotate=True)
    rollouts = played(arena_of(ScriptedClient("MOVE 1:1"), episode), 0, 1, 2, 3)
    assert seats_of(rollouts) == [{"A": 0, "B": 1}, {"A": 1, "B": 2}, {"B": 0, "A": 2}, {"A": 0, "B": 1}]
    for rollout in rollouts:
        for step in rollout.steps:
            name = spec.seats[rollout.extras["seats"][step.role_id]]
            assert f"You are {name}" in step.prompt[-1].content, "a role sees its seat's view"
        assert rollout.rewards == rollout.extras["scores"]


def test_without_a_number_the_seed_seats_them_and_both_ways_come_up() -> None:
    def seated(seed: int) -> list[dict[str, int]]:
        arena = arena_of(ScriptedClient("MOVE: check"), poker("A", "B", rotate=True), seed)
        return seats_of(played(arena, *[None] * 20))

    assert seated(1) == seated(1)
    assert {seats["A"] for seats in seated(1)} == {0, 1}


@pytest.mark.parametrize("name", LISTED)
def test_every_reply_that_is_listed_is_understood_as_a_move_of_its_own(name: str) -> None:
    try:
        spec = make_game(name, LISTED[name])
    except ConfigError as error:
        pytest.skip(str(error))
    words, game = words_of(spec), spec.new(3)
    assert isinstance(words, Listing)
    bot = spec.bot("random_bot")
    while moving := game.to_move():
        for seat in moving:
            heard = [words.understand(game, seat, reply, Random(0)) for reply in words.replies(game, seat)]
            assert len({found.action for found in heard}) == len(heard) > 0
            assert all(found.illegal == 0 and game.is_legal(seat, found.action) for found in heard)
        game.apply({seat: bot.act(game, seat, Random(seat)) for seat in moving})


class Picky(ScriptedClient):
    """Takes the last choice, and says nonsense where it has none."""

    def __init__(self) -> None:
        super().__init__("nonsense")
        self.offered: list[Sequence[str]] = []

    async def choose(
        self,
        messages: Sequence[Message],
        choices: Sequence[str],
        temperature: float = 1.0,
        return_tokens: bool = True,
        seed: int = 0,
    ) -> ModelResponse:
        self.offered.append(choices)
        return self._respond_with_tokens(choices[-1], messages, temperature)


def test_a_role_is_held_to_legal_moves_where_its_client_can_be() -> None:
    client = Picky()
    (held,) = played(arena_of(client, poker("A", "B", constrained=True)), None)
    assert client.offered[0] == ["MOVE: bet", "MOVE: check"]
    assert held.extras["invalid"] == {"A": 0, "B": 0}
    assert {step.completion_text for step in held.steps} <= {"MOVE: check", "MOVE: fold"}

    (free,) = played(arena_of(Picky(), poker("A", "B")), None)
    assert {step.completion_text for step in free.steps} == {"nonsense"}


def test_a_client_that_cannot_be_held_to_anything_answers_freely() -> None:
    assert not isinstance(ScriptedClient(), SupportsChoices)
    (rollout,) = played(arena_of(ScriptedClient("nonsense"), poker("A", "B", constrained=True)), None)
    assert not rollout.failure
    assert sum(rollout.extras["invalid"].values()) == len(rollout.steps)


@pytest.fixture(scope="module")
def folder(speaker: Callable[..., Path]) -> Path:
    """A model that was taught nothing."""
    return speaker(["MOVE: bet check call fold"] * 9, 280, 4096)


def with_model(folder: Path, spec: GameSpec, games: int, config: PromptsConfig | None = None) -> list[Rollout]:
    async def all_played() -> list[Rollout]:
        backend = make_backend("local", folder)
        try:
            episode = GameEpisode(spec, ["A", "B"], constrained=True)
            arena = arena_of(BackendClient(backend, Tokenizer(folder), config=config, max_tokens=4), episode)
            results = await arena.generate_rollouts([EpisodeRequest("game")] * games)
            return [result.rollout for result in results]
        finally:
            await backend.close()

    return asyncio.run(all_played())


def test_a_model_that_knows_nothing_plays_legally_and_its_probabilities_are_the_learners(folder: Path) -> None:
    rollouts = with_model(folder, make_game("kuhn_poker", {}), 6)
    said = {step.completion_text for rollout in rollouts for step in rollout.steps}
    assert said <= {f"MOVE: {move}" for move in ("bet", "call", "check", "fold")}
    assert len(said) > 2
    assert not any(sum(rollout.extras["invalid"].values()) for rollout in rollouts)
    decoder = Decoder.load(folder)
    for rollout in rollouts:
        tokens = [step.tokens for step in rollout.steps if step.tokens]
        assert all(len(step.branches) < len(step.completion_ids) for step in tokens), "what all begin with is forced"
        learnt_W, stated_W = recompute_logprobs(decoder, None, tokens)
        assert len(stated_W) >= len(rollout.steps)
        assert abs(learnt_W - stated_W).max() < 1e-4


@pytest.mark.parametrize(("opens", "begun"), [(True, "</think>\n\n"), (False, "")], ids=["template", "switch"])
def test_a_model_that_thinks_plays_the_choice_that_it_sampled(
    opens: bool, begun: str, speaker: Callable[..., Path]
) -> None:
    """Whether its template opens a thought, which the choice then ends, or thinking is switched on."""
    folder = speaker(["MOVE: rock paper scissors"] * 9, 290, 4096, marks=make_template("qwen3").marks)
    if opens:
        (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}\n{% endfor %}<think>")
    tokenizer, spec = Tokenizer(folder), make_game("rock_paper_scissors", {})
    for rollout in with_model(folder, spec, 4, PromptsConfig(thinking=not opens)):
        assert rollout.extras["invalid"] == {"A": 0, "B": 0}
        for step in rollout.steps:
            assert step.tokens is not None
            assert tokenizer.decode(step.tokens.prompt_ids).endswith("<think>") == opens
            assert tokenizer.decode(step.tokens.completion_ids) == f"{begun}{step.completion_text}<|im_end|>"
            assert step.completion_text in ("MOVE: rock", "MOVE: paper", "MOVE: scissors")


def test_choices_that_begin_each_other_need_an_end(folder: Path) -> None:
    async def choice(end: int | None) -> str:
        backend, tokenizer = make_backend("local", folder), Tokenizer(folder)
        tokenizer.ends = () if end is None else (end,)
        try:
            client = BackendClient(backend, tokenizer)
            return (await client.choose([Message("user", "Which?")], ["fold", "fold now"])).text
        finally:
            await backend.close()

    assert asyncio.run(choice(Tokenizer(folder).eos)) in ("fold", "fold now")
    with pytest.raises(ModelError, match="begins another"):
        asyncio.run(choice(None))
