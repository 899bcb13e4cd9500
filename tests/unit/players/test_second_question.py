"""The second question after a faulty reply: what it says, which reply is played, and which is trained on."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from arena.constraints.token_walk import ListConstraint
from arena.games import make_game
from arena.games.base import Action, Game, GameSpec
from arena.prompts import Message, build_game_messages
from inference.base import Generation, Request, SamplingParameters
from inference.chat_template import encode_conversation
from inference.local import LocalBackend
from models import Tokenizer
from players.policy import PolicyPlayer
from players.prompt_builder import make_prompter
from players.word_replies import CORRECTIONS
from schemas.config import PromptsConfig, convert
from schemas.metrics import REPLY_FAULTS
from tests.unit.players.test_reply_formats import SHAPE, folder_of, nim

TEXTS = {
    "truncated": "I think for long before I take any stones at all.",
    "empty": "",
    "unparsable": "No.",
    "illegal": "MOVE 2:9",
}
"""A first reply with each fault; the first is longer than ``reply_tokens``."""
TINY: dict[str, Callable[[], PreTrainedModel]] = {
    "chatml": lambda: Qwen2ForCausalLM(Qwen2Config(vocab_size=410, num_key_value_heads=1, **SHAPE)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(vocab_size=410, num_key_value_heads=1, eos_token_id=None, **SHAPE)),
}


class Told(LocalBackend):
    """A real backend whose model is held to these replies, one a request."""

    def __init__(self, folder: Path, replies: Sequence[Sequence[int]]) -> None:
        super().__init__(folder)
        self.replies = [ListConstraint([reply]) for reply in replies]
        self.prompts: list[list[int]] = []

    async def generate(self, request: Request) -> Generation:
        self.prompts.append(list(request.prompt_ids))
        return await super().generate(msgspec.structs.replace(request, constraint=self.replies.pop(0)))


@pytest.fixture(params=["qwen3", "chatml", "llama"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A tiny model of a family."""
    made = folder_of(tmp_path, request.param)
    if request.param in TINY:
        torch.manual_seed(0)
        TINY[request.param]().save_pretrained(made)
    return made


def configured(**settings: object) -> PromptsConfig:
    return convert({"reply": "free", "second_question": True, "reply_tokens": 16, **settings}, PromptsConfig, "")


def ask(
    folder: Path, spec: GameSpec, table: Game, config: PromptsConfig, *texts: str
) -> tuple[Action, PolicyPlayer, list[list[int]]]:
    """The action of a model that gives these replies to a seat, its player, and the prompts that it got."""
    tokenizer = Tokenizer(folder)
    backend = Told(folder, [[*tokenizer.encode_text(text), *tokenizer.ends[:1]] for text in texts])
    player = PolicyPlayer(backend, make_prompter(tokenizer, spec, config), lambda: (0, None), SamplingParameters())
    (seat,) = table.to_move()

    async def act() -> Action:
        action = await player.act(table, seat, 5)
        await backend.close()
        return action

    return asyncio.run(act()), player, backend.prompts


@pytest.mark.parametrize("fault", REPLY_FAULTS)
def test_it_says_what_was_wrong_and_its_reply_is_played_but_not_trained_on(fault: str, folder: Path) -> None:
    spec, config, tokenizer = nim(), configured(), Tokenizer(folder)
    table = spec.new(0)
    action, player, (first, second) = ask(folder, spec, table, config, TEXTS[fault], "MOVE 2:3")
    assert action == ("2:3",)

    rules, question = build_game_messages(spec.words(), table, 0)
    said = tokenizer.decode(tokenizer.encode_text(TEXTS[fault])[:16])
    correction = Message("user", f"{CORRECTIONS[fault]}\n{question.content}")
    assert first == encode_conversation(tokenizer, [rules, question], config)
    assert second == encode_conversation(tokenizer, [rules, question, Message("assistant", said), correction], config)

    (call,) = player.model_calls
    assert (call.prompt_ids, call.fault, call.invalid) == (first, fault, True)
    assert tokenizer.decode(call.completion_ids).removesuffix("<eos>") == said
    (note,) = player.notes
    assert (note.move, tokenizer.decode(note.second_ids)) == ("2:3", "MOVE 2:3<eos>")
    counted = {name: count for name, count in player.metrics().items() if count}
    assert counted.pop("reply_unformatted", 0.0) == float(fault != "illegal")
    assert counted == {"reply_count": 1.0, "reply_invalid": 1.0, "reply_choices": 1.0, f"reply_{fault}": 1.0}


def test_a_legal_reply_is_not_asked_about_again(folder: Path) -> None:
    action, player, prompts = ask(folder, nim(), nim().new(0), configured(), "MOVE 2:3")
    assert (action, len(prompts), player.notes[0].second_ids) == (("2:3",), 1, [])


def test_after_two_faulty_replies_the_rule_for_invalid_ones_holds(folder: Path) -> None:
    spec = nim()
    table = spec.new(0)
    action, player, prompts = ask(folder, spec, table, configured(), "MOVE 2:9", "No.")
    assert len(prompts) == 2
    assert table.is_legal(0, action)
    (call,) = player.model_calls
    assert (call.fault, player.metrics()["reply_illegal"], player.metrics()["reply_filled"]) == ("illegal", 1.0, 1.0)


@pytest.mark.parametrize("rule", ["default", "random"])
def test_after_two_faulty_replies_textarena_gets_the_second_or_a_random_move(rule: str, folder: Path) -> None:
    pytest.importorskip("textarena")
    spec = make_game("textarena", {"env": "KuhnPoker-v0-train"})
    table = spec.new(0)
    action, _, prompts = ask(folder, spec, table, configured(invalid=rule), "No.", "[raise]")
    assert len(prompts) == 2
    (seat,) = table.to_move()
    table.apply({seat: action})
    assert table.metrics()[seat]["invalid"] == float(rule == "default")
    assert action == ("[raise]",) or rule == "random"


def test_without_room_for_it_the_first_replys_substitute_is_played(folder: Path) -> None:
    spec, text = nim(), TEXTS["unparsable"]
    table = spec.new(0)
    _, _, (first, second) = ask(folder, spec, table, configured(), text, "MOVE 2:3")
    path = folder / "config.json"
    room = {"max_position_embeddings": (len(first) + len(second)) // 2}
    path.write_text(json.dumps(json.loads(path.read_text()) | room))
    action, player, prompts = ask(folder, spec, table, configured(), text, "MOVE 2:3")
    assert prompts == [first, second]
    (call,), (note,) = player.model_calls, player.notes
    assert (call.fault, call.invalid, note.second_ids) == ("unparsable", True, [])
    assert action == ask(folder, spec, table, configured(second_question=False), text)[0]
    assert player.metrics()["reply_filled"] == 1.0
