"""Decisions that are shown without a kept row: they are asked again from the record, as the model was asked."""

from pathlib import Path

import pytest

from arena.games import make_game
from league.queries.decisions import Decision, DecisionPoint, load_tokenizer, reconstruct_decision
from league.run import Run
from models.make import make_base
from schemas.config import LeagueConfig, convert


def reconstructed(base: str, name: str, action: str) -> Decision:
    config = convert({"game": {"name": name}, "model": {"base": base}}, LeagueConfig, "")
    spec = make_game(name, {"shuffle": False})
    return reconstruct_decision(DecisionPoint(spec, spec.new(0), (action,), 0), 0, config, remote=False)


@pytest.mark.parametrize(("name", "action", "reply"), [("kuhn_poker", "bet", "MOVE: bet"), ("nim", "1:2", "MOVE 1:2")])
def test_a_language_model_was_asked_in_words(name: str, action: str, reply: str) -> None:
    found = reconstructed("smollm2-135m-instruct", name, action)
    assert found.prompt.startswith("[system]\nYou are playing")
    assert "[user]\nYou are P1." in found.prompt
    assert found.reply == reply
    assert reply in found.choices[0].allowed
    assert len(found.choices[0].allowed) > 1


def test_a_made_model_was_asked_in_pieces() -> None:
    assert "MOVE" not in reconstructed("made", "kuhn_poker", "bet").reply


def test_the_tokenizer_is_found_wherever_the_model_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    vocabulary = make_game("nim", {}).text().vocabulary()
    folder = make_base(tmp_path / "base", vocabulary)
    make_base(tmp_path / "event-sourced-league" / "models" / "smollm2-135m-instruct", vocabulary)
    assert load_tokenizer(Run(tmp_path / "run"), "smollm2-135m-instruct") is not None
    assert load_tokenizer(Run(tmp_path / "run"), str(folder)) is not None
    assert load_tokenizer(Run(tmp_path / "run"), str(tmp_path / "none")) is None
    assert load_tokenizer(Run(tmp_path / "run"), "no-such-model") is None
