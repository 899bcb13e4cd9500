"""The token at the beginning of a sequence (BOS) stands once where the model's own tokenizer or template puts it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
import tokenizers
from tokenizers import processors
from transformers import AutoTokenizer

from arena.games import make_game
from arena.prompts import Message, make_template
from inference import make_backend
from inference.chat_template import encode_conversation, render_conversation
from models import Tokenizer, make_base
from players.prompt_builder import make_constrained_prompter
from schemas.config import PromptsConfig
from tests.servers import LoadedModels, serve_models

SPECIAL = ["<pad>", "<eos>", "<unk>", *make_template("gemma").marks]
BOS = SPECIAL.index("<bos>")
TALK = [Message("user", "Go")]
WRITES_BOS = "{{ bos_token }}{% for m in messages %}{{ m.content }}\n{% endfor %}"
WRITES_NONE = WRITES_BOS.removeprefix("{{ bos_token }}")


@pytest.fixture(params=[True, False], ids=["puts BOS", "puts none"])
def puts(request: pytest.FixtureRequest) -> bool:
    """Whether the tokenizer's post-processor puts a BOS before a text."""
    return bool(request.param)


@pytest.fixture
def folder(puts: bool, tmp_path: Path) -> Path:
    """A model without a chat template, of no family; every byte is a token."""
    size = len(SPECIAL) + 256
    made = make_base(tmp_path / "model", [f"w{i}" for i in range(size - 3)], seed=1)
    library = tokenizers.ByteLevelBPETokenizer()
    library.train_from_iterator(["a"], vocab_size=size, special_tokens=SPECIAL)
    single = "<bos> $A" if puts else "$A"
    library.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("<bos>", BOS)])
    library.save(str(made / "tokenizer.json"))
    change(made, "tokenizer_config.json", bos_token="<bos>")
    return made


def change(folder: Path, name: str, **settings: str) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def own_tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


@pytest.mark.parametrize("template", ["", WRITES_BOS, WRITES_NONE])
def test_a_conversation_has_the_tokens_of_the_models_own_tokenizer(puts: bool, folder: Path, template: str):
    change(folder, "tokenizer_config.json", chat_template=template)
    own, config = own_tokenizer(folder), PromptsConfig(template="auto" if template else "plain")
    ids = encode_conversation(Tokenizer(folder), TALK, config)
    if template:
        assert ids == own.apply_chat_template([{"role": "user", "content": "Go"}], return_dict=False)
    else:
        assert ids == own(render_conversation(Tokenizer(folder), TALK, config)).input_ids
    assert ids.count(BOS) == (template == WRITES_BOS or (puts and not template))


def test_a_family_that_writes_bos_gets_no_second_one(folder: Path):
    ids = encode_conversation(Tokenizer(folder), TALK, PromptsConfig(template="gemma"))
    assert ids == own_tokenizer(folder)(make_template("gemma").render(TALK), add_special_tokens=False).input_ids
    assert (ids[0], ids.count(BOS)) == (BOS, 1)


@pytest.mark.parametrize("name", ["kuhn_poker", "nim", "rock_paper_scissors", "tic_tac_toe"])
def test_a_games_pieces_begin_as_the_models_own_tokenizer_begins_a_text(puts: bool, folder: Path, name: str):
    spec = make_game(name, {})
    game = spec.new(0)
    seat = game.to_move()[0]
    ids = make_constrained_prompter(Tokenizer(folder), spec.text()).make_prompt(game, seat).prompt_ids
    assert ids == own_tokenizer(folder)("".join(f" {piece}" for piece in spec.text().prompt(game, seat))).input_ids
    assert ids.count(BOS) == puts


def test_a_text_to_complete_begins_with_bos_once_and_tokens_stay_as_they_are(puts: bool, folder: Path):
    plain, own = [BOS] if puts else [], own_tokenizer(folder)
    (word,) = own(["Go"], add_special_tokens=False).input_ids
    cases: list[tuple[Any, list[list[int]]]] = [
        ("Go", [own("Go").input_ids]),
        ("<bos>Go", [[BOS, *word]]),
        (word, [word]),
        (["Go", "<bos>Go"], [[*plain, *word], [BOS, *word]]),
        ([word, [BOS, BOS, *word]], [word, [BOS, BOS, *word]]),
    ]

    async def ask() -> None:
        backend = make_backend("local", folder)
        async with (
            serve_models(LoadedModels(backend, Tokenizer(folder))) as url,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        ):
            for prompt, expected in cases:
                body = {"model": "base_model", "prompt": prompt, "max_tokens": 1}
                said = await client.completions.create(**body, extra_body={"return_token_ids": True})
                assert [choice.prompt_token_ids for choice in said.choices] == expected
        await backend.close()

    asyncio.run(ask())
