"""Certificates of promotion tests, recomputed from their scores and from the matches that they name.

The history suffices to check every ``PromotionDecided``: that the pairs are the first complete ones, in their order;
that their matches were on one seed with the seats exchanged; that the scores are those of the matches; that ratio,
bounds and verdict follow from the scores; and that the test ended no later than it should have.
"""

from collections.abc import Iterator
from itertools import pairwise
from math import isclose

import msgspec

from league.evaluation.promotion import pair_score, pairs_of, recompute
from league.fold_primitives import ConfigFold
from league.log.base import EventLog
from league.state.evaluation_table import share_of
from schemas import events as e
from schemas.config import LeagueConfig
from schemas.errors import UsageError, format_choices
from schemas.events.rating import SprtConfig

_TOLERANCE = 1e-9
"""Relative and absolute, of ratios and bounds: another machine's ``log`` may differ in its last bits."""


class CertificateEvidence(msgspec.Struct):
    """The events of a test up to its recorded verdict."""

    requested: e.EvaluationRequested | None = None
    terms: SprtConfig | None = None
    """Settings in force when the test was requested."""
    played: dict[str, e.MatchFinished] = {}
    lost: dict[str, str] = {}
    """Matches that failed or were voided before the verdict, with the reason."""
    voided_since: list[str] = []
    """Matches of its pairs voided after the verdict, which stands."""


class CertificateCheck(msgspec.Struct, frozen=True):
    """A certificate and the result of recomputing it."""

    sequence: int
    certificate: e.PromotionDecided
    differences: list[str]
    """Differences from the history; empty when the certificate holds."""
    voided_since: list[str]

    @property
    def holds(self) -> bool:
        """Whether the history agrees with the certificate."""
        return not self.differences


async def check_certificates(history: EventLog, candidate: str | None = None) -> list[CertificateCheck]:
    """Recompute the certificates of one candidate, or of all.

    Raises:
        UsageError: the candidate has none; the message lists the candidates with one.
    """
    decisions = dict[str, tuple[int, e.PromotionDecided]]()
    async for at, decided in history.read_events(e.PromotionDecided):
        # The first one counts: folds ignore copies.
        decisions.setdefault(decided.evaluation_id, (at, decided))
    chosen = [(at, event) for at, event in decisions.values() if candidate in (None, event.candidate)]
    if candidate is not None and not chosen:
        names = {event.candidate for _, event in decisions.values()}
        expected = format_choices(names) if names else "all: there is none"
        raise UsageError(f"{candidate!r} has no certificate; expected {expected}")
    replayed = []
    for sequence, event in chosen:
        evidence = await collect_evidence(history, sequence, event)
        replayed.append(CertificateCheck(sequence, event, find_differences(event, evidence), evidence.voided_since))
    return replayed


async def collect_evidence(history: EventLog, sequence: int, certificate: e.PromotionDecided) -> CertificateEvidence:
    """Collect the history's evidence on the test of a certificate that was recorded at ``sequence``."""
    evidence = CertificateEvidence()
    first = 0
    async for at, request in history.read_events(e.EvaluationRequested):
        if request.evaluation_id == certificate.evaluation_id:
            evidence.requested, first = request, at
            break
    if evidence.requested is None or first > sequence:
        return CertificateEvidence()
    evidence.terms = LeagueConfig().promotion.test
    in_force = ConfigFold()
    for kind in (e.LeagueOpened, e.LeagueConfigured):
        async for recorded in history.read(1, first, only=kind):
            if isinstance(recorded.event, e.LeagueOpened | e.LeagueConfigured):
                config = in_force.apply(recorded.sequence, recorded.event)
                evidence.terms = evidence.terms if config is None else config.promotion.test
    match_ids = set(evidence.requested.matches)
    async for batch in history.batches(first, sequence):
        for recorded in batch:
            event = recorded.event
            if isinstance(event, e.MatchFinished) and event.match_id in match_ids - evidence.lost.keys():
                evidence.played.setdefault(event.match_id, event)
            elif isinstance(event, e.MatchFailed) and event.match_id in match_ids - evidence.played.keys():
                evidence.lost.setdefault(event.match_id, "failed")
            elif isinstance(event, e.MatchVoided) and evidence.played.pop(event.match.match_id, None) is not None:
                evidence.lost[event.match.match_id] = "was voided"
    named = {name for pair in certificate.pairs for name in pair}
    async for _, void in history.read_events(e.MatchVoided, sequence + 1):
        if void.match.match_id in named:
            evidence.voided_since.append(void.match.match_id)
    return evidence


def find_differences(certificate: e.PromotionDecided, evidence: CertificateEvidence) -> list[str]:
    """Differences between a certificate and the history; empty when it holds."""
    requested = evidence.requested
    if requested is None:
        return [f"evaluation {certificate.evaluation_id!r} was not asked for before the verdict"]
    if (requested.agent, requested.opponents) != (certificate.candidate, [certificate.incumbent]):
        return [f"asked for was {requested.agent} against {requested.opponents}"]
    terms = []
    if evidence.terms not in (None, certificate.test):
        terms.append(f"terms: recorded {certificate.test}, in force {evidence.terms}")
    return [
        *terms,
        *_pair_differences(certificate, requested, evidence),
        *_score_differences(certificate, evidence),
        *_verdict_differences(certificate, requested, evidence),
    ]


def _pair_differences(
    certificate: e.PromotionDecided, requested: e.EvaluationRequested, evidence: CertificateEvidence
) -> Iterator[str]:
    """Check that the pairs are the first requested ones in order, skipping only pairs without two usable results."""
    places = {pair: place for place, pair in enumerate(pairs_of(requested.matches))}
    taken = [(pair[0], pair[-1]) for pair in certificate.pairs if pair]
    if len(taken) != len(certificate.scores):
        yield f"pairs: {len(taken)}, with {len(certificate.scores)} scores"
    if unknown := [pair for pair in taken if pair not in places]:
        yield f"pairs: {unknown} were not asked for"
        return
    if any(places[one] >= places[other] for one, other in pairwise(taken)):
        yield "pairs: not in the order in which they were asked for"
    last = max((places[pair] for pair in taken), default=-1)
    for pair, place in places.items():
        if place < last and pair not in taken and all(_is_scored(certificate, evidence, name) for name in pair):
            yield f"pairs: {pair} is left out, and neither match failed or was voided"


def _is_scored(certificate: e.PromotionDecided, evidence: CertificateEvidence, name: str) -> bool:
    match = evidence.played.get(name)
    return match is not None and share_of(match, certificate.candidate, [certificate.incumbent]) is not None


def _score_differences(certificate: e.PromotionDecided, evidence: CertificateEvidence) -> Iterator[str]:
    for pair, recorded in zip(certificate.pairs, certificate.scores, strict=False):
        if missing := [name for name in pair if name not in evidence.played]:
            why = evidence.lost.get(missing[0], "had not been played to its end")
            yield f"match {missing[0]}: {why} before the verdict"
            continue
        first, second = (evidence.played[name] for name in pair)
        if first.seed != second.seed:
            yield f"pair {first.match_id}, {second.match_id}: seeds {first.seed} and {second.seed}; expected one"
        exchange = {certificate.candidate: certificate.incumbent, certificate.incumbent: certificate.candidate}
        if [exchange.get(seat.agent) for seat in first.seats] != [seat.agent for seat in second.seats]:
            yield f"pair {first.match_id}, {second.match_id}: the seats are not exchanged"
        shares = [share_of(match, certificate.candidate, [certificate.incumbent]) for match in (first, second)]
        if shares[0] is None or shares[1] is None:
            yield f"pair {pair}: its scores say nothing"
        elif (score := pair_score(shares[0], shares[1])) != recorded:
            yield f"pair {pair}: recorded {recorded}, its matches give {score}"


def _verdict_differences(
    certificate: e.PromotionDecided, requested: e.EvaluationRequested, evidence: CertificateEvidence
) -> Iterator[str]:
    try:
        again = recompute(certificate.test, certificate.scores)
    except UsageError as error:
        yield str(error)
        return
    for name in ("llr", "lower", "upper"):
        recorded, computed = getattr(certificate, name), getattr(again, name)
        if not isclose(recorded, computed, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
            yield f"{name}: recorded {recorded}, computed {computed}"
    if again.pairs != len(certificate.scores):
        yield f"pairs: {len(certificate.scores)} were taken, the test ended after {again.pairs}"
    if again.verdict == "undecided" and certificate.verdict == "keep":
        # It ended undecided: all its matches must have ended, and no complete pair may be left out.
        taken = [[*pair] for pair in certificate.pairs]
        complete = (
            pair for pair in pairs_of(requested.matches) if all(_is_scored(certificate, evidence, n) for n in pair)
        )
        waiting = [name for name in requested.matches if name not in evidence.played and name not in evidence.lost]
        if left_out := [pair for pair in complete if [*pair] not in taken]:
            yield f"verdict: undecided after {len(taken)} pairs, and {left_out[0]} was not taken"
        elif waiting:
            yield f"verdict: undecided after {len(taken)} pairs, and {len(waiting)} matches had not ended"
    elif again.verdict != certificate.verdict:
        yield f"verdict: recorded {certificate.verdict!r}, computed {again.verdict!r}"
