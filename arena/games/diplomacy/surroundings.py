"""Diplomacy's language of surroundings: signposts with counts of help, and no list of the board before movement orders.

A unit's signs tell nearly all that a small model reads, so prompts of movement phases hold only the power, the season,
the years left and the lead over the strongest rival; they are a fourteenth as long, which a model spends on learning.
Signs also count, in the same piece, the friendly units that can still help there and the help given already, and they
include supports of friendly units that stay where rivals could attack them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from arena.games.base import Game
from arena.games.diplomacy import board, signposts
from arena.games.diplomacy.game import DiplomacyGame
from arena.games.diplomacy.position import UnitOrders
from arena.games.diplomacy.text import OPEN, POWER_PIECES, SEASONS, YEARS_LEFT, require_turn
from arena.games.texts import Pieces

MAX_HELP = 2
"""Higher counts of friendly units are capped to this."""
MAX_NEXT = 3
"""Higher counts of centres beside a destination are capped to this."""
MAX_YEARS_LEFT = 3
"""Higher numbers are written as this, so that a game longer than those of training asks in known pieces."""
MAX_LEAD = 4
LEADS = {lead: f"<lead-{lead}>" for lead in range(-MAX_LEAD, MAX_LEAD + 1)}
"""Centres more than the strongest rival has, within limits."""
STAY = "stay"
"""Kind of a support for a friendly unit that stays."""

_SUPPORTS = (
    *(kind for kind in signposts.SIGN_KINDS if kind[0] in "fh"),
    *(f"{STAY}-{count}" for count in range(1, signposts.MAX_RIVALS + 1)),
)
_HELP = range(MAX_HELP + 1)
_HERE = {
    (kind, rivals, helpers): f"<{kind[1:-1]}-{rivals}-{helpers}>"
    for kind in (signposts.GOAL, signposts.OWN, signposts.FIELD)
    for rivals in range(signposts.MAX_RIVALS + 1)
    for helpers in _HELP
}
_SIGNS = (
    signposts.ORDER_MARK,
    *signposts.MOVE_NUMBERS,
    *signposts.SUPPORT_NUMBERS,
    *_HERE.values(),
    *LEADS.values(),
    *(
        f"{number[:-1]}-{kind}-{count}>"
        for number in signposts.MOVE_NUMBERS
        for kind in signposts.SIGN_KINDS
        for count in _HELP
    ),
    *(
        f"{number[:-1]}-{signposts.APPROACH}-{count}>"
        for number in signposts.MOVE_NUMBERS
        for count in range(MAX_NEXT + 1)
    ),
    *(
        f"{number[:-1]}-{kind}-{count}>"
        for number in signposts.SUPPORT_NUMBERS
        for kind in _SUPPORTS
        for count in _HELP
    ),
)


class SurroundingsText(signposts.SignpostedText):
    """The ``TextFormat`` of Diplomacy with each unit's surroundings only; other phases are as in the compact format."""

    def vocabulary(self) -> Sequence[str]:
        """See ``TextFormat.vocabulary``."""
        return sorted({*super(signposts.SignpostedText, self).vocabulary(), *_SIGNS})

    def prompt(self, game: Game, seat: int) -> Pieces:
        """See ``TextFormat.prompt``."""
        table = require_turn(game, seat)
        position = table.position
        years_left = YEARS_LEFT[min(table.settings.max_year - position.year, MAX_YEARS_LEFT)]
        if position.kind != "M":
            power, season, _, *rest = super().prompt(game, seat)
            return (power, season, years_left, *rest)
        season = SEASONS[position.phase[0] + position.phase[-1]]
        counts = [len(owned) for owned in position.centers]
        lead = counts.pop(seat) - max(counts)
        lead_piece = LEADS[max(-MAX_LEAD, min(lead, MAX_LEAD))]
        return (POWER_PIECES[table.seats[seat]], season, years_left, lead_piece, OPEN)

    def make_turn(self, table: DiplomacyGame, seat: int) -> signposts.SignpostedTurn:
        """See ``SignpostedText.make_turn``."""
        return _Turn(table, seat)


class _Turn(signposts.SignpostedTurn):
    def __init__(self, table: DiplomacyGame, seat: int) -> None:
        super().__init__(table, seat)
        self._adjacent = [frozenset(board.adjacent_provinces(unit.unit)) for unit in self.units]

    def _place_signs(self, unit: UnitOrders, kind: str, location: str) -> Pieces:
        """One sign, with the number of helpers."""
        return (_HERE[kind, self._rival_count(location), self._later_helpers(unit, location)],)

    def _move_signs(self, unit: UnitOrders, moving: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Adds the number of helpers to the kind; that of centres beyond, where the unit approaches one."""
        for kind, dest in super()._move_signs(unit, moving):
            if kind == signposts.APPROACH:
                near = board.adjacent_provinces(f"{unit.unit[0]} {dest}")
                count = min(sum(place in self._goals for place in near), MAX_NEXT)
            else:
                count = self._later_helpers(unit, board.province(dest))
            yield f"{kind}-{count}", dest

    def _later_helpers(self, unit: UnitOrders, province: str) -> int:
        after = self.units.index(unit) + 1
        return min(sum(province in near for near in self._adjacent[after:]), MAX_HELP)

    def _support_signs(
        self, unit: UnitOrders, moving: Mapping[str, str], words: Sequence[Sequence[str]]
    ) -> Iterable[tuple[str, str, str]]:
        """Adds supports of units that stay, and the number of supports given to each already, least helped first."""
        signs = [
            (kind, _help_given(words, board.province(moving[center].split()[1]), center), center, order)
            for kind, center, order in super()._support_signs(unit, moving, words)
        ]
        for word in words:
            # Units that stay on centres where rivals could attack.
            place, support = board.province(word[1]), f"{unit.unit} S {word[0]} {word[1]}"
            rivals = self._rival_count(place)
            if word[2] != "-" and place in board.CENTER_SET and rivals >= 2 and support in unit:
                signs.append((f"{STAY}-{rivals}", _help_given(words, place, ""), place, support))
        signs.sort(key=lambda sign: (sign[0][0] == "s", sign[1]))
        return [(f"{kind}-{count}", dest, order) for kind, count, dest, order in signs]


def _help_given(words: Sequence[Sequence[str]], place: str, dest: str) -> int:
    """Counts the supports of the unit in a place, moving to ``dest`` or staying where that is empty."""
    supports = sum(
        word[2] == "S" and word[4][:3] == place and (word[6][:3] if len(word) > 6 else "") == dest for word in words
    )
    return min(supports, MAX_HELP)
