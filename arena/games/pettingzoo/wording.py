"""Actions and observations in words, per environment; the generic ones are for environments without an entry.

Add an environment by an entry in ``WORDINGS``: its rules, the name of an action and the text of an observation.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

Environment = Any
"""A ``pettingzoo.AECEnv`` or ``pettingzoo.ParallelEnv``."""

MAX_LISTED_VALUES = 200
"""Values of an observation that the generic text lists."""


class Wording(NamedTuple):
    """One environment in words."""

    rules: str
    action: Callable[[Environment, str, int], str]
    """Name of a legal action of an agent to move, given by its number; all names differ."""
    observation: Callable[[Environment, str, Any], str]
    """An agent's observation as text: nothing that the observation hides."""


def _template(template: str) -> Callable[[Environment, str, int], str]:
    return lambda env, agent, number: template.format(number)


def list_values(env: Environment, agent: str, observation: Any) -> str:
    """The values of an observation that are not 0, each with its index."""
    values = np.asarray(observation["observation"] if isinstance(observation, dict) else observation)
    if values.ndim == 0:
        return f"Observation: {values.item()}"
    values_listed = [
        f"{','.join(map(str, at))}={values[tuple(at)].item():g}" for at in np.argwhere(values)[:MAX_LISTED_VALUES]
    ]
    return f"Observation of shape {values.shape}, values that are not 0: {' '.join(values_listed) or 'none'}"


def _named(*names: str) -> Callable[[Environment, str, int], str]:
    return lambda env, agent, number: names[number]


def _draw_board(observation: Any) -> str:
    own, other = observation["observation"][..., 0], observation["observation"][..., 1]
    marks = np.where(own, "X", np.where(other, "O", "."))
    return "\n".join(" ".join(row) for row in marks)


def _tictactoe(env: Environment, agent: str, observation: Any) -> str:
    # The environment numbers squares column by column.
    turned = {"observation": np.swapaxes(observation["observation"], 0, 1)}
    return f"Your marks are X, the other player's O. The squares are 0 3 6, 1 4 7, 2 5 8.\n{_draw_board(turned)}"


def _connect_four(env: Environment, agent: str, observation: Any) -> str:
    return f"Your pieces are X, the other player's O; the columns are 0 to 6.\n{_draw_board(observation)}"


def _go(env: Environment, agent: str, observation: Any) -> str:
    colour = "black" if agent == env.possible_agents[0] else "white"
    return f"You are {colour}: your stones are X, the other player's O; row 0 is on top.\n{_draw_board(observation)}"


def _go_point(env: Environment, agent: str, number: int) -> str:
    size = env.observation_space(agent)["observation"].shape[0]
    return "pass" if number == size * size else f"row {number // size} column {number % size}"


def _chess(env: Environment, agent: str, observation: Any) -> str:
    colour = "white" if agent == env.possible_agents[0] else "black"
    return f"You are {colour}. White's pieces are capitals.\n{env.board}\nFEN: {env.board.fen()}"


def _chess_move(env: Environment, agent: str, number: int) -> str:
    from pettingzoo.classic.chess.chess_utils import action_to_move

    return str(action_to_move(env.board, number, env.possible_agents.index(agent)).uci())


def _hanabi(env: Environment, agent: str, observation: Any) -> str:
    return str(env.hanabi_env.game_state.observation_string(env.possible_agents.index(agent)))


def _hanabi_move(env: Environment, agent: str, number: int) -> str:
    player = env.possible_agents.index(agent)
    return str(env.hanabi_env.game_state.action_to_string(player, number)).strip("()")


def _last_throw(env: Environment, agent: str, observation: Any) -> str:
    # Behind the throws stands that of nobody.
    is_none = int(observation) >= len(env.unwrapped._moves) - 1
    return f"The other player's last throw: {'none yet' if is_none else _throw(env, agent, int(observation))}"


def _throw(env: Environment, agent: str, number: int) -> str:
    return str(env.unwrapped._moves[number]).lower()


_CARDS = [f"{rank}{suit}" for suit in "SHDC" for rank in "A23456789TJQK"]


def _cards(values: Any) -> str:
    return " ".join(card for card, held in zip(_CARDS, values[:52], strict=True) if held)


def _leduc(env: Environment, agent: str, observation: Any) -> str:
    values = observation["observation"]
    hand, public = ([name for name, held in zip("JQK", values[at : at + 3], strict=True) if held] for at in (0, 3))
    chips = [int(np.argmax(values[at : at + 15])) for at in (6, 21)]
    return (
        f"Your card: {''.join(hand)}. Public card: {''.join(public) or 'none yet'}. "
        f"Chips in the pot: {chips[0]} of yours, {chips[1]} of the other player's."
    )


def _limit_holdem(env: Environment, agent: str, observation: Any) -> str:
    values = observation["observation"]
    raises = [int(np.argmax(values[at : at + 5])) for at in range(52, 72, 5)]
    return f"Your cards and the public ones: {_cards(values)}. Raises in rounds 1 to 4: {' '.join(map(str, raises))}."


def _no_limit_holdem(env: Environment, agent: str, observation: Any) -> str:
    values = observation["observation"]
    return (
        f"Your cards and the public ones: {_cards(values)}. Chips in the pot: {int(values[52])} of yours, "
        f"{int(values[53])} of the player with most."
    )


_BETS = _named("call", "raise", "fold", "check")
_NO_LIMIT_BETS = _named("fold", "check or call", "raise half the pot", "raise the pot", "all in")

GENERIC = Wording("", _template("{}"), list_values)
WORDINGS: Mapping[str, Wording] = {
    "classic/chess": Wording("Chess; a move names two squares, e2e4, and a promotion.", _chess_move, _chess),
    "classic/connect_four": Wording(
        "Players drop pieces into columns; four in a line win.", _template("column {}"), _connect_four
    ),
    "classic/go": Wording("Go, scored by area.", _go_point, _go),
    "classic/hanabi": Wording(
        "Hanabi: both players score together. You do not see your own cards.", _hanabi_move, _hanabi
    ),
    "classic/leduc_holdem": Wording("Leduc hold'em with cards J, Q, K in two suits.", _BETS, _leduc),
    "classic/rps": Wording("Both throw at the same time, again and again.", _throw, _last_throw),
    "classic/texas_holdem": Wording("Limit Texas hold'em.", _BETS, _limit_holdem),
    "classic/texas_holdem_no_limit": Wording("No-limit Texas hold'em.", _NO_LIMIT_BETS, _no_limit_holdem),
    "classic/tictactoe": Wording("Three in a line win.", _template("square {}"), _tictactoe),
}
"""Wordings by the environment's id without its version."""


def wording_of(env_id: str) -> Wording:
    """The wording of an environment; the generic one if it has none."""
    return WORDINGS.get(env_id.rpartition("-v")[0], GENERIC)
