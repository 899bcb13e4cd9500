"""Saved games of the ``diplomacy`` package, as DipNet, AI_Diplomacy and webDiplomacy's collectors exchange them.

    {"id", "map": "standard", "phases": [{"name": "S1901M", "state": {"units", "centers", …}, "orders"}, …]}

The last phase holds the final position and has no orders. Messages and keys of other programs are ignored: Diplomacy is
played without press here. Orders that are not legal count as a hold, as the package has it.
"""

import re
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from arena.games.base import Action
from arena.games.diplomacy import POWERS, Settings
from arena.games.diplomacy.engine import PackageGame, to_package_notation
from arena.games.diplomacy.game import DiplomacyGame, Record
from arena.games.diplomacy.position import legal_build_actions
from schemas.errors import DecodeError, GameError

COMPLETED = "COMPLETED"
_PHASE = re.compile(r"[SFW](\d{4})[MRA]").fullmatch
_VICTORY = "Victory by:"


class _State(msgspec.Struct):
    units: dict[str, list[str]]
    centers: dict[str, list[str]]
    note: str = ""


class _Phase(msgspec.Struct):
    name: str
    state: _State
    orders: dict[str, list[str] | None] = {}


class _SavedGame(msgspec.Struct):
    phases: list[_Phase]
    id: str | int = ""
    map: str = "standard"


class AdjudicatedGame(NamedTuple):
    """A saved game, played again here; one that was drawn, or ends within a year, is declared over."""

    id: str
    game: DiplomacyGame


def read_saved_game(value: object) -> AdjudicatedGame:
    """Play a saved game again, and compare every position with the file's.

    Raises:
        GameError: it is no saved game, or of another map; its length is unknown; or the file's positions do not follow
            from its orders. The message names the phase.
    """
    try:
        saved = msgspec.convert(value, _SavedGame)
    except msgspec.ValidationError as error:
        raise GameError(f"a saved game of Diplomacy, but {str(error)[0].lower()}{str(error)[1:]}") from None
    where = f"saved game {str(saved.id)[:64]!r}"
    if saved.map != "standard":
        raise GameError(f"{where}: map {saved.map[:40]!r}; expected 'standard'")
    years = [int(found[1]) for phase in saved.phases if (found := _PHASE(phase.name))]
    if not years or len(saved.phases) < 2:
        raise GameError(
            f"{where}: {len(saved.phases)} phases, so its length is unknown; expected all, the final position last"
        )
    # A game that ends where a year begins was over with the year before.
    last = saved.phases[-1].name
    begins_year = last.startswith("S") and last.endswith("M")
    game = DiplomacyGame(Settings(max_year=max(1901, years[-1] - begins_year)), 0)
    for phase, after in zip(saved.phases, saved.phases[1:], strict=False):
        _compare(game, phase, where)
        if not any(phase.orders.values()) and after.name == COMPLETED:
            break  # declared over before its orders were adjudicated
        if game.is_over():
            raise GameError(f"{where}, {phase.name}: the game was over before; expected no more orders")
        game.apply(_actions(game, phase, after))
    _compare(game, saved.phases[-1], where)
    winners = _declared_winners(saved.phases[-1].state.note)
    if len(winners) > 1 or not game.is_over():
        game.declare_end(winners if len(winners) > 1 else ())
    return AdjudicatedGame(str(saved.id), game)


def _compare(game: DiplomacyGame, phase: _Phase, where: str) -> None:
    position = game.position
    if phase.name not in (position.phase, COMPLETED):
        raise GameError(f"{where}: phase {phase.name[:20]!r}; expected {position.phase}, which follows from the orders")
    for what, found, expected in (
        ("units", phase.state.units, position.saved.units),
        ("centers", phase.state.centers, position.saved.centers),
    ):
        for power in POWERS:
            held = sorted(one for one in found.get(power, ()) if not one.startswith("*"))
            if held != sorted(expected[power]):
                raise GameError(
                    f"{where}, {phase.name}: {what} of {power} are {', '.join(held) or 'none'}; expected "
                    f"{', '.join(expected[power]) or 'none'}, which follow from the orders"
                )


def _actions(game: DiplomacyGame, phase: _Phase, after: _Phase) -> dict[int, Action]:
    actions: dict[int, Action] = {}
    for seat in game.to_move():
        power = game.seats[seat]
        given = [" ".join(order.split()) for order in phase.orders.get(power) or ()]
        if game.position.kind == "A":
            actions[seat] = _adjustment(game, seat, given, after.state.units.get(power, []))
        else:
            actions[seat] = tuple(_order(unit.unit, unit, given) for unit in game.legal_orders(seat))
    return actions


def _order(unit: str, legal: Any, given: Sequence[str]) -> str:
    """The unit's order where it is legal, with or without its way by sea; else a hold, or a disband in retreats."""
    for order in given:
        if order.startswith(f"{unit} "):
            plain = order.removesuffix(" VIA")
            for form in (order, plain, f"{plain} VIA"):
                if form in legal:
                    return form
    return next(
        (order for order in legal.orders if to_package_notation(order) in given),
        f"{unit} D" if legal.retreats else f"{unit} H",
    )


def _adjustment(game: DiplomacyGame, seat: int, given: Sequence[str], after: Sequence[str]) -> Action:
    """Builds as given, waived otherwise; disbands by what is left afterwards, since some follow from a rule."""
    position = game.position
    due = position.adjustment_due(seat)
    if due < 0:
        return tuple(sorted(f"{unit} D" for unit in set(position.units[seat]) - set(after)))
    built = sorted(order for order in set(given) if order.endswith(" B") and order.removesuffix(" B") in after)
    action = tuple(sorted([*built, *["WAIVE"] * (due - len(built))]))
    choices = legal_build_actions(position.free_build_sites(seat), due)
    return action if action in choices else choices[-1]


def _declared_winners(note: str) -> tuple[str, ...]:
    if not note.startswith(_VICTORY):
        return ()
    named = [name.strip() for name in note.removeprefix(_VICTORY).split(",")]
    return tuple(power for power in POWERS if any(name and power.startswith(name) for name in named))


def write_saved_game(record: bytes, game_id: str) -> dict[str, Any]:
    """A record as a saved game, adjudicated by the package; ``DecodeError`` for one that does not begin in 1901."""
    try:
        decoded = msgspec.json.decode(record, type=Record)
    except msgspec.MsgspecError as error:
        raise DecodeError(f"diplomacy record: {error}") from None
    if decoded.start is not None or decoded.settings.playing_powers != POWERS:
        raise DecodeError(
            "diplomacy record: it begins in another position than a saved game can; expected 1901, all powers"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        from diplomacy.utils.export import to_saved_game_format
    game = PackageGame(game_id=game_id, rules=["NO_PRESS", "IGNORE_ERRORS", "POWER_CHOICE"])
    for turn in decoded.turns:
        for power, orders in turn.items():
            game.set_orders(power, [to_package_notation(order) for order in orders])
        game.process()
    if decoded.end is not UNSET and decoded.end.drawn:
        game.draw([game.powers[power].name for power in decoded.end.drawn])
    saved: dict[str, Any] = to_saved_game_format(game)
    return saved
