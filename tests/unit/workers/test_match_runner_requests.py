"""Which episodes a worker plays, and under which names they are compared."""

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.episodes import EpisodeRequest
from schemas.errors import ConfigError, EpisodeError
from workers.match_runner.episode_requests import EpisodeRequestStream, GroupShare, resolve_group_share


def grouped(size: int, groups: int = 2) -> Callable[[], Sequence[EpisodeRequest]]:
    return lambda: [
        EpisodeRequest("attempt", artifact=group, group=f"own-{group}", group_size=size)
        for group in range(groups)
        for _ in range(size)
    ]


def test_what_a_batch_holds_is_played_one_by_one_and_then_asked_for_again() -> None:
    requests = EpisodeRequestStream(grouped(2), "rollout-1-7")
    played = [requests.next() for _ in range(8)]
    assert [request.artifact for request in played] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [request.group for request in played] == [f"rollout-1-7-{group}" for group in (0, 0, 1, 1, 2, 2, 3, 3)]
    assert {request.group_size for request in played} == {2}


def test_what_names_no_group_keeps_none() -> None:
    requests = EpisodeRequestStream(
        lambda: [EpisodeRequest("debate"), EpisodeRequest("debate", is_trainable=False)], "w"
    )
    assert [(request.group, request.is_trainable) for request in (requests.next(), requests.next())] == [
        ("", True),
        ("", False),
    ]


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 3))
def test_shared_groups_are_played_whole_by_all_together_and_nothing_twice(spread: int, size: int, groups: int) -> None:
    workers = [
        EpisodeRequestStream(grouped(size, groups), "shared-0", GroupShare(part, spread)) for part in range(spread)
    ]
    played: Counter[str] = Counter()
    # Twelve batches at least for everybody who has anything to play.
    for part, worker in enumerate(workers):
        mine = sum(place % spread == part for place in range(size))
        if mine == 0:
            with pytest.raises(EpisodeError, match="nothing to play"):
                worker.next()
        played.update(worker.next().group for _ in range(12 * groups * mine))
    assert played == {f"shared-0-{group}": size for group in range(12 * groups)}


def test_shared_requests_without_a_group_go_to_one_worker_each() -> None:
    def drawn() -> Callable[[], Sequence[EpisodeRequest]]:
        numbers = iter(range(1_000))
        return lambda: [EpisodeRequest("debate", artifact=next(numbers)) for _ in range(3)]

    first, second = (EpisodeRequestStream(drawn(), "shared-0", GroupShare(part, 2)) for part in range(2))
    assert [first.next().artifact for _ in range(4)] == [0, 2, 4, 6]
    assert [second.next().artifact for _ in range(4)] == [1, 3, 5, 7]


def test_a_worker_that_comes_back_goes_on_in_shared_groups_where_it_was() -> None:
    whole, again = (
        EpisodeRequestStream(grouped(4), "shared-0", GroupShare(1, 2)),
        EpisodeRequestStream(grouped(4), "shared-0", GroupShare(1, 2)),
    )
    played = [whole.next() for _ in range(9)]
    again.skip(7)
    assert [again.next(), again.next()] == played[7:]


def test_parts_follow_from_the_numbers_of_workers() -> None:
    assert [resolve_group_share(f"rollout-{number}", 2) for number in (1, 2, 3)] == [
        GroupShare(0, 2, 0),
        GroupShare(1, 2, 0),
        GroupShare(0, 2, 1),
    ]
    assert resolve_group_share("anybody", 1) == GroupShare(0, 1, 0)
    with pytest.raises(ConfigError, match=r"episodes\.spread: 2, but the worker's name is 'anybody'"):
        resolve_group_share("anybody", 2)


def test_an_arena_with_nothing_to_play_is_said_to_have_nothing() -> None:
    with pytest.raises(EpisodeError, match="nothing to play"):
        EpisodeRequestStream(lambda: [], "w").next()
