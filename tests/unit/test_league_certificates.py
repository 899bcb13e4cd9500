"""Certificates of promotion tests: a true one holds, and whatever is otherwise is named."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from league.evaluation.certificates import (
    CertificateCheck,
    CertificateEvidence,
    check_certificates,
    collect_evidence,
    find_differences,
)
from league.evaluation.promotion import recompute
from league.log.base import RecordedEvent
from schemas import events as e
from schemas.config import EvaluationConfig, LeagueConfig, PromotionConfig
from schemas.errors import UsageError
from schemas.events.rating import SprtConfig
from tests.builders import replace_event
from tests.memory_log import MemoryLog
from tests.simulated_history import Simulation

CONFIG = LeagueConfig(
    seed=4,
    evaluation=EvaluationConfig(every=10, gatekeeper_games=7, benchmark_games=7),
    promotion=PromotionConfig(test=SprtConfig(elo1=100.0, least_pairs=4, most_pairs=12)),
)
HISTORY = Simulation(CONFIG, skill=lambda agent: 0.01 * float(agent.partition("@")[2] or 0)).run(40, 1)


def holding(records: list[RecordedEvent]) -> MemoryLog:
    log = MemoryLog()
    asyncio.run(log.copy(records))
    return log


def checked(records: list[RecordedEvent], candidate: str | None = None) -> list[CertificateCheck]:
    return asyncio.run(check_certificates(holding(records), candidate))


def first_certificate(verdict: str) -> tuple[int, e.PromotionDecided]:
    for recorded in HISTORY:
        if isinstance(recorded.event, e.PromotionDecided) and recorded.event.verdict == verdict:
            return recorded.sequence, recorded.event
    raise AssertionError


SEQUENCE, CERTIFICATE = first_certificate("promote")
EVIDENCE = asyncio.run(collect_evidence(holding(HISTORY), SEQUENCE, CERTIFICATE))


def test_every_certificate_of_a_simulated_league_holds() -> None:
    found = checked(HISTORY)
    assert {one.certificate.verdict for one in found} == {"keep", "promote"}
    assert [one.differences for one in found] == [[] for _ in found]
    assert all(one.holds for one in found)
    assert [one.certificate for one in checked(HISTORY, CERTIFICATE.candidate)] == [CERTIFICATE]


def test_nobody_without_a_certificate_can_be_checked() -> None:
    with pytest.raises(UsageError, match=r"'main@999' has no certificate; expected 'main@"):
        checked(HISTORY, "main@999")


Forge = Callable[[e.PromotionDecided], dict[str, Any]]


@pytest.mark.parametrize(
    ("forge", "named"),
    [
        (lambda c: {"llr": c.llr + 1e-6}, "llr: recorded"),
        (lambda c: {"upper": 2.0}, "upper: recorded 2.0"),
        (lambda c: {"verdict": "keep" if c.verdict == "promote" else "promote"}, "verdict: recorded"),
        (lambda c: {"scores": [min(s + 0.25, 1.0) for s in c.scores]}, "its matches give"),
        (lambda c: {"scores": [7.0, *c.scores[1:]]}, "has the score 7.0"),
        (lambda c: {"scores": c.scores[:-1], "pairs": c.pairs[:-1]}, "computed 'undecided'"),
        (lambda c: {"scores": c.scores[1:], "pairs": c.pairs[1:]}, "is left out, and neither match failed"),
        (lambda c: {"scores": c.scores[::-1], "pairs": c.pairs[::-1]}, "not in the order"),
        (lambda c: {"pairs": [["x", "y"], *c.pairs[1:]]}, "were not asked for"),
        (lambda c: {"pairs": c.pairs[:-1]}, "with"),
        (lambda c: {"test": SprtConfig(elo1=40.0)}, "terms: recorded"),
        (lambda c: {"incumbent": "random_bot"}, "asked for was"),
        (lambda c: {"evaluation_id": "another"}, "was not asked for before the verdict"),
    ],
)
def test_a_forged_certificate_is_found_out(forge: Forge, named: str) -> None:
    forged = msgspec.structs.replace(CERTIFICATE, **forge(CERTIFICATE))
    evidence = EVIDENCE if forged.evaluation_id == CERTIFICATE.evaluation_id else CertificateEvidence()
    assert find_differences(CERTIFICATE, EVIDENCE) == []
    assert any(named in difference for difference in find_differences(forged, evidence)), find_differences(
        forged, evidence
    )


def altered(match_id: str, **fields: Any) -> list[RecordedEvent]:
    """The history with one result written otherwise."""
    return [
        replace_event(recorded, msgspec.structs.replace(recorded.event, **fields))
        if isinstance(recorded.event, e.MatchFinished) and recorded.event.match_id == match_id
        else recorded
        for recorded in HISTORY
    ]


def test_matches_that_say_otherwise_are_named() -> None:
    first = CERTIFICATE.pairs[0][0]
    match = EVIDENCE.played[first]
    seats = [msgspec.structs.replace(seat, score=-seat.score) for seat in match.seats]
    alike = [msgspec.structs.replace(seat, agent=CERTIFICATE.candidate) for seat in match.seats]
    for fields, named in (
        ({"seats": seats}, "its matches give"),
        ({"seed": 1}, "expected one"),
        ({"seats": alike}, "not exch"),
    ):
        (found,) = checked(altered(first, **fields), CERTIFICATE.candidate)
        assert any(named in difference for difference in found.differences), (named, found.differences)


def test_a_match_voided_before_the_verdict_cannot_count_and_one_voided_later_is_told() -> None:
    name = CERTIFICATE.pairs[1][1]
    at = next(r.sequence for r in HISTORY if isinstance(r.event, e.MatchFinished) and r.event.match_id == name)
    void = e.MatchVoided(match=EVIDENCE.played[name], match_sequence=at, reason="x")
    log = holding(HISTORY)
    asyncio.run(log.append(void))
    (later,) = asyncio.run(check_certificates(log, CERTIFICATE.candidate))
    assert (later.holds, later.voided_since) == (True, [name])
    before = msgspec.structs.replace(
        EVIDENCE, played={n: m for n, m in EVIDENCE.played.items() if n != name}, lost={name: "was voided"}
    )
    assert f"match {name}: was voided before the verdict" in find_differences(CERTIFICATE, before)


def test_an_undecided_test_keeps_only_when_all_its_matches_have_ended() -> None:
    terms = SprtConfig(elo1=100.0, least_pairs=12, most_pairs=12)
    few = msgspec.structs.replace(CERTIFICATE, test=terms, scores=[], pairs=[], llr=0.0, verdict="keep")
    requested = EVIDENCE.requested
    assert requested is not None
    ended = CertificateEvidence(requested=requested, terms=terms, lost=dict.fromkeys(requested.matches, "failed"))
    assert find_differences(few, ended) == []
    waiting = CertificateEvidence(requested=requested, terms=terms, lost=dict.fromkeys(requested.matches[1:], "failed"))
    assert find_differences(few, waiting) == ["verdict: undecided after 0 pairs, and 1 matches had not ended"]


def test_a_pair_cannot_be_left_out_at_the_end_of_an_undecided_test() -> None:
    sequence, kept = first_certificate("keep")
    evidence = asyncio.run(collect_evidence(holding(HISTORY), sequence, kept))
    assert recompute(kept.test, kept.scores[:-1]).verdict == "undecided"
    short = recompute(kept.test, kept.scores[:-1])
    forged = msgspec.structs.replace(kept, pairs=kept.pairs[:-1], scores=kept.scores[:-1], llr=short.llr)
    (difference,) = find_differences(forged, evidence)
    assert "was not taken" in difference
