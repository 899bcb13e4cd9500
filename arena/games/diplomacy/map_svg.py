"""Map diagrams phase by phase, drawn by the ``diplomacy`` package: units, ownership, and orders as arrows."""

import re
from functools import cache
from threading import Lock
from typing import Any, cast

import msgspec
from diplomacy.engine.renderer import Renderer

from arena.games.base import Action, Recording
from arena.games.diplomacy.engine import Adjudicator, SavedPosition
from arena.games.diplomacy.game import DiplomacyGame

POWER_COLORS = {
    "AUSTRIA": "#d64f3c",
    "ENGLAND": "#8d5fd3",
    "FRANCE": "#2b87d1",
    "GERMANY": "#9a6538",
    "ITALY": "#2c9955",
    "RUSSIA": "#7d8896",
    "TURKEY": "#a88400",
}
"""Colours of units and orders, and of charts beside the map: on white and on dark grounds they stand out by 3 to 1."""
_renderer_lock = Lock()
"""Guards the cached renderer: reading the map takes longer than drawing on it, and it draws one game at a time."""


class Phase(msgspec.Struct, frozen=True):
    """One phase of a match, ready to be drawn."""

    position: SavedPosition
    influence: dict[str, list[str]]
    """Provinces by the power that last had a unit there, which colours the land."""
    orders: dict[str, Action]
    """Orders of the phase, by power; empty at the end of the match."""

    @property
    def centers(self) -> dict[str, int]:
        """The supply centres by power."""
        return {power: len(owned) for power, owned in self.position.centers.items()}

    def describe(self) -> str:
        """Describe the position in text, as an alternative to the image."""
        parts = [
            f"{power.title()}: {owned} supply centre{'' if owned == 1 else 's'}, {', '.join(units) or 'no units'}"
            for power, units in self.position.units.items()
            if (owned := self.centers[power]) or units
        ]
        return f"{self.position.phase}. {'; '.join(parts)}."


def replay_phases(recording: Recording) -> list[Phase]:
    """Replay every phase of a record, whose orders must be legal; the last entry is the final position."""
    game = cast(DiplomacyGame, recording.start)
    for turn in recording.turns:
        game.apply(turn)
    phases: list[Phase] = []
    land: dict[str, str] = {}
    for position, actions in (*game.history(), (game.position, {})):
        land.update({place: game.seats[seat] for place, seat in position.occupied.items()})
        influence = {power: sorted(place for place in land if land[place] == power) for power in game.seats}
        orders = {game.seats[seat]: action for seat, action in sorted(actions.items())}
        phases.append(Phase(position.saved, influence, orders))
    return phases


def render_svg(phase: Phase) -> str:
    """Render a phase as an SVG map with its orders."""
    engine = Adjudicator(tuple(phase.position.units))
    engine.restore(phase.position)
    with _renderer_lock:
        renderer = _renderer()
        renderer.game = engine.renderable_game(phase.orders, phase.influence)
        svg: str = renderer.render(incl_abbrev=True)
    return svg


@cache
def _renderer() -> Any:
    renderer = Renderer(Adjudicator().renderable_game({}, {}))
    renderer.metadata["color"].update(POWER_COLORS)
    for power, color in POWER_COLORS.items():
        # On land half as strong, units stay visible and labels readable.
        land = "#" + "".join(f"{(int(color[at : at + 2], 16) + 255) // 2:02x}" for at in (1, 3, 5))
        for kind, fill in (("", land), ("unit", color)):
            renderer.xml_map = re.sub(
                rf"(\.{kind}{power.lower()} *{{ *fill: *)[^;}}]+", rf"\g<1>{fill}", renderer.xml_map
            )
    return renderer
