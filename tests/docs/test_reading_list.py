"""README's reading list names modules that exist, and about as many lines as they have."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_modules_to_read_first_have_the_lines_that_the_list_says() -> None:
    text = (ROOT / "README.md").read_text()
    listed = re.findall(r"^\| `([a-z_/]+\.py)` \| (\d+) \|", text, re.MULTILINE)
    assert len(listed) > 10
    for module, lines in listed:
        assert abs(len((ROOT / module).read_text().splitlines()) - int(lines)) <= 10, module
    heading = re.search(r"^## The ([\d,]+) lines to read first", text, re.MULTILINE)
    assert heading is not None
    assert abs(int(heading[1].replace(",", "")) - sum(int(lines) for _, lines in listed)) <= 100
