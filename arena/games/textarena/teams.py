"""Teams and roles of TextArena's environments, which their states hold each in its own way.

Some draw roles, so both are read when a game is over. An environment that is not listed has no teams here, and the
names of its seats are its roles.
"""

from collections.abc import Callable
from typing import Any, NamedTuple


class SeatSides(NamedTuple):
    """Team and role of each seat; empty where seats play for themselves, or their names are their roles."""

    teams: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()


def _secret_mafia(env: Any, seats: range) -> SeatSides:
    roles = tuple(str(env.player_roles[seat]) for seat in seats)
    return SeatSides(tuple(str(env.roles[seat].team) for seat in seats), roles)


def _codenames(env: Any, seats: range) -> SeatSides:
    return SeatSides(("Red", "Red", "Blue", "Blue"), ("Spymaster", "Operative") * 2)


def _taboo(env: Any, seats: range) -> SeatSides:
    roles = tuple(str(env.state.role_mapping[seat]) for seat in seats)
    return SeatSides(tuple(f"Team {seat // env.team_size}" for seat in seats), roles)


_SIDES: dict[str, Callable[[Any, range], SeatSides]] = {
    "CodenamesEnv": _codenames,
    "SecretMafiaEnv": _secret_mafia,
    "TabooEnv": _taboo,
}
"""Sides of the seats, by the name of the environment's class."""


def seat_sides(env: Any, players: int) -> SeatSides:
    """Teams and roles of a running environment without wrappers."""
    find = _SIDES.get(type(env).__name__)
    return SeatSides() if find is None else find(env, range(players))
