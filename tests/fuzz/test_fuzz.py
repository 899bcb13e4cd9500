"""Generated payloads and mutated real ones through every decoder and the folds.

Nothing may come of them but a value that is sound or one of our errors, and that soon. ``LEAGUE_FUZZ`` is the number of
cases per target and ``LEAGUE_FUZZ_SEED`` where the draws begin: the few of ``make test`` are the same each time,
``make test-fuzz`` runs many.
"""

import contextlib
import math
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import zstandard

from inference.http_server import RefusedError
from inference.server.openai_types import ChatCompletionRequest, CompletionRequest, decode_request
from league.auth.tokens import format_credentials, new_seed, parse_credentials, public_key, sign_token
from league.integrity import snapshots
from league.log.base import RecordedEvent
from league.log.dead_letters import DeadLetter
from league.projections.dedup_index import DedupIndex
from league.projections.projection import Projection
from league.projections.segments import read_event_batches, write_segment
from league.ratings.fold import RatingFold
from league.state import LeagueState
from models.adapter_bundle import pack_folder, unpack_folder
from schemas.codec import decode_event, decode_job, decode_trajectory, encode_event, encode_job, encode_trajectory
from schemas.config import EvaluationConfig, LeagueConfig, load_config
from schemas.errors import AccessError, DecodeError, LeagueError
from schemas.events import Event
from schemas.jobs import PlayMatch
from schemas.subjects import check_name
from schemas.trajectories import ModelCall, RoleSegment, Trajectory
from tests.simulated_history import Simulation
from trainer.admission import rejection_reason

CASES = int(os.environ.get("LEAGUE_FUZZ", "1500"))
SEED = int(os.environ.get("LEAGUE_FUZZ_SEED", "0"))
CASE_CPU_S = 5.0
DRAWN: Counter[str] = Counter()
"""Cases by target, for the summary."""
BLOCK = 500
"""Events that are folded before the folds begin anew."""
TABLES_BLOCK = 500
"""Events that are loaded into tables at a time."""

ROOT = Path(__file__).parents[2]
GOLDEN = [
    bytes(msgspec.json.decode(line, type=dict[str, msgspec.Raw])["event"])
    for line in (ROOT / "tests" / "golden" / "events" / "v2.jsonl").read_bytes().splitlines()
]
SIMULATED = [
    recorded.payload
    for recorded in Simulation(
        LeagueConfig(seed=4, evaluation=EvaluationConfig(every=2, gatekeeper_games=3, benchmark_games=3)), seats=3
    ).run_with_voids(6)
]
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 7, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**40, 0.5, -0.0, 1e308, 1e-320, "", "a",
    "main@3", "main@-1", "main@99999999999999999999", "random_bot", "rollout-0-1", "\x00\r\n", "é" * 300, "..", "*",
    ">", [], [[]], [[1, 2**62]], [0, -1], {}, {"a": None}, {"": {"": []}}, [[[[[[[[]]]]]]]],
]  # fmt: skip


@contextlib.contextmanager
def soon() -> Iterator[None]:
    """Fail what computes for too long; measured in this process's own time, so that a busy machine fails nobody."""

    def late(*_: object) -> None:
        raise AssertionError(f"still computing after {CASE_CPU_S:.0f} s")

    before = signal.signal(signal.SIGVTALRM, late)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def cases(name: str) -> Iterator[Random]:
    """A source of luck for each case."""
    rng = Random(f"{name}-{SEED}")
    for _ in range(CASES):
        signal.setitimer(signal.ITIMER_VIRTUAL, CASE_CPU_S)
        DRAWN[name] += 1
        yield rng


def mangled(data: bytes, rng: Random) -> bytes:
    """Bytes with some changed, missing, doubled or put in between."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, length = rng.randrange(len(found) + 1), rng.choice((1, 2, 8, 64))
        kind = rng.randrange(5)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del found[at : at + length]
        elif kind == 2:
            found[at:at] = found[at : at + length]
        elif kind == 3:
            found[at:at] = rng.randbytes(length)
        else:
            found[at : at + 1] = rng.choice((b"9", b"-", b"null", b'"', b"[", b"{", b"1e999", b"\xff", b"\\u0000"))
    return bytes(found)


def twisted(value: Any, rng: Random) -> Any:
    """A plain value with one place in it changed; shares the rest with the old one."""
    if isinstance(value, dict) and value and rng.random() < 0.95:
        key, kind = rng.choice(list(value)), rng.random()
        if kind < 0.08:
            return {name: each for name, each in value.items() if name != key}
        if kind < 0.12:
            return value | {rng.choice(["", "extra", "type"]): rng.choice(ODD)}
        return value | {key: twisted(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at, kind = rng.randrange(len(value)), rng.random()
        if kind < 0.1:
            return value[:at] + value[at + 1 :]
        if kind < 0.2:
            return [*value[: at + 1], *value[at:]]
        return [*value[:at], twisted(value[at], rng), *value[at + 1 :]]
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.4:
        return rng.choice((value + 1, value - 1, -value, value * 2, value + 0.5))
    return rng.choice(ODD)


def survives(decode: Callable[[bytes], Any], data: bytes, refusal: type[Exception] = LeagueError) -> Any:
    """What is decoded; None when it was refused as it should be."""
    try:
        return decode(data)
    except refusal:
        return None


def expect_sound(value: Any, key: str = "") -> None:
    """No number but what the tables, arrays and budgets of a league can hold."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name not in ("config", "data", "metadata"):
                expect_sound(each, name)
    elif isinstance(value, list):
        for each in value:
            expect_sound(each, key)
    elif isinstance(value, float):
        assert math.isfinite(value), key
    elif isinstance(value, int):
        assert -(2**63) <= value < 2**63, key
        signed = ("seed", "draw", "seat", "seats", "floor", "experience_from", "experience_to")
        assert value >= 0 or key in signed, key


EVENTS = [msgspec.json.decode(data) for data in GOLDEN + SIMULATED]


def strange_event(rng: Random) -> Event | None:
    """What comes of a real event's payload that was tampered with, once, twice or in its bytes."""
    plain = rng.choice(EVENTS)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        plain = twisted(plain, rng)
    data = msgspec.json.encode(plain)
    found: Event | None = survives(decode_event, mangled(data, rng) if rng.random() < 0.2 else data)
    return found


def test_events_are_sound_or_refused() -> None:
    accepted = 0
    with soon():
        for rng in cases("events"):
            event = strange_event(rng)
            if event is not None:
                accepted += 1
                expect_sound(msgspec.to_builtins(event))
                assert decode_event(encode_event(event)) == event
    assert 0.2 < accepted / CASES < 0.9, "else most cases say nothing"


def test_folds_take_whatever_decodes_and_stay_the_same() -> None:
    with soon():
        for number, rng in enumerate(cases("folds")):
            if number % BLOCK == 0:
                folds = [(LeagueState(), RatingFold()) for _ in range(2)]
                for sequence, data in enumerate(SIMULATED, 1):
                    for fold in (part for pair in folds for part in pair):
                        fold.apply(sequence, decode_event(data))
            event, place = strange_event(rng), folds[0][0].sequence + 1
            for fold in (part for pair in folds for part in pair):
                fold.apply(place, event)
            if number % 50 == 0:
                folds[0][0].standings()
            if number % BLOCK in (BLOCK - 1, BLOCK // 2):
                _expect_alike(folds)
                # One goes on from a snapshot.
                folds[1] = snapshots.decode_snapshot(snapshots.encode_snapshot(*folds[0]))
                _expect_alike(folds)


def _expect_alike(folds: list[tuple[LeagueState, RatingFold]]) -> None:
    assert folds[0][0].digest() == folds[1][0].digest()
    assert folds[0][1].to_snapshot() == folds[1][1].to_snapshot()


def test_tables_say_of_whatever_lies_there_what_the_folds_say() -> None:
    strange: list[RecordedEvent] = []
    with soon():
        for rng in cases("tables"):
            data = strange_bytes(rng)
            strange.append(RecordedEvent(len(strange) + 1, 10**9, "s", "w", data))
            if len(strange) == TABLES_BLOCK:
                signal.setitimer(signal.ITIMER_VIRTUAL, 12 * CASE_CPU_S)
                _expect_tables_of(strange)
                strange = []


def strange_bytes(rng: Random) -> bytes:
    """A real event's payload after what JSON readers disagree about: two fields of one name, no numbers, commas."""
    plain = rng.choice(EVENTS)
    for _ in range(rng.choice((0, 1, 1, 2))):
        plain = twisted(plain, rng)
    data = msgspec.json.encode(plain)
    kind = rng.random()
    if kind < 0.1:
        return mangled(data, rng)
    if kind < 0.2:
        old, new = rng.choice(((b"}", b",}"), (b"]", b",]"), (b":", b": "), (b"0.0", b"NaN"), (b"1", b"1.0"),
                               (b"1", b"1e400"), (b"{", b"{ "), (b"0", b"-0"), (b"a", b"\\u0061")))  # fmt: skip
        return data.replace(old, new, 1) if rng.random() < 0.5 else new.join(data.rsplit(old, 1))
    if kind < 0.3 and isinstance(plain, dict) and plain:
        again = {rng.choice(list(plain)): rng.choice(ODD)}
        return data[:-1] + b"," + msgspec.json.encode(again)[1:]
    return data


def _expect_tables_of(records: list[RecordedEvent]) -> None:
    state, kinds = LeagueState(), Counter[str]()
    for recorded in records:
        state.apply(recorded.sequence, recorded.event)
        kinds[type(recorded.event).__name__] += 1
    with Projection() as projection:
        projection.apply(records)
        unreadable = projection.query("FROM kept.unreadable")
        assert sorted(place for place, _ in unreadable) == [r.sequence for r in records if r.event is None]
        assert {name for (name,) in projection.query("SELECT agent FROM agents")} == set(state.agents)
        assert projection.query("SELECT count(*) FROM match_failures") == [(state.failed,)]
        assert projection.query("SELECT count(*), count(voided_sequence) FROM matches") == [
            (state.finished_matches() + len(state.voided), len(state.voided))
        ]
        projection.query("FROM leaderboard")
        projection.query("FROM ledger")
        read = "SELECT type, count(*) FROM kept.events WHERE sequence NOT IN (SELECT sequence FROM kept.unreadable)"
        assert dict(projection.query(f"{read} GROUP BY type")) == {n: c for n, c in kinds.items() if n != "NoneType"}


STEP = ModelCall([1, 2], [3, 4, 5], [1], [-0.5], [[4, 7]], 3, 1901, 3.0)
MEMBER = RoleSegment("m.0.3", "debate", "pro", "m", "g", 1.0, [0])
ROLLOUT = Trajectory("m", "nim", "main", 0, "first", "g", [STEP, STEP], 1905, 7.0, 9.5, 1, [9.5, 1.0], [MEMBER], 4)
JOB = PlayMatch("m", "evaluation", ["a", "b"], 7, "e")


def test_rollouts_are_rollouts_or_refused() -> None:
    plain, packed = msgspec.to_builtins(ROLLOUT), encode_trajectory(ROLLOUT)
    small = [odd for odd in ODD if not isinstance(odd, int) or -(2**63) <= odd < 2**64]
    with soon():
        for rng in cases("rollouts"):
            if rng.random() < 0.3:
                survives(decode_trajectory, mangled(packed, rng))
                continue
            try:
                inner = msgspec.msgpack.encode(twisted(plain, rng))
            except OverflowError:
                inner = msgspec.msgpack.encode(rng.choice(small))
            found = survives(
                decode_trajectory, zstandard.compress(mangled(inner, rng) if rng.random() < 0.3 else inner)
            )
            if found is not None and rejection_reason(found, 50, 4096) is None:
                # What the trainer admits; the codec hands on the rest, so that a group hears of its member.
                for step in found.steps:
                    numbers = [*step.logprobs, step.progress, step.temperature, found.score, found.final_progress]
                    assert all(map(math.isfinite, numbers))
                    assert min(step.prompt_ids) >= 0


@pytest.mark.parametrize("what", ["jobs", "letters"])
def test_jobs_and_letters_are_such_or_refused(what: str) -> None:
    letter = DeadLetter("WORK", 9, "work.nim.play_match", "why", 6, "m", b"{}", 2)
    data = encode_job(JOB) if what == "jobs" else msgspec.json.encode(letter)
    decode: Callable[[bytes], Any] = decode_job if what == "jobs" else msgspec.json.Decoder(DeadLetter).decode
    refusal = LeagueError if what == "jobs" else (msgspec.MsgspecError, UnicodeDecodeError)
    with soon():
        for rng in cases(what):
            strange = msgspec.json.encode(twisted(msgspec.json.decode(data), rng))
            found = survives(decode, mangled(data, rng) if rng.random() < 0.5 else strange, refusal)  # type: ignore[arg-type]
            if isinstance(found, PlayMatch):
                expect_sound(msgspec.to_builtins(found))
                assert not any(character <= " " or character == "\x7f" for character in found.match_id)
                assert check_name("purpose", found.purpose)


def test_configurations_are_sound_or_refused(tmp_path: Path) -> None:
    texts = [path.read_bytes() for path in sorted((ROOT / "configs").glob("*.toml"))]
    path = tmp_path / "league.toml"
    with soon():
        for rng in cases("configurations"):
            path.write_bytes(mangled(rng.choice(texts), rng))
            survives(load_config, path)  # type: ignore[arg-type]


def test_snapshots_are_such_or_refused() -> None:
    state, ratings = LeagueState(), RatingFold()
    for sequence, data in enumerate(SIMULATED, 1):
        state.apply(sequence, decode_event(data))
        ratings.apply(sequence, decode_event(data))
    packed = snapshots.encode_snapshot(state, ratings)
    inner = zstandard.decompress(packed)
    with soon():
        for number, rng in enumerate(cases("snapshots")):
            # A sound one is restored at some expense, so these are fewer.
            if number % 10 == 0:
                survives(snapshots.decode_snapshot, zstandard.compress(mangled(inner, rng), 1))
            else:
                survives(snapshots.decode_snapshot, mangled(packed, rng))


def test_a_snapshot_that_claims_to_be_huge_is_refused() -> None:
    packing = zstandard.ZstdCompressor().compressobj(size=1 << 60)
    bomb = packing.compress(b"x") + packing.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    with pytest.raises(DecodeError, match="not a snapshot"):
        snapshots.decode_snapshot(bomb)


@pytest.mark.parametrize("kind", [CompletionRequest, ChatCompletionRequest])
def test_requests_are_such_or_refused(kind: type) -> None:
    asked = {
        "model": "main@3", "prompt": [1, 2], "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "n": 1,
        "temperature": 0.5, "stop": ["x"], "seed": 3, "logprobs": True, "structured_outputs": {"choice": ["a"]},
        "stream": False, "response_format": {"type": "json_schema", "json_schema": {"schema": {}}}, "tools": [],
    }  # fmt: skip
    data = msgspec.json.encode(asked)
    with soon():
        for rng in cases(kind.__name__):
            strange = msgspec.json.encode(twisted(asked, rng))
            survives(
                lambda body: decode_request(body, kind),
                mangled(data, rng) if rng.random() < 0.5 else strange,
                RefusedError,
            )


def test_credentials_are_such_or_refused() -> None:
    seed, operator = new_seed("user"), new_seed("operator")
    claims = {"tags": ["role:rollout"], "pub": {"allow": ["league.>"]}}
    token_of = sign_token(
        "user", operator, public_key(seed), "rollout-7", claims, issued=1_700_000_000, expires=1_800_000_000
    )
    text = format_credentials(token_of, seed).encode()
    with soon():
        for rng in cases("credentials"):
            try:
                strange = mangled(text, rng).decode()
            except UnicodeDecodeError:
                continue
            survives(lambda data: parse_credentials(data.decode(), "x.creds"), strange.encode(), AccessError)


def test_a_dedup_index_is_such_or_refused() -> None:
    dedup = DedupIndex()
    for data in SIMULATED:
        dedup.add(decode_event(data))
    packed = dedup.to_bytes()
    inner = zstandard.decompress(packed)
    with soon():
        for rng in cases("dedup index"):
            data = zstandard.compress(mangled(inner, rng), 1) if rng.random() < 0.7 else mangled(packed, rng)
            found = survives(DedupIndex.from_bytes, data)
            if found is not None:
                found.add(decode_event(SIMULATED[-1]))
                assert DedupIndex.from_bytes(found.to_bytes()).to_bytes() == found.to_bytes()


def test_archived_events_are_read_or_refused(tmp_path: Path) -> None:
    records = [RecordedEvent(n, n * 1000, "s", "w", data) for n, data in enumerate(SIMULATED[:60], 1)]
    segment = write_segment(1, len(records), [records], DedupIndex(), tmp_path / "segment")
    whole, path = segment.files["events_rest"].read_bytes(), tmp_path / "events.parquet"
    with soon():
        # Fewer: each opens a database, which takes as long as ten cases of others.
        for rng in islice(cases("archived"), math.ceil(CASES / 10)):
            path.write_bytes(mangled(whole, rng))
            for batch in survives(lambda file: list(read_event_batches(file)), path) or []:  # type: ignore[arg-type]
                for each in batch:
                    assert each.event is not None or each.error is not None


def test_packed_folders_are_unpacked_in_their_place_or_refused(tmp_path: Path) -> None:
    inside, source = tmp_path / "outer" / "inside", tmp_path / "source"
    source.mkdir()
    (source / "adapter_config.json").write_text("{}")
    (source / "weights.bin").write_bytes(bytes(range(256)) * 3)
    packed = pack_folder(source)
    around = {path.name for path in tmp_path.iterdir()} | {"outer"}
    with soon():
        for rng in cases("packed"):
            survives(lambda data: unpack_folder(data, inside), damaged_header(packed, rng))
            shutil.rmtree(inside, ignore_errors=True)
            assert {path.name for path in tmp_path.iterdir()} <= around
            assert not any((tmp_path / "outer").glob("*"))


def damaged_header(packed: bytes, rng: Random) -> bytes:
    """An archive with changes where they count, and with sums that hold, or nothing would get beyond those."""
    found = bytearray(packed)
    for _ in range(rng.choice((1, 1, 3))):
        place = rng.choice((0, 0, 100, 124, 156, 157, 257, 345)) + rng.randrange(8)
        found[place] = rng.choice((0, 0, 0x2E, 0x2F, 0x30, 0x31, 0x37, 0x5C, 0x61, 0xFF, rng.randrange(256)))
    if rng.random() < 0.3:
        name = rng.choice((b"../x", b"/tmp/x", b"a/../../x", b".\0", b"..\0", b"a\0b", b"a/\0", b"weights.bin/x\0"))
        found[: len(name)] = name
    found[148:156] = b" " * 8
    found[148:156] = b"%06o\0 " % sum(found[:512])
    return bytes(found) if rng.random() < 0.9 else mangled(bytes(found), rng)
