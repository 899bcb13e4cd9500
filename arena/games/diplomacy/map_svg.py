"""Map diagrams phase by phase, drawn by the ``diplomacy`` package: units, ownership, and orders as arrows."""

import re
from collections.abc import Sequence
from functools import cache
from threading import Lock
from typing import Any, cast
from xml.etree import ElementTree

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
        """Returns the supply centres by power."""
        return {power: len(owned) for power, owned in self.position.centers.items()}

    def describe(self) -> str:
        """Returns the position as text: the alternative to the image."""
        parts = [
            f"{power.title()}: {owned} supply centre{'' if owned == 1 else 's'}, {', '.join(units) or 'no units'}"
            for power, units in self.position.units.items()
            if (owned := self.centers[power]) or units
        ]
        return f"{self.position.phase}. {'; '.join(parts)}."


def replay_phases(recording: Recording) -> list[Phase]:
    """Replays every phase of a record, whose orders must be legal; the last entry is the final position."""
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
    """Returns the map of a phase as SVG, with its orders."""
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


class MapLayers(msgspec.Struct, frozen=True):
    """The maps of a match with what they share kept once, for SVG inside an HTML page.

    A phase is drawn as ``<svg class="phase-N">`` with ``#land``, its own markup, and ``#labels``.
    """

    styles: str
    """CSS of the shapes, and per phase N the colours of the land, as variables of the class ``phase-N``."""
    shared: str
    """SVG with the definitions, ``#land`` and ``#labels``."""
    phases: list[str]
    """Markup of the units and orders of each phase."""
    view_box: str


def layer_maps(phases: Sequence[Phase]) -> MapLayers:
    """Returns the maps of a match's phases; a phase adds some 8 kB to the 90 kB that they share."""
    drawn = [_parse_map(render_svg(phase)) for phase in phases]
    first = drawn[0]
    styles = first.find("defs/style")
    assert styles is not None
    first.find("defs").remove(styles)  # type: ignore[union-attr]
    css = re.sub(r"/\*.*?\*/", "", styles.text or "", flags=re.DOTALL)
    fills = dict(re.findall(r"\.(\w+) *\{ *fill: *([^;}]+)", css))
    classes = [{path.get("id", ""): path.get("class", "") for path in _layer(root, "MapLayer")} for root in drawn]
    changing = {place for place, kind in classes[0].items() if any(each[place] != kind for each in classes)}
    for path in _layer(first, "MapLayer"):
        if (place := path.attrib.pop("id", "")) in changing:
            path.set("class", f"land{place}")
    # The element that is used has the colours' variables from the phase that uses it.
    rules = [f".land{place}{{fill:var(--land{place});stroke:#000;stroke-width:1}}" for place in sorted(changing)]
    for number, kinds in enumerate(classes):
        colors = (f"--land{place}:{fills[kinds[place]]}" for place in sorted(changing))
        rules.append(f".phase-{number}{{{';'.join(colors)}}}")
    land = f'<g id="land">{_markup(_layer(first, "MapLayer"))}{_markup(_layer(first, "SupplyCenterLayer"))}</g>'
    labels = f'<g id="labels">{_markup(_layer(first, "BriefLabelLayer"))}</g>'
    shared = f"{_markup(first.find('defs'))}<defs>{land}{labels}</defs>"
    own = ("OrderLayer", "UnitLayer", "DislodgedUnitLayer", "HighestOrderLayer")
    return MapLayers(
        " ".join(css.split()) + "".join(rules),
        shared,
        ["".join(_markup(_without_ids(_layer(root, name))) for name in own) for root in drawn],
        first.get("viewBox", ""),
    )


def _parse_map(svg: str) -> ElementTree.Element:
    """A map with the plain names that elements and attributes have inside HTML."""
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
    return root


def _layer(root: ElementTree.Element, name: str) -> ElementTree.Element:
    return next(element for element in root if element.get("id") == name)


def _without_ids(layer: ElementTree.Element) -> ElementTree.Element:
    for element in layer.iter():
        element.attrib.pop("id", None)
    return layer


def _markup(element: ElementTree.Element | None) -> str:
    return "" if element is None else re.sub(r">\s+<", "><", ElementTree.tostring(element, "unicode").strip())
