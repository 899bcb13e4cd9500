"""Messages survive the way through bytes, and what is no message is refused with a reason."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import errors
from schemas.codec import (
    SCHEMA_VERSION,
    UnknownEventError,
    decode_event,
    decode_job,
    decode_rollout,
    encode_event,
    encode_job,
    encode_rollout,
)
from schemas.errors import DecodeError, LeagueError
from schemas.events import RatingChange, RatingUpdated
from schemas.ids import agent_name, derive_seed, split_agent
from schemas.jobs import PlayMatch
from schemas.subjects import event_subject
from schemas.trajectories import Rollout, Step

ratings = st.floats(allow_nan=False, allow_infinity=False)


@given(before=ratings, after=ratings, agent=st.text(min_size=1))
def test_ratings_survive_bit_for_bit(before, after, agent):
    change = RatingChange(agent, before, after)
    event = RatingUpdated(match_id="m", match_sequence=1, game="nim", system="elo", changes=[change])
    assert decode_event(encode_event(event)) == event


def test_rollouts_and_jobs_survive():
    step = Step([1, 2], [3, 4, 5], [1], [-0.5], [[4, 7]], 3, 1901, 3.0)
    rollout = Rollout("m", "nim", "main", 0, "first", "g", [step], 1905, 7.0, 9.5, 1)
    assert decode_rollout(encode_rollout(rollout)) == rollout
    assert rollout.version == 3
    job = PlayMatch("m", "evaluation", ["a", "b"], 7)
    assert decode_job(encode_job(job)) == job


@pytest.mark.parametrize("data", [b"", b"\xff\x00", b"[]", b'{"type": 3}', b'{"type":"RatingUpdated","match_id":4}'])
def test_what_is_no_event_is_refused(data):
    with pytest.raises(DecodeError):
        decode_event(data)
    with pytest.raises(DecodeError):
        decode_job(data)
    with pytest.raises(DecodeError):
        decode_rollout(data)


def test_an_event_of_tomorrow_is_told_from_damage():
    with pytest.raises(UnknownEventError, match="'CometSeen'"):
        decode_event(b'{"type":"CometSeen"}')
    with pytest.raises(DecodeError, match="upgrade the reader"):
        decode_event(b"{}", SCHEMA_VERSION + 1)


def test_seeds_depend_on_every_name():
    seeds = {
        derive_seed(1, "match", "a"),
        derive_seed(2, "match", "a"),
        derive_seed(1, "matcha"),
        derive_seed(1, "match"),
    }
    assert len(seeds) == 4
    assert derive_seed(7, "match", "rollout-1-0") == derive_seed(7, "match", "rollout-1-0") < 2**63


def test_agents_are_named_by_policy_and_version():
    assert split_agent(agent_name("main", 120)) == ("main", 120)
    assert split_agent("random_bot") is None


def test_a_matchs_subject_says_purpose_and_worker():
    event = RatingUpdated(match_id="m", match_sequence=1, game="nim", system="elo", changes=[])
    assert event_subject("nim", event) == "league.nim.rating.updated"


def test_all_errors_are_picklable_and_have_an_exit_code():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LeagueError)]
    for kind in kinds:
        copy = pickle.loads(pickle.dumps(kind("where: what")))
        assert (type(copy), str(copy), copy.exit_code in (1, 2)) == (kind, "where: what", True)
