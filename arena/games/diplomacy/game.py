"""Diplomacy behind the ``Game`` protocol."""

from collections.abc import Mapping, Sequence
from random import Random
from statistics import fmean
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from arena.games.base import Action, Outcome, position_checksum, ranks, validate_actions
from arena.games.diplomacy import Settings
from arena.games.diplomacy.engine import Adjudicator
from arena.games.diplomacy.order_parser import order_fields
from arena.games.diplomacy.position import Position, UnitOrders, legal_build_actions
from arena.games.diplomacy.unit_credit import UnitCredit
from arena.games.texts import AnswerField
from schemas.errors import GameError

_encode = msgspec.json.Encoder(order="sorted").encode


class DeclaredEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """End of a game by agreement, or because it was stopped; games of a league end by the year or a solo victory."""

    turns: int
    """Phases played until then."""
    drawn: tuple[str, ...] = ()
    """Powers that share the victory; empty for a game that was stopped."""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Serialised form of ``DiplomacyGame.record``; the order log alone reproduces every phase."""

    game: str
    settings: Settings
    seed: int
    start: str | None
    """``Game.save`` of the first position where the game did not begin in 1901."""
    turns: list[dict[str, Action]]
    """Orders of each phase by power."""
    checks: list[str] = []
    """``position_checksum`` of the position after each phase."""
    end: DeclaredEnd | UnsetType = UNSET


class DiplomacyGame:
    """One play-through. Positions are immutable; ``position`` is replaced by ``apply``."""

    name = "diplomacy"

    def __init__(
        self, settings: Settings, seed: int, start: Position | None = None, end: DeclaredEnd | UnsetType = UNSET
    ) -> None:
        self.settings = settings
        self.seed = seed
        self.seats: Sequence[str] = settings.playing_powers
        self._engine = Adjudicator(settings.playing_powers)
        self._start = start
        self._end = end
        self._turns: list[dict[str, Action]] = []
        if start is not None:
            self._engine.restore(start.saved)
        self.position = start or Position(self._engine.save(year=1901, turns=0))
        self._saved = [self.position.saved]
        """The first position, and those after each phase."""
        self._legal_orders: dict[int, tuple[UnitOrders, ...]] = {}
        self._to_move = self._seats_to_move()

    def is_over(self) -> bool:
        """Whether the final year has passed, a power has won outright, or the end was declared."""
        is_declared = self._end is not UNSET and len(self._turns) >= self._end.turns
        return is_declared or self.position.kind not in "MRA" or self.position.year > self.settings.max_year

    def declare_end(self, drawn: Sequence[str]) -> None:
        """End the game now, as a draw of these powers, or without any as stopped."""
        self._end = DeclaredEnd(len(self._turns), tuple(drawn))
        self._to_move = ()

    def to_move(self) -> tuple[int, ...]:
        """The seats with orders to give in this phase."""
        return self._to_move

    def _seats_to_move(self) -> tuple[int, ...]:
        if self.is_over():
            return ()
        position = self.position
        if position.kind == "A":
            return tuple(seat for seat in range(len(self.seats)) if position.adjustment_due(seat))
        waiting: Sequence[Any] = position.units if position.kind == "M" else position.retreats
        return tuple(seat for seat, units in enumerate(waiting) if units)

    def legal_orders(self, seat: int) -> tuple[UnitOrders, ...]:
        """The legal orders of each unit of the seat; empty in adjustment phases, which choose among places."""
        if seat not in self._legal_orders:
            self._legal_orders[seat] = () if self.position.kind == "A" else self.position.legal_orders(seat)
        return self._legal_orders[seat]

    def random_action(self, seat: int, rng: Random) -> Action:
        """Draw orders of every unit; of adjustments, one set of builds or disbands."""
        self.check_to_move(seat)
        position = self.position
        if position.kind != "A":
            return tuple(rng.choice(unit.orders) for unit in self.legal_orders(seat))
        due = position.adjustment_due(seat)
        if due > 0:
            return rng.choice(legal_build_actions(position.free_build_sites(seat), due))
        return tuple(sorted(f"{unit} D" for unit in rng.sample(position.units[seat], -due)))

    def is_legal(self, seat: int, action: Action) -> bool:
        """Whether ``action`` holds exactly one legal order per unit (per adjustment due), sorted."""
        if seat not in self.to_move() or not isinstance(action, tuple):
            return False
        if self.position.kind == "A":
            return self.position.is_legal_adjustment(seat, action)
        choices = self.legal_orders(seat)
        # Choices are in the sorted order of units, and an order begins with its unit.
        return len(action) == len(choices) and all(order in unit for order, unit in zip(action, choices, strict=True))

    def apply(self, actions: Mapping[int, Action]) -> None:
        """Adjudicate one phase; ``GameError`` for missing or illegal orders, and nothing changes."""
        turn = {
            self.seats[seat]: action for seat, action in validate_actions(self, actions, lambda: self.position.phase)
        }
        self._engine.process(turn)
        self._turns.append(turn)
        self.position = Position(self._engine.save(self.position.year, self.position.saved.turns + 1))
        self._saved.append(self.position.saved)
        self._legal_orders = {}
        self._to_move = self._seats_to_move()

    @property
    def clock(self) -> int:
        """The year; after the last adjustments, the one after the cap."""
        return self.position.year

    def progress(self, seat: int) -> float:
        """The seat's supply centres, which change hands only after the autumn moves."""
        return float(len(self.position.centers[seat]))

    def history(self) -> Sequence[tuple[Position, Mapping[int, Action]]]:
        """Each phase played so far: the position before it, and the actions by seat."""
        seats = {power: seat for seat, power in enumerate(self.seats)}
        return [
            (Position(saved), {seats[power]: action for power, action in turn.items()})
            for saved, turn in zip(self._saved, self._turns, strict=False)
        ]

    def credits(self, seat: int) -> Sequence[Mapping[str, float]]:
        """Credit of every unit's order, phase by phase, by ``unit_credit``."""
        return UnitCredit(self._saved, self._turns, self.seats[seat]).credits()

    def outcome(self) -> Outcome:
        """The result by supply centres, or of an agreed end; ``GameError`` while the game is not over."""
        if not self.is_over():
            raise GameError(f"diplomacy: no outcome in {self.position.phase}; the game is not over")
        outcome = self.position.outcome(self.settings)
        if self._end is UNSET:
            return outcome
        if not self._end.drawn:
            return replace(outcome, reason="stopped")
        # A draw is shared equally, whatever the centres.
        places = [self.seats.index(power) for power in self._end.drawn]
        shared = fmean(outcome.scores[place] for place in places)
        scores = tuple(shared if place in places else score for place, score in enumerate(outcome.scores))
        return replace(outcome, scores=scores, ranks=ranks(scores), winner=None, reason="draw")

    def answer_fields(self, seat: int) -> Sequence[AnswerField]:
        """Fields of the seat's orders, one per unit, build or disband; ``GameError`` if it is not to move."""
        self.check_to_move(seat)
        return order_fields(self.position, seat, self.legal_orders(seat))

    def results(self) -> dict[str, list[str]]:
        """The failures of each unit in the phase just played (``Adjudicator.results``)."""
        return self._engine.results()

    def save(self) -> bytes:
        """The engine's position as canonical JSON."""
        return _encode(self.position.saved)

    def record(self) -> bytes:
        """The play-through as canonical JSON: settings, seed, and per phase the orders and the position's checksum."""
        start = None if self._start is None else _encode(self._start.saved).decode()
        # Computed here and not in apply: most play-throughs are never recorded.
        checks = [position_checksum(_encode(saved)) for saved in self._saved[1:]]
        return _encode(Record(self.name, self.settings, self.seed, start, self._turns, checks, self._end))

    def check_to_move(self, seat: int) -> None:
        """Raise ``GameError`` unless the seat has orders to give."""
        if seat not in self.to_move():
            raise GameError(
                f"diplomacy, {self.position.phase}: seat {seat} is not to move; expected one of {self.to_move()}"
            )
