"""Reference of events, field by field."""

import inspect
import json
from functools import cache
from pathlib import Path

from docs_site.glossary import EVENT_FIELDS
from docs_site.markdown import code, inline, page, render_paragraphs, table
from docs_site.structs import field_docs, field_structs, field_table
from league.auth.permissions import ROLES, permissions
from league.log.jetstream import SCHEMA_HEADER, TIME_HEADER
from league.log.publisher import ID_HEADER, PRODUCER_HEADER
from schemas import codec as upcasters
from schemas.events import EVENT_TYPES, Event, MatchFailed, MatchFinished
from schemas.subjects import LEAGUE_STREAM, match_end_subject, worker_event_subject

GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "events"
"""Events of each schema version, as recorded."""
MAX_EXAMPLE_CHARS = 1_500
"""Longer examples are left out: they are no help."""


def render_page() -> str:
    """The page as Markdown."""
    parts = [
        "# Events",
        f"Everything that happens to a league is one of {len(EVENT_TYPES)} types of events. They are JSON, tagged by "
        f"`type`, in the stream `{LEAGUE_STREAM}`, kept permanently; their order is the sequence that the broker "
        "assigns. This page is generated from `schemas/events/`.",
        _envelope_section(),
        "## All events",
        table(("event", "meaning", "written by"), [_summary_row(kind) for kind in EVENT_TYPES.values()]),
    ]
    parts += [_event_section(kind) for kind in EVENT_TYPES.values()]
    parts += ["## Parts of events", *[_part_section(struct) for struct in nested_event_structs()]]
    return page(*parts)


def _envelope_section() -> str:
    hops = ", ".join(f"{hop} to {hop + 1}" for hop in sorted(upcasters.UPCASTERS)) or "none yet"
    headers = [
        (ID_HEADER, "Keyed digest of subject and bytes: a message that is published twice is kept once."),
        (SCHEMA_HEADER, f"Schema version of the event. This code writes {upcasters.SCHEMA_VERSION}."),
        (PRODUCER_HEADER, "Worker or command that wrote the event."),
        (TIME_HEADER, "Time of writing at the producer, in nanoseconds since 1970. No fold depends on it."),
    ]
    return page(
        "## Headers",
        table(("header", "holds"), [[code(name), inline(text)] for name, text in headers]),
        f"Versions: all events are of schema version {upcasters.SCHEMA_VERSION}; upgrades from older ones: {hops}. A "
        "new field with a default, or a new type, needs no new version: readers keep, skip and count what they do not "
        "know.",
        "Units: whole numbers have 64 bits; digests are SHA-256, in hexadecimal; ranges are `[first, last]`, both "
        "included; `seconds`, and names that end in `_s`, are seconds; scores are the game's own; ratings are points "
        "of the rating system.",
    )


def _summary_row(kind: type[Event]) -> list[str]:
    return [_link(kind), inline(_first_paragraph(kind)), ", ".join(_writers(kind)) or "commands"]


def _event_section(kind: type[Event]) -> str:
    key = field_docs(kind)["KEY"]
    return page(
        f"## {kind.__name__}",
        render_paragraphs(inspect.getdoc(kind) or ""),
        f"**Subject** {code(_subject(kind))} · **key** {inline(key)} · **written by** "
        f"{', '.join(_writers(kind)) or 'commands'}",
        field_table(kind, _link, EVENT_FIELDS),
        _example(kind),
    )


def _part_section(struct: type) -> str:
    return page(
        f"### {struct.__name__}",
        render_paragraphs(inspect.getdoc(struct) or ""),
        field_table(struct, _link, EVENT_FIELDS),
    )


def _subject(kind: type[Event], worker: str = "<worker>", league: str = "<league>", purpose: str = "<purpose>") -> str:
    if kind in (MatchFinished, MatchFailed):
        return match_end_subject(league, purpose, kind, worker)
    return worker_event_subject(league, kind, worker)


def _writers(kind: type[Event]) -> list[str]:
    """Roles that may write an event on a broker with credentials, beside the operator."""
    purposes = ("training", "evaluation", "exhibition", "session", "imported")
    subjects = {_subject(kind, "w", "l", purpose) for purpose in purposes}
    return [role for role in ROLES if subjects & set(permissions(role, "w", "l").publish)]


def _link(struct: type) -> str:
    return f"[`{struct.__name__}`](#{struct.__name__.lower()})"


def _first_paragraph(kind: type) -> str:
    return (inspect.getdoc(kind) or "").split("\n\n")[0]


@cache
def nested_event_structs() -> tuple[type, ...]:
    """Structs that events hold, in the order of their first use."""
    found: dict[type, None] = {}
    waiting: list[type] = list(EVENT_TYPES.values())
    while waiting:
        for held in field_structs(waiting.pop(0)):
            if held not in found and held.__name__ not in EVENT_TYPES:
                found[held] = None
                waiting.append(held)
    return tuple(found)


def _example(kind: type[Event]) -> str:
    event = _golden_events().get(kind.__name__)
    if event is None:
        return ""
    text = json.dumps(event, indent=2, ensure_ascii=False)
    if len(text) > MAX_EXAMPLE_CHARS:
        return ""
    inside = "\n".join(f"    {line}" for line in ["```json", *text.splitlines(), "```"])
    return f'??? example "As recorded in the stream"\n\n{inside}'


@cache
def _golden_events() -> dict[str, dict[str, object]]:
    lines = (GOLDEN / f"v{upcasters.SCHEMA_VERSION}.jsonl").read_text(encoding="utf-8").splitlines()
    found: dict[str, dict[str, object]] = {}
    for event in (json.loads(line)["event"] for line in lines):
        # The first of a type is the plain one; later ones show rare cases.
        found.setdefault(event["type"], event)
    return found
