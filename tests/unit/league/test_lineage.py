"""Where an adapter comes from, on simulated histories and on odd ones."""

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import pytest

from league.history.lineage import Lineage, render_mermaid, resolve_agent, trace_lineage
from league.log.base import RecordedEvent
from league.projections.projection import Projection
from schemas import events as e
from schemas.codec import encode_event
from schemas.config import EvaluationConfig, LeagueConfig
from schemas.errors import UsageError
from schemas.ids import digest
from tests.builders import gradient_step
from tests.simulated_history import Simulation

SMALL = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=50, gatekeeper_games=7, benchmark_games=7))
VERSIONS = 24


class Trained(Simulation):
    """A simulation whose versions tell their parents."""

    def append(self, event: e.Event) -> None:
        if isinstance(event, e.PolicyPublished):
            parent = "base_model" if event.version == 0 else f"main@{event.version - 1}"
            event = e.PolicyPublished(policy=event.policy, version=event.version, adapter=event.adapter, parent=parent)
        super().append(event)


HISTORY = Trained(SMALL).run(VERSIONS, 3)


def ask(records: list[RecordedEvent], work: Any) -> Any:
    with Projection() as projection:
        projection.apply(records)

        async def query(statement: str) -> Sequence[tuple[Any, ...]]:
            return projection.query(statement)

        return asyncio.run(work(query))


def traced(agent: str, records: list[RecordedEvent] = HISTORY) -> Lineage:
    async def work(query: Any) -> Lineage:
        return await trace_lineage(query, await resolve_agent(query, agent))

    found: Lineage = ask(records, work)
    return found


def with_events(*events: e.Event) -> list[RecordedEvent]:
    start = len(HISTORY)
    return [*HISTORY, *(RecordedEvent(n, n, "s", "w", encode_event(ev)) for n, ev in enumerate(events, start + 1))]


def test_the_way_begins_at_the_base_model_and_holds_every_step_once() -> None:
    lineage = traced(f"main@{VERSIONS}")
    assert [station.agent for station in lineage.stations][:2] == ["base_model", "main@0"]
    assert lineage.stations[-1].agent == f"main@{VERSIONS}"
    assert [step.step for step in lineage.steps] == list(range(1, VERSIONS + 1))
    assert {s.kind for s in lineage.stations[2:-1]} == {"checkpoint"}
    assert len(lineage.stations) < VERSIONS


def test_a_step_tells_its_matches_and_who_sat_in_them() -> None:
    taken = {r.event.step: r.event for r in HISTORY if isinstance(r.event, e.GradientStepTaken)}
    results = {r.event.match_id: r.event for r in HISTORY if isinstance(r.event, e.MatchFinished)}
    drawn = {r.event.match_id: r.event for r in HISTORY if isinstance(r.event, e.OpponentsSampled)}
    for step in traced("main@10").steps:
        event = taken[step.step]
        assert (step.batch, step.accepted) == (event.batch, event.accepted)
        assert [match.match_id for match in step.matches] == event.matches
        assert step.adapter == digest(f"main@{step.step}".encode())
        for match in step.matches:
            seats = results[match.match_id].seats
            hero = drawn[match.match_id].hero_seat
            assert match.roles == [seats[hero].role]
            assert match.opponents == [seat.agent for seat in seats if seat.seat != hero]
        assert sum(step.roles.values()) == 3
        assert sum(step.opponents.values()) == 18


def test_an_adapters_digest_or_its_beginning_names_the_version() -> None:
    name = digest(b"main@7")
    assert traced(name).agent == "main@7"
    assert traced(name[:8].upper()).agent == "main@7"


def test_a_digest_that_begins_several_adapters_is_refused_with_them() -> None:
    adapters = ["abcdef" + "1" * 58, "abcdef" + "2" * 58]
    published = [
        e.PolicyPublished(policy="other", version=n, adapter=adapter, parent="base_model")
        for n, adapter in enumerate(adapters)
    ]
    with pytest.raises(UsageError, match=r"is an ambiguous prefix; expected 'other@0: abcdef11.*'other@1: abcdef22"):
        traced("abcdef", with_events(*published))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nobody", r"agent 'nobody': not in this history; expected the digest.*'main@"),
        ("main@99", r"agent 'main@99': not in this history"),
        ("0123456789", r"adapter '0123456789': no version in this history has"),
    ],
)
def test_unknown_agents_and_adapters_are_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        traced(name)


def test_matches_that_were_voided_later_taint_their_step_and_earlier_voids_do_not() -> None:
    used = next(r for r in HISTORY if isinstance(r.event, e.GradientStepTaken) and r.event.step == 5)
    assert isinstance(used.event, e.GradientStepTaken)
    match = next(
        r for r in HISTORY if isinstance(r.event, e.MatchFinished) and r.event.match_id == used.event.matches[1]
    )
    assert isinstance(match.event, e.MatchFinished)
    void = e.MatchVoided(match=match.event, match_sequence=match.sequence, reason="wrong engine")
    lineage = traced("main@10", with_events(void))
    assert {step.step: step.tainted for step in lineage.steps if step.tainted} == {5: [match.event.match_id]}
    assert [station.agent for station in lineage.stations if station.tainted] == ["main@10"]
    assert not any(station.tainted for station in traced("main@4", with_events(void)).stations)
    early = [r for r in HISTORY if r.sequence < used.sequence]
    before = [*early, RecordedEvent(used.sequence, 0, "s", "w", encode_event(void))]
    rest = [RecordedEvent(r.sequence + 1, r.time_ns, r.subject, r.producer, r.payload) for r in HISTORY[len(early) :]]
    assert not any(step.tainted for step in traced("main@10", before + rest).steps)


def test_agents_without_a_past_stand_alone_and_circles_end() -> None:
    assert [s.agent for s in traced("random_bot").stations] == ["random_bot"]
    added = e.CheckpointAdded(
        agent="seed_3", policy="seed", version=3, parent="base_model", reason="landmark", adapter="f" * 64
    )
    assert [s.agent for s in traced("seed_3", with_events(added)).stations] == ["base_model", "seed_3"]
    circle = [e.PolicyPublished(policy="odd", version=n, adapter=str(n) * 64, parent=f"odd@{1 - n}") for n in range(2)]
    assert [s.agent for s in traced("odd@1", with_events(*circle)).stations] == ["odd@0", "odd@1"]


def test_the_drawing_has_a_box_for_every_station_and_an_arrow_between_neighbours() -> None:
    lineage = traced(f"main@{VERSIONS}")
    head, *lines = render_mermaid(lineage).splitlines()
    assert head == "flowchart TD"
    boxes = [line for line in lines if re.fullmatch(r'    n\d+\["[^"\[\]]+"\]', line)]
    arrows = [line for line in lines if re.fullmatch(r'    n\d+ -->(\|"[^"|]+"\|)? n\d+', line)]
    assert len(boxes) == len(lineage.stations)
    assert len(arrows) == len(lineage.stations) - 1
    assert len(lines) == len(boxes) + len(arrows)


def test_an_offspring_follows_all_of_its_parents_and_their_ancestors() -> None:
    def published(version: int, parent: str) -> e.PolicyPublished:
        return e.PolicyPublished(policy="rogue", version=version, adapter=str(version) * 64, parent=parent)

    parents = [e.ParentAdapter("main@20", "a" * 64), e.ParentAdapter("rogue@1", "b" * 64)]
    checkpoints = [
        e.CheckpointAdded(agent=f"rogue@{n}", policy="rogue", version=n, parent=p, reason="first", adapter=str(n) * 64)
        for n, p in ((1, "base_model"), (3, "main@20"))
    ]
    events = [
        published(0, "base_model"),
        published(1, "rogue@0"),
        gradient_step(1, policy="rogue"),
        checkpoints[0],
        e.PolicyReset(policy="rogue", version=1, reason="weakest", operator="crossover", parents=parents),
        published(2, "main@20"),
        published(3, "rogue@2"),
        gradient_step(3, policy="rogue"),
        checkpoints[1],
    ]
    lineage = traced("rogue@3", with_events(*events))
    stations = {station.agent: station for station in lineage.stations}
    order = list(stations)
    assert order[:2] == ["base_model", "main@0"]
    assert order[-5:] == ["main@20", "rogue@0", "rogue@1", "rogue@2", "rogue@3"]
    assert stations["rogue@0"].parents == ["base_model"]
    assert (stations["rogue@2"].parents, stations["rogue@2"].operator) == (["main@20", "rogue@1"], "crossover")
    assert stations["rogue@3"].parents == ["rogue@2"]
    rogue_steps = {name: [step.step for step in stations[name].steps] for name in order[-4:]}
    assert rogue_steps == {"rogue@0": [], "rogue@1": [1], "rogue@2": [], "rogue@3": [3]}
    assert [step.step for step in lineage.steps if step.policy == "main"] == list(range(1, 21))
    arrows = [line.split("-->")[1] for line in render_mermaid(lineage).splitlines() if "-->" in line]
    assert sum("crossover" in arrow for arrow in arrows) == 2


def test_names_that_mean_something_to_the_drawing_are_escaped() -> None:
    odd = e.AgentRegistered(agent='a"b<c>&', kind="bot", baseline=False, rating=1.0)
    assert 'n0["a#quot;b#lt;c#gt;#amp;<br/>bot"]' in render_mermaid(traced('a"b<c>&', with_events(odd)))
