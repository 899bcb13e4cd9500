"""Events that contradict the events before them are named, with the rule; real and simulated histories have none."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

import schemas.events as e
from league.integrity.references import ReferenceChecker, ReferenceReport
from league.log.base import RecordedEvent
from schemas.codec import encode_event
from schemas.config import EvaluationConfig, LeagueConfig
from schemas.subjects import event_subject
from tests.builders import checkpoint_added, gradient_step, policy_published
from tests.simulated_history import Simulation

CONFIG = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))
HISTORY = Simulation(CONFIG, registers=True).run(8, 1)


def last(kind: type[e.Event], **fields: object) -> e.Event:
    """The last event of a type, with other fields."""
    event = next(r.event for r in reversed(HISTORY) if isinstance(r.event, kind))
    return replace(event, **fields)


def trained() -> e.MatchFinished:
    event = next(r.event for r in reversed(HISTORY) if r.event and getattr(r.event, "purpose", "") == "training")
    assert isinstance(event, e.MatchFinished)
    return event


def report(*more: e.Event, producer: str = "command") -> ReferenceReport:
    """The report on the history with these events at its end."""
    checker = ReferenceChecker("league")
    checker.apply_batch(HISTORY)
    first = len(HISTORY) + 1
    checker.apply_batch(
        RecordedEvent(sequence, 0, event_subject("league", event), producer, encode_event(event))
        for sequence, event in enumerate(more, first)
    )
    return checker.finish()


def test_a_simulated_history_with_voids_is_consistent() -> None:
    assert report().inconsistent == 0
    checker = ReferenceChecker("league")
    checker.apply_batch(Simulation(CONFIG, registers=True).run_with_voids(20))
    assert checker.finish().inconsistent == 0


FORGED: dict[str, tuple[str, str, Callable[[], list[e.Event]]]] = {
    "a checkpoint of no publication": (*("checkpoint", "was never published"), lambda: [checkpoint_added(77)]),
    "a checkpoint with another adapter": (
        *("checkpoint", "published was"),
        lambda: [last(e.CheckpointAdded, agent="main@7", version=7, adapter="f" * 64)],
    ),
    "a checkpoint without its parent": (
        *("checkpoint", "the parent ghost"),
        lambda: [last(e.CheckpointAdded, agent="main@7", version=7, parent="ghost", adapter=adapter_of(7))],
    ),
    "a retirement of no agent": ("agent", "ghost", lambda: [e.AgentRetired(agent="ghost", reason="")]),
    "an activation of no agent": ("agent", "ghost", lambda: [e.AgentActivated(agent="ghost", reason="", after=1)]),
    "a promotion of no agent": ("agent", "ghost", lambda: [e.CheckpointPromoted(agent="ghost", rating=1.0)]),
    "a publication without its step": (
        *("publication", "gradient step 40 was not taken"),
        lambda: [policy_published(40), e.AgentRetired(agent="random_bot", reason="")],
    ),
    "a publication of a later step at the very end": (
        *("publication", "gradient step 40 was not taken"),
        lambda: [policy_published(40)],
    ),
    "a checkpoint under another name": (
        *("checkpoint", "main@007 is no name of version 7 of main"),
        lambda: [last(e.CheckpointAdded, agent="main@007", version=7, adapter=adapter_of(7))],
    ),
    "another adapter for a version": (
        *("fact", f"published:main@3: event {len(HISTORY) + 1} from command differs from event"),
        lambda: [policy_published(3, adapter="f" * 64)],
    ),
    "another account of a step": (
        *("fact", f"step:main:9: event {len(HISTORY) + 1} from command differs from event"),
        lambda: [last(e.GradientStepTaken, skipped=True)],
    ),
    "an external result without an import": (
        *("import", "no import announced it"),
        lambda: [replace(trained(), match_id="external.arena.1", worker="arena", purpose="external")],
    ),
    "a result of an unregistered worker": (
        *("worker", "never registered"),
        lambda: [replace(trained(), match_id="ghost-0", worker="ghost")],
    ),
    "a draw of an unregistered worker": (
        *("worker", "never registered"),
        lambda: [last(e.OpponentsSampled, match_id="ghost-0", worker="ghost")],
    ),
    "a result without a draw": ("draw", "never drawn", lambda: [replace(trained(), match_id="rollout-0-999")]),
    "a failure without a draw": (
        *("draw", "never drawn"),
        lambda: [e.MatchFailed(match_id="rollout-0-999", purpose="training", worker="rollout-0", error="")],
    ),
    "a result of another line-up": (
        *("draw", "drawn were"),
        lambda: [
            last(e.OpponentsSampled, match_id="rollout-0-999", picks=[]),
            replace(trained(), match_id="rollout-0-999"),
        ],
    ),
    "a result for a draw of another worker": (
        *("draw", "drawn was it by rollout-0"),
        lambda: [
            last(e.OpponentsSampled, match_id="rollout-0-999"),
            replace(trained(), match_id="rollout-0-999", worker="evaluator-0"),
        ],
    ),
    "a draw of no agent": (
        *("agent", "ghost"),
        lambda: [last(e.OpponentsSampled, match_id="rollout-0-999", picks=[e.OpponentPick(0, "ghost", "peers")])],
    ),
    "a result of no evaluation": (
        *("evaluation", "was never requested"),
        lambda: [replace(trained(), match_id="x-1", purpose="evaluation", worker="evaluator-0", evaluation_id="ghost")],
    ),
    "a result that its evaluation did not ask for": (
        *("evaluation", "it is none of evaluation"),
        lambda: [
            replace(
                trained(),
                match_id="x-1",
                purpose="evaluation",
                worker="evaluator-0",
                evaluation_id=last(e.EvaluationRequested).evaluation_id,  # type: ignore[attr-defined]
            )
        ],
    ),
    "an evaluation of no agent": ("agent", "ghost", lambda: [last(e.EvaluationRequested, agent="ghost")]),
    "an evaluation's result for another agent": (
        *("evaluation", "was requested for"),
        lambda: [last(e.EvaluationFinished, agent="random_bot")],
    ),
    "a step on a match of no draw": (
        *("step", "match ghost-1, which was never drawn"),
        lambda: [policy_published(10), gradient_step(10, matches=["ghost-1"], accepted=1)],
    ),
    "a step from no version": ("step", "never published", lambda: [gradient_step(40)]),
    "a step that counts other trajectories than it lists": (
        *("step", "3 trajectories accepted, 2 listed"),
        lambda: [policy_published(10), gradient_step(10, accepted=3, trained=[[1, 2]], matches=["rollout-0-1"] * 3)],
    ),
    "a step that drops other trajectories than it counts": (
        *("step", "0 trajectories stale, 1 listed"),
        lambda: [
            policy_published(10),
            gradient_step(10, dropped=[e.DroppedTrajectories("stale", [[4, 4]], ["rollout-0-1"])]),
        ],
    ),
    "a rating of no result": ("rating", "is not its result", lambda: [last(e.RatingUpdated, match_sequence=2)]),
    "a rating of another match's result": (
        *("rating", "is not its result"),
        lambda: [last(e.RatingUpdated, match_id="ghost-1")],
    ),
    "a void of no result": (
        *("void", "is not its result"),
        lambda: [e.MatchVoided(match=trained(), match_sequence=2, reason="")],
    ),
    "imported matches of no import": (
        *("import", "1 imported matches; 0 were announced"),
        lambda: [replace(trained(), match_id="import-0", purpose="imported", worker="import")],
    ),
}


def adapter_of(version: int) -> str:
    return next(
        r.event.adapter for r in HISTORY if isinstance(r.event, e.PolicyPublished) and r.event.version == version
    )


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_event_is_named_with_its_rule(case: str) -> None:
    rule, what, forge = FORGED[case]
    found = report(*forge())
    assert found.by_rule.keys() == {rule}, found.first
    assert what in found.first[0].what
    assert len(HISTORY) < found.first[0].sequence <= len(HISTORY) + 2


@pytest.mark.parametrize(
    ("event", "allowed"),
    [
        (e.AgentRetired(agent="random_bot", reason=""), False),
        (e.RatingUpdated(match_id="", match_sequence=0, game="nim", system="elo", changes=[]), False),
        (
            e.ArtifactStored(store="s", artifact="a", data=1, weight=1.0, match_id="m", number=0, worker="rollout-0"),
            True,
        ),
        (
            e.ArtifactStored(store="s", artifact="a", data=1, weight=1.0, match_id="m", number=0, worker="rollout-1"),
            False,
        ),
    ],
)
def test_a_registered_worker_records_only_what_its_role_may(event: e.Event, allowed: bool) -> None:
    found = report(event, producer="rollout-0")
    assert ("producer" in found.by_rule) is not allowed


def test_events_of_workers_on_the_shared_subjects_of_older_histories_are_theirs() -> None:
    left = e.WorkerLeft(worker="rollout-0", incarnation="", reason="done")
    checker = ReferenceChecker("league")
    checker.apply_batch(HISTORY)
    subject = "league.league.worker.left"
    checker.apply_batch([RecordedEvent(len(HISTORY) + 1, 0, subject, "rollout-0", encode_event(left))])
    assert checker.finish().by_rule == {}


def test_what_a_trajectory_was_trained_on_before_its_result_is_counted_and_no_contradiction() -> None:
    drawn = last(e.OpponentsSampled, match_id="rollout-0-999")
    step = gradient_step(10, matches=["rollout-0-999"], accepted=1)
    found = report(drawn, policy_published(10), step)
    assert (found.inconsistent, found.without_result) == (0, 1)


def test_malformed_events_of_a_forger_stop_no_check() -> None:
    step = gradient_step(10, accepted=1, trained=[[5], [9, 3]], matches=["#7"])
    assert report(policy_published(10), step).by_rule == {"step": 1}
