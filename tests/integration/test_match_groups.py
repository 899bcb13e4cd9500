"""``rollout.group_size``: matches of one start, seat and line-up are compared, in a league of real processes."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from schemas.events import GradientStepTaken, MatchFinished, OpponentsSampled
from schemas.ids import policy_of
from tests.integration.conftest import League

ROOT = Path(__file__).parents[2]
SIZE = 4


def test_members_of_a_group_agree_and_have_advantages(
    league_up: Callable[[Path, Path], League], tmp_path: Path
) -> None:
    text = (ROOT / "configs" / "nim-tiny.toml").read_text()
    text = text.replace("games_in_flight = 8", f"games_in_flight = 8\ngroup_size = {SIZE}")
    text = text.replace("rollouts_per_step = 8", 'rollouts_per_step = 16\nadvantage = { name = "group_relative" }')
    text = text.replace("settings = { seats = 3, heaps = [2, 3] }", "settings = { seats = 3, heaps = [3, 4, 5] }")
    settings = tmp_path / "groups.toml"
    settings.write_text(text)
    league = league_up(tmp_path / "run", settings)
    league.finish()
    events = [recorded.event for recorded in league.history()]
    draws = {event.match_id: event for event in events if isinstance(event, OpponentsSampled)}
    finished = {event.match_id: event for event in events if isinstance(event, MatchFinished)}
    groups = defaultdict(set)
    for match_id, draw in draws.items():
        if match_id not in finished:
            continue
        match, number = finished[match_id], int(match_id.rpartition("-")[2]) // SIZE
        mirrors = {pick.seat for pick in draw.picks if pick.bucket == "mirror"} | {draw.hero_seat}
        seats = [policy_of(seat.agent) if seat.seat in mirrors else seat.agent for seat in match.seats]
        groups[draw.worker, number].add((match.seed, draw.hero_seat, draw.draw, tuple(seats)))
    assert len(groups) >= 12
    assert all(len(members) == 1 for members in groups.values())
    steps = [event for event in events if isinstance(event, GradientStepTaken)]
    assert len(steps) == 3
    for step in steps:
        counts: dict[int, int] = defaultdict(int)
        for match_id in step.matches:
            counts[int(match_id.rpartition("-")[2]) // SIZE] += 1
        assert set(counts.values()) == {SIZE}
        assert step.metrics["groups_complete"] >= 4
    assert sum(step.metrics["zero_advantage_share"] for step in steps) / len(steps) < 0.9
