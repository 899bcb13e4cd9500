"""DuckDB reads JSON that the decoder refuses, and reads some of it as something else: tables say what the folds say."""

import pytest

from league.log.base import RecordedEvent
from league.projections.projection import Projection
from league.state import LeagueState

REGISTERED = b'{"type":"AgentRegistered","agent":"a","kind":"bot","baseline":false,"rating":1000.0}'
ADDED = (
    b'{"type":"CheckpointAdded","agent":"main@3","policy":"main","version":3,"parent":"base_model","reason":"first",'
    b'"adapter":"","rating":null}'
)
PUBLISHED = b'{"type":"PolicyPublished","policy":"main","version":3,"adapter":"x","parent":"base_model"}'
REFUSED = {
    "a list for a name": REGISTERED.replace(b'"a"', b"[]"),
    "a number for a name": REGISTERED.replace(b'"a"', b"5"),
    "a truth for a name": REGISTERED.replace(b'"a"', b"true"),
    "text for a number": REGISTERED.replace(b"1000.0", b'"1000.0"'),
    "a truth for a number": REGISTERED.replace(b"1000.0", b"true"),
    "no number": REGISTERED.replace(b"1000.0", b"NaN"),
    "no number, as it would be written": REGISTERED.replace(b"1000.0", b"Infinity"),
    "a number beyond all": REGISTERED.replace(b"1000.0", b"1e400"),
    "text for a truth": REGISTERED.replace(b"false", b'"false"'),
    "a number for a truth": REGISTERED.replace(b"false", b"0"),
    "a comma too many": REGISTERED.replace(b"1000.0", b"1000.0,"),
    "a missing name": REGISTERED.replace(b'"agent":"a",', b""),
    "null for a name": REGISTERED.replace(b'"a"', b"null"),
    "a fraction for a version": ADDED.replace(b":3,", b":3.5,"),
    "a whole fraction for a version": ADDED.replace(b":3,", b":3.0,"),
    "text for a version": ADDED.replace(b":3,", b':"3",'),
    "a negative version": ADDED.replace(b":3,", b":-3,"),
    "a type of another name": ADDED.replace(b"CheckpointAdded", b"CheckpointSubtracted"),
    "two types": ADDED.replace(b"{", b'{"type":"AgentRegistered",'),
}
TAKEN = {
    "as it is written": REGISTERED,
    "without what has a default": ADDED.replace(b',"rating":null', b""),
    "two fields of one name": REGISTERED.replace(b"1000.0", b'1000.0,"agent":"b"'),
    "spaces": b" " + ADDED.replace(b":", b" : "),
    "another order": REGISTERED.replace(b'{"type":"AgentRegistered",', b"{").replace(
        b"}", b',"type":"AgentRegistered"}'
    ),
    "a field of the future": REGISTERED.replace(b"1000.0", b'1000.0,"more":[1]'),
    "what is no text in a field of the future": REGISTERED.replace(b"1000.0", b'1000.0,"more":"\xff"'),
    "an escaped type": REGISTERED.replace(b"AgentRegistered", rb"\u0041gentRegistered"),
    "another way to write a number": REGISTERED.replace(b"1000.0", b"1e3"),
    "a whole number where fractions may be": REGISTERED.replace(b"1000.0", b"1000"),
    "a name that looks like something else": REGISTERED.replace(b'"a"', b'"[null]"'),
    "a name that looks like no number": REGISTERED.replace(b'"a"', b'"NaN"'),
}


def loaded(payload: bytes) -> tuple[list[str], list[tuple[str, float | None]], int, list[str]]:
    """Agents and where their ratings start, how many events are unreadable, and their types."""
    with Projection() as projection:
        projection.apply([RecordedEvent(1, 10**9, "s", "w", payload), RecordedEvent(2, 10**9, "s", "w", PUBLISHED)])
        rows = projection.query("SELECT agent, start_rating FROM agents ORDER BY ALL")
        [(unreadable,)] = projection.query("SELECT count(*) FROM kept.unreadable")
        types = [name for (name,) in projection.query("SELECT type FROM kept.all_events ORDER BY sequence")]
        assert projection.query("SELECT version FROM policies") == [(3,)]
    return [agent for agent, _ in rows], rows, unreadable, types


def folded(payload: bytes) -> LeagueState:
    state = LeagueState()
    state.apply(1, RecordedEvent(1, 10**9, "s", "w", payload).event)
    return state


@pytest.mark.parametrize("payload", REFUSED.values(), ids=REFUSED)
def test_what_the_decoder_refuses_is_in_no_table(payload: bytes) -> None:
    assert folded(payload).agents == {}
    agents, _, unreadable, _ = loaded(payload)
    assert (agents, unreadable) == ([], 1)


@pytest.mark.parametrize("payload", TAKEN.values(), ids=TAKEN)
def test_what_the_decoder_takes_is_in_the_tables_as_it_takes_it(payload: bytes) -> None:
    event = RecordedEvent(1, 10**9, "s", "w", payload).event
    assert event is not None
    agents, rows, unreadable, types = loaded(payload)
    assert agents == list(folded(payload).agents)
    assert rows[0][1] == getattr(event, "rating", None)
    assert (unreadable, types[0]) == (0, type(event).__name__)


def test_a_voided_match_that_is_of_another_type_voids_nothing() -> None:
    seat = b'{"seat":%d,"role":"A","agent":"a%d","score":1.0,"rank":1}'
    seats = b"[%s,%s]" % (seat % (0, 0), seat % (1, 1))
    match = (
        b'{"type":"MatchFinished","match_id":"r-0","game":"nim","purpose":"training","worker":"r","seed":1,"seats":'
        + seats
        + b',"winner":0,"reason":"","length":1,"seconds":0.5}'
    )
    void = b'{"type":"MatchVoided","match":%s,"match_sequence":1,"reason":"x"}'
    wrong = void % match.replace(b"MatchFinished", b"MatchFailed")
    with Projection() as projection:
        projection.apply([RecordedEvent(n, 10**9, "s", "w", data) for n, data in enumerate([match, wrong], 1)])
        assert projection.query("SELECT count(*) FROM voids") == [(0,)]
        assert projection.query("SELECT sequence, type FROM kept.unreadable") == [(2, "MatchVoided")]
        projection.apply([RecordedEvent(3, 10**9, "s", "w", void % match)])
        assert projection.query("SELECT match_id FROM voids") == [("r-0",)]


def test_a_test_of_promotion_that_is_none_decides_nothing() -> None:
    decided = (
        b'{"type":"PromotionDecided","evaluation_id":"e","candidate":"main@3","incumbent":"main@1","test":{"elo0":0.0,'
        b'"elo1":%s,"alpha":0.05,"beta":0.05,"least_pairs":8,"most_pairs":40},"pairs":[],"scores":[],"llr":0.0,'
        b'"lower":-2.9,"upper":2.9,"verdict":"keep"}'
    )
    with Projection() as projection:
        projection.apply([RecordedEvent(n, 1, "s", "w", decided % elo) for n, elo in enumerate((b"-60.0", b"60.0"), 1)])
        assert projection.query("SELECT sequence FROM kept.unreadable") == [(1,)]
        assert projection.query("SELECT sequence FROM promotions") == [(2,)]
