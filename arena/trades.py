"""Goods and trades of two players: holdings, private values, and offers parsed from replies."""

import re
from collections.abc import Sequence

import msgspec

from schemas.errors import EpisodeError

PLAYERS = ("Player0", "Player1")
ACCEPT, REJECT = "accept", "reject"
_ITEM = re.compile(r"(\d{1,6}) ([a-z]+)")
_OFFER = re.compile(r"offer:? give (.+?),? take (.+)")

Goods = dict[str, int]
"""Units by resource."""


class Deal(msgspec.Struct, frozen=True):
    """Holdings and values of both players."""

    holdings: dict[str, Goods]
    """By player; public."""
    values: dict[str, Goods]
    """Value of a unit, by player; private."""

    def __post_init__(self) -> None:
        whole = set(self.holdings) == set(self.values) == set(PLAYERS)
        goods = [*self.holdings.values(), *self.values.values()]
        if not whole or len(set(map(frozenset, goods))) != 1 or _smallest_amount(goods) < 1:
            raise EpisodeError(f"deal: {self}; expected 1 or more of the same resources for each of {PLAYERS}")

    def max_joint_gain(self) -> int:
        """Greatest possible gain of both players together: every unit goes to the player who values it most."""
        return sum(
            units * max(self.values[player][name] - self.values[owner][name] for player in self.values)
            for owner, goods in self.holdings.items()
            for name, units in goods.items()
        )

    def gains(self, trade: "Trade") -> dict[str, int]:
        """Each player's gain from a trade, by its own values."""
        sign = {trade.by: 1, other_player(trade.by): -1}
        return {
            player: sign[player] * (total_value(trade.take, values) - total_value(trade.give, values))
            for player, values in self.values.items()
        }


class Trade(msgspec.Struct, frozen=True):
    """An offer from the view of the player who made it."""

    by: str
    give: Goods
    take: Goods


def other_player(player: str) -> str:
    """The other player."""
    return PLAYERS[1 - PLAYERS.index(player)]


def total_value(goods: Goods, values: Goods) -> int:
    """Total value of goods."""
    return sum(units * values[name] for name, units in goods.items())


def _smallest_amount(goods: Sequence[Goods]) -> int:
    return min((units for of in goods for units in of.values()), default=0)


def format_goods(goods: Goods) -> str:
    """Goods in words."""
    return " ".join(f"{units} {name}" for name, units in goods.items() if units) or "nothing"


def parse_move(reply: str) -> str:
    """The last line of a reply that is a move, in lower case and without markup; empty if there is none."""
    for line in reversed(reply.casefold().splitlines()):
        bare = " ".join(line.split()).strip(" `*_.!\"'")
        if bare in (ACCEPT, REJECT) or bare.startswith("offer"):
            return bare
    return ""


def parse_offer(text: str, by: str) -> Trade | None:
    """The offer in a move; None if it is not an offer."""
    match = _OFFER.fullmatch(text)
    sides = [parse_goods(part) for part in match.groups()] if match else []
    give, take = sides or [None, None]
    return None if give is None or take is None else Trade(by, give, take)


def parse_goods(text: str) -> Goods | None:
    """Goods from text, with amounts of a resource added up; None for other texts."""
    goods: Goods = {}
    for part in re.split(r",? and |, ?|(?<=[a-z]) (?=\d)", text):
        if part == "nothing":
            continue
        item = _ITEM.fullmatch(part)
        if item is None:
            return None
        goods[item[2]] = goods.get(item[2], 0) + int(item[1])
    return goods


def find_offer_error(trade: Trade | None, deal: Deal) -> str:
    """Reason for which an offer is invalid; empty if it is valid."""
    if trade is None:
        return "Not understood."
    for goods, owner in ((trade.give, trade.by), (trade.take, other_player(trade.by))):
        for name, units in goods.items():
            if units > deal.holdings[owner].get(name, 0):
                return f"{owner} has no {units} {name}."
    return "" if any(trade.give.values()) or any(trade.take.values()) else "Nothing was offered."


def efficiency(deal: Deal, agreed: Trade | None) -> float:
    """Joint gain as a share of the greatest possible one; 1 if nothing could be gained and nothing was lost."""
    joint = 0 if agreed is None else sum(deal.gains(agreed).values())
    best = deal.max_joint_gain()
    return joint / best if best else float(joint == 0)
