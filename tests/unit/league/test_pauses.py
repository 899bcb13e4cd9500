"""Pauses and resumptions, as the fold of the history keeps them."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from league.state import LeagueState, LeagueStateSnapshot
from schemas import events as e

Word = e.LeaguePaused | e.LeagueResumed


def folded(events: list[Word], state: LeagueState | None = None) -> LeagueState:
    state = state or LeagueState()
    for event in events:
        state.apply(state.sequence + 1, event)
    return state


def through_a_snapshot(state: LeagueState) -> LeagueState:
    return LeagueState.from_snapshot(
        msgspec.msgpack.decode(msgspec.msgpack.encode(state.to_snapshot()), type=LeagueStateSnapshot)
    )


def test_a_policy_pauses_with_the_league_and_by_itself() -> None:
    state = folded([e.LeaguePaused(reason="warm"), e.LeaguePaused(policy="exploiter", reason="odd")])
    assert [(policy, pause.reason) for policy, pause in state.pauses.active_pauses().items()] == [
        ("", "warm"),
        ("exploiter", "odd"),
    ]
    assert (state.pauses.active_pause("main").reason, state.pauses.active_pause("exploiter").reason) == ("warm", "warm")  # type: ignore[union-attr]
    state = folded([e.LeagueResumed(after=1)], state)
    assert state.pauses.active_pause() is None
    assert state.pauses.active_pause("main") is None
    assert state.pauses.active_pause("exploiter").reason == "odd"  # type: ignore[union-attr]


def test_what_was_said_of_another_state_of_affairs_changes_nothing() -> None:
    pause, resume = e.LeaguePaused(), e.LeagueResumed(after=1)
    assert folded([pause, resume, pause, e.LeaguePaused(after=1)]).pauses.active_pause() is None
    assert folded([pause, resume, e.LeaguePaused(after=2), resume]).pauses.active_pause() is not None
    assert folded([e.LeagueResumed()]).pauses.last == {}


WORDS = st.lists(
    st.builds(
        lambda kind, policy, after: kind(policy=policy, after=after, reason="r"),
        st.sampled_from([e.LeaguePaused, e.LeagueResumed]),
        st.sampled_from(["", "main"]),
        st.integers(0, 9),
    ),
    max_size=9,
)


@given(WORDS, st.integers(0, 9))
def test_a_restored_state_goes_on_like_the_one_that_was_saved(events: list[Word], cut: int) -> None:
    restored = folded(events[cut:], through_a_snapshot(folded(events[:cut])))
    assert restored.digest() == folded(events).digest()
