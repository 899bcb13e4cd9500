"""The page of core types names what the module exports."""

import re
from pathlib import Path

from schemas import core
from schemas.events import EVENT_TYPES


def test_the_page_of_core_types_explains_each_of_them() -> None:
    page = (Path(__file__).parents[3] / "docs" / "internals.md").read_text(encoding="utf-8")
    page = page.partition("## Core types")[2].partition("\n## ")[0]
    explained = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(explained) == sorted(name for name in vars(core) if name[0].isupper())
    assert f"all {len(EVENT_TYPES)} events" in page
