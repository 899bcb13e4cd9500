"""The page of core types names what it exports."""

import re

from schemas import core
from schemas.events import EVENT_TYPES


def test_the_page_of_core_types_explains_each_of_them() -> None:
    explained = re.findall(r"^- ``(\w+)``", core.__doc__ or "", re.MULTILINE)
    assert sorted([*explained, "SeatResult"]) == sorted(name for name in vars(core) if name[0].isupper())
    assert f"all {len(EVENT_TYPES)} events" in (core.__doc__ or "")
