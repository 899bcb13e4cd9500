"""The table of permissions against a real broker: every forbidden act is refused, every allowed one works.

A bare NATS client tries, as every role, each subject of the broker's interface and of the leagues on it, own and
others', with the request that would do harm.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import APIError

from league.auth.authority import Authority
from league.auth.permissions import GRANTS, ROLES, STREAMS, WORKERS, permissions
from league.blobs import ARCHIVE_AREA, STATE_AREA, BrokerBlobStore
from league.log.dead_letters import DeadLetter, DeadLetters
from league.log.jetstream import JetStreamLog, find_league, list_leagues
from league.log.metrics import MetricsStream, count_messages
from league.log.queues import ExperienceStream, WorkQueue
from league.log.streams import ensure_streams
from schemas import events as e
from schemas.codec import encode_event
from schemas.errors import AccessError, ArtifactError, MessageTooLargeError, WorkerConflictError
from schemas.ids import digest
from schemas.jobs import PlayMatch
from schemas.subjects import blob_subject, event_subject, match_end_subject, metrics_subject
from tests.integration.test_auth import Broker, subjects_of, user
from tests.unit.league.test_metrics import heartbeat

RESTRICTED = [role for role in ROLES if role != "operator"]

REFUSED_HEADERS = {
    "Nats-Rollup": ("all", "sub"),
    "Nats-TTL": ("1s",),
    "Nats-Schedule": ("@every 1s", "@at 2020-01-01T00:00:00Z"),
    "Nats-Scheduler": ("any",),
    "Nats-Schedule-Next": ("purge",),
    "Nats-Incr": ("+1", "-1"),
    "Nats-Stream-Source": ("LEAGUE 1 > > any",),
}
"""Headers, with values, of messages that every stream refuses from all clients."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """With a user of every role, called by it and confined to the league nim; and the league other beside it."""
    folder = tmp_path_factory.mktemp("permissions")
    authority = Authority.create(folder / "auth")
    for role in ROLES:
        authority.add(role, [role], days=1, league="" if role == "operator" else "nim")
    running = Broker(folder, authority)

    async def opened() -> None:
        await running.open()
        async with user(running, "operator") as boss:
            for league in ("nim", "other"):
                await WorkQueue(boss, league).create_consumer()
                await JetStreamLog(boss, league, "boss").append(LEFT)
                await BrokerBlobStore(boss, league).put(league.encode())
                await boss.publish(metrics_subject(league, "boss"), b"{}")

    try:
        asyncio.run(opened())
        yield running
    finally:
        running.stop()


LEFT = e.WorkerLeft(worker="boss", incarnation="x", reason="")

REPUBLISH = {"name": "METRICS", "subjects": ["metrics.>"], "republish": {"src": ">", "dest": "league.nim.{{subject}}"}}
SOURCES = {"name": "EVIL", "sources": [{"name": "LEAGUE"}]}
LAME = {"durable_name": "players-nim", "ack_policy": "explicit", "filter_subject": "", "ack_wait": 86_400 * 10**9}
WORK_CHANGE = {"stream_name": "WORK", "action": "", "config": LAME}


def stream_acts(stream: str) -> dict[str, dict[str, Any]]:
    """Requests of the broker's interface about one stream, with a body that would do harm."""
    api, consumer = "$JS.API", {"stream_name": stream, "config": {"ack_policy": "none"}}
    found: dict[str, dict[str, Any]] = {
        f"{api}.STREAM.CREATE.{stream}": {**REPUBLISH, "name": stream},
        f"{api}.STREAM.UPDATE.{stream}": {**REPUBLISH, "name": stream},
        f"{api}.STREAM.RESTORE.{stream}": {"config": {"name": stream}, "state": {}},
        f"{api}.STREAM.SNAPSHOT.{stream}": {"deliver_subject": "_INBOX.x"},
        f"{api}.STREAM.MSG.GET.{stream}": {"seq": 1},
        f"{api}.STREAM.MSG.DELETE.{stream}": {"seq": 1},
        f"{api}.STREAM.PEER.REMOVE.{stream}": {"peer": "x"},
        f"{api}.DIRECT.GET.{stream}": {"seq": 1},
        f"{api}.DIRECT.GET.{stream}.league.nim.worker.left.boss": {},
        f"{api}.CONSUMER.CREATE.{stream}": consumer,
        f"{api}.CONSUMER.CREATE.{stream}.any": consumer,
        f"{api}.CONSUMER.DURABLE.CREATE.{stream}.any": consumer,
        f"{api}.CONSUMER.PAUSE.{stream}.any": {"pause_until": "2999-01-01T00:00:00Z"},
    }
    found |= {f"{api}.STREAM.PEER.EVACUATE.{stream}": {"peer": "x"}, f"{api}.STREAM.CANCEL_MOVE.{stream}": {}}
    bare = ("STREAM.INFO", "STREAM.DELETE", "STREAM.PURGE", "STREAM.LEADER.STEPDOWN", "CONSUMER.NAMES", "CONSUMER.LIST")
    found |= {f"{api}.{verb}.{stream}": {} for verb in bare}
    of_consumer = ("INFO", "DELETE", "MSG.NEXT", "LEADER.STEPDOWN", "UNPIN", "RESET")
    found |= {f"{api}.CONSUMER.{verb}.{stream}.any": {} for verb in of_consumer}
    filters = ["league.{}.>", "experience.{}.*", "metrics.{}.*", "dead.{}.>", "work.{}.play_match"]
    filters += [f"$O.{bucket}.{part}.{{}}.>" for bucket in ("ARTIFACTS", "STATES") for part in "MC"]
    every = [each.format(league) for each in filters for league in ("nim", "other")]
    every += ["league.>", "$O.>", "$O.ARTIFACTS.>", "$O.ARTIFACTS.M.>", "$O.ARTIFACTS.M.*", "$O.ARTIFACTS.*.*.>"]
    found |= {f"{api}.CONSUMER.CREATE.{stream}.any.{each}": consumer for each in every}
    return found | {f"$JS.ACK.{stream}.any.1.1.1.1.0": {}}


def acts() -> dict[str, dict[str, Any]]:
    """Every act that is tried, by subject: its body."""
    found: dict[str, dict[str, Any]] = {}
    for stream in STREAMS:
        found |= stream_acts(stream)
    found |= {
        "$JS.API.STREAM.CREATE.EVIL": SOURCES,
        "$JS.API.CONSUMER.CREATE.WORK.players-nim": WORK_CHANGE,
        "$JS.API.CONSUMER.CREATE.WORK.players-nim.work.nim.play_match": WORK_CHANGE,
        "$JS.API.CONSUMER.DURABLE.CREATE.WORK.players-nim": WORK_CHANGE,
    }
    bare = ("INFO", "STREAM.NAMES", "STREAM.LIST", "META.LEADER.STEPDOWN", "META.RESCUE", "SERVER.REMOVE")
    bare += (
        "SERVER.EVACUATE",
        "ACCOUNT.PURGE.A",
        "ACCOUNT.STREAM.MOVE.A.LEAGUE",
        "ACCOUNT.STREAM.CANCEL_MOVE.A.LEAGUE",
    )
    found |= {f"$JS.API.{verb}": {} for verb in bare}
    for league in ("nim", "other"):
        found |= {f"$JS.API.CONSUMER.{verb}.WORK.players-{league}": {} for verb in ("INFO", "DELETE", "MSG.NEXT")}
        found |= {f"$JS.ACK.WORK.players-{league}.1.1.1.1.0": {}, f"work.{league}.play_match": {}}
        found |= {f"experience.{league}.main": {}, f"dead.{league}.LEAGUE.1": {}}
        for name in (*RESTRICTED, "somebody"):
            found |= {subject: {} for subject in subjects_of(name, league).values()}
            found[metrics_subject(league, name)] = {}
            for bucket, area in (("ARTIFACTS", "blob"), ("ARTIFACTS", "archive"), ("STATES", "state")):
                found[blob_subject(bucket, "M", league, area, name, "any")] = {}
                found[blob_subject(bucket, "C", league, area, name, "any.1")] = {}
    other = ["$O.ARTIFACTS.M.any", "$O.ARTIFACTS.C.any", "$O.ARTIFACTS.M.nim.any", "_INBOX.operator.any", "anything"]
    other += ["$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.A.CONNZ", "$SYS.REQ.USER.INFO.x", "$JS.FC.any", "league.any"]
    other += ["$JSC.CI.any", "$JSC.R.any", "$NRG.V.any", "$KV.any", "$JS.EVENT.ADVISORY.any", "$JS.hub.API.INFO"]
    other += ["$JS.ACK.hub.A.WORK.players-nim.1.1.1.1.0.x", "$SYS.REQ.USER.AUTH", "$MQTT.sess.any", "_R_.any"]
    return found | {subject: {} for subject in other}


def covers(pattern: str, subject: str) -> bool:
    """Whether NATS lets a subject pass under a pattern."""
    tokens, actual = pattern.split("."), subject.split(".")
    if tokens[-1] == ">":
        return len(actual) >= len(tokens) and covers(".".join(tokens[:-1]), ".".join(actual[: len(tokens) - 1]))
    return len(tokens) == len(actual) and all(t in ("*", a) for t, a in zip(tokens, actual, strict=True))


def is_granted(role: str, subject: str) -> bool:
    return any(covers(pattern, subject) for pattern in permissions(role, role, "nim").publish if pattern != ">")


@contextlib.asynccontextmanager
async def bare(broker: Broker, role: str, refused: list[str]) -> AsyncIterator[Client]:
    """A client of the library, whose refused subjects are collected, in lower case as the library gives them."""

    async def collect(error: Exception) -> None:
        _, found, subject = str(error).lower().partition('violation for publish to "')
        refused.extend([subject.rpartition('"')[0]] if found else [])

    creds = str(broker.authority.credentials_path(role))
    client = await nats.connect(
        broker.url, user_credentials=creds, inbox_prefix=f"_INBOX.{role}", error_cb=collect, allow_reconnect=False
    )
    try:
        yield client
    finally:
        await client.close()


async def settings(broker: Broker) -> dict[str, Any]:
    """What only the operator may change: streams, the work queue's consumer, and how many messages others stored."""
    async with user(broker, "operator") as boss:
        js = boss.jetstream()
        streams = [(await js.stream_info(name, subjects_filter="league.nim.worker.left.boss")) for name in STREAMS]
        found: dict[str, Any] = {info.config.name or "": (info.config, info.state.subjects) for info in streams}
        consumer = (await js.consumer_info("WORK", "players-nim")).config
        everything = json.loads((await boss.request("$JS.API.STREAM.NAMES", b"{}")).data)["streams"]
        return found | {"players": consumer, "streams": everything}


def test_every_forbidden_act_of_every_role_is_refused_and_no_other(broker: Broker) -> None:
    every = acts()
    expected = {r: {s.lower() for s in every if not is_granted(r, s)} for r in RESTRICTED}

    async def body() -> dict[str, set[str]]:
        found = {}
        for role in RESTRICTED:
            refused: list[str] = []
            async with bare(broker, role, refused) as client:
                for number, (subject, request) in enumerate(every.items()):
                    # What a role may do is not done here.
                    await client.publish(subject, b"[" if is_granted(role, subject) else json.dumps(request).encode())
                    if number % 200 == 0:
                        await client.flush()
                # The broker's errors come apart from its other answers.
                for _ in range(2_000):
                    await client.flush(timeout=60)
                    if expected[role] <= set(refused):
                        break
                    await asyncio.sleep(0.05)
            found[role] = set(refused)
        return found

    before = asyncio.run(settings(broker))
    refused = asyncio.run(body())
    differing = {role: sorted(refused[role] ^ expected[role]) for role in RESTRICTED}
    assert differing == {role: [] for role in RESTRICTED}
    assert asyncio.run(settings(broker)) == before
    print(f"{sum(map(len, refused.values())):,} forbidden acts tried, all refused")
    assert sum(map(len, refused.values())) > 4_000


ALLOWED_REQUESTS = {
    "trainer": {"STREAM.PURGE.EXPERIENCE", "STREAM.MSG.DELETE.EXPERIENCE", "STREAM.PURGE.OBJ_STATES"},
    "evaluator": {"STREAM.MSG.GET.WORK", "CONSUMER.INFO.WORK.players-nim", "CONSUMER.MSG.NEXT.WORK.players-nim"},
}
READS = {"trainer": {"EXPERIENCE"}, "tracker": {"METRICS"}, "dashboard": {"METRICS", "DEAD"}}


@pytest.mark.parametrize("role", RESTRICTED)
def test_the_table_grants_no_request_beyond_reading_ones_own_league_and_these(role: str) -> None:
    """States the table's exceptions a second time, so that widening it takes two changes."""
    reads = READS.get(role, set()) | {"LEAGUE", "OBJ_ARTIFACTS", "OBJ_STATES"}
    of_all = {f"STREAM.INFO.{stream}" for stream in STREAMS}
    of_all |= {f"CONSUMER.{verb}.{stream}.any" for verb in ("MSG.NEXT", "DELETE") for stream in reads}
    granted = {s.removeprefix("$JS.API.") for s in acts() if s.startswith("$JS.API.") and is_granted(role, s)}
    creating = {subject for subject in granted if subject.startswith("CONSUMER.CREATE.")}
    assert granted - creating == of_all | ALLOWED_REQUESTS.get(role, set())
    assert {subject.split(".")[2] for subject in creating} == reads
    assert not [subject for subject in creating if ".nim." not in subject]
    assert [s for s in acts() if s.startswith("$JS.ACK.") and is_granted(role, s)] == (
        ["$JS.ACK.WORK.players-nim.1.1.1.1.0"] if role == "evaluator" else []
    )


def test_every_role_of_the_table_exists() -> None:
    assert {role for row in GRANTS for role in row.roles} == set(ROLES)


@pytest.mark.parametrize("role", WORKERS)
def test_no_header_makes_a_stream_replace_expire_or_repeat_messages(broker: Broker, role: str) -> None:
    own = {event_subject("nim", e.WorkerLeft(worker=role, incarnation="x", reason="")), f"metrics.nim.{role}"}
    own |= {"dead.nim.LEAGUE.7", "experience.nim.main", "work.nim.play_match"}
    own |= {blob_subject("ARTIFACTS", part, "nim", "blob", role, rest) for part, rest in (("M", "a"), ("C", "a.b"))}
    own |= {blob_subject("STATES", "C", "nim", "state", role, "a.b")}

    async def body() -> tuple[list[str], int]:
        accepted, tried = [], 0
        async with user(broker, role) as client, user(broker, "operator") as boss:
            js = client.jetstream()
            before = await count_all(boss)
            for subject in sorted(subject for subject in own if is_granted(role, subject)):
                for header, values in REFUSED_HEADERS.items():
                    for value in values:
                        tried += 1
                        with contextlib.suppress(APIError):
                            await js.publish(subject, b"{}", headers={header: value})
                            accepted.append(f"{header}: {value} on {subject}")
            assert await count_all(boss) == before
        return accepted, tried

    accepted, tried = asyncio.run(body())
    assert accepted == []
    assert tried >= 15


async def count_all(boss: Client) -> dict[str, int]:
    return {name: (await boss.jetstream().stream_info(name)).state.messages for name in STREAMS}


OTHER_BODIES = {
    "another league": {"filter_subject": "league.other.>"},
    "everything": {"filter_subject": ">"},
    "no filter": {},
    "several filters": {"filter_subjects": ["league.nim.>", "league.other.>"]},
    "another name": {"filter_subject": "league.nim.>", "name": "other"},
}


@pytest.mark.parametrize("body", OTHER_BODIES)
def test_a_consumers_body_cannot_say_more_than_its_subject(broker: Broker, body: str) -> None:
    request = {"stream_name": "LEAGUE", "config": {"ack_policy": "none", "name": "mine", **OTHER_BODIES[body]}}

    async def ask() -> dict[str, Any]:
        async with user(broker, "rollout") as client:
            subject = "$JS.API.CONSUMER.CREATE.LEAGUE.mine.league.nim.>"
            answer: dict[str, Any] = json.loads((await client.request(subject, json.dumps(request).encode())).data)
            return answer

    answer = asyncio.run(ask())
    assert "error" in answer or (answer["name"], answer["config"]["filter_subject"]) == ("mine", "league.nim.>")


def test_a_consumer_that_a_worker_leaves_behind_is_removed(broker: Broker) -> None:
    config = {"ack_policy": "none", "durable_name": "left", "name": "left", "filter_subject": "league.nim.>"}

    async def ask() -> dict[str, Any]:
        async with user(broker, "rollout") as client:
            subject = "$JS.API.CONSUMER.CREATE.LEAGUE.left.league.nim.>"
            request = json.dumps({"stream_name": "LEAGUE", "config": config}).encode()
            answer: dict[str, Any] = json.loads((await client.request(subject, request)).data)
            return answer

    assert 0 < asyncio.run(ask())["config"]["inactive_threshold"] <= 300 * 10**9


def test_credentials_of_one_league_read_nothing_of_another(broker: Broker) -> None:
    async def body() -> None:
        for role in RESTRICTED:
            async with user(broker, role) as client:
                assert [r async for r in JetStreamLog(client, "nim", role).read()]
                with pytest.raises(AccessError, match="does not let"):
                    await anext(JetStreamLog(client, "other", role).read())
                assert await BrokerBlobStore(client, "nim").get(digest(b"nim")) == b"nim"
                with pytest.raises(AccessError, match="does not let"):
                    await BrokerBlobStore(client, "other").get(digest(b"other"))
                with pytest.raises(ArtifactError, match="is not in"):
                    await BrokerBlobStore(client, "nim").get(digest(b"other"))

    asyncio.run(body())


def test_one_message_cannot_erase_the_blobs(broker: Broker) -> None:
    async def body() -> None:
        async with user(broker, "trainer") as trainer, user(broker, "rollout") as thief:
            name = await BrokerBlobStore(trainer, "nim").put(b"an adapter")
            for bucket in ("all", "sub"):
                for subject in ("$O.ARTIFACTS.M.nim.blob.rollout.x", "$O.ARTIFACTS.C.nim.blob.rollout.x.y"):
                    with pytest.raises(APIError, match="rollup not permitted"):
                        await thief.jetstream().publish(subject, b"", headers={"Nats-Rollup": bucket})
            with pytest.raises(AccessError):
                await thief.jetstream().purge_stream("OBJ_ARTIFACTS")
            with pytest.raises(AccessError):
                await trainer.jetstream().purge_stream("OBJ_ARTIFACTS")
            assert await BrokerBlobStore(thief, "nim").get(name) == b"an adapter"

    asyncio.run(body())


def test_a_digest_that_another_took_first_is_named_and_stored_all_the_same(broker: Broker) -> None:
    data, name = b"an adapter of later", digest(b"an adapter of later")
    forged = {"name": name, "size": 6, "chunks": 1}

    async def body() -> None:
        async with user(broker, "trainer") as trainer, user(broker, "rollout") as thief:
            js = thief.jetstream()
            for size in (6, 10**12):
                subject = f"$O.ARTIFACTS.C.nim.blob.rollout.{name}.forged"
                place = (await js.publish(subject, b"forged")).seq
                entry = forged | {"subject": subject, "first": place, "last": place, "size": size}
                await js.publish(f"$O.ARTIFACTS.M.nim.blob.rollout.{name}", json.dumps(entry).encode())
            with pytest.raises(ArtifactError, match=r"stored by rollout is damaged"):
                await BrokerBlobStore(trainer, "nim").get(name)
            assert await BrokerBlobStore(trainer, "nim").put(data) == name
            for reader in (trainer, thief):
                assert await BrokerBlobStore(reader, "nim").get(name) == data
            # Nor afterwards.
            await js.publish(f"$O.ARTIFACTS.M.nim.blob.rollout.{name}", json.dumps(entry).encode())
            assert await BrokerBlobStore(thief, "nim").get(name) == data

    asyncio.run(body())


BY_ALL_ROLES = {
    "$JS.API.STREAM.INFO.LEAGUE": {},
    "$JS.API.CONSUMER.CREATE.LEAGUE.any.league.nim.>": {
        "stream_name": "LEAGUE",
        "config": {"name": "any", "ack_policy": "none", "filter_subject": "league.nim.>"},
    },
    "$JS.API.CONSUMER.DELETE.LEAGUE.none": {},
}
"""Requests that every role may make: a client directs the answers to any subject."""


async def direct_answers(client: Client, role: str, target: str) -> None:
    """Have the broker publish its answers on a subject, and what it answers to a publication of the role's own."""
    for subject, request in BY_ALL_ROLES.items():
        await client.publish(subject, json.dumps(request).encode(), reply=target)
    if role in WORKERS:
        await client.publish(metrics_subject("nim", role), b"{}", reply=target)
    await client.flush()


async def count_on(boss: Client, stream: str, subject: str) -> int:
    return ((await boss.jetstream().stream_info(stream, subjects_filter=subject)).state.subjects or {}).get(subject, 0)


async def stored_on(boss: Client, stream: str, subject: str, count: int) -> None:
    """Waits for messages on a subject: answers come from the broker's own clients, apart from others."""
    while await count_on(boss, stream, subject) != count:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("role", RESTRICTED)
def test_no_answer_of_the_broker_replaces_an_archive(broker: Broker, role: str) -> None:
    name = digest(data := f"manifest {role}".encode())
    target = blob_subject("ARTIFACTS", "M", "nim", "archive", "archivist", name)

    async def body() -> None:
        async with (
            user(broker, "archivist") as archivist,
            user(broker, role) as thief,
            user(broker, "operator") as boss,
        ):
            await BrokerBlobStore(archivist, "nim", ARCHIVE_AREA).put(data, f"archive of nim by {role}")
            await direct_answers(thief, role, target)
            await stored_on(boss, "OBJ_ARTIFACTS", target, 1 + len(BY_ALL_ROLES) + (role in WORKERS))
            (found,) = [each for each in await BrokerBlobStore(boss, "nim").stored() if each.name == name]
            assert (found.note, found.bytes, found.is_shared) == (f"archive of nim by {role}", len(data), False)
            assert await BrokerBlobStore(boss, "nim").get(name) == data

    asyncio.run(asyncio.wait_for(body(), 300))


def test_no_answer_of_the_broker_opens_a_league_or_takes_the_place_of_an_event(broker: Broker) -> None:
    async def body() -> None:
        async with user(broker, "rollout") as thief, user(broker, "operator") as boss:
            for league in ("nim", "other"):
                await JetStreamLog(boss, league, "boss").append(e.LeagueOpened(league, {}, ""))
            for league in ("aaa", "nim", "zzz"):
                await direct_answers(thief, "rollout", target := f"league.{league}.league.opened")
                await stored_on(boss, "LEAGUE", target, 1 + len(BY_ALL_ROLES) + (league == "nim"))
            await direct_answers(thief, "rollout", target := "league.nim.history.imported")
            await stored_on(boss, "LEAGUE", target, 1 + len(BY_ALL_ROLES))
            opened = await JetStreamLog(thief, "nim", "thief").newest(e.LeagueOpened)
            assert opened is not None
            assert opened.event == e.LeagueOpened("nim", {}, "")
            assert await JetStreamLog(boss, "nim", "boss").newest(e.HistoryImported) is None
            assert await list_leagues(boss) == ["nim", "other"]
            # The only one that its credentials reach.
            assert await find_league(thief) == "nim"

    asyncio.run(asyncio.wait_for(body(), 300))


def test_no_answer_of_the_broker_and_no_copy_takes_over_a_workers_name(broker: Broker) -> None:
    def joined(incarnation: str) -> e.WorkerJoined:
        return e.WorkerJoined("trainer", "trainer", incarnation, "host", 1, "0")

    async def body() -> None:
        async with (
            user(broker, "trainer") as trainer,
            user(broker, "dashboard") as guest,
            user(broker, "operator") as boss,
        ):
            history, target = JetStreamLog(trainer, "nim", "trainer"), event_subject("nim", joined(""))
            before = await count_on(boss, "LEAGUE", target)
            # Without an id, as one whose id the broker has forgotten.
            await trainer.jetstream().publish(target, encode_event(joined("first")))
            history.fence = (target, await history.append(joined("second")))
            await direct_answers(guest, "dashboard", target)
            await stored_on(boss, "LEAGUE", target, before + 2 + len(BY_ALL_ROLES))
            await history.append(e.WorkerLeft("trainer", "second", "after answers"))
            pulling = ConsumerConfig(name="w", ack_policy=AckPolicy.NONE, inactive_threshold=60, filter_subject=target)
            await guest.jetstream().add_consumer("LEAGUE", pulling)
            await guest.publish("$JS.API.CONSUMER.MSG.NEXT.LEAGUE.w", b"1", reply="league.nim.nowhere")
            await stored_on(boss, "LEAGUE", target, before + 3 + len(BY_ALL_ROLES))
            await history.append(e.WorkerLeft("trainer", "second", "after a copy"))
            await JetStreamLog(trainer, "nim", "another").append(joined("third"))
            with pytest.raises(WorkerConflictError, match="another process has taken over this name"):
                await history.append(e.WorkerLeft("trainer", "second", "after its end"))

    asyncio.run(asyncio.wait_for(body(), 300))


def test_answers_of_the_broker_leave_room_for_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("league.log.streams._MAX_JOBS", 5)
    authority = Authority.create(tmp_path / "auth")
    for role in ("operator", "rollout", "evaluator"):
        authority.add(role, [role], days=1)
    running = Broker(tmp_path, authority)

    async def body() -> None:
        async with user(running, "operator") as boss:
            await ensure_streams(boss.jetstream(), None)
        async with user(running, "rollout") as thief, user(running, "evaluator") as evaluator:
            chunk = "$O.ARTIFACTS.C.nim.blob.rollout.x.y"
            for _ in range(9):
                await thief.jetstream().publish(chunk, b"x")
            pulling = ConsumerConfig(name="p", ack_policy=AckPolicy.NONE, inactive_threshold=60, filter_subject=chunk)
            await thief.jetstream().add_consumer("OBJ_ARTIFACTS", pulling)
            await thief.publish("$JS.API.CONSUMER.MSG.NEXT.OBJ_ARTIFACTS.p", b"9", reply="work.nim.play_match")
            async with user(running, "operator") as boss:
                await WorkQueue(boss, "nim").create_consumer()
                while (await boss.jetstream().stream_info("WORK")).state.messages < 5:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            queue = WorkQueue(evaluator, "nim")
            await queue.bind()
            await queue.submit(JOB)
            (taken,) = await queue.fetch(1, timeout_s=60)
            assert taken.job == JOB

    try:
        asyncio.run(asyncio.wait_for(body(), 300))
    finally:
        running.stop()


def test_only_an_archivists_note_makes_an_archive(broker: Broker) -> None:
    async def body() -> None:
        async with user(broker, "archivist") as archivist, user(broker, "rollout") as thief:
            for area in (ARCHIVE_AREA, STATE_AREA):
                with pytest.raises(AccessError):
                    await BrokerBlobStore(thief, "nim", area).put(b"forged", "archive of nim to 7")
            await BrokerBlobStore(thief, "nim").put(b"forged too", "archive of nim to 7")
            await BrokerBlobStore(archivist, "nim", ARCHIVE_AREA).put(b"manifest", "archive of nim to 8")
            # Storing it again changes neither its note nor its standing.
            await BrokerBlobStore(thief, "nim").put(b"manifest", "something else")
        async with user(broker, "operator") as boss:
            listed = {each.name: each for each in await BrokerBlobStore(boss, "nim").stored()}
        assert listed[digest(b"forged too")].is_shared
        found = listed[digest(b"manifest")]
        assert (found.note, found.is_shared) == ("archive of nim to 8", False)

    asyncio.run(body())


JOB = PlayMatch(match_id="m-1", seats=["a", "b"], purpose="evaluation", seed=1)


def test_every_role_can_do_its_work(broker: Broker) -> None:
    async def body() -> None:
        for role in RESTRICTED:
            async with user(broker, role) as client:
                log = JetStreamLog(client, "nim", role)
                left = e.WorkerLeft(worker=role, incarnation="x", reason="")
                if role in WORKERS:
                    sequence = await log.append(left)
                    assert [r.event for r in [r async for r in log.read(sequence)]] == [left]
                    assert await log.last_sequence() == sequence
                    await MetricsStream(client, "nim").publish(heartbeat(role))
                    place = DeadLetter("LEAGUE", sequence, f"league.nim.worker.left.{role}", "a test")
                    assert await DeadLetters(client, "nim").publish(place)
                if role in ("tracker", "dashboard"):
                    assert "rollout" in await MetricsStream(client, "nim").newest()
                if role in ("rollout", "evaluator", "trainer", "archivist"):
                    store = BrokerBlobStore(client, "nim")
                    assert await store.get(await store.put(role.encode(), "twice")) == role.encode()
                    assert await store.put(role.encode()) == digest(role.encode())
        async with user(broker, "dashboard") as guest:
            letters = await DeadLetters(guest, "nim").list_all()
            assert {each.letter.error for each in letters if each.letter.error == "a test"}
            assert (await DeadLetters(guest, "nim").get(letters[-1].number)) == letters[-1]
            assert sum((await count_messages(guest, "DEAD", "dead.nim.>")).values()) == len(letters)

    asyncio.run(body())


def test_a_trainer_drops_its_own_states_and_an_evaluator_takes_jobs(broker: Broker) -> None:
    async def body() -> None:
        async with user(broker, "trainer") as trainer, user(broker, "evaluator") as evaluator:
            states = BrokerBlobStore(trainer, "nim", STATE_AREA)
            name = await states.put(b"moments")
            assert await BrokerBlobStore(evaluator, "nim").get(name) == b"moments"
            await states.delete(name)
            with pytest.raises(ArtifactError, match="is not in"):
                await states.get(name)
            await ExperienceStream(trainer, "nim").purge_through("main", 1)
            async with user(broker, "operator") as boss:
                await boss.jetstream().purge_stream("WORK")
            queue = WorkQueue(evaluator, "nim")
            await queue.bind()
            await queue.submit(JOB)
            (taken,) = await queue.fetch(1, timeout_s=60)
            assert taken.job == JOB
            await taken.acknowledge()

    asyncio.run(asyncio.wait_for(body(), 300))


def test_an_event_beyond_the_largest_size_is_refused_with_the_limit(broker: Broker) -> None:
    async def body() -> None:
        async with user(broker, "rollout") as client:
            large = e.WorkerLeft(worker="rollout", incarnation="x", reason="x" * (5 * 1024 * 1024))
            with pytest.raises(MessageTooLargeError, match="max_msg_size"):
                await JetStreamLog(client, "nim", "rollout").append(large)

    asyncio.run(body())


def test_one_subject_only_is_left_for_results_of_another_purpose() -> None:
    """The patterns of a role hold no wildcard in the place of a purpose or a worker, but where it ends silent ones."""
    found = [
        p for role in WORKERS for p in permissions(role, role, "nim").publish if p.startswith("league.") and "*" in p
    ]
    assert found == ["league.nim.worker.left.*", "league.nim.match.training.failed.*"]
    own = match_end_subject("nim", "training", e.MatchFinished, "rollout")
    assert own in permissions("rollout", "rollout", "nim").publish
