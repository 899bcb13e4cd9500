"""A negotiation: two players, each with public goods and private values, look for a trade.

In turn they offer (``offer: give 2 wood, take 1 gold``, from the speaker's view), ``accept`` or ``reject``. An offer
is valid for the other's next turn only. Each earns its gain by its own values, as a share of what all of the other's
goods would be worth to it; without a deal, nothing. An invalid turn is announced as such and has no effect.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Annotated, Any

import msgspec

from arena.arena import Arena
from arena.environments import DatasetArena, DatasetSpec, register
from arena.episodes.chat import AlternatingRolesEpisode
from arena.rubrics import Rubric
from schemas.config.base import Table
from schemas.episodes import Artifact, EpisodeState, GenerateResult, Message, Rollout
from schemas.errors import ConfigError, EpisodeError
from schemas.ids import derive_seed
from schemas.numbers import PositiveInt, Share

PLAYERS = ("Player0", "Player1")
ACCEPT, REJECT = "accept", "reject"
_ITEM = re.compile(r"(\d{1,6}) ([a-z]+)")
_OFFER = re.compile(r"offer:? give (.+?),? take (.+)")

Goods = dict[str, int]
"""Units by resource."""


class Deal(msgspec.Struct, frozen=True):
    """Holdings and values of both players."""

    holdings: dict[str, Goods]
    """Holdings by player; public."""
    values: dict[str, Goods]
    """Value of a unit, by player; private."""

    def __post_init__(self) -> None:
        whole = set(self.holdings) == set(self.values) == set(PLAYERS)
        goods = [*self.holdings.values(), *self.values.values()]
        least = min((units for of in goods for units in of.values()), default=0)
        if not whole or len(set(map(frozenset, goods))) != 1 or least < 1:
            raise EpisodeError(f"deal: {self}; expected 1 or more of the same resources for each of {PLAYERS}")

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
    # Every unit goes to the player who values it most.
    best = sum(
        units * max(deal.values[player][name] - deal.values[owner][name] for player in deal.values)
        for owner, goods in deal.holdings.items()
        for name, units in goods.items()
    )
    return joint / best if best else float(joint == 0)


_INSTRUCTIONS = "Trade. Say offer: give 1 {0}, take 1 {1} - or accept - or reject."


class Settings(Table, frozen=True):
    """The ``[game]`` settings."""

    resources: tuple[str, ...] = ("wood", "gold")
    """Single words in small letters."""
    most: PositiveInt = 3
    """Most units of a resource that a player has."""
    highest: PositiveInt = 5
    """Greatest value of a unit."""
    turns: Annotated[int, msgspec.Meta(ge=2)] = 6
    """Turns of both players together."""
    batch_size: PositiveInt = 8
    """Deals of a batch."""
    group_size: PositiveInt = 1
    """Negotiations of the same deal that are compared with each other; 1 compares all of a batch."""
    invalid_cost: Share = 0.0
    """Penalty for an invalid turn, for models that have yet to learn the form."""
    max_tokens: PositiveInt = 64
    """Most tokens of a turn."""

    def __post_init__(self) -> None:
        words = [re.fullmatch("[a-z]+", name) and name not in ("and", "give", "take") for name in self.resources]
        if len(words) < 2 or not all(words) or len(set(self.resources)) < len(words):
            raise ConfigError(f"resources: {list(self.resources)}; expected two or more different words, a to z")


def draw_deal(settings: Settings, rng: Random) -> Deal:
    """Random goods and values."""

    def draw(most: int) -> dict[str, Goods]:
        return {player: {name: rng.randint(1, most) for name in settings.resources} for player in PLAYERS}

    return Deal(draw(settings.most), draw(settings.highest))


class NegotiationState(EpisodeState, kw_only=True):
    """State of a negotiation."""

    deal: Deal | None = None
    standing: Trade | None = None
    """The offer that can be accepted now."""
    agreed: Trade | None = None
    invalid: dict[str, int]
    """Invalid turns, by player."""


class NegotiationEpisode(AlternatingRolesEpisode):
    """One negotiation; its artifact is a ``Deal``, or nothing for one drawn by the episode's seed."""

    episode_type = "negotiation"

    def __init__(self, settings: Settings) -> None:
        super().__init__(PLAYERS, settings.turns)
        self.settings = settings
        self.rubric = Rubric([gained, invalid], [1.0, -settings.invalid_cost])

    def new_state(self) -> EpisodeState:
        """A state without an offer."""
        return NegotiationState(invalid=dict.fromkeys(PLAYERS, 0))

    def get_initial_prompt(self, arena: Arena, artifact: Any, state: EpisodeState) -> str:
        """The goods of both players."""
        assert isinstance(state, NegotiationState)
        if artifact is None:
            state.deal = draw_deal(self.settings, Random(state.seed))
        else:
            state.deal = msgspec.convert(artifact, Deal)
        return "\n".join(
            f"{player} has {' '.join(f'{units} {name}' for name, units in goods.items())}."
            for player, goods in state.deal.holdings.items()
        )

    def get_observation(self, state: EpisodeState, arena: Arena, artifact: Any) -> str:
        """The values of the current player, which only it sees."""
        assert isinstance(state, NegotiationState)
        assert state.deal is not None
        me = state.current_actor
        values = ", ".join(f"{name} {value}" for name, value in state.deal.values[me].items())
        return f"You are {me}. You value {values}."

    def env_response(self, state: EpisodeState, arena: Arena, artifact: Any) -> str:
        """The result of the turn; empty if the turn speaks for itself."""
        assert isinstance(state, NegotiationState)
        assert state.deal is not None
        standing, state.standing = state.standing, None
        me = state.current_actor
        move = parse_move(state.last_completion_text)
        if move == REJECT:
            return ""
        if move == ACCEPT and standing is not None:
            state.agreed = standing
            state.done = True
            return "Agreed."
        trade = parse_offer(move, me)
        if error := "Nothing to accept." if move == ACCEPT else find_offer_error(trade, state.deal):
            state.invalid[me] += 1
            return f"Invalid: {error}"
        state.standing = trade
        return ""

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        """The deal, the agreed trade, and the number of invalid turns."""
        assert isinstance(state, NegotiationState)
        extras = {"deal": state.deal, "agreed": state.agreed, "invalid": state.invalid}
        return {name: msgspec.to_builtins(value) for name, value in extras.items()}


def gained(rollout: Rollout, arena: Arena) -> dict[str, float]:
    """Value gained, as a share of what all of the other's goods are worth to a player; 0 without a deal."""
    deal = msgspec.convert(rollout.extras["deal"], Deal)
    if rollout.extras["agreed"] is None:
        return dict.fromkeys(PLAYERS, 0.0)
    gains = deal.gains(msgspec.convert(rollout.extras["agreed"], Trade))
    return {
        player: gains[player] / total_value(deal.holdings[other_player(player)], deal.values[player])
        for player in PLAYERS
    }


def invalid(rollout: Rollout, arena: Arena) -> dict[str, float]:
    """Number of invalid turns."""
    return {player: float(times) for player, times in rollout.extras["invalid"].items()}


class NegotiationSpec(DatasetSpec):
    """Two seats."""

    name = "negotiation"
    seats = PLAYERS
    item = "deal"
    single = False
    settings_type, episode_class = Settings, NegotiationEpisode

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.prompts = dict.fromkeys(PLAYERS, _INSTRUCTIONS.format(*settings.resources))

    def draw_items(self, arena: DatasetArena, count: int) -> Iterator[Artifact]:
        """New deals."""
        for _ in range(count):
            deal = draw_deal(self.settings, Random(derive_seed(arena.seed, "deal", arena.group_count + 1)))
            yield Artifact(msgspec.to_builtins(deal))

    def improvise(self, role_id: str | None, messages: Sequence[Message], rng: Random) -> str:
        """A random offer that the goods allow; the other's offers are accepted at random."""
        if role_id is None:
            return "reject"
        text = "\n".join(message.content for message in messages if message.role == "user")
        _, offer, since = messages[-1].content.rpartition(f"{other_player(role_id)}: offer")
        if offer and "Invalid" not in since and rng.random() < 0.6:
            return rng.choice([ACCEPT, ACCEPT, REJECT])
        sides = []
        for owner in (role_id, other_player(role_id)):
            held = re.search(rf"^{owner} has ([\w ]+)\.$", text, re.MULTILINE)
            goods = parse_goods(held[1]) or {} if held else {}
            name = rng.choice(sorted(goods))
            sides.append(f"{rng.randint(1, goods[name])} {name}")
        return f"offer: give {sides[0]}, take {sides[1]}"

    def metrics(self, result: GenerateResult) -> Mapping[str, float]:
        """Add whether there was a deal, and its share of the possible joint gain."""
        extras = result.rollout.extras
        deal, agreed = msgspec.convert(extras["deal"], Deal), msgspec.convert(extras["agreed"], Trade | None)
        return {**super().metrics(result), "deal": float(agreed is not None), "efficiency": efficiency(deal, agreed)}


make = register("negotiation")(NegotiationSpec.of)
