"""Results of matches that another system played, read from its files. Pure functions, a module a format.

| format | a file has |
|---|---|
| ``textarena`` | games, or players' records of them, as in TextArena's published data set, one a line |
| ``verifiers`` | episodes of verifiers v1, as its commands save them in ``traces.jsonl``, one a line |
| ``kaggle`` | episodes of Kaggle's environments: one, a list, or one a line |
| ``diplomacy`` | saved games of the ``diplomacy`` package: one, a list, or one after another |

``docs/environments.md`` names the fields. Files may be compressed by gzip. Values may be JSON in a string; unknown
fields are ignored. The whole file is checked before any event is made.

``lines`` has what they share. To add one: a module with ``KEYS``, ``recognise`` and ``parse``, and an entry in
``FORMATS``.
"""

from typing import Any

import msgspec

from lifecycle.external_results import diplomacy, kaggle, textarena, verifiers
from lifecycle.external_results.lines import ExternalResult as ExternalResult
from lifecycle.external_results.lines import ExternalSeat as ExternalSeat
from lifecycle.external_results.lines import decompress, read_objects
from schemas.errors import UsageError, format_choices

FORMATS: dict[str, Any] = {"diplomacy": diplomacy, "kaggle": kaggle, "textarena": textarena, "verifiers": verifiers}
"""Modules by format; the game of a result has the same name unless another is given."""


def parse_results(data: bytes, source: str, form: str = "") -> tuple[str, list[ExternalResult]]:
    """The format of a file, found by its first object unless it is given, and its matches, in their order.

    Raises:
        UsageError: no such format, no results, or an object that is not one; the message has file and line.
    """
    if form and form not in FORMATS:
        raise UsageError(f"--format {form}: expected {format_choices(FORMATS)}")
    data = decompress(data, source)
    form = form or find_format(data, source)
    try:
        results = FORMATS[form].parse(data, source)
    except UnicodeEncodeError as error:
        raise UsageError(f"{source}: {error.object[:80]!a}: not UTF-8; expected text") from None
    if not results:
        raise UsageError(f"{source}: found no results; expected one JSON object per line")
    for result in results:
        try:
            msgspec.json.decode(msgspec.json.encode(result), type=ExternalResult)
        except (UnicodeEncodeError, msgspec.ValidationError) as error:
            raise UsageError(f"{source}, line {result.line}: cannot be recorded ({error})") from None
    return form, results


def find_format(data: bytes, source: str) -> str:
    """The format of a file, by its first object; ``UsageError`` names the nearest one if it is of none."""
    line = next(read_objects(data, source), None)
    if line is None:
        raise UsageError(f"{source}: found no results; expected one JSON object per line")
    found = [name for name, form in FORMATS.items() if form.recognise(line.fields)]
    if len(found) == 1:
        return found[0]
    shared = {name: [key for key in form.KEYS if key in line.fields] for name, form in FORMATS.items()}
    nearest = max(shared, key=lambda name: len(shared[name]))
    if not shared[nearest]:
        raise UsageError(
            f"{line.where}: found the keys {', '.join(list(line.fields)[:8]) or 'none'}; expected a file of "
            f"{format_choices(FORMATS)}, which --format names"
        )
    missing = [key for key in FORMATS[nearest].KEYS if key not in line.fields]
    raise UsageError(
        f"{line.where}: nearly the format {nearest}: found {', '.join(shared[nearest])}, but not {', '.join(missing)}; "
        "expected --format to say which it is"
    )
