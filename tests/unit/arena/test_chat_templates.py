"""Each family's template writes what the family's published one does, with a system and without, thinking or not.

No hub is asked: the published templates stand here in brief, as far as they concern text without tools, and go through
the library that reads those of model folders.
"""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers, trainers

from arena.games import make_game
from arena.prompts import Message, build_game_messages, make_template, template_names, with_system_prompt
from inference.chat_template import encode_conversation, render_conversation
from lifecycle.config_checks import check_reply_tokens
from models import Tokenizer
from schemas.config import PromptsConfig
from schemas.errors import ConfigError, ModelError
from tests.prompt_contract import (  # noqa: F401 - the test is collected here
    PromptContract,
    conversations,
    hostile_texts,
    test_prompts_are_those_of_the_models_own_template_and_contents_write_no_turns,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "prompts"
PUBLISHED = {
    "chatml": (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "qwen3": (
        "{% for m in messages %}{% set said = m.content %}{% if m.role == 'assistant' and '</think>' in said %}"
        "{% set said = said.split('</think>')[-1].lstrip('\n') %}{% endif %}"
        "{{ '<|im_start|>' + m.role + '\n' + said + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
        "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
        "{% endif %}"
    ),
    "llama": (
        "{{ '<|begin_of_text|>' }}{% for m in messages %}"
        "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
    ),
    "gemma": (
        "{{ '<bos>' }}{% set first, rest = '', messages %}{% if messages[0].role == 'system' %}"
        "{% set first, rest = messages[0].content + '\n\n', messages[1:] %}{% endif %}"
        "{% for m in rest %}"
        "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('order') }}{% endif %}"
        "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}"
        "{{ (first if loop.first else '') + m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
    ),
}
# Families without a template in ``arena.prompts``, which are asked by their folders' own alone.
OTHERS = {
    # As version 0.3 of Mistral 7B: the system message stands in the last question, wherever that is.
    "mistral": (
        "{% set system = '' %}{% if messages[0].role == 'system' %}"
        "{% set system, messages = messages[0].content + '\n\n', messages[1:] %}{% endif %}"
        "{{ '<s>' }}{% for m in messages %}"
        "{% if m.role == 'user' %}{{ '[INST] ' + (system if loop.last else '') + m.content + '[/INST]' }}"
        "{% else %}{{ ' ' + m.content | trim + '</s>' }}{% endif %}{% endfor %}"
    ),
    "phi3": (
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
        "{{ '<|assistant|>\n' if add_generation_prompt else '<|endoftext|>' }}"
    ),
    # As Llama 3.2 and 3.3, which write the date before the system message.
    "llama-3.2": (
        "{% if not date_string is defined %}{% if strftime_now is defined %}"
        "{% set date_string = strftime_now('%d %b %Y') %}{% else %}{% set date_string = '26 Jul 2024' %}{% endif %}"
        "{% endif %}{% set system = '' %}{% if messages[0].role == 'system' %}"
        "{% set system, messages = messages[0].content | trim, messages[1:] %}{% endif %}"
        "{{ '<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n' }}"
        "{{ 'Today Date: ' + date_string + '\n\n' + system + '<|eot_id|>' }}{% for m in messages %}"
        "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
    ),
    # As Phi-3-mini was first published: it passes over a system message, and every question opens the reply.
    "phi3-april-2024": (
        "{{ '<s>' }}{% for m in messages %}"
        "{% if m.role == 'user' %}{{ '<|user|>\n' + m.content + '<|end|>\n<|assistant|>\n' }}"
        "{% elif m.role == 'assistant' %}{{ m.content + '<|end|>\n' }}{% endif %}{% endfor %}"
    ),
    # Its marks are no tokens, but for the end.
    "olmo2": (
        "{{ '<|endoftext|>' }}{% for m in messages %}{% if m.role == 'system' %}{{ '<|system|>\n' + m.content + '\n' }}"
        "{% elif m.role == 'user' %}{{ '<|user|>\n' + m.content + '\n' }}{% else %}"
        "{{ '<|assistant|>\n' + m.content + '<|endoftext|>' + ('' if loop.last else '\n') }}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
    ),
    "granitemoehybrid": (
        "{% if messages[0].role != 'system' %}"
        "{{ '<|start_of_role|>system<|end_of_role|>You are a helpful assistant.<|end_of_text|>\n' }}{% endif %}"
        "{% for m in messages %}"
        "{{ '<|start_of_role|>' + m.role + '<|end_of_role|>' + m.content + '<|end_of_text|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}"
    ),
}
OTHER_TOKENS = {
    "mistral": ("</s>", "<s>", "[INST]", "[/INST]"),
    "phi3": ("<|end|>", "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>"),
    "llama-3.2": ("<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
    "phi3-april-2024": ("<|end|>", "<s>", "<|user|>", "<|assistant|>"),
    "olmo2": ("<|endoftext|>",),
    "granitemoehybrid": ("<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>"),
}
"""Special tokens, the one that ends a reply first."""
PLAIN_TURNS = {"olmo2": ("<|system|>", "<|user|>", "<|assistant|>")}
"""Marks of turns that are no tokens."""
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + PUBLISHED["gemma"]
"""As Gemma 1 and 2 have it."""
YES = Message("assistant", "Yes")
TALKS = {
    "question": [Message("user", "Hi")],
    "system": [Message("system", "Be brief."), Message("user", "Hi")],
    "turns": [Message("system", "A\n\nB"), Message("user", "Hi"), YES, Message("user", "Go")],
    "thoughts": [Message("user", "Hi"), Message("assistant", "<think>\nhm\n</think>\n\nYes"), Message("user", "Go")],
    "space": [
        Message("system", " S\n"),
        Message("user", "\n Hi "),
        Message("assistant", "Y"),
        Message("user", " Go\n"),
    ],
}


def folder_of(tmp_path: Path, family: str, chat_template: str) -> Path:
    """A folder with nothing but a tokenizer that knows a family's marks, and a chat template."""
    eos, *marks = OTHER_TOKENS.get(family) or ("<eos>", *make_template(family).marks)
    made = Library(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[eos, *marks], show_progress=False
    )
    made.train_from_iterator([], trainer)
    made.save(str(tmp_path / "tokenizer.json"))
    settings = {"eos_token": eos, "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": chat_template}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2" if family == "chatml" else family}))
    return tmp_path


@pytest.mark.parametrize("family", sorted(PUBLISHED))
def test_family_writes_what_its_published_template_does(family: str, tmp_path: Path):
    tokenizer = Tokenizer(folder_of(tmp_path, family, PUBLISHED[family]))
    for name, talk in TALKS.items():
        if name == "thoughts" and family != "qwen3":
            continue
        for thinking in (False, True):
            for system in ("", "Play to win."):
                own = PromptsConfig(thinking=thinking, system=system)
                ours = PromptsConfig(thinking=thinking, system=system, template=family)
                assert render_conversation(tokenizer, talk, ours) == render_conversation(tokenizer, talk, own), (
                    name,
                    thinking,
                )


def test_only_qwens_prompt_changes_with_the_thinking_switch():
    talk = TALKS["system"]
    for family in template_names():
        answered, thought = (make_template(family).render(talk, thinking) for thinking in (False, True))
        assert (answered != thought) == (family == "qwen3")
    assert answered.startswith(thought)


def test_gemma_that_refuses_a_system_is_told_by_the_user(tmp_path: Path):
    tokenizer = Tokenizer(folder_of(tmp_path, "gemma", NO_SYSTEM))
    config = PromptsConfig(system="Play to win.")
    told = render_conversation(tokenizer, TALKS["system"], config)
    assert told == make_template("gemma").render(with_system_prompt(TALKS["system"], config.system))
    with pytest.raises(ModelError, match="order"):
        render_conversation(tokenizer, [TALKS["question"][0]] * 2, config)


def test_a_template_that_passes_over_a_system_message_gets_it_in_the_first_question(tmp_path: Path):
    family, nim = "phi3-april-2024", make_game("nim", {"shuffle": False})
    tokenizer = Tokenizer(folder_of(tmp_path, family, OTHERS[family]))
    rules, question = build_game_messages(nim.words(), nim.new(0), 0)
    told = render_conversation(tokenizer, [rules, question], PromptsConfig(system="Play to win."))
    merged = f"Play to win.\n\n{rules.content}\n\n{question.content}"
    assert told == f"<s><|user|>\n{merged}<|end|>\n<|assistant|>\n"


@pytest.mark.parametrize(
    ("call", "written"),
    [("strftime_now('%d %b %Y')", "26 Jul 2024"), ('strftime_now( "%B %d, %Y" ) | upper', "JULY 26, 2024")],
)
def test_a_template_that_writes_the_date_writes_the_same_on_every_day(call: str, written: str, tmp_path: Path):
    template = "{% if strftime_now is defined %}{{ " + call + " }}{% endif %}"
    tokenizer = Tokenizer(folder_of(tmp_path, "llama", template))
    assert render_conversation(tokenizer, TALKS["question"], PromptsConfig()) == written


@pytest.mark.parametrize("golden", sorted(GOLDEN.glob("system-*.txt")), ids=lambda path: path.stem)
def test_prompt_with_a_system_never_changes_by_accident(golden: Path):
    """After a deliberate change, write the files again with ``python tests/golden/prompts/write.py`` and read them."""
    nim = make_game("nim", {"shuffle": False})
    messages = with_system_prompt(build_game_messages(nim.words(), nim.new(0), 0), "Play to win.")
    _, family, *thinking = golden.stem.split("-")
    assert make_template(family).render(messages, bool(thinking)) == golden.read_text()


def test_every_family_has_a_golden_prompt_with_a_system():
    assert {f"system-{family}" for family in template_names()} <= {path.stem for path in GOLDEN.glob("system-*.txt")}


def test_what_the_league_says_comes_first_and_empty_text_changes_nothing():
    question, told = TALKS["question"], TALKS["system"]
    assert with_system_prompt(told, "") == told
    assert with_system_prompt(told, "Play to win.")[0] == Message("system", "Play to win.\n\nBe brief.")
    assert with_system_prompt(question, "Play to win.") == [Message("system", "Play to win."), *question]


@pytest.fixture(scope="module", params=sorted(PUBLISHED | OTHERS))
def contract(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PromptContract:
    family = request.param
    folder = folder_of(tmp_path_factory.mktemp(family), family, (PUBLISHED | OTHERS)[family])
    made = PromptContract(folder, PLAIN_TURNS.get(family, ()), has_system_role=family != "phi3-april-2024")
    made.family = family
    return made


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_next_prompt_goes_on_from_prompt_and_completion(contract, data):
    messages, reply = data.draw(conversations(contract.marks)), data.draw(hostile_texts(contract.marks))
    family = contract.family
    end = OTHER_TOKENS[family][0] if family in OTHERS else make_template(family).end
    # Qwen3's prompt opens an empty thought, which the history leaves out; Mistral's system message moves on.
    differs = family == "qwen3" or (family == "mistral" and messages[0].role == "system")
    with pytest.raises(AssertionError) if differs else nullcontext():
        contract.check_next_turn(messages, reply, end, " " if family == "mistral" else "")


def test_a_thought_in_an_earlier_reply_is_not_left_as_spoken_text(tmp_path: Path):
    tokenizer = Tokenizer(folder_of(tmp_path, "qwen3", PUBLISHED["qwen3"]))
    told = [Message("user", "?"), Message("assistant", "<think>\nplan\n</think>\n\nmove 3"), Message("user", "?")]
    short = [told[0], Message("assistant", "move 3"), told[2]]
    for config in (PromptsConfig(), PromptsConfig(template="qwen3"), PromptsConfig(thinking=True)):
        assert encode_conversation(tokenizer, told, config) == encode_conversation(tokenizer, short, config)


@pytest.mark.parametrize("family", sorted(PUBLISHED))
def test_an_open_reply_ends_with_its_text(family: str, tmp_path: Path):
    tokenizer = Tokenizer(folder_of(tmp_path, family, PUBLISHED[family]))
    talk = [*TALKS["question"], Message("assistant", "I say")]
    for config in (PromptsConfig(), PromptsConfig(template=family)):
        text = render_conversation(tokenizer, talk, config, continues=True)
        assert text.endswith("I say")
        assert text.startswith(render_conversation(tokenizer, talk[:1], PromptsConfig(template=family, thinking=True)))


def test_a_folder_without_a_template_says_once_whose_it_uses(tmp_path: Path):
    tokenizer = Tokenizer(folder_of(tmp_path, "llama", ""))
    with capture_logs() as logs:
        for _ in range(3):
            render_conversation(tokenizer, TALKS["question"], PromptsConfig())
    assert [(line["family"], line["model"]) for line in logs] == [("llama", str(tmp_path))]


def test_a_template_that_raises_is_named_with_the_way_out(tmp_path: Path):
    tokenizer = Tokenizer(folder_of(tmp_path, "llama", "{{ raise_exception('no talk') }}"))
    with pytest.raises(ModelError, match=rf"{tmp_path}: its chat template .*no talk.* a family's in prompts.template"):
        render_conversation(tokenizer, TALKS["question"], PromptsConfig())


def test_a_template_whose_tokens_the_model_lacks_is_refused(tmp_path: Path):
    tokenizer = Tokenizer(folder_of(tmp_path, "llama", PUBLISHED["llama"]))
    with pytest.raises(ModelError, match=r"prompts.template: 'gemma' needs the token '<bos>'"):
        render_conversation(tokenizer, TALKS["question"], PromptsConfig(template="gemma"))


def test_a_limit_below_the_shortest_legal_answer_is_refused_with_both_numbers(tmp_path: Path):
    tokenizer = Tokenizer(folder_of(tmp_path, "llama", PUBLISHED["llama"]))
    spec = make_game("nim", {"shuffle": False})
    opening = spec.new(0)
    (seat, *_) = opening.to_move()
    needed = min(len(tokenizer.encode_text(reply)) for reply in spec.words().replies(opening, seat)) + 1
    message = rf"prompts.reply_tokens: {needed - 1}, but the shortest legal answer of nim, .* has {needed} tokens"
    with pytest.raises(ConfigError, match=message):
        check_reply_tokens(tokenizer, PromptsConfig(reply="free", reply_tokens=needed - 1), spec, opening, seat)
    check_reply_tokens(tokenizer, PromptsConfig(reply="free", reply_tokens=needed), spec, opening, seat)
    check_reply_tokens(tokenizer, PromptsConfig(reply_tokens=1), spec, opening, seat)
