"""Writes the golden prompts: ``python tests/golden/prompts/write.py``. Read the result before use.

The positions are the questions that ``tests/unit/arena/test_egocentric.py``, ``test_prompts.py`` and
``test_chat_templates.py`` ask.
"""

from pathlib import Path

from arena.games import make_game
from arena.games.texts import words_of
from arena.prompts import build_game_messages, make_template, template_names, with_system_prompt

DIPLOMACY = Path(__file__).with_name("diplomacy-position.json")
"""The position, as ``Game.save`` writes it; France is asked."""
FRANCE = 2

if __name__ == "__main__":
    diplomacy = make_game("diplomacy", {"text": "egocentric", "max_year": 1908})
    nim = make_game("nim", {"shuffle": False})
    asked = {
        "diplomacy": build_game_messages(words_of(diplomacy), diplomacy.load(DIPLOMACY.read_bytes()), FRANCE),
        "nim": build_game_messages(words_of(nim), nim.new(0), 0),
    }
    for family in template_names():
        for game, messages in asked.items():
            Path(__file__).with_name(f"{game}-{family}.txt").write_text(make_template(family).render(messages))
        led = with_system_prompt(asked["nim"], "Play to win.")
        Path(__file__).with_name(f"system-{family}.txt").write_text(make_template(family).render(led))
    thoughtful = make_template("qwen3").render(led, thinking=True)
    Path(__file__).with_name("system-qwen3-thinking.txt").write_text(thoughtful)
