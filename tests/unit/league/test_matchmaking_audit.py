"""The audit of matchmaking: it agrees with an honest history, and sees one that was drawn otherwise."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import pytest

from league.log.base import RecordedEvent
from league.matchmaking.audit import SamplingAudit, audit_sampling, total_variation
from league.samplers import bucket_shares, make_sampler
from league.state import LeagueState
from schemas.config import EvaluationConfig, LeagueConfig, MatchmakingConfig, Plugin
from schemas.errors import UsageError
from schemas.events import OpponentPick, OpponentsSampled
from tests.builders import replace_event
from tests.memory_log import MemoryLog
from tests.simulated_history import Simulation

# Its shares move with every checkpoint that joins.
CONFIG = LeagueConfig(
    seed=4,
    evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7),
    matchmaking=MatchmakingConfig(Plugin(name="uniform")),
)
HISTORY = Simulation(CONFIG).run(20, 4)


def audited(records: Sequence[RecordedEvent], window: int = 5, most: int = 1000) -> SamplingAudit:
    async def body() -> SamplingAudit:
        log = MemoryLog("league")
        await log.copy(records)
        return await audit_sampling(log, window, most)

    return asyncio.run(body())


def edited(edit: Callable[[OpponentsSampled], OpponentsSampled]) -> list[RecordedEvent]:
    """The history with its draws changed."""
    return [replace_event(r, edit(r.event)) if isinstance(r.event, OpponentsSampled) else r for r in HISTORY]


def test_target_and_realised_shares_are_those_of_a_fold_draw_by_draw() -> None:
    state, sampler = LeagueState(), make_sampler(CONFIG.matchmaking.sampler)
    target: Counter[str] = Counter()
    realised: Counter[str] = Counter()
    for recorded in HISTORY:
        if isinstance(recorded.event, OpponentsSampled):
            target.update(bucket_shares(sampler.distribution(state.standings(), CONFIG.trainer.policy)))
            realised.update(pick.bucket for pick in recorded.event.picks)
        state.apply(recorded.sequence, recorded.event)
    whole = audited(HISTORY).whole
    assert (whole.draws, whole.picks, whole.recomputed) == (84, 84 * 6, 84)
    assert whole.target == pytest.approx({bucket: share / 84 for bucket, share in target.items()})
    assert whole.realised == pytest.approx({bucket: count / (84 * 6) for bucket, count in realised.items()}, abs=1e-9)
    assert whole.distance == pytest.approx(total_variation(whole.target, whole.realised))


def test_an_honest_history_is_as_near_its_target_as_chance_lets_it() -> None:
    found = audited(HISTORY)
    assert [(one.first_step, one.last_step, one.draws) for one in found.windows] == [
        (0, 4, 20),
        (5, 9, 20),
        (10, 14, 20),
        (15, 19, 20),
        (20, 24, 4),
    ]
    for one in [found.whole, *found.windows]:
        assert one.distance is not None
        assert one.by_chance is not None
        assert one.distance < 3 * one.by_chance


def test_draws_from_another_mix_stand_out() -> None:
    def mirrored(event: OpponentsSampled) -> OpponentsSampled:
        return msgspec.structs.replace(
            event, picks=[OpponentPick(pick.seat, event.hero, "mirror") for pick in event.picks]
        )

    whole = audited(edited(mirrored)).whole
    assert whole.realised["mirror"] == 1.0
    assert whole.distance == pytest.approx(1 - whole.target["mirror"])
    assert whole.by_chance is not None
    assert whole.distance > 5 * whole.by_chance


def test_a_sample_of_draws_gives_nearly_the_target_of_all_and_leaves_no_window_out() -> None:
    found, every = audited(HISTORY, most=15), audited(HISTORY)
    assert [one.recomputed for one in found.windows] == [3] * 5
    assert total_variation(found.whole.target, every.whole.target) < 0.03
    assert found.whole.realised == every.whole.realised


@pytest.mark.parametrize(("distinct", "independent"), [(None, 6), (2, 2)])
def test_clones_count_once_in_what_chance_may_do(distinct: int | None, independent: int) -> None:
    sampler = Plugin(name="random", settings={} if distinct is None else {"max_distinct": distinct})
    config = msgspec.structs.replace(CONFIG, matchmaking=MatchmakingConfig(sampler))
    whole = audited(Simulation(config).run(12, 4)).whole
    share = whole.target["fixed"]
    assert 0.2 < share < 0.95
    expected = math.sqrt(2 * share * (1 - share) / (math.pi * whole.draws * independent))
    assert whole.by_chance == pytest.approx(expected)


def test_draws_that_do_not_fit_the_history_are_counted_and_said() -> None:
    first = next(r.event.match_id for r in HISTORY if isinstance(r.event, OpponentsSampled))

    def early(event: OpponentsSampled) -> OpponentsSampled:
        return msgspec.structs.replace(event, standings_sequence=1) if event.match_id == first else event

    found = audited(edited(early))
    assert (found.passed_over, found.whole.recomputed) == (1, 83)
    assert "has no published version" in found.problem


def test_nothing_drawn_and_windows_of_no_steps_are_refused() -> None:
    with pytest.raises(UsageError, match="no opponents were drawn yet"):
        audited(HISTORY[:3])
    with pytest.raises(UsageError, match="windows of 0 gradient steps"):
        audited(HISTORY, window=0)
