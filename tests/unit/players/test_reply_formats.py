r"""What models may reply: a language that the game gives, or anything at all; and what is made of what they say."""

import asyncio
import json
from functools import cache
from pathlib import Path
from random import Random

import pytest
import torch
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import Qwen3Config, Qwen3ForCausalLM

pytest.importorskip("llguidance")

from arena.constraints.token_walk import ANY_TOKEN, read_choices
from arena.games import make_game
from arena.games.base import GameSpec
from arena.match import BotPlayer, play
from arena.prompts import build_game_messages, make_template
from inference import SamplingParameters, make_backend
from models import Tokenizer, make_base
from models.decoder import Decoder
from players.policy import PolicyPlayer, make_example
from players.prompt_builder import check_prompts_config, make_prompter
from players.reply_formats import ParsedReply
from schemas.config import PromptsConfig, convert
from schemas.errors import ConfigError, GameError, ModelError
from schemas.metrics import REPLY_FAULTS
from trainer.loss_inputs import recompute_logprobs

SHAPE = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
LANGUAGES = ["json", "regex"]


def nim(text: str = "pieces") -> GameSpec:
    return make_game("nim", {"shuffle": False, "text": text})


def prompts(**settings: object) -> PromptsConfig:
    return convert(settings, PromptsConfig, "")


@cache
def library(family: str) -> str:
    """A byte-level tokenizer as hub models have it, taught what a question about Nim looks like."""
    made = Library(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<eos>", *make_template(family).marks],
        show_progress=False,
    )
    asked = build_game_messages(nim().words(), nim().new(0), 0)
    made.train_from_iterator([message.content for message in asked] * 3, trainer)
    return str(made.to_str())


def folder_of(tmp_path: Path, family: str = "qwen3", eos: str = "<eos>") -> Path:
    folder = tmp_path / family
    folder.mkdir()
    (folder / "tokenizer.json").write_text(library(family))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=410, num_key_value_heads=1, head_dim=8, max_position_embeddings=2048, **SHAPE)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    if family != "qwen3":
        (folder / "config.json").write_text(json.dumps({"model_type": family}))
    return folder


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    return folder_of(tmp_path, eos="<|im_end|>")


def made(tmp_path: Path, game: GameSpec) -> Path:
    return make_base(tmp_path / "made", game.text().vocabulary())


def heard(folder: Path, reply: str, ended: bool = True, **settings: object) -> ParsedReply:
    """What is made of a reply to the first question of a game of Nim (heaps of 3, 4 and 5)."""
    tokenizer = Tokenizer(folder)
    question = make_prompter(tokenizer, nim(), prompts(reply="free", **settings)).make_prompt(nim().new(0), 0)
    return question.parse_reply(tokenizer.encode_text(reply), ended, Random(5))


def played(folder: Path, game: GameSpec, config: PromptsConfig, count: int, **sampling: float) -> list[PolicyPlayer]:
    """Seats of a model in whole games against the random bot."""

    async def run() -> list[PolicyPlayer]:
        backend, bot = make_backend("local", folder), BotPlayer(game.bot("random_bot"))
        prompting = make_prompter(Tokenizer(folder), game, config)
        seated = [
            PolicyPlayer(backend, prompting, lambda: (0, None), SamplingParameters(**sampling)) for _ in range(count)
        ]
        await asyncio.gather(*(play(game.new(seed), [model, bot], seed) for seed, model in enumerate(seated)))
        await backend.close()
        return seated

    return asyncio.run(run())


def gap(folder: Path, seats: list[PolicyPlayer]) -> float:
    """The largest difference between the learner's log-probabilities and those that were sampled with."""
    decoder = Decoder.load(folder)
    pairs = (recompute_logprobs(decoder, None, seat.model_calls) for seat in seats)
    return max(float(abs(learnt - stated).max()) for learnt, stated in pairs)


@pytest.mark.parametrize("text", LANGUAGES)
@pytest.mark.parametrize("whole", [True, False], ids=["made", "sub-words"])
def test_every_move_survives_being_said_in_a_language(text: str, whole: bool, tmp_path: Path):
    game = nim(text)
    tokenizer = Tokenizer(made(tmp_path, game) if whole else folder_of(tmp_path))
    prompting, table, rng = make_prompter(tokenizer, game, PromptsConfig()), game.new(0), Random(1)
    while moving := table.to_move():
        (seat,) = moving
        question = prompting.make_prompt(table, seat)
        for move in table.moves(seat):
            ids = question.encode_action((move,))
            assert question.parse_reply(ids, True, rng) == ParsedReply((move,), choices=1)
        place = question.constraint
        for token in ids:
            place = place.advance(token)
        assert not place.allowed(), "nothing may follow a move"
        with pytest.raises(GameError):
            question.encode_action(("9:9",))
        table.apply({seat: table.random_action(seat, rng)})


@pytest.mark.parametrize("text", LANGUAGES)
def test_model_plays_in_a_language_and_learns_under_the_distribution_it_sampled(text: str, tmp_path: Path):
    game = nim(text)
    folder = made(tmp_path, game)
    seats = played(folder, game, PromptsConfig(), 6, temperature=0.9)
    steps = [step for seat in seats for step in seat.model_calls]
    assert all(step.formatted and not step.invalid for step in steps)
    assert any(len(step.branches) > 1 for step in steps)
    assert gap(folder, seats) < 1e-5
    assert seats[0].metrics()["reply_count"] == len(seats[0].model_calls)


def test_bots_moves_in_a_language_are_examples_to_learn_from(tmp_path: Path):
    game = nim("json")
    tokenizer, table = Tokenizer(made(tmp_path, game)), game.new(0)
    taught = make_example(tokenizer, game.text(), table, 0, ("2:3",))
    assert tokenizer.decode(taught.completion_ids).replace(" ", "") == '{"heap":2,"stones":3}'
    assert len(taught.branches) == len(taught.allowed) > 0


def test_model_may_think_before_it_answers_in_a_language(qwen: Path):
    game, config = nim("json"), prompts(free_tokens=12, thinking=True)
    check_prompts_config(config, game, made=False)
    tokenizer = Tokenizer(qwen)
    for step in played(qwen, game, config, 3)[0].model_calls:
        free, tag, move = tokenizer.decode(step.completion_ids).partition("<move>")
        assert free
        assert tag
        assert set(json.loads(move)) == {"heap", "stones"}
        assert tokenizer.decode(step.prompt_ids).endswith("<|im_start|>assistant\n"), "no empty thought stands there"
    question = make_prompter(tokenizer, game, config).make_prompt(game.new(0), 0)
    brief = question.encode_action(("2:3",))
    assert tokenizer.decode(brief).startswith("</think><move>{")
    assert question.parse_reply(brief, True, Random(0)).action == ("2:3",)


def test_language_that_holds_more_than_the_rules_allow_costs_a_random_move_or_the_match(tmp_path: Path):
    game = nim("regex")
    tokenizer, table = Tokenizer(made(tmp_path, game)), game.new(0)
    early = make_prompter(tokenizer, game, PromptsConfig()).make_prompt(table, 0)
    strict = make_prompter(tokenizer, game, prompts(invalid="fail")).make_prompt(table, 0)
    ids = early.encode_action(("3:5",))
    table.apply({0: ("3:5",)})
    table.apply({1: ("1:1",)})
    spent = early.parse_reply(ids, True, Random(0))
    assert (spent.illegal > 0, spent.formatted) == (True, True)
    assert table.is_legal(0, spent.action)
    with pytest.raises(GameError, match=r"'3:5' is not a legal move"):
        strict.parse_reply(ids, True, Random(0))


@pytest.mark.parametrize(
    ("name", "reply"), [("nim", "MOVE 1:1"), ("tic_tac_toe", "MOVE: 1"), ("kuhn_poker", "MOVE: bet")]
)
def test_move_after_free_text_has_the_form_that_the_rules_ask_for(name: str, reply: str, qwen: Path):
    game, tokenizer = make_game(name, {}), Tokenizer(qwen)
    table = game.new(0)
    (seat,) = table.to_move()
    question = make_prompter(tokenizer, game, prompts(free_tokens=12)).make_prompt(table, seat)
    assert tokenizer.decode(question.encode_action((reply.split()[-1],))) == f"{reply}<|im_end|>"


def test_move_that_a_thought_quotes_is_not_the_answer(qwen: Path):
    game, tokenizer = make_game("kuhn_poker", {"shuffle": False}), Tokenizer(qwen)
    question = make_prompter(tokenizer, game, prompts(free_tokens=400, thinking=True)).make_prompt(game.new(0), 0)
    said = "<think>\nThe form is MOVE: one of the legal moves. MOVE: check?\n</think>\n\nMOVE: bet<|im_end|>"
    place = question.constraint
    assert place is not None
    for token in tokenizer.encode_text(said):
        place = place.advance(token)
    assert not place.allowed()
    assert question.parse_reply(tokenizer.encode_text(said), True, Random(0)).action == ("bet",)
    brief = question.encode_action(("check",))
    assert tokenizer.decode(brief) == "</think>MOVE: check<|im_end|>"
    assert question.parse_reply(brief, True, Random(0)).action == ("check",)


@pytest.mark.parametrize(
    ("name", "settings", "answer"),
    [
        ("kuhn_poker", {}, "MOVE: "),
        ("nim", {"text": "json"}, '{"heap":'),
        ("diplomacy", {"text": "egocentric"}, "<orders>\n"),
    ],
)
def test_thought_that_the_prompt_opens_is_closed_before_an_answer_without_free_text(
    name: str, settings: dict[str, str], answer: str, qwen: Path
):
    (qwen / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}<think>\n")
    game, tokenizer = make_game(name, settings), Tokenizer(qwen)
    table = game.new(0)
    seat = min(table.to_move())
    question = make_prompter(tokenizer, game, prompts()).make_prompt(table, seat)
    action = table.random_action(seat, Random(0))
    reply = question.encode_action(action)
    assert tokenizer.decode(reply).startswith(f"</think>\n\n{answer}")
    assert question.parse_reply(reply, True, Random(0)).action == action
    assert question.constraint is not None
    choices, _ = read_choices(question.constraint, reply)
    assert min(choices) >= len(tokenizer.encode_text("</think>\n\n")), "the end of the thought is forced"


@pytest.mark.parametrize(
    ("name", "reply", "move", "fault"),
    [
        ("nim", "hello there", None, "unparsable"),
        ("nim", "MOVE 2:9", None, "illegal"),
        ("kuhn_poker", "I cannot bet here. MOVE: raise", None, "illegal"),
        ("kuhn_poker", "I would rather bet. MOVE: **check**", "check", ""),
        ("kuhn_poker", "MOVE: check or bet", "check", ""),
        ("kuhn_poker", "Which move to make?", None, "unparsable"),
        ("kuhn_poker", "I bet", "bet", ""),
        ("tic_tac_toe", "1. The centre is best. MOVE: a9", None, "illegal"),
        ("tic_tac_toe", "MOVE:", None, "unparsable"),
    ],
)
def test_move_that_a_reply_names_counts_even_where_it_is_illegal(
    name: str, reply: str, move: str | None, fault: str, qwen: Path
):
    game, tokenizer = make_game(name, {"shuffle": False}), Tokenizer(qwen)
    question = make_prompter(tokenizer, game, prompts(reply="free")).make_prompt(game.new(0), 0)
    found = question.parse_reply(tokenizer.encode_text(reply), True, Random(0))
    assert (found.fault, found.illegal) == (fault, int(move is None))
    assert move is None or found.action == (move,)


KUHN, PUZZLE, TALK = "KuhnPoker-v0-train", "LogicPuzzle-v0-train", "IteratedPrisonersDilemma-v0-train"
TABOO = "Taboo-v0-train"


@pytest.mark.parametrize(
    ("env", "extractor", "reply", "fault", "formatted"),
    [
        (KUHN, "whole", "[bet]", "", True),
        (KUHN, "whole", "I hold the king.\nSo I say [Bet].", "", True),
        (KUHN, "whole", "bet", "", False),
        (KUHN, "whole", "bet bet bet", "unparsable", False),
        (KUHN, "whole", "I cannot decide.", "unparsable", False),
        (KUHN, "whole", "[ ]", "unparsable", False),
        (KUHN, "whole", "I fear a bet, so [fold]", "illegal", True),
        (KUHN, "whole", "[raise]", "illegal", True),
        (KUHN, "whole", " \n", "empty", False),
        (KUHN, "boxed", r"\boxed{[raise]}", "illegal", True),
        (KUHN, "boxed", r"\boxed{raise}", "unparsable", True),
        (KUHN, "boxed", "I cannot decide.", "unparsable", False),
        # All that is said is heard here, and a move needs its brackets all the same.
        (PUZZLE, "whole", "I cannot decide.", "unparsable", False),
        (PUZZLE, "whole", "[nobody nowhere X]", "illegal", True),
        # Talk before the decision needs none.
        (TALK, "whole", "Let us both cooperate.", "", True),
        (TALK, "whole", "", "empty", False),
        # Words are the moves here.
        (TABOO, "whole", "Think of it.", "", True),
        (TABOO, "whole", "A coffee filter.", "unparsable", False),
    ],
)
def test_faults_of_a_reply_in_textarena_go_by_its_square_brackets(
    env: str, extractor: str, reply: str, fault: str, formatted: bool, qwen: Path
):
    pytest.importorskip("textarena")
    game, tokenizer = make_game("textarena", {"env": env}), Tokenizer(qwen)
    table = game.new(0)
    (seat,) = table.to_move()
    question = make_prompter(tokenizer, game, prompts(reply="free", extractor=extractor)).make_prompt(table, seat)
    found = question.parse_reply(tokenizer.encode_text(reply), True, Random(0))
    assert (found.fault, found.formatted, found.illegal) == (fault, formatted, int(fault != ""))
    cut = question.parse_reply(tokenizer.encode_text(reply), False, Random(0))
    assert (cut.fault, cut.formatted) == ("" if formatted and not fault else "truncated", False)


@pytest.mark.parametrize(
    ("extractor", "reply", "ended", "move", "formatted", "invalid"),
    [
        ("whole", "I take three. MOVE 2:3<|im_end|>", True, "2:3", True, False),
        ("whole", "MOVE 2:3", False, "2:3", False, False),
        ("whole", "I take 2:3<|im_end|>", True, "2:3", False, False),
        ("whole", "<think>\nMOVE 1:1\n</think>\n\nMOVE 2:3<|im_end|>", True, "2:3", True, False),
        ("whole", "<think>\nMOVE 2:3", False, None, False, True),
        ("whole", "[THINK]MOVE 1:1[/THINK]MOVE 2:3<|im_end|>", True, "2:3", True, False),
        ("whole", "<|channel|>analysis<|message|>MOVE 2:3? No.", False, None, False, True),
        ("whole", "", True, None, False, True),
        ("whole", "MOVE 2:9<|im_end|>", True, None, True, True),
        ("whole", "My MOVE is to take 2:3<|im_end|>", True, "2:3", False, False),
        ("boxed", r"First 1:1, so \boxed{2:3}<|im_end|>", True, "2:3", True, False),
        ("boxed", "2:3<|im_end|>", True, "2:3", False, False),
        ("default", r"\boxed{2:3}<|im_end|>", True, "2:3", True, False),
    ],
)
def test_move_form_and_validity_of_a_free_reply(
    extractor: str, reply: str, ended: bool, move: str | None, formatted: bool, invalid: bool, qwen: Path
):
    found = heard(qwen, reply, ended, extractor=extractor)
    assert (found.formatted, found.illegal > 0) == (formatted, invalid)
    assert nim().new(0).is_legal(0, found.action)
    assert move is None or found.action == (move,)


HEAPS = {"shuffle": False, "heaps": [12, 4, 5]}


@pytest.mark.parametrize(
    ("name", "extractor", "reply", "move"),
    [
        ("nim", "whole", "MOVE: 1:12", "1:12"),
        ("nim", "whole", "MOVE: 1:1", None),
        ("nim", "whole", "MOVE: 1:1, as it leaves", "1:1"),
        ("nim", "whole", "MOVE: 2:4", "2:4"),
        ("nim", "whole", "If I play 1:1, then my opponent has 2:4 and I lose. A better", None),
        ("nim", "boxed", "If I play 1:1, then my opponent has 2:4 and I lose. A better", None),
        ("nim", "boxed", r"If I play 1:1, I lose, so \boxed{2:4", None),
        ("nim", "boxed", r"If I play 1:1, I lose, so \boxed{2:4} or", "2:4"),
        ("nim", "boxed", "MOVE: 2:4", None),
        ("kuhn_poker", "whole", "MOVE: bet", "bet"),
        ("kuhn_poker", "whole", "MOVE: bet\nI hold the", "bet"),
        ("kuhn_poker", "whole", "I would never bet here, since", None),
    ],
)
def test_move_in_a_reply_that_was_cut_off_counts_where_no_further_text_could_change_it(
    name: str, extractor: str, reply: str, move: str | None, qwen: Path
):
    game, tokenizer = make_game(name, HEAPS if name == "nim" else {"shuffle": False}), Tokenizer(qwen)
    question = make_prompter(tokenizer, game, prompts(reply="free", extractor=extractor)).make_prompt(game.new(0), 0)
    cut = question.parse_reply(tokenizer.encode_text(reply), False, Random(5))
    assert (cut.fault, cut.illegal, cut.formatted) == ("truncated" if move is None else "", int(move is None), False)
    assert move is None or cut.action == (move,)
    ended = question.parse_reply(tokenizer.encode_text(reply), True, Random(5))
    assert ended.fault == "", "whole replies are read leniently"


def test_orders_in_a_reply_that_was_cut_off_count_without_the_last(qwen: Path):
    game, tokenizer = make_game("diplomacy", {"max_year": 1901}), Tokenizer(qwen)
    question = make_prompter(tokenizer, game, prompts(reply="free")).make_prompt(game.new(0), 2)
    reply = tokenizer.encode_text("A MAR - SPA; F BRE - PIC\nA PAR S F BRE")
    cut, ended = (question.parse_reply(reply, end, Random(5)) for end in (False, True))
    assert (cut.action, cut.fault, cut.illegal) == (("A MAR - SPA", "A PAR H", "F BRE - PIC"), "truncated", 1)
    assert (ended.action[1], ended.fault, ended.illegal) == ("A PAR S F BRE", "", 0)


def test_rule_for_invalid_replies_is_followed(qwen: Path):
    egocentric = make_game("diplomacy", {"text": "egocentric", "max_year": 1901})
    table, tokenizer = egocentric.new(0), Tokenizer(qwen)

    def france(reply: str, rule: str) -> ParsedReply:
        config = prompts(reply="free", extractor="orders", invalid=rule)
        question = make_prompter(tokenizer, egocentric, config).make_prompt(table, 2)
        return question.parse_reply(tokenizer.encode_text(reply), True, Random(5))

    def whole(reply: str) -> str:
        question = make_prompter(tokenizer, egocentric, prompts(reply="free")).make_prompt(table, 2)
        return question.parse_reply(tokenizer.encode_text(reply), True, Random(5)).fault

    assert [whole(reply) for reply in ("I resign.", "A PAR - MOS", "")] == ["unparsable", "illegal", "empty"]
    holds = ("A MAR H", "A PAR H", "F BRE H")
    nothing, some = "I resign.", "<orders>\nA PAR - BUR\n</orders>"
    assert france(nothing, "default") == ParsedReply(holds, False, 3, 3, fault="unparsable")
    drawn = france(nothing, "random")
    assert drawn.action != holds
    assert table.is_legal(2, drawn.action)
    assert drawn == france(nothing, "random"), "the seed decides"
    for rule in ("default", "random"):
        orders = "A MAR H", "A PAR - BUR", "F BRE H"
        assert france(some, rule) == ParsedReply(orders, True, 3, 2, fault="illegal")
        assert france(some, rule).illegal
    with pytest.raises(GameError, match=r"seat 2 says no legal action in its reply .*'A PAR - BUR'; prompts.invalid"):
        france(some, "fail")


def test_free_replies_are_steps_with_facts_and_counted_for_the_match(qwen: Path):
    seats = played(qwen, nim(), prompts(reply="free", reply_tokens=9, extractor="boxed"), 4)
    steps = [step for seat in seats for step in seat.model_calls]
    assert steps
    assert all(step.invalid and not step.formatted for step in steps), "the model was never taught"
    for step in steps:
        assert 1 <= len(step.completion_ids) <= 9
        assert step.branches == list(range(len(step.completion_ids))), "every token was sampled"
        assert not any(step.allowed), "from the whole vocabulary"
    moves = float(len(seats[0].model_calls))
    faults = {fault: seats[0].metrics()[f"reply_{fault}"] for fault in REPLY_FAULTS}
    assert seats[0].metrics() == {
        "reply_count": moves,
        "reply_unformatted": moves,
        "reply_invalid": moves,
        "reply_choices": moves,
        "reply_filled": moves,
        **{f"reply_{fault}": float(faults[fault]) for fault in REPLY_FAULTS},
    }
    assert sum(faults.values()) == moves
    assert gap(qwen, seats) < 1e-5


def test_constrained_replies_are_not_worth_a_metric(tmp_path: Path):
    assert all(seat.metrics() == {} for seat in played(made(tmp_path, nim()), nim(), PromptsConfig(), 2))


def test_free_reply_ends_with_the_turn_where_that_is_not_the_models_end_token(tmp_path: Path):
    tokenizer = Tokenizer(folder_of(tmp_path, "gemma"))
    place = make_prompter(tokenizer, nim(), prompts(reply="free")).make_prompt(nim().new(0), 0).constraint
    assert place is not None
    (turn,) = tokenizer.encode_text("<end_of_turn>")
    assert place.allowed() is ANY_TOKEN
    assert place.advance(turn + 1).allowed() is ANY_TOKEN
    assert place.advance(turn).allowed() == place.advance(tokenizer.eos).allowed() == ()


def test_nothing_is_watched_where_the_models_end_token_ends_its_turns(qwen: Path):
    assert make_prompter(Tokenizer(qwen), nim(), prompts(reply="free")).make_prompt(nim().new(0), 0).constraint is None


def test_free_question_is_the_games_rules_and_position_and_the_form_of_the_answer(qwen: Path):
    def asked(**settings: object) -> str:
        question = make_prompter(Tokenizer(qwen), nim(), prompts(reply="free", **settings)).make_prompt(nim().new(0), 0)
        return Tokenizer(qwen).decode(question.prompt_ids)

    told = build_game_messages(nim().words(), nim().new(0), 0)
    qwen3 = make_template("qwen3")
    assert asked() == qwen3.render(told)
    assert asked(thinking=True) == qwen3.render(told, thinking=True)
    assert asked(template="chatml") == make_template("chatml").render(told)
    assert r"Then give your move as \boxed{move}.<|im_end|>" in asked(extractor="boxed")
    zero_sum = asked(observation="qwen3-zs", extractor="boxed", system="Be brief.")
    assert zero_sum.startswith("<|im_start|>user\nYou are one of two players in a zero-sum game.")
    assert f"Observation: Be brief.\n\n{told[0].content}\n\n{told[1].content}" in zero_sum
    assert zero_sum.endswith(r"as \boxed{move}.<|im_end|>" + "\n<|im_start|>assistant\n")


def test_environments_of_a_game_may_be_asked_and_read_in_ways_of_their_own(qwen: Path) -> None:
    pytest.importorskip("textarena")
    own = {"name": "KuhnPoker-v0-train", "observation": "qwen3-sp", "extractor": "boxed"}
    game = make_game("textarena", {"env": "TicTacToe-v0-train", "evaluation_env": ["TicTacToe-v0-train", own]})
    config, tokenizer = prompts(reply="free"), Tokenizer(qwen)
    check_prompts_config(config, game, made=False)
    prompter = make_prompter(tokenizer, game, config)
    for environment in ("TicTacToe-v0-train", "KuhnPoker-v0-train"):
        table = make_game("textarena", {"env": environment}).new(0)
        question = prompter.make_prompt(table, table.to_move()[0])
        is_own = environment == "KuhnPoker-v0-train"
        assert ("You play a game alone." in tokenizer.decode(question.prompt_ids)) == is_own
        reply = question.parse_reply(tokenizer.encode_text(r"[Bet] or \boxed{[Pass]}"), True, Random(5))
        assert (reply.action == ("[Pass]",)) == is_own
    with pytest.raises(ConfigError, match=r"game\.settings\.env: .*prompts\.observation.*reply = 'free' only"):
        check_prompts_config(prompts(), game, made=False)
    odd = make_game("textarena", {"env": {"name": "KuhnPoker-v0-train", "observation": "qwen"}})
    with pytest.raises(ConfigError, match=r"prompts\.observation: .*'qwen'.*'qwen3-zs'"):
        check_prompts_config(config, odd, made=False)


@pytest.mark.parametrize("reply", ["constrained", "free"])
def test_reduced_question_is_the_short_one_of_a_game_that_has_one(reply: str, qwen: Path):
    egocentric = make_game("diplomacy", {"text": "egocentric"})
    check_prompts_config(prompts(reply=reply, reduced=True), egocentric, made=False)

    def asked(**settings: object) -> str:
        question = make_prompter(Tokenizer(qwen), egocentric, prompts(reply=reply, **settings)).make_prompt(
            egocentric.new(0), 2
        )
        return Tokenizer(qwen).decode(question.prompt_ids)

    assert '"legal_orders"' in asked()
    assert '"legal_orders"' not in asked(reduced=True)
    assert '"my_units":["A MAR","A PAR","F BRE"]' in asked(reduced=True)


@pytest.mark.parametrize("reply", ["constrained", "free"])
def test_reduced_question_of_a_listed_game_leaves_the_moves_to_the_position(reply: str, qwen: Path):
    game, tokenizer = make_game("tic_tac_toe", {"shuffle": False}), Tokenizer(qwen)
    config = prompts(reply=reply, reduced=True)
    check_prompts_config(config, game, made=False)
    question = make_prompter(tokenizer, game, config).make_prompt(game.new(0), 0)
    assert "1 2 3\n4 5 6\n7 8 9<|im_end|>" in tokenizer.decode(question.prompt_ids)
    assert question.parse_reply(tokenizer.encode_text("MOVE: 5<|im_end|>"), True, Random(0)).action == ("5",)


def test_system_text_comes_before_the_rules(qwen: Path):
    question = make_prompter(Tokenizer(qwen), nim("json"), prompts(system="Win.")).make_prompt(nim().new(0), 0)
    assert Tokenizer(qwen).decode(question.prompt_ids).startswith("<|im_start|>system\nWin.\n\nYou are playing Nim.")


def test_template_that_the_model_was_not_trained_on_is_refused(qwen: Path):
    with pytest.raises(ModelError, match=r"prompts.template: 'llama' needs the token '<.begin_of_text.>'"):
        make_prompter(Tokenizer(qwen), nim("json"), prompts(template="llama")).make_prompt(nim().new(0), 0)


@pytest.mark.parametrize(
    ("settings", "text", "says"),
    [
        ({"template": "mistral"}, "json", "prompts.template: .*'mistral'; expected 'chatml'"),
        ({"reply": "free", "extractor": "braces"}, "json", "prompts.extractor: .*'braces'; expected 'boxed'"),
        ({"reply": "free", "observation": "gpt"}, "json", "prompts.observation: .*'gpt'; expected 'default'"),
        (
            {"reply": "free", "observation": "qwen3-zs"},
            "json",
            "extractor: 'whole', but .* expected 'boxed' or 'default'",
        ),
        ({"thinking": True}, "json", "prompts.thinking: true, but the reply begins"),
        ({"reduced": True}, "json", "prompts.reduced: true, but the text of nim knows no shorter question"),
        ({"reduced": True, "reply": "free"}, "json", "prompts.reduced: true, but nim in words"),
    ],
)
def test_what_a_game_cannot_do_is_said_when_the_league_opens(settings: dict[str, object], text: str, says: str):
    with pytest.raises(ConfigError, match=says):
        check_prompts_config(prompts(**settings), nim(text), made=False)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"reply": "maybe"}, "reply: 'maybe'; expected 'constrained' or 'free'"),
        ({"invalid": "forfeit"}, "invalid: 'forfeit'; expected 'default', 'fail' or 'random'"),
        ({"free_tokens": -1}, "free_tokens: -1; expected 0 or more"),
        ({"reply_tokens": 0}, "reply_tokens: 0; expected 1 or more"),
        ({"reply": "free", "free_tokens": 9}, "prompts.free_tokens: a free reply has no constrained part"),
        ({"extractor": "boxed"}, "prompts.extractor: 'boxed'; expected it with reply = 'free'"),
        ({"second_question": True}, "prompts.second_question: true; expected it with reply = 'free'"),
        ({"observation": "qwen3-sp"}, "prompts.observation: 'qwen3-sp'; expected it with reply = 'free'"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, object], says: str):
    with pytest.raises(ConfigError, match=says):
        prompts(**settings)


def test_model_of_whole_words_keeps_the_games_own_language(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"prompts.thinking: True with model.base = 'made'"):
        check_prompts_config(prompts(thinking=True), nim(), made=True)
    with pytest.raises(ConfigError, match=r"prompts.reply: 'free', but the tokenizer of .* knows whole words only"):
        make_prompter(Tokenizer(made(tmp_path, nim())), nim(), prompts(reply="free"))
