"""The table of permissions against a real broker: every forbidden act is refused, every allowed one works.

A bare NATS client tries, as every role, each subject of the broker's interface and of the leagues on it, own and
others', with the request that would do harm.
"""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import APIError

from league.auth.authority import Authority
from league.auth.permissions import GRANTS, READERS_PER_USER, ROLES, STREAMS, WORKERS, consumer_names, permissions
from league.blobs import ARCHIVE_AREA, STATE_AREA, BrokerBlobStore
from league.log.base import publication_digest
from league.log.dead_letters import DeadLetter, DeadLetters
from league.log.jetstream import JetStreamLog, find_league, list_leagues
from league.log.metrics import MetricsStream, count_messages
from league.log.open_batches import OpenBatchWatch
from league.log.queues import ExperienceStream, WorkQueue
from league.queries.decisions import find_pending_trajectory
from schemas import events as e
from schemas.codec import encode_event, encode_job
from schemas.errors import AccessError, ArtifactError, DecodeError, LogUnavailableError, WorkerConflictError
from schemas.ids import digest
from schemas.jobs import PlayMatch
from schemas.subjects import blob_subject, event_subject, match_end_subject, metrics_subject, work_subject
from tests.builders import trajectory
from tests.integration.test_auth import Broker, subjects_of, user
from tests.unit.league.test_metrics import heartbeat
from workers.runtime import beside

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
        authority.add(role, [role], days=1, league=None if role == "operator" else "nim")
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
        f"{api}.CONSUMER.CREATE.{stream}.read-1-other.league.nim.>": consumer,
        f"{api}.CONSUMER.MSG.NEXT.{stream}.read-1-other": {},
        f"{api}.CONSUMER.DELETE.{stream}.read-1-other": {},
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
    for name in ("any", *(consumer_names(role)[0] for role in RESTRICTED)):
        found |= {f"{api}.CONSUMER.CREATE.{stream}.{name}.{each}": consumer for each in every}
        found |= {f"{api}.CONSUMER.{verb}.{stream}.{name}": {} for verb in ("MSG.NEXT", "DELETE")}
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


@pytest.fixture(scope="module")
def refused(broker: Broker) -> dict[str, set[str]]:
    """What the broker refuses each role, of all acts, in lower case."""
    every = acts()
    expected = {r: {s.lower() for s in every if not is_granted(r, s)} for r in RESTRICTED}

    async def body() -> dict[str, set[str]]:
        found = {}
        for role in RESTRICTED:
            errors: list[str] = []
            async with bare(broker, role, errors) as client:
                for number, (subject, request) in enumerate(every.items()):
                    # What a role may do is not done here.
                    await client.publish(subject, b"[" if is_granted(role, subject) else json.dumps(request).encode())
                    if number % 200 == 0:
                        await client.flush()
                # The broker's errors come apart from its other answers.
                for _ in range(2_000):
                    await client.flush(timeout=60)
                    if expected[role] <= set(errors):
                        break
                    await asyncio.sleep(0.05)
            found[role] = set(errors)
        return found

    before = asyncio.run(settings(broker))
    found = asyncio.run(body())
    assert asyncio.run(settings(broker)) == before
    return found


def test_every_forbidden_act_of_every_role_is_refused_and_no_other(refused: dict[str, set[str]]) -> None:
    expected = {r: {s.lower() for s in acts() if not is_granted(r, s)} for r in RESTRICTED}
    differing = {role: sorted(refused[role] ^ expected[role]) for role in RESTRICTED}
    assert differing == {role: [] for role in RESTRICTED}
    print(f"{sum(map(len, refused.values())):,} forbidden acts tried, all refused")
    assert sum(map(len, refused.values())) > 4_000


COLUMNS = (
    "role", "own events", "in other names", "jobs", "trajectories", "stores blobs in", "deletes from", "reads",
    "acts in another league", "consumers on a stream", "subjects of others reached by answers",
)  # fmt: skip


def made_table(refused: dict[str, set[str]], consumers: dict[str, int], reached: dict[str, list[str]]) -> str:
    """What each role can do, as the broker has it."""
    rows = [COLUMNS, ("---",) * len(COLUMNS)]
    for role in RESTRICTED:
        may = {subject for subject in acts() if subject.lower() not in refused[role]}
        own = set(subjects_of(role).values())
        events = {each for each in may if each.startswith("league.nim.") and each in known_subjects()}
        deleting = ("$JS.API.STREAM.PURGE.", "$JS.API.STREAM.MSG.DELETE.")
        reads = {each.split(".")[4] for each in may if each.startswith("$JS.API.CONSUMER.CREATE.")}
        areas = {each.split(".")[4] for each in may if each.startswith("$O.")}
        rows.append(
            (
                role,
                str(len(events & own)),
                str(len({each.rpartition(".")[0] for each in events - own}) or "–"),
                "yes" if "work.nim.play_match" in may else "–",
                "yes" if "experience.nim.main" in may else "–",
                ", ".join(sorted(areas)) or "–",
                ", ".join(sorted({each.rpartition(".")[2] for each in may if each.startswith(deleting)})) or "–",
                ", ".join(sorted(reads)),
                str(len([each for each in may if ".other" in each]) or "–"),
                str(consumers[role]),
                str(len(reached[role]) or "–"),
            )
        )
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def known_subjects() -> set[str]:
    return {subject for name in (*RESTRICTED, "somebody") for subject in subjects_of(name).values()}


def test_the_page_about_security_has_the_table_that_trying_gives(broker: Broker, refused: dict[str, set[str]]) -> None:
    consumers = {role: asyncio.run(consumers_made(broker, role)) for role in RESTRICTED}
    reached = {role: asyncio.run(answers_stored(broker, role)) for role in RESTRICTED}
    table = made_table(refused, consumers, reached)
    page = Path(__file__).parents[2] / "SECURITY.md"
    assert table in page.read_text(), (
        f"SECURITY.md: the table of roles is not what the broker permits, which is\n{table}"
    )


ALLOWED_REQUESTS = {
    "dashboard": {"INFO"},
    "trainer": {"STREAM.PURGE.EXPERIENCE", "STREAM.MSG.DELETE.EXPERIENCE", "STREAM.PURGE.OBJ_STATES"},
    "evaluator": {"STREAM.MSG.GET.WORK", "CONSUMER.INFO.WORK.players-nim", "CONSUMER.MSG.NEXT.WORK.players-nim"},
}
READS = {"trainer": {"EXPERIENCE"}, "tracker": {"METRICS"}, "dashboard": {"METRICS", "DEAD", "EXPERIENCE"}}


@pytest.mark.parametrize("role", RESTRICTED)
def test_the_table_grants_no_request_beyond_reading_ones_own_league_and_these(role: str) -> None:
    """States the table's exceptions a second time, so that widening it takes two changes."""
    reads = READS.get(role, set()) | {"LEAGUE", "OBJ_ARTIFACTS", "OBJ_STATES"}
    of_all = {f"STREAM.INFO.{stream}" for stream in STREAMS}
    of_all |= {
        f"CONSUMER.{verb}.{stream}.{consumer_names(role)[0]}" for verb in ("MSG.NEXT", "DELETE") for stream in STREAMS
    }
    granted = {s.removeprefix("$JS.API.") for s in acts() if s.startswith("$JS.API.") and is_granted(role, s)}
    creating = {subject for subject in granted if subject.startswith("CONSUMER.CREATE.")}
    assert granted - creating == of_all | ALLOWED_REQUESTS.get(role, set())
    assert {subject.split(".")[2] for subject in creating} == reads
    assert not [
        subject for subject in creating if ".nim." not in subject or f".{consumer_names(role)[0]}." not in subject
    ]
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
    mine = consumer_names("rollout")[0]
    request = {"stream_name": "LEAGUE", "config": {"ack_policy": "none", "name": mine, **OTHER_BODIES[body]}}

    async def ask() -> dict[str, Any]:
        async with user(broker, "rollout") as client:
            subject = f"$JS.API.CONSUMER.CREATE.LEAGUE.{mine}.league.nim.>"
            answer: dict[str, Any] = json.loads((await client.request(subject, json.dumps(request).encode())).data)
            return answer

    answer = asyncio.run(ask())
    assert "error" in answer or (answer["name"], answer["config"]["filter_subject"]) == (mine, "league.nim.>")


def test_a_consumer_that_a_worker_leaves_behind_is_removed(broker: Broker) -> None:
    name = consumer_names("rollout")[1]
    config = {"ack_policy": "none", "durable_name": name, "name": name, "filter_subject": "league.nim.>"}

    async def ask() -> dict[str, Any]:
        async with user(broker, "rollout") as client:
            subject = f"$JS.API.CONSUMER.CREATE.LEAGUE.{name}.league.nim.>"
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


def test_a_dashboard_reads_the_trajectories_that_wait_in_its_league(broker: Broker) -> None:
    async def body() -> None:
        waiting = [trajectory(f"m-{nth}", policy="hero") for nth in range(3)]
        async with user(broker, "rollout") as player, user(broker, "dashboard") as viewer:
            for each in waiting:
                await ExperienceStream(player, "nim").publish(each)
            assert await find_pending_trajectory(viewer, "nim", "hero", "m-1", 0) == waiting[1]
            assert await find_pending_trajectory(viewer, "nim", "hero", "m-9", 0) is None
            with pytest.raises(AccessError, match="does not let"):
                await find_pending_trajectory(viewer, "other", "hero", "m-1", 0)

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


TARGETS = [
    event_subject("nim", e.WorkerJoined("trainer", "trainer", "x", "host", 1, "0")),
    "league.nim.rating.updated",
    "league.nim.history.sealed",
    "league.zzz.league.opened",
    "work.nim.play_match",
    "experience.nim.main",
    "metrics.nim.somebody",
    "dead.nim.LEAGUE.99",
    blob_subject("ARTIFACTS", "M", "nim", "archive", "archivist", digest(b"manifest")),
    "$JS.API.STREAM.PURGE.EXPERIENCE",
    "$JS.API.CONSUMER.DELETE.WORK.players-nim",
]
"""Subjects to which a client directs the broker's answers: of each stream, and requests."""


async def direct_answers(client: Client, role: str, target: str) -> None:
    """Have the broker answer on a subject whatever a role may ask, publish or pull; the pull has two messages."""
    reader, subject = consumer_names(role)[0], "league.nim.worker.left.>"
    body = {"name": reader, "ack_policy": "none", "filter_subject": subject}
    made = {"stream_name": "LEAGUE", "config": body}
    requests = {
        "$JS.API.STREAM.INFO.LEAGUE": b"{}",
        f"$JS.API.CONSUMER.CREATE.LEAGUE.{reader}.{subject}": json.dumps(made).encode(),
        f"$JS.API.CONSUMER.MSG.NEXT.LEAGUE.{reader}": b"2",
        "$JS.API.CONSUMER.DELETE.LEAGUE.none": b"",
    }
    if role in WORKERS:
        requests[metrics_subject("nim", role)] = b"{}"
    for asked, data in requests.items():
        await client.publish(asked, data, reply=target)
    await client.request(f"$JS.API.CONSUMER.DELETE.LEAGUE.{reader}")
    # A push consumer.
    pushed = {"stream_name": "LEAGUE", "config": body | {"deliver_subject": target}}
    await client.request(f"$JS.API.CONSUMER.CREATE.LEAGUE.{reader}.{subject}", json.dumps(pushed).encode())
    await client.request(f"$JS.API.CONSUMER.DELETE.LEAGUE.{reader}")


async def answers_stored(broker: Broker, role: str) -> list[str]:
    """Targets on which something arrived that a role directed there."""
    arrived: set[str] = set()

    async def arrive(msg: Msg) -> None:
        arrived.add(msg.subject)

    async with user(broker, "operator") as boss, user(broker, role) as client:
        before = await subjects_stored(boss)
        own = metrics_subject("nim", role)
        await boss.subscribe(">", cb=arrive)
        await boss.flush()
        for target in TARGETS:
            await direct_answers(client, role, target)
        # The broker's own clients publish within a moment.
        await asyncio.sleep(0.3)
        after = await subjects_stored(boss)
    grown = {subject for subject, count in after.items() if count != before.get(subject, 0) and subject != own}
    return sorted(grown | (arrived & set(TARGETS)))


async def subjects_stored(boss: Client) -> dict[str, int]:
    found: dict[str, int] = {}
    for stream in STREAMS:
        found |= (await boss.jetstream().stream_info(stream, subjects_filter=">")).state.subjects or {}
    return found


@pytest.mark.parametrize("role", RESTRICTED)
def test_no_answer_of_the_broker_reaches_a_stream(broker: Broker, role: str) -> None:
    assert asyncio.run(asyncio.wait_for(answers_stored(broker, role), 120)) == []


def test_no_trace_of_a_message_reaches_a_subject_that_its_sender_may_not_write(broker: Broker) -> None:
    async def body() -> int:
        async with user(broker, "rollout") as thief, user(broker, "operator") as boss:
            before = await subjects_stored(boss)
            for target in TARGETS:
                await thief.publish(metrics_subject("nim", "rollout"), b"{}", headers={"Nats-Trace-Dest": target})
            await thief.flush()
            await asyncio.sleep(0.3)
            after = await subjects_stored(boss)
            return len(
                [s for s in after if after[s] != before.get(s, 0) and s in TARGETS and not is_granted("rollout", s)]
            )

    assert asyncio.run(body()) == 0


async def consumers_made(broker: Broker, role: str) -> int:
    """Number of consumers on the history that a role can have at once, by a bare client."""
    refused: list[str] = []
    names = [*consumer_names(role), *(f"read-{nth}-{role}" for nth in range(1, 40)), *(f"c{n}" for n in range(40))]
    async with bare(broker, role, refused) as client, user(broker, "operator") as boss:
        for name in names:
            config = {"name": name, "ack_policy": "none", "filter_subject": "league.nim.>"}
            request = json.dumps({"stream_name": "LEAGUE", "config": config}).encode()
            await client.publish(f"$JS.API.CONSUMER.CREATE.LEAGUE.{name}.league.nim.>", request)
            await client.publish("$JS.API.CONSUMER.CREATE.LEAGUE", request)
        await client.flush()
        js = boss.jetstream()
        for _ in range(200):
            made = [info.name for info in await js.consumers_info("LEAGUE") if info.name in names]
            if len(made) >= READERS_PER_USER:
                break
            await asyncio.sleep(0.05)
        for name in made:
            await js.delete_consumer("LEAGUE", name)
        return len(made)


def test_a_reader_cannot_take_the_consumers_of_others(broker: Broker) -> None:
    """A dashboard makes as many as it can, and everybody reads on; its own readings wait until one is free."""

    async def body() -> None:
        assert await consumers_made(broker, "dashboard") == READERS_PER_USER
        async with user(broker, "dashboard") as guest, user(broker, "dashboard") as other:
            streams = [JetStreamLog(guest, "nim", "guest").follow() for _ in range(READERS_PER_USER)]
            assert [(await anext(each)).sequence for each in streams] == [1] * READERS_PER_USER
            async with user(broker, "rollout") as worker:
                assert [r async for r in JetStreamLog(worker, "nim", "rollout").read()]
            waiting = asyncio.create_task(JetStreamLog(other, "nim", "guest").last_sequence())
            assert not (await asyncio.wait([waiting], timeout=0.5))[0]
            await streams[0].aclose()  # type: ignore[attr-defined]
            assert await asyncio.wait_for(waiting, 60) > 0
            for stream in streams:
                await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(asyncio.wait_for(body(), 120))


def test_batches_that_a_worker_leaves_open_hold_up_no_other(broker: Broker) -> None:
    own = event_subject("nim", e.WorkerLeft(worker="rollout", incarnation="x", reason=""))

    async def body() -> None:
        async with user(broker, "rollout") as thief, user(broker, "trainer") as trainer:
            for number in range(200):
                headers = {"Nats-Batch-Id": f"open-{number}", "Nats-Batch-Sequence": "1"}
                await thief.publish(own, b"{}", headers=headers)
            await thief.flush()
            history = JetStreamLog(trainer, "nim", "trainer")
            history.patience_s = 0.0
            left = [e.WorkerLeft(worker="trainer", incarnation=f"batch {n}", reason="") for n in range(3)]
            assert len(await history.append_batch(left)) == 3

    asyncio.run(asyncio.wait_for(body(), 60))


def test_who_leaves_batches_open_is_named(broker: Broker) -> None:
    own = event_subject("nim", e.WorkerLeft(worker="rollout", incarnation="x", reason=""))

    async def leave_open(thief: Client) -> None:
        for number in itertools.count():
            await thief.publish(own, b"{}", headers={"Nats-Batch-Id": f"left-{number}", "Nats-Batch-Sequence": "1"})
            await asyncio.sleep(0.01)

    async def append(trainer: Client) -> None:
        history = JetStreamLog(trainer, "nim", "trainer")
        for number in itertools.count():
            left = [e.WorkerLeft("trainer", f"beside open batches {number} {n}", "") for n in range(3)]
            with contextlib.suppress(LogUnavailableError):
                await history.append_batch(left)

    async def body() -> None:
        async with (
            user(broker, "rollout") as thief,
            user(broker, "trainer") as trainer,
            user(broker, "operator") as boss,
        ):
            watch = OpenBatchWatch(boss)
            await watch.start()
            assert await watch.find() == []
            async with beside(append(trainer)):
                async with beside(leave_open(thief)):
                    while not (found := await watch.find()):  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
                assert [alarm.name for alarm in found] == ["open_batches:rollout"]
                assert "rollout leaves atomic batches open in nim" in found[0].text
                assert "league auth revoke rollout" in found[0].text
                while await watch.find():  # noqa: ASYNC110
                    await asyncio.sleep(0.1)

    asyncio.run(asyncio.wait_for(body(), 300))


def test_a_job_whose_message_id_another_evaluator_took_is_requested_all_the_same(broker: Broker) -> None:
    job = PlayMatch(match_id="m-squatted", seats=["a", "b"], purpose="evaluation", seed=1)
    subject = work_subject("nim", "play_match")
    squatted = {"Nats-Msg-Id": publication_digest([(subject, encode_job(job))])}

    async def body() -> None:
        async with user(broker, "evaluator") as evaluator, user(broker, "operator") as boss:
            await boss.jetstream().purge_stream("WORK")
            await evaluator.jetstream().publish(subject, b"something else", headers=squatted)
            queue = WorkQueue(evaluator, "nim")
            await queue.bind()
            await queue.submit(job)
            taken = await queue.fetch(2, timeout_s=1)
            assert [each.job for each in taken] == [job]
            # Lost: acknowledged by another, within the duplicate window.
            await taken[0].acknowledge()
            await queue.submit(job, is_lost=True)
            await evaluator.flush()

    asyncio.run(asyncio.wait_for(body(), 60))


FOREIGN = [b"", b"junk", b'{"type":"io.nats.jetstream.api.v1.stream_info_response"}', b"\xff\x00", b"[" * 500]
"""Bytes on an event's subject that are not that event."""


async def leave_foreign_bytes(boss: Client, subject: str) -> None:
    for data in FOREIGN:
        await boss.jetstream().publish(subject, data)
    await boss.publish("$JS.API.STREAM.INFO.LEAGUE", b"", reply=subject)
    await boss.flush()


def test_foreign_bytes_open_no_league_and_take_the_place_of_no_event(broker: Broker) -> None:
    async def body() -> None:
        async with user(broker, "rollout") as reader, user(broker, "operator") as boss:
            for league in ("nim", "other"):
                await JetStreamLog(boss, league, "boss").append(e.LeagueOpened(league, {}, ""))
            for subject in ("aaa.league.opened", "nim.league.opened", "zzz.league.opened", "nim.history.imported"):
                await leave_foreign_bytes(boss, f"league.{subject}")
            opened = await JetStreamLog(reader, "nim", "reader").newest(e.LeagueOpened)
            assert opened is not None
            assert opened.event == e.LeagueOpened("nim", {}, "")
            assert await JetStreamLog(boss, "nim", "boss").newest(e.HistoryImported) is None
            assert await list_leagues(boss) == ["nim", "other"]
            # The only one that its credentials reach.
            assert await find_league(reader) == "nim"

    asyncio.run(asyncio.wait_for(body(), 300))


def test_foreign_bytes_and_copies_take_over_no_workers_name(broker: Broker) -> None:
    def joined(incarnation: str) -> e.WorkerJoined:
        return e.WorkerJoined("trainer", "trainer", incarnation, "host", 1, "0")

    async def body() -> None:
        async with user(broker, "trainer") as trainer, user(broker, "operator") as boss:
            history, target = JetStreamLog(trainer, "nim", "trainer"), event_subject("nim", joined(""))
            # Without an id, as one whose id the broker has forgotten.
            await trainer.jetstream().publish(target, encode_event(joined("first")))
            history.fence = (target, await history.append(joined("second")))
            await leave_foreign_bytes(boss, target)
            # Whichever moves the fence, the other one's condition has failed too.
            told = [e.WorkerLeft("trainer", "second", f"after foreign bytes, {n}") for n in range(5)]
            await asyncio.gather(*map(history.append, told))
            await boss.jetstream().publish(target, encode_event(joined("first")))
            await history.append(e.WorkerLeft("trainer", "second", "after a copy"))
            await JetStreamLog(trainer, "nim", "another").append(joined("third"))
            with pytest.raises(WorkerConflictError, match="another process has taken over this name"):
                await history.append(e.WorkerLeft("trainer", "second", "after its end"))

    asyncio.run(asyncio.wait_for(body(), 300))


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
            with pytest.raises(
                DecodeError, match=r"WorkerLeft of 5,242,\d+ bytes, .* in reason; expected at most 65,536"
            ):
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
