"""Messages survive the way through bytes, and what is no message is refused with a reason."""

import pickle

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from schemas import codec, errors
from schemas.codec import (
    FIRST_SCHEMA_VERSION,
    SCHEMA_VERSION,
    UPCASTERS,
    NewerSchemaError,
    OlderSchemaError,
    UnknownEventError,
    decode_event,
    decode_job,
    decode_trajectory,
    encode_event,
    encode_job,
    encode_trajectory,
)
from schemas.errors import DecodeError, LeagueError
from schemas.events import (
    AgentRetired,
    EvaluationRequested,
    LeaguePaused,
    MatchFinished,
    RatingChange,
    RatingUpdated,
    SeatResult,
)
from schemas.ids import agent_name, derive_seed, split_agent
from schemas.jobs import PlayMatch
from schemas.subjects import event_subject
from schemas.trajectories import ModelCall, Trajectory

MATCH = MatchFinished(
    match_id="m",
    game="nim",
    purpose="training",
    worker="w",
    seed=1,
    seats=[SeatResult(0, "first", "main@1", 1.0, 1)],
    winner=None,
    reason="over",
    length=3,
    seconds=0.5,
)

ratings = st.floats(allow_nan=False, allow_infinity=False)


@given(before=ratings, after=ratings, agent=st.text(min_size=1))
def test_ratings_survive_bit_for_bit(before, after, agent):
    change = RatingChange(agent, before, after)
    event = RatingUpdated(match_id="m", match_sequence=1, game="nim", system="elo", changes=[change])
    assert decode_event(encode_event(event)) == event


def test_rollouts_and_jobs_survive():
    step = ModelCall([1, 2], [3, 4, 5], [1], [-0.5], [[4, 7]], 3, 1901, 3.0)
    rollout = Trajectory("m", "nim", "main", 0, "first", "g", [step], 1905, 7.0, 9.5, 1)
    assert decode_trajectory(encode_trajectory(rollout)) == rollout
    assert rollout.version == 3
    job = PlayMatch("m", "evaluation", ["a", "b"], 7)
    assert decode_job(encode_job(job)) == job


def test_a_rollout_from_before_the_form_of_replies_was_noted_is_still_read():
    step = ModelCall([1, 2], [3, 4, 5], [1], [-0.5], [[4, 7]], 3, 1901, 3.0)
    rollout = Trajectory("m", "nim", "main", 0, "first", "g", [step], 1905, 7.0, 9.5, 1)
    fields = msgspec.to_builtins(rollout)
    for name in ("formatted", "invalid"):
        del fields["steps"][0][name]
    (read,) = decode_trajectory(zstandard.compress(msgspec.msgpack.encode(fields))).steps
    assert (read.formatted, read.invalid) == (True, False)


@pytest.mark.parametrize("data", [b"", b"\xff\x00", b"[]", b'{"type": 3}', b'{"type":"RatingUpdated","match_id":4}'])
def test_what_is_no_event_is_refused(data):
    with pytest.raises(DecodeError):
        decode_event(data)
    with pytest.raises(DecodeError):
        decode_job(data)
    with pytest.raises(DecodeError):
        decode_trajectory(data)


def test_an_event_of_tomorrow_is_told_from_damage():
    with pytest.raises(UnknownEventError, match="'CometSeen'"):
        decode_event(b'{"type":"CometSeen"}')
    with pytest.raises(NewerSchemaError, match="upgrade the reader"):
        decode_event(b'{"type":"CometSeen"}', SCHEMA_VERSION + 1)
    for garbage in (b"{}", b"\xff{", b'{"type":7}', b'{"type":""}', b"[]"):
        with pytest.raises(DecodeError, match="not an event, though labelled") as caught:
            decode_event(garbage, SCHEMA_VERSION + 1)
        assert not isinstance(caught.value, NewerSchemaError), "nobody ends because of it"


def test_there_is_a_hop_from_every_version_to_the_next():
    assert set(UPCASTERS) == set(range(FIRST_SCHEMA_VERSION, SCHEMA_VERSION))


def test_an_event_of_0_1_is_told_from_damage():
    with pytest.raises(OlderSchemaError, match="event of schema version 1; expected 2 or later"):
        decode_event(b'{"type":"AgentRetired","agent":"a","reason":"b"}', 1)


@pytest.fixture
def two_hops(monkeypatch):
    """A future in which version 2 called the agent ``name``, and version 3 gave reasons as numbers."""

    def renamed(fields):
        return {**{k: v for k, v in fields.items() if k != "name"}, "agent": fields["name"]}

    def worded(fields):
        return {**fields, "reason": ["old", "broken"][fields["reason"]]}

    monkeypatch.setattr(codec, "SCHEMA_VERSION", 4)
    monkeypatch.setattr(codec, "UPCASTERS", {2: renamed, 3: worded})


@pytest.mark.parametrize(
    ("version", "fields"),
    [(2, '"name":"a","reason":1'), (3, '"agent":"a","reason":1'), (4, '"agent":"a","reason":"broken"')],
)
def test_old_events_are_brought_up_hop_by_hop(two_hops, version, fields):
    data = f'{{"type":"AgentRetired",{fields}}}'.encode()
    assert decode_event(data, version) == AgentRetired(agent="a", reason="broken")


def test_old_events_that_a_hop_cannot_read_are_refused_alone(two_hops):
    with pytest.raises(DecodeError, match="version 2 that the upcaster from 2 cannot read: KeyError"):
        decode_event(b'{"type":"AgentRetired","reason":1}', 2)
    with pytest.raises(DecodeError, match="version 3 that the upcaster from 3 cannot read: IndexError"):
        decode_event(b'{"type":"AgentRetired","agent":"a","reason":7}', 3)
    with pytest.raises(DecodeError, match="no upcaster from 0 to 1"):
        decode_event(b"{}", 0)
    with pytest.raises(UnknownEventError, match="'CometSeen'"):
        decode_event(b'{"type":"CometSeen","name":"a","reason":0}', 2)
    with pytest.raises(DecodeError, match="not a JSON object"):
        decode_event(b"[]", 2)


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


@pytest.mark.parametrize(
    ("field", "value"), [("length", -1), ("tokens", 2**63), ("seed", 10**30), ("winner", -1), ("seconds", float("nan"))]
)
def test_numbers_out_of_range_make_no_event(field, value):
    fields = msgspec.to_builtins(MATCH) | {field: value}
    with pytest.raises(DecodeError, match="not a valid MatchFinished event"):
        decode_event(msgspec.json.encode(fields))


@pytest.mark.parametrize(("field", "value"), [("seat", -1), ("rank", 0), ("rank", 2**64), ("score", float("inf"))])
def test_numbers_out_of_range_in_a_seat_make_no_event(field, value):
    seat = msgspec.to_builtins(MATCH.seats[0]) | {field: value}
    with pytest.raises(DecodeError, match="not a valid MatchFinished event"):
        decode_event(msgspec.json.encode(msgspec.to_builtins(MATCH) | {"seats": [seat]}))


def test_what_cannot_be_read_again_is_not_written():
    with pytest.raises(DecodeError, match="MatchFinished"):
        encode_event(msgspec.structs.replace(MATCH, seconds=float("nan")))


def test_a_rollout_that_says_it_is_huge_is_refused_before_it_is_unpacked():
    packing = zstandard.ZstdCompressor().compressobj(size=1 << 40)
    bomb = packing.compress(b"x") + packing.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    with pytest.raises(DecodeError, match="unpacked"):
        decode_trajectory(bomb)


def test_what_is_nested_without_end_is_refused():
    deep = b"[" * 200_000 + b"]" * 200_000
    for data in (deep, b'{"type":"AgentRetired","agent":"a","reason":"b","more":' + deep + b"}"):
        with pytest.raises(DecodeError):
            decode_event(data)
        with pytest.raises(DecodeError):
            decode_job(data)
    with pytest.raises(DecodeError):
        decode_trajectory(zstandard.compress(b"\x91" * 200_000))


def test_numbers_that_no_snapshot_could_hold_are_refused_in_free_fields_too():
    stored = {"type": "ArtifactStored", "store": "s", "artifact": "a", "weight": 1.0, "match_id": "m", "number": 0}
    assert decode_event(msgspec.json.encode(stored | {"worker": "w", "data": {"n": 2**63}}))
    with pytest.raises(DecodeError, match="not a valid ArtifactStored event"):
        decode_event(msgspec.json.encode(stored | {"worker": "w", "data": {"n": 2**64}}))


@pytest.mark.parametrize("index", [-1, 2**63, 2**64])
def test_an_index_that_no_snapshot_can_hold_is_refused(index: int) -> None:
    request = EvaluationRequested("e", "main@1", "newest", ["bot"], ["e-1"], [index])
    with pytest.raises(DecodeError, match="indices"):
        decode_event(msgspec.json.encode(request))


def test_text_with_half_a_character_is_refused_as_an_event() -> None:
    with pytest.raises(DecodeError, match="LeaguePaused cannot be recorded"):
        encode_event(LeaguePaused(reason="\udcff"))


def test_an_event_that_is_too_large_is_neither_recorded_nor_read_and_the_message_names_the_field():
    full = msgspec.structs.replace(MATCH, reason="x" * 70_000)
    expected = r"MatchFinished of 70,\d+ bytes, 70,002 of them in reason; expected at most 65,536"
    with pytest.raises(DecodeError, match=f"finished:m cannot be recorded: {expected}"):
        encode_event(full)
    with pytest.raises(DecodeError, match=f"not a usable event: {expected}"):
        decode_event(msgspec.json.encode(full))
    assert decode_event(encode_event(msgspec.structs.replace(MATCH, reason="x" * 60_000))).reason == "x" * 60_000
