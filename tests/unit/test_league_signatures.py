"""Signatures of results: what they cover, and what the history says has to be signed."""

import base64

import msgspec
import nkeys
import pytest
from hypothesis import given
from hypothesis import strategies as st

from league.auth.tokens import format_credentials, new_seed, parse_credentials, public_key, raw_key, sign_token
from league.integrity.signatures import MAX_REMEMBERED, SignatureVerifier, Signer, WorkerKeys, verify_signature
from league.log.base import RecordedEvent
from league.state import LeagueState, LeagueStateSnapshot
from schemas.codec import decode_event, encode_event
from schemas.errors import AccessError
from schemas.events import Event, MatchFinished, WorkerJoined
from schemas.subjects import event_subject
from tests.builders import match_finished


def signer(number: int) -> Signer:
    """Always the same."""
    return Signer(nkeys.encode_seed(bytes([number] * 32), nkeys.PREFIX_BYTE_USER).decode())


SIGNER, OTHER = signer(1), signer(2)


def result(match_id: str = "w-0", worker: str = "w", score: float = 1.0) -> MatchFinished:
    return match_finished(("a", score), ("b", 0.0), match_id=match_id, worker=worker, seed=1, winner=0)


def joined(key: str = "", incarnation: str = "1", worker: str = "w") -> WorkerJoined:
    return WorkerJoined(
        worker=worker, role="rollout", incarnation=incarnation, host="", pid=1, version="1", public_key=key
    )


def recorded(sequence: int, payload: bytes) -> RecordedEvent:
    return RecordedEvent(sequence, 0, event_subject("t", decode_event(payload)), "w", payload)


def forged(*payloads: bytes | Event) -> list[int]:
    """Places of the results that are found to be forged."""
    told = [each if isinstance(each, bytes) else encode_event(each) for each in payloads]
    return [
        r.sequence for r in SignatureVerifier().verify_batch(recorded(n, payload) for n, payload in enumerate(told, 1))
    ]


def signature_of(payload: bytes) -> str:
    event = decode_event(payload)
    assert isinstance(event, MatchFinished)
    return event.signature


def test_a_signed_result_is_the_same_result_and_verifies_by_its_key_alone() -> None:
    payload = SIGNER.encode(result())
    event = decode_event(payload)
    assert isinstance(event, MatchFinished)
    assert msgspec.structs.replace(event, signature="") == result()
    assert verify_signature(payload, event.signature, SIGNER.public_key)
    assert not verify_signature(payload, event.signature, OTHER.public_key)
    assert SIGNER.encode(event) == payload
    assert OTHER.encode(event) == OTHER.encode(result())
    assert SIGNER.encode(joined()) == encode_event(joined())


@given(st.data())
def test_no_byte_of_a_signed_result_can_be_altered(data: st.DataObject) -> None:
    payload = SIGNER.encode(result())
    place, byte = data.draw(st.integers(0, len(payload) - 1)), data.draw(st.integers(0, 255))
    altered = payload[:place] + bytes([byte]) + payload[place + 1 :]
    # As whoever alters it would have it believed: the signature is the one that the bytes say, or the one before.
    assert altered == payload or not verify_signature(altered, signature_of(payload), SIGNER.public_key)
    try:
        said = signature_of(altered)
    except (ValueError, AssertionError):
        return
    assert altered == payload or not verify_signature(altered, said, SIGNER.public_key)


def test_a_field_of_a_later_version_is_covered_and_does_not_stand_in_the_way() -> None:
    fields = msgspec.json.decode(encode_event(result())) | {"added_later": {"signatures": ['"signature":"x"']}}
    unsigned = msgspec.json.encode(fields)
    signature = signature_of(SIGNER.encode(result()))
    assert not verify_signature(
        unsigned.replace(b'"signature":""', f'"signature":"{signature}"'.encode()), signature, "U"
    )
    assert len(signature) == 86
    own = base64.urlsafe_b64encode(SIGNER._pair.sign(unsigned)).rstrip(b"=").decode()
    payload = unsigned.replace(b'"signature":""', f'"signature":"{own}"'.encode())
    assert verify_signature(payload, signature_of(payload), SIGNER.public_key)
    assert not verify_signature(payload.replace(b"added_later", b"added_since"), own, SIGNER.public_key)


@pytest.mark.parametrize("twice", [b'"signature":"x",', b'"signature":"",'])
def test_a_second_field_of_the_name_leaves_nothing_verified(twice: bytes) -> None:
    payload = SIGNER.encode(result())
    assert not verify_signature(
        payload.replace(b'"match_id"', twice + b'"match_id"'), signature_of(payload), SIGNER.public_key
    )


def test_who_announced_no_key_need_not_sign() -> None:
    assert forged(result(), joined(), result("w-1"), SIGNER.encode(result("w-2"))) == []


def test_who_announced_a_key_must_sign_with_it_from_then_on() -> None:
    good, bad = SIGNER.encode(result("w-1")), OTHER.encode(result("w-2"))
    stolen = good.replace(b'"w-1"', b'"w-3"')
    stripped = encode_event(result("w-4"))
    of_another = SIGNER.encode(result("x-0", worker="x"))
    assert forged(result(), joined(SIGNER.public_key), good, bad, stolen, stripped, of_another, good) == [4, 5, 6]


def test_a_key_is_its_workers_alone() -> None:
    assert forged(joined(SIGNER.public_key), joined(OTHER.public_key, worker="x"), OTHER.encode(result())) == [3]


def test_what_an_earlier_start_signed_still_counts_and_a_start_without_a_key_need_not_sign() -> None:
    again = [joined(SIGNER.public_key), joined(OTHER.public_key, "2"), SIGNER.encode(result()), result("w-1")]
    assert forged(*again) == [4]
    assert forged(*again[:2], joined("", "3"), result("w-1"), SIGNER.encode(result())) == []
    assert forged(*again[:2], joined("", "3"), signer(3).encode(result())) == [4]


def test_what_is_no_key_announces_nothing() -> None:
    damaged = SIGNER.public_key[:-1] + ("A" if SIGNER.public_key[-1] != "A" else "B")
    assert forged(joined("nonsense" * 1000), result()) == []
    # Of the right form, it was announced; no signature is by it.
    assert forged(joined(damaged), SIGNER.encode(result())) == [2]
    with pytest.raises(ValueError, match="no public key of a user"):
        raw_key(damaged)


def test_the_newest_keys_are_remembered_and_copies_add_none() -> None:
    keys, known = WorkerKeys(), [signer(number).public_key for number in range(MAX_REMEMBERED + 3)]
    for number, key in enumerate(known):
        for _ in range(2):
            keys.announce(joined(key, str(number)))
    assert keys.for_worker("w") == known[:2:-1]
    keys.announce(joined(known[5], "5"))
    assert keys.for_worker("w") == known[:2:-1]
    assert keys.must_sign("w")
    assert not keys.must_sign("x")


def test_the_state_knows_the_keys_and_a_snapshot_keeps_them() -> None:
    state = LeagueState()
    for sequence, event in enumerate([joined(SIGNER.public_key), joined(worker="x"), joined(OTHER.public_key, "2")], 1):
        state.apply(sequence, event)
    assert state.keys.by_worker == {"w": [SIGNER.public_key, OTHER.public_key]}
    saved = msgspec.msgpack.decode(msgspec.msgpack.encode(state.to_snapshot()), type=LeagueStateSnapshot)
    restored = LeagueState.from_snapshot(saved)
    assert restored.keys.by_worker == state.keys.by_worker
    assert restored.digest() == state.digest()


def test_a_worker_with_credentials_signs_with_the_key_that_it_was_given_them_for() -> None:
    account, seed = new_seed("account"), new_seed("user")
    text = format_credentials(sign_token("user", account, public_key(seed), "w", {}, issued=0), seed)
    assert parse_credentials(text, "here")[1] == seed
    assert Signer(parse_credentials(text, "here")[1]).public_key == public_key(seed)
    with pytest.raises(AccessError, match="here: no credentials"):
        parse_credentials(text.replace(seed, "SUNONSENSE"), "here")
