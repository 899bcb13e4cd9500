r"""Conversations as each family of models writes them, and the answers in their replies."""

from pathlib import Path

import pytest

from arena.games import make_game
from arena.games.texts import words_of
from arena.prompts import (
    Message,
    build_game_messages,
    make_template,
    merge_system_message,
    read_answer,
    template_name,
    template_names,
)
from arena.prompts.extraction import (
    EXTRACTORS,
    OBSERVATION_TEMPLATES,
    extract_boxed,
    get_observation_template,
    make_tag_extractor,
)
from schemas.errors import UsageError

GOLDEN = Path(__file__).parents[2] / "golden" / "prompts"
TALK = [Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Yes"), Message("user", "Go")]


@pytest.mark.parametrize("family", template_names())
def test_prompt_of_a_known_position_of_nim_never_changes_by_accident(family: str):
    """After a deliberate change, write the files again with ``python tests/golden/prompts/write.py`` and read them."""
    nim = make_game("nim", {"shuffle": False})
    messages = build_game_messages(words_of(nim), nim.new(0), 0)
    assert make_template(family).render(messages) == (GOLDEN / f"nim-{family}.txt").read_text()


@pytest.mark.parametrize(
    ("family", "text"),
    [
        (
            "qwen3",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes"
            "<|im_end|>\n<|im_start|>user\nGo<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        ),
        (
            "llama",
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user"
            "<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nYes<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nGo<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (
            "gemma",
            "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nYes<end_of_turn>\n"
            "<start_of_turn>user\nGo<end_of_turn>\n<start_of_turn>model\n",
        ),
        (
            "chatml",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes"
            "<|im_end|>\n<|im_start|>user\nGo<|im_end|>\n<|im_start|>assistant\n",
        ),
        ("plain", "Be brief.\n\nHi\n\nYes\n\nGo\n\n"),
    ],
)
def test_each_family_writes_a_conversation_in_its_own_way(family: str, text: str):
    assert make_template(family).render(TALK) == text


def test_qwen_may_be_left_to_think_and_forgets_earlier_thoughts():
    qwen = make_template("qwen3")
    assert qwen.render(TALK, thinking=True).endswith("<|im_start|>assistant\n")
    thoughtful = [*TALK[:2], Message("assistant", "<think>\nhm\n</think>\n\nYes"), TALK[3]]
    assert qwen.render(thoughtful) == qwen.render(TALK)


@pytest.mark.parametrize(
    ("family", "reply", "answer"),
    [
        ("qwen3", "<think>\na <orders> b\n</think>\n\nMOVE 1:2<|im_end|>\n<|im_start|>", "MOVE 1:2"),
        ("qwen3", "thought that the prompt began</think>\n\nMOVE 1:2", "MOVE 1:2"),
        ("chatml", "MOVE 1:2<|im_end|>\n", "MOVE 1:2"),
        ("llama", "MOVE 1:2<|eot_id|>junk", "MOVE 1:2"),
        ("gemma", " MOVE 1:2<end_of_turn>\n", "MOVE 1:2"),
        ("plain", "\nMOVE 1:2\n", "MOVE 1:2"),
    ],
)
def test_answer_is_what_is_left_without_thoughts_and_marks(family: str, reply: str, answer: str):
    assert read_answer(make_template(family), reply, thinking=family == "qwen3") == answer


@pytest.mark.parametrize("family", ["qwen3", "llama", "plain"])
def test_a_thought_that_was_cut_off_is_no_answer(family: str):
    """As of models whose prompt begins the thought (Qwen3-Thinking, R1 distillations)."""
    assert read_answer(make_template(family), "I check, or rather bet", thinking=True) == ""
    assert read_answer(make_template(family), "<think>I check", thinking=False) == ""
    assert (
        read_answer(make_template(family), "hm</think> no, <think>hm</think>\nMOVE: bet", thinking=True) == "MOVE: bet"
    )


ANALYSIS = "<|channel|>analysis<|message|>Maybe MOVE: 2:4? No."
FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (f"{ANALYSIS}{FINAL}Take 1:1.", "Take 1:1."),
        (f"{ANALYSIS}{FINAL}No.{FINAL}Take 1:1.", "Take 1:1."),
        ("<|channel|>final<|message|>Take 1:1.", "Take 1:1."),
        (f"{FINAL}Take 1:1.<|end|><|start|>assistant{ANALYSIS}", "Take 1:1."),
        # Without the tokens that stand for no text, as the server reads a turn.
        (f"{ANALYSIS}assistant<|channel|>final<|message|>Take 1:1.", "Take 1:1."),
        (ANALYSIS, ""),
        (f"{ANALYSIS}<|end|><|start|>assistant<|channel|>commentary<|message|>MOVE: 2:4", ""),
        ("<|channel|>analy", ""),
        (f"{ANALYSIS}<|end|><|start|>assistant<|channel|>final", ""),
        ("[THINK]Maybe MOVE: 2:4? No.[/THINK]Take 1:1.", "Take 1:1."),
        ("[THINK]Maybe MOVE: 2:4? No.", ""),
        ("MOVE: 1:1", "MOVE: 1:1"),
    ],
)
def test_answer_of_gpt_oss_is_its_final_channel_and_of_magistral_what_follows_the_thought(reply: str, answer: str):
    assert read_answer(make_template("plain"), reply, thinking=False) == answer


def test_family_follows_from_the_model_and_needs_its_special_tokens():
    def names(model_type: str, known: bool) -> str:
        return type(make_template(template_name(model_type, lambda _: known))).__name__

    assert [names(kind, True) for kind in ("qwen3", "llama", "gemma3_text", "gpt2")] == [
        "Qwen3",
        "Llama",
        "Gemma",
        "Llama",
    ]
    assert names("llama", False) == "Plain"
    assert names("qwen2", True) == "ChatML", "Qwen 2 knows no thoughts, not even empty ones"
    with pytest.raises(UsageError, match="'chatml', 'gemma', 'llama', 'plain' or 'qwen3'"):
        make_template("mistral")


def test_folding_keeps_every_word_of_the_system():
    assert merge_system_message(TALK)[0] == Message("user", "Be brief.\n\nHi")
    assert merge_system_message(TALK[1:]) == TALK[1:]
    assert merge_system_message(TALK[:1]) == TALK[:1]


@pytest.mark.parametrize(
    ("reply", "answer", "well_formed"),
    [
        (r"so \boxed{1:1}, no: \boxed{ 2:3 }.", "2:3", True),
        (r"\boxed{\text{2:3}}", r"\text{2:3}", True),
        (r"\boxed{} nothing", r"\boxed{} nothing", False),
        ("2:3", "2:3", False),
        (r"\boxed{2:3", r"\boxed{2:3", False),
    ],
)
def test_boxed_answer_is_the_last_one(reply: str, answer: str, well_formed: bool):
    assert extract_boxed(reply) == (answer, well_formed)


@pytest.mark.parametrize(
    ("reply", "answer", "well_formed"),
    [
        ("<orders>\nA PAR H\n</orders> bye", "A PAR H", True),
        ("<orders>x</orders> or <orders>y</orders>", "y", True),
        ("I open <orders> early. <orders>\ny\n</orders>", "y", True),
        ("<orders>\nA PAR H\nA MAR", "A PAR H\nA MAR", False),
        ("<orders></orders>", "<orders></orders>", False),
        ("A PAR H", "A PAR H", False),
    ],
)
def test_tagged_answer_is_the_last_one_and_a_cut_reply_is_read_as_far_as_it_goes(
    reply: str, answer: str, well_formed: bool
):
    assert make_tag_extractor("orders")(reply) == (answer, well_formed)


@pytest.mark.parametrize(
    ("reply", "action", "well_formed"),
    [(r"\boxed{2 3}", "[2 3]", True), (r"\boxed{[2] [3]}", "[2] [3]", True), ("[2 3]", "[2 3]", False)],
)
def test_default_extraction_puts_a_boxed_move_in_brackets(reply: str, action: str, well_formed: bool):
    assert EXTRACTORS["default"](reply) == (action, well_formed)


@pytest.mark.parametrize("name", sorted(OBSERVATION_TEMPLATES))
def test_observation_is_asked_about_in_the_familys_way(name: str):
    asked, text = get_observation_template(name), get_observation_template(name).render("X to move")
    assert text.count("Observation: X to move") == 1
    assert (r"\boxed{" in text) == ("instruct" not in name or name.startswith("llama"))
    assert all(mark in text for mark in make_template(asked.family).marks[:2])
    assert ("alone" in text) == ("-sp" in name)
    assert "</think>" not in text, "the model is to think"


def test_unknown_observation_template_is_answered_with_the_names_there_are():
    with pytest.raises(UsageError, match="'qwen3-zs'"):
        get_observation_template("qwen4")
