"""The log drops copies only for a while: what comes again long after changes nothing, in no fold and no table."""

from pathlib import Path
from typing import Any

import msgspec

from league.fold_primitives import FactIndex, takes_effect
from league.log.base import RecordedEvent
from league.projections.projection import Projection
from league.projections.tables import TABLES, VIEWS
from league.ratings.fold import RatingFold
from league.state import LeagueState
from schemas import events as e
from schemas.codec import decode_event, encode_event
from schemas.config import EvaluationConfig, LeagueConfig, Plugin, RatingsConfig, to_builtins
from schemas.subjects import event_subject
from tests.builders import opponents_sampled, record_events
from tests.simulated_history import Simulation

SMALL = LeagueConfig(seed=8, evaluation=EvaluationConfig(every=3, gatekeeper_games=3, benchmark_games=3))
GOLDEN = Path(__file__).parents[2] / "golden/events/v2.jsonl"


def joined(incarnation: str) -> e.WorkerJoined:
    return e.WorkerJoined(worker="rollout-0", role="rollout", incarnation=incarnation, host="h", pid=1, version="1")


def configured(after: int, k: float) -> e.LeagueConfigured:
    ratings = RatingsConfig(system=Plugin(name="elo", settings={"k": k}))
    return e.LeagueConfigured(
        config=to_builtins(msgspec.structs.replace(SMALL, ratings=ratings)), config_digest=str(k), after=after
    )


def begun(match: int) -> e.OpponentsSampled:
    return opponents_sampled(f"rollout-0-{match}", "rollout-0", hero="main@1", standings_sequence=1)


def history() -> list[e.Event]:
    """Two configurations after the first, two starts after the first, two branches, slots lost twice."""
    told = [r.event for r in Simulation(SMALL).run_with_voids(4)]
    # Those of older histories do not say of which configuration they speak: a late copy is not to be told.
    events = [event for event in told if event is not None and not isinstance(event, e.TrainingFinished)]
    events += [e.TrainingFinished(policy="main", version=4, reason="steps", configured=1)]
    events += [joined("1"), configured(len(events), 16.0), e.LeagueBranched(origin="a", at=len(events), digest="x")]
    events += [joined("2"), configured(len(events), 24.0), joined("3")]
    events += [e.AdapterSlotsReduced(worker="rollout-0", incarnation="3", slots=n, reason="") for n in (4, 2)]
    events += [e.LeagueBranched(origin="b", at=len(events), digest="y"), joined("4"), begun(1_000)]
    events += [e.AdapterSlotsReduced(worker="rollout-0", incarnation="4", slots=n, reason="") for n in (5, 3)]
    return events


ONCE = record_events(history())
AGAIN = ONCE + [RecordedEvent(len(ONCE) + r.sequence, r.time_ns, "s", "w", r.payload) for r in ONCE]


def other_account(event: e.Event) -> e.Event:
    """An event of the same key that differs in every text and number which does not say what the fact is about."""
    changed: dict[str, Any] = {}
    for field in msgspec.structs.fields(event):
        value = getattr(event, field.name)
        if field.name in IDENTITY or not isinstance(value, str | float):
            continue
        changed[field.name] = value + "f" if isinstance(value, str) else value + 1.5
    if isinstance(event, e.RatingUpdated):
        changed["changes"] = [msgspec.structs.replace(each, after=each.after + 50.0) for each in event.changes]
    if isinstance(event, e.MatchFinished):
        changed["seats"] = [msgspec.structs.replace(seat, score=1.0 - seat.score) for seat in event.seats]
    if isinstance(event, e.GradientStepTaken):
        changed |= {"accepted": event.accepted + 1, "metrics": {"wall_s": 1e6}}
    return msgspec.structs.replace(event, **changed)


IDENTITY = ("policy", "worker", "game", "system", "match_id", "agent", "candidate", "evaluation_id", "incarnation")
"""What facts are about."""
OTHERS = [
    RecordedEvent(len(ONCE) + r.sequence, r.time_ns, r.subject, "another", encode_event(other_account(r.event)))
    for r in ONCE
    if r.event is not None and not isinstance(r.event, e.LeagueConfigured) and other_account(r.event).key == r.event.key
]
"""Other accounts of the same facts, e.g. of an older version during an upgrade or of a second trainer."""
AGAIN_ELSE = ONCE + OTHERS


def folded(records: list[RecordedEvent]) -> tuple[Any, Any]:
    state, ratings = LeagueState(), RatingFold()
    for record in records:
        state.apply(record.sequence, record.event)
        ratings.apply(record.sequence, record.event)
    return (
        msgspec.to_builtins(msgspec.structs.replace(state.to_snapshot(), sequence=0)),
        # The condition for recording a rating is the newest event on the subject, a copy or not.
        msgspec.to_builtins(msgspec.structs.replace(ratings.to_snapshot(), sequence=0, recorded=0)),
    )


def test_a_whole_history_that_comes_again_changes_no_fold() -> None:
    state, ratings = folded(ONCE)
    for again in (AGAIN, AGAIN_ELSE):
        again_state, again_ratings = folded(again)
        assert {name for name in state if state[name] != again_state[name]} == set()
        assert {name for name in ratings if ratings[name] != again_ratings[name]} == set()
    assert state["in_play"]["playing"] == {"rollout-0": {"rollout-0-1000": "main"}}
    assert state["workers"]["rollout-0"]["slots"] == 3
    assert state["incarnations"]["rollout-0"][-4:] == ["1", "2", "3", "4"]
    assert len(ratings["rules"]) == 1 + 3


def history_of_all_kinds() -> list[RecordedEvent]:
    """``ONCE``, with a pause, a rest and one recorded example of every kind of event that it lacks."""
    place, agent = len(ONCE), "random_bot"
    events: list[e.Event] = [
        e.LeaguePaused(reason="a", after=0),
        e.LeagueResumed(reason="b", after=place + 1),
        e.AgentRetired(agent=agent, reason="c", after=0, resting=True),
        e.AgentActivated(agent=agent, reason="d", after=place + 3),
    ]
    lacking = e.EVENT_TYPES.keys() - {type(event).__name__ for event in [*(r.event for r in ONCE), *events]}
    lines = [msgspec.json.decode(line)["event"] for line in GOLDEN.read_bytes().splitlines()]
    examples = {line["type"]: decode_event(msgspec.json.encode(line)) for line in lines}
    events += [examples[kind] for kind in sorted(lacking)]
    return ONCE + [
        RecordedEvent(sequence, 0, "s", "w", encode_event(event)) for sequence, event in enumerate(events, place + 1)
    ]


def test_a_copy_of_any_event_changes_no_fold() -> None:
    """A reader can make the broker store an event again: as the reply to its request for that event."""
    told = history_of_all_kinds()
    assert {type(r.event).__name__ for r in told} == set(e.EVENT_TYPES)
    state, ratings = folded(told)
    newest = {type(r.event): r for r in told}
    assert state["pauses"][""]["is_paused"] is False
    for kind, record in newest.items():
        copy = RecordedEvent(len(told) + 1, 0, "s", "another", record.payload)
        again_state, again_ratings = folded([*told, copy])
        assert {name for name in state if state[name] != again_state[name]} == set(), kind
        assert {name for name in ratings if ratings[name] != again_ratings[name]} == set(), kind


def test_a_copy_on_the_subject_of_another_worker_is_no_event() -> None:
    for record in history_of_all_kinds():
        assert record.event is not None
        subject = event_subject("nim", e.WorkerLeft("reader", "1", ""))
        assert RecordedEvent(1, 0, subject, "reader", record.payload).event is None


def test_a_whole_history_that_comes_again_changes_no_table() -> None:
    names = [name for name in [*TABLES, *VIEWS] if name not in ("events", "position")]
    found = []
    for records in (ONCE, AGAIN, AGAIN_ELSE):
        with Projection() as projection:
            cut = len(ONCE)
            projection.apply(records[:cut])
            # A batch of its own: the whole history's configurations come late.
            projection.apply(records[cut:])
            found.append({name: projection.query(f"FROM {name} ORDER BY ALL") for name in names})
    for again in found[1:]:
        assert {name for name in names if found[0][name] != again[name]} == set()
    assert len(found[0]["configurations"]) == 1 + 3
    assert len(found[0]["branches"]) == 2


def test_another_account_of_a_fact_is_found_and_named() -> None:
    kinds = {type(r.event) for r in OTHERS}
    assert kinds > {e.GradientStepTaken, e.PolicyPublished, e.CheckpointAdded, e.MatchFinished, e.RatingUpdated}
    index = FactIndex()
    assert [text for record in AGAIN if (text := index.add(record)) is not None] == [], "repetitions"
    found = [text for record in OTHERS if (text := index.add(record)) is not None]
    steps = [r for r in ONCE if isinstance(r.event, e.GradientStepTaken)]
    assert sum("step:" in text for text in found) == len(steps)
    assert not any("finished:" in text or "rated:" in text for text in found)
    named = next(text for text in found if text.startswith(f"{steps[0].event.key}:"))  # type: ignore[union-attr]
    assert f"event {len(ONCE) + steps[0].sequence} from another differs from event {steps[0].sequence} from" in named
    short = FactIndex(limit=2)
    for record in AGAIN_ELSE:
        short.add(record)
    assert len(short._first) == 2


def test_a_league_is_opened_once_and_configured_from_what_holds() -> None:
    opened = e.LeagueOpened(league="nim", config=to_builtins(SMALL), model="")
    assert takes_effect(opened, opened=False, since=0)
    assert not takes_effect(opened, opened=True, since=0)
    assert not takes_effect(msgspec.structs.replace(opened, league=""), opened=False, since=0)
    assert takes_effect(configured(7, 16.0), opened=True, since=7)
    # A command may have known more than the configuration.
    assert takes_effect(configured(9, 16.0), opened=True, since=7)
    assert not takes_effect(configured(6, 16.0), opened=True, since=7)
