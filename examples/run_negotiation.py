"""A negotiation with private values: two players split a pile of coins and gems, each seeing only its own values.

python examples/run_negotiation.py --num-steps 3 --batch-size 8 --local --port 8000
"""

import re
from typing import Any

from running import make_parser, play

from arena import (
    AlternatingRolesEpisode,
    Arena,
    EpisodeRequest,
    EpisodeState,
    InferenceClient,
    Limits,
    RAECredit,
    Role,
    Rollout,
    Rubric,
)

PLAYERS = ("Player0", "Player1")
PILE = {"coins": 4, "gems": 2}


def gained(rollout: Rollout, arena: Arena) -> dict[str, float]:
    """Each player's share of what the whole pile is worth to it; nothing without a deal."""
    rewards = dict.fromkeys(PLAYERS, 0.0)
    for player, goods in rollout.extras["deal"].items():
        values = rollout.artifact["values"][player]
        worth = sum(PILE[name] * value for name, value in values.items())
        rewards[player] = sum(goods[name] * value for name, value in values.items()) / worth
    return rewards


class NegotiationEpisode(AlternatingRolesEpisode):
    """Offers in turn until one is accepted."""

    episode_type = "negotiation"
    role_ids = PLAYERS
    rubric = Rubric([gained])

    def __init__(self) -> None:
        super().__init__(max_turns=6)

    def get_initial_prompt(self, arena: Arena, artifact: Any, state: EpisodeState) -> str:
        """What both know."""
        return "On the table: 4 coins, 2 gems. Say 'I take 2 coins, 1 gems', or 'accept' the last offer."

    def get_observation(self, state: EpisodeState, arena: Arena, artifact: Any) -> str:
        """What only the current player sees: it never enters the transcript."""
        values = artifact["values"][state.current_actor]
        return "To you " + ", ".join(f"one of the {name} is worth {value}" for name, value in values.items()) + "."

    def env_response(self, state: EpisodeState, arena: Arena, artifact: Any) -> str:
        """The result of a turn, which both see."""
        text, player = state.last_completion_text.lower(), state.current_actor
        offer = state.data.get("offer")
        if "accept" in text and offer is not None:
            other = next(one for one in PLAYERS if one != player)
            state.data["deal"] = {other: offer, player: {name: PILE[name] - offer[name] for name in PILE}}
            state.done = True
            return "Agreed."
        counts = [re.search(rf"(\d+) {name}", text) for name in PILE]
        taken = {name: int(found[1]) for name, found in zip(PILE, counts, strict=True) if found}
        if len(taken) < len(PILE) or any(taken[name] > PILE[name] for name in PILE):
            return "That is no offer."
        state.data["offer"] = taken
        return ""

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        """The deal."""
        return {"deal": state.data.get("deal", {})}


class NegotiationArena(Arena):
    """Negotiations in which the two value opposite things."""

    batch_size = 4

    def get_batch(self) -> list[EpisodeRequest]:
        """A negotiation for each number, with values that rise with it."""
        values = ({"coins": 1 + at % 3, "gems": 4 - at % 3} for at in range(self.batch_size))
        swapped = ({"coins": one["gems"], "gems": one["coins"]} for one in values)
        return [
            EpisodeRequest("negotiation", {"values": {"Player0": {"coins": 1, "gems": 3}, "Player1": two}})
            for two in swapped
        ]


def make_negotiations(client: InferenceClient, batch_size: int = 4) -> Arena:
    """An arena of negotiations: each player is compared with what its own seat earned so far."""
    arena = NegotiationArena(client, RAECredit(), limits=Limits(needs_tokens=False))
    arena.batch_size = batch_size
    for player in PLAYERS:
        arena.add_actor(Role(player, f"You are {player}. Get as much value as you can.", max_tokens=60))
    arena.add_episode("negotiation", NegotiationEpisode())
    return arena


if __name__ == "__main__":
    flags = make_parser(__doc__).parse_args()
    play(lambda client: make_negotiations(client, flags.batch_size), flags)
