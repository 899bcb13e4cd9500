"""Brokers that let in who has credentials, and let each role do what it is for."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import nats.errors
import pytest
import uvloop
from aiohttp.test_utils import TestClient, TestServer
from nats.aio.client import Client
from typer.testing import CliRunner

from league.auth.authority import Authority
from league.auth.permissions import ROLES, permissions
from league.auth.tokens import parse_credentials
from league.blobs import BrokerBlobStore
from league.history.replay import verify_events
from league.log.access import BrokerCredentials
from league.log.base import RecordedEvent, publication_digest
from league.log.connection import connect
from league.log.jetstream import JetStreamLog, flush_and_close
from league.log.queues import ExperienceStream, WorkQueue
from league.log.server import BATCH_LIMITS, find_nats_server, free_port, has_ended, spawn, terminate
from league.log.streams import ensure_streams
from league.queries.status import read_status
from league.run import Run
from schemas import events as e
from schemas.codec import encode_event
from schemas.config import ExperienceConfig, load_config, to_builtins
from schemas.errors import AccessError, ArtifactError, LogUnavailableError, UsageError
from schemas.ids import digest
from schemas.jobs import PlayMatch
from schemas.subjects import event_subject, is_allowed_on, match_end_subject, subject_matches, worker_event_subject
from tests.builders import match_finished, trajectory
from ui.cli import app
from workers.monitoring.exposition import make_application
from workers.runtime import follow_league

CONFIG = Path(__file__).parents[2] / "configs" / "nim-tiny.toml"
WORKERS = [role for role in ROLES if role not in ("operator", "dashboard")]


class Broker:
    """A broker that lets in who has credentials; ``operator`` may do everything."""

    def __init__(self, folder: Path, authority: Authority, more: str = "") -> None:
        self.folder, self.authority, self._more = folder, authority, more
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._config = folder / "broker-here.conf"
        self._configure()
        self._pid = spawn([find_nats_server(), "-c", str(self._config)], folder / "broker.log")

    def _configure(self) -> None:
        own = f'listen: "127.0.0.1:{self.port}"\nmax_payload: 8MB\n'
        own += f'jetstream {{ store_dir: "{self.folder / "store"}"\n{BATCH_LIMITS} }}\n'
        self._config.write_text(own + self._more + self.authority.broker_config_path.read_text())

    def reload(self) -> None:
        self._configure()
        os.kill(self._pid, signal.SIGHUP)

    def restart(self, authority: Authority) -> None:
        self.stop()
        self.authority = authority
        self._configure()
        self._pid = spawn([find_nats_server(), "-c", str(self._config)], self.folder / "broker.log")

    def stop(self) -> None:
        if not has_ended(self._pid):
            terminate(self._pid)

    async def connect(self, name: str, ca: Path | None = None) -> Client:
        """Once it is up."""
        access = BrokerCredentials(self.authority.credentials_path(name), ca)
        for _ in range(2_000):
            with contextlib.suppress(ConnectionError):
                return await connect(self.url, name, access)
            await asyncio.sleep(0.05)
        raise AssertionError((self.folder / "broker.log").read_text())

    async def open(self) -> None:
        client = await self.connect("operator")
        await ensure_streams(client.jetstream(timeout=10), ExperienceConfig())
        await flush_and_close(client)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """With a user of every role, called by it."""
    folder = tmp_path_factory.mktemp("access")
    authority = Authority.create(folder / "auth")
    for role in ROLES:
        authority.add(role, [role], days=1)
    running = Broker(folder, authority)
    try:
        asyncio.run(running.open())
        yield running
    finally:
        running.stop()


@contextlib.asynccontextmanager
async def user(broker: Broker, name: str) -> AsyncIterator[Client]:
    client = await broker.connect(name)
    try:
        yield client
    finally:
        await flush_and_close(client)


async def is_refused(client: Client, subject: str, payload: bytes = b"{}") -> bool:
    """Whether the broker refuses a publish, rather than take it or say that nobody is there."""
    try:
        await client.request(subject, payload, timeout=60)
    except AccessError:
        return True
    except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
        return False
    return False


MATCHES_OF_EVALUATORS = ("evaluation", "exhibition", "benchmark")
OWN: dict[str, set[str]] = {
    "rollout": {"OpponentsSampled", "MatchFinished training", "MatchFailed training", "RemoteAsked", "DecisionsStored"},
    "evaluator": {"EvaluationRequested", "EvaluationFinished", "RemoteAsked", "DecisionsStored"}
    | {f"{kind} {purpose}" for kind in ("MatchFinished", "MatchFailed") for purpose in MATCHES_OF_EVALUATORS},
    "inference": {"InferenceServing", "OpponentsSampled", "SessionOpened", "ExternalVersionAdded", "RemoteAsked"}
    | {"MatchFinished session", "MatchFailed session"},
    "rater": {"RatingUpdated", "RatingsCorrected", "CheckpointAdded", "CheckpointPromoted", "PromotionDecided"}
    | {"AgentRetired", "AgentActivated", "MatchFailed training"},
    "trainer": {"PolicyPublished", "PolicyReset", "GradientStepTaken", "CheckpointAdded", "TrainingFinished"}
    | {"DecisionsStored"},
    "archivist": {"HistoryArchived", "SnapshotTaken"},
    "tracker": set(),
    "dashboard": set(),
}
"""What a role may record besides what every worker says of itself."""
FOR_OTHERS = {"rater": {"WorkerLeft", "MatchFailed training"}}
"""What a role may record of other workers: the rater, that they left and did not finish their matches."""
OF_EVERY_WORKER = {"WorkerJoined", "WorkerLeft", "ArtifactStored"}


def subjects_of(worker: str, league: str = "nim") -> dict[str, str]:
    """Where a worker would publish every kind of event, ends of matches by their purpose."""
    found = {}
    for kind in e.EVENT_TYPES.values():
        if kind in (e.MatchFinished, e.MatchFailed):
            for purpose in ("training", "session", *MATCHES_OF_EVALUATORS):
                found[f"{kind.__name__} {purpose}"] = match_end_subject(league, purpose, kind, worker)
        else:
            found[kind.__name__] = worker_event_subject(league, kind, worker)
    return found


@pytest.mark.parametrize("role", OWN)
def test_a_role_records_its_own_kinds_of_events_and_no_others(broker: Broker, role: str) -> None:
    async def body() -> dict[str, bool]:
        async with user(broker, role) as client:
            return {what: await is_refused(client, subject) for what, subject in subjects_of(role).items()}

    allowed = OWN[role] | (OF_EVERY_WORKER if role in WORKERS else set())
    allowed |= {"AdapterSlotsReduced"} if role in ("rollout", "evaluator", "inference") else set()
    refused = asyncio.run(body())
    assert {what for what, no in refused.items() if not no} == allowed


@pytest.mark.parametrize("role", OWN)
def test_no_role_speaks_for_another_worker(broker: Broker, role: str) -> None:
    own = subjects_of(role)

    async def body() -> list[str]:
        async with user(broker, role) as client:
            others = {what: subject for what, subject in subjects_of("somebody").items() if subject != own[what]}
            others["its heartbeat"] = "metrics.nim.somebody"
            return [what for what, subject in others.items() if not await is_refused(client, subject)]

    assert set(asyncio.run(body())) == FOR_OTHERS.get(role, set())


def test_every_role_reads_the_history_and_hears_nobody_elses_answers(broker: Broker) -> None:
    event = e.WorkerJoined(worker="operator", role="x", incarnation="x", host="", pid=1, version="1")

    async def body() -> dict[str, tuple[bool, int]]:
        found = {}
        async with user(broker, "operator") as boss:
            await JetStreamLog(boss, "nim", "operator").append(event)
            for role in OWN:
                async with user(broker, role) as client:
                    read = [r async for r in JetStreamLog(client, "nim", role).read() if r.event == event]
                    heard: list[object] = []

                    async def hear(msg: object, heard: list[object] = heard) -> None:
                        heard.append(msg)

                    await client.subscribe("_INBOX.operator.>", cb=hear)
                    await client.flush()
                    await JetStreamLog(boss, "nim", "operator").last_sequence()
                    await client.flush()
                    found[role] = (bool(read), len(heard))
        return found

    assert asyncio.run(body()) == dict.fromkeys(OWN, (True, 0))


def test_a_refused_publish_says_who_and_where(broker: Broker) -> None:
    async def body() -> None:
        async with user(broker, "rollout") as client:
            update = e.WorkerLeft(worker="trainer", incarnation="x", reason="")
            with pytest.raises(
                AccessError, match=r"does not let rollout publish on league\.nim\.worker\.left\.trainer"
            ):
                await JetStreamLog(client, "nim", "rollout").append(update)

    asyncio.run(body())


def test_no_credentials_and_expired_ones_are_refused_with_a_clear_error(broker: Broker) -> None:
    broker.authority.add("rollout", ["late"], days=1, now=time.time() - 2 * 86_400)

    async def body() -> None:
        for name, access in (("late", BrokerCredentials(broker.authority.credentials_path("late"))), ("nobody", None)):
            with pytest.raises(AccessError, match=f"rejects the credentials of {name}"):
                await connect(broker.url, name, access)

    asyncio.run(body())


async def to_its_end(log: JetStreamLog) -> None:
    async for _ in log.follow():
        pass


def test_credentials_end_under_a_worker_when_they_expire(broker: Broker) -> None:
    async def connected() -> Client:
        """With credentials that expire soon; a busy machine may need more time to connect."""
        for number in range(6):
            seconds = 1.5 * 3**number
            broker.authority.add("rollout", ["brief"], days=seconds / 86_400, now=int(time.time()) + 0.99)
            with contextlib.suppress(AccessError):
                return await broker.connect("brief")
            broker.authority.revoke("brief")
        raise AssertionError("no connection within minutes")

    async def body() -> None:
        client = await connected()
        log = JetStreamLog(client, "nim", "brief")
        with pytest.raises(AccessError, match="credentials of brief: expired"):
            await asyncio.wait_for(to_its_end(log), 300)
        with pytest.raises(AccessError, match="credentials of brief: expired"):
            await log.append(e.WorkerLeft(worker="brief", incarnation="x", reason=""))

    asyncio.run(body())


def test_revoked_credentials_are_cut_off_and_others_stay(broker: Broker) -> None:
    broker.authority.add("rollout", ["bad"], days=1)

    async def body() -> None:
        bad, good = await broker.connect("bad"), await broker.connect("rollout")
        following = asyncio.create_task(to_its_end(JetStreamLog(bad, "nim", "bad")))
        assert broker.authority.revoke("bad") == 1
        broker.reload()
        with pytest.raises(AccessError, match="credentials of bad: revoked"):
            await asyncio.wait_for(following, 300)
        with pytest.raises(AccessError, match="credentials of bad: revoked"):
            await JetStreamLog(bad, "nim", "bad").last_sequence()
        with pytest.raises(AccessError, match="rejects the credentials of bad"):
            await connect(broker.url, "bad", BrokerCredentials(broker.authority.credentials_path("bad")))
        await JetStreamLog(good, "nim", "rollout").append(e.WorkerLeft(worker="rollout", incarnation="y", reason=""))
        await flush_and_close(good)

    asyncio.run(body())
    again = broker.authority.add("rollout", ["bad"], days=1)[0]
    assert parse_credentials(again.read_text(), "")[0].public != broker.authority.users[-2].public


def test_a_broker_that_comes_back_with_other_keys_ends_a_worker_by_the_reason_alone(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "auth")
    for role in ("operator", "rater"):
        authority.add(role, [role], days=1)
    running = Broker(tmp_path, authority)

    async def body() -> None:
        await running.open()
        client = await running.connect("rater")
        following = asyncio.create_task(to_its_end(JetStreamLog(client, "nim", "rater")))
        await asyncio.sleep(0.1)
        running.restart(Authority.create(tmp_path / "other"))
        with pytest.raises(AccessError, match="rejects the credentials of rater"):
            await following
        await flush_and_close(client)

    try:
        # As workers run.
        uvloop.run(asyncio.wait_for(body(), 60))
    finally:
        running.stop()


class Gate:
    """Stands before a broker that reads its configuration anew while the next clients connect."""

    def __init__(self, broker: Broker) -> None:
        self.broker, self.reloads = broker, 0
        self._passing: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def __aenter__(self) -> "Gate":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._passing)

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    def cut(self, last_words: bytes = b"") -> None:
        for client in self._passing.values():
            client.write(last_words)
            client.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passing = asyncio.create_task(self._pass(reader, writer))
        self._passing[passing] = writer
        passing.add_done_callback(self._passing.pop)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broker_reader, broker_writer = await asyncio.open_connection("127.0.0.1", self.broker.port)
        answers = asyncio.create_task(self._copy(broker_reader, writer))
        if self.reloads > 0:
            self.reloads -= 1
            while not answers.done():
                # A broker that is still busy with one passes over the next.
                self.broker.reload()
                await asyncio.wait([answers], timeout=1)
        await asyncio.gather(answers, self._copy(reader, broker_writer))

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def test_a_broker_that_reads_its_configuration_anew_ends_no_client_with_good_credentials(broker: Broker) -> None:
    access = BrokerCredentials(broker.authority.credentials_path("rollout"))

    async def body() -> None:
        async with Gate(broker) as gate:
            gate.reloads = 2
            client = await connect(f"nats://127.0.0.1:{gate.port}", "rollout", access)
            await JetStreamLog(client, "nim", "rollout").last_sequence()
            for last_words in (b"", b"-ERR 'Authorization Violation'\r\n"):
                gate.reloads = 2 - bool(last_words)
                gate.cut(last_words)
                await answered(client)
                assert gate.reloads == 0
            await flush_and_close(client)

    asyncio.run(asyncio.wait_for(body(), 300))


async def answered(client: Client) -> None:
    """Waits until the connection, which was cut, answers again."""
    while True:
        with contextlib.suppress(LogUnavailableError):
            await JetStreamLog(client, "nim", "rollout").append(
                e.WorkerLeft(worker="rollout", incarnation="z", reason="")
            )
            return


def test_what_a_worker_says_on_its_own_subjects_is_no_rating(broker: Broker) -> None:
    forged = e.PolicyPublished(policy="main", version=7, adapter="forged", parent="")

    async def body() -> RecordedEvent:
        async with user(broker, "rollout") as client:
            subject = match_end_subject("nim", "training", e.MatchFinished, "rollout")
            sequence = (await client.jetstream().publish(subject, encode_event(forged))).seq
            return await anext(JetStreamLog(client, "nim", "rollout").read(sequence, sequence))

    found = asyncio.run(body())
    assert found.event is None
    assert "PolicyPublished on league.nim.match.training.finished.rollout" in str(found.error)


ENTRIES = {
    "other content": {"subject": "$O.ARTIFACTS.C.nim.blob.rollout.{}.forged", "size": 6, "chunks": 1},
    "no chunks": {"subject": "$O.ARTIFACTS.C.nim.blob.rollout.{}.none", "size": 4, "chunks": 1},
    "everybody's chunks": {"subject": "$O.ARTIFACTS.C.nim.blob.*.{}.>", "size": 4, "chunks": 1},
    "nonsense": {"subject": {"a": 1}, "size": "many"},
    "another league": {"size": 6, "chunks": 1, "subject": "$O.ARTIFACTS.C.other.blob.rollout.{}.forged"},
}


@pytest.mark.parametrize("how", [*ENTRIES, "no entry"])
def test_an_entry_of_another_worker_for_an_artifact_is_skipped(broker: Broker, how: str) -> None:
    data = f"an adapter {how}".encode()

    async def body() -> bytes:
        async with (
            user(broker, "trainer") as trainer,
            user(broker, "rollout") as thief,
            user(broker, "evaluator") as reader,
        ):
            name = digest(data)
            entry = {"name": name, **ENTRIES.get(how, {})}
            if isinstance(entry.get("subject"), str):
                entry["subject"] = str(entry["subject"]).format(name)
            written = b"no entry" if how == "no entry" else json.dumps(entry).encode()
            js = thief.jetstream()
            await js.publish(f"$O.ARTIFACTS.C.nim.blob.rollout.{name}.forged", b"forged")
            await js.publish(f"$O.ARTIFACTS.M.nim.blob.rollout.{name}", written)
            with pytest.raises(ArtifactError):
                await BrokerBlobStore(reader, "nim").get(name)
            assert await BrokerBlobStore(trainer, "nim").put(data) == name
            await js.publish(f"$O.ARTIFACTS.M.nim.blob.rollout.{name}", written)
            assert await BrokerBlobStore(reader, "nim").put(data, "again") == name
            await js.publish(f"$O.ARTIFACTS.M.nim.blob.rollout.{name}", written)
            return await BrokerBlobStore(reader, "nim").get(name)

    assert asyncio.run(asyncio.wait_for(body(), 300)) == data


def test_credentials_are_for_their_owners_eyes_and_name_their_user(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "auth", league="nim")
    path = authority.add("rater", ["rater-1"], days=2)[0]
    secrets = [path, tmp_path / "auth" / "authority.json"]
    assert [stat.S_IMODE(secret.stat().st_mode) for secret in secrets] == [0o600, 0o600]
    seed = path.read_text().splitlines()[-2]
    assert seed.startswith("SU")
    public = authority.broker_config_path.read_text() + (tmp_path / "auth" / "users.json").read_text()
    keys = msgspec.json.decode(secrets[1].read_bytes())
    assert not [
        secret
        for secret in (seed, *(keys[name] for name in ("operator", "account", "users", "system")))
        if secret in public
    ]
    assert parse_credentials(path.read_text(), "")[0].name == "rater-1"
    assert Authority(tmp_path / "auth").users == authority.users


def test_a_folder_of_credentials_is_given_out_at_once_and_numbers_go_on(tmp_path: Path) -> None:
    auth, machine = ["--dir", str(tmp_path / "auth")], tmp_path / "machine"

    def added(*words: str) -> list[str]:
        done = CliRunner().invoke(app, ["auth", "add", "rollout", "rollout", *words, *auth], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout.replace("\n", " ").split()

    Authority.create(tmp_path / "auth")
    assert added("--count", "2", "--to", str(machine)) == [str(machine / f"rollout-{n}.creds") for n in (1, 2)]
    assert added("--count", "1") == [str(tmp_path / "auth" / "creds" / "rollout-3.creds")]
    authority = Authority(tmp_path / "auth")
    given = {user.name: user.public for user in authority.users}
    assert list(given) == ["rollout-1", "rollout-2", "rollout-3"]
    for n in (1, 2):
        file = machine / f"rollout-{n}.creds"
        found = parse_credentials(file.read_text(), "")[0]
        assert (found.name, found.public) == (f"rollout-{n}", given[f"rollout-{n}"])
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    authority.revoke("rollout-2")
    assert authority.free_names("rollout", 2) == ["rollout-4", "rollout-5"]
    with pytest.raises(UsageError, match="rollout-3: has valid credentials"):
        authority.add("rollout", ["rollout-9", "rollout-3"], days=1)
    assert not authority.credentials_path("rollout-9").exists()
    assert len(Authority(tmp_path / "auth").users) == 3


def test_credentials_of_users_that_could_not_all_be_added_are_removed(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "auth")
    # A folder where the second file belongs.
    authority.credentials_path("b").mkdir(parents=True)
    with pytest.raises(OSError, match=r"b\.creds"):
        authority.add("rater", ["a", "b"], days=1)
    assert not authority.credentials_path("a").exists()
    assert authority.users == Authority(tmp_path / "auth").users == []
    authority.add("rater", ["a"], days=1)


def test_a_dashboards_credentials_suffice_for_the_status_and_the_metrics(broker: Broker, tmp_path: Path) -> None:
    async def body() -> None:
        async with user(broker, "operator") as boss:
            settings = to_builtins(msgspec.structs.replace(load_config(CONFIG), name="watched"))
            await JetStreamLog(boss, "watched", "boss").append(e.LeagueOpened("watched", settings, "./nowhere"))
        access = BrokerCredentials(broker.authority.credentials_path("dashboard"))
        run = Run(tmp_path, nats=broker.url, name="watched", access=access)
        async with run.open_log() as history, follow_league(run, history) as context:
            status = await read_status(history, context.state, run=run)
            assert status.league == "watched"
            # The readiness probe of a deployment's dashboard.
            async with TestClient(TestServer(make_application(context, "127.0.0.1"))) as scraper:
                assert (await scraper.get("/metrics")).status == 200

    asyncio.run(asyncio.wait_for(body(), 60))


def test_an_operator_is_listed_with_all_leagues_and_no_empty_name_is_one(tmp_path: Path) -> None:
    auth = ["--dir", str(tmp_path / "auth")]
    authority = Authority.create(tmp_path / "auth", league="nim")
    authority.add("operator", ["boss"], days=1)
    authority.add("rater", ["rater-1"], days=1)
    listed = CliRunner().invoke(app, ["auth", "list", "--json", *auth], catch_exceptions=False)
    assert {each["name"]: each["league"] for each in json.loads(listed.stdout)} == {"boss": "*", "rater-1": "nim"}
    with pytest.raises(UsageError, match="--league: '' cannot be a name"):
        CliRunner().invoke(app, ["auth", "add", "rater", "r", "--league", "", *auth], catch_exceptions=False)
    with pytest.raises(UsageError, match="an operator's credentials open every league"):
        authority.add("operator", ["b"], days=1, league="nim")


def test_wrong_words_to_the_authority_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="begin with `league auth init`"):
        Authority(tmp_path / "auth")
    authority = Authority.create(tmp_path / "auth")
    with pytest.raises(UsageError, match="holds keys already"):
        Authority.create(tmp_path / "auth")
    with pytest.raises(UsageError, match="no such role; expected 'archivist', 'dashboard'"):
        authority.add("king", ["a"], days=1)
    with pytest.raises(UsageError, match="cannot be a name"):
        authority.add("rater", ["a.*"], days=1)
    with pytest.raises(UsageError, match="unknown user"):
        authority.revoke("a")
    authority.add("rater", ["a"], days=1)
    with pytest.raises(UsageError, match="a: has valid credentials"):
        authority.add("trainer", ["a"], days=1)
    for days in (0, float("nan"), float("inf"), 1e20):
        with pytest.raises(UsageError, match=r"--days .*: expected more than 0"):
            authority.add("rater", ["b"], days=days)
    with pytest.raises(AccessError, match="no credentials; expected a file that `league auth add` wrote"):
        parse_credentials("no such thing", "here")


def test_keys_that_open_every_league_say_so_and_users_are_listed_with_their_league(tmp_path: Path) -> None:
    def run(*words: str) -> str:
        result = CliRunner().invoke(app, ["auth", *words], env={"COLUMNS": "200"})
        assert result.exit_code == 0, result.output
        return result.stdout

    for keys, options, is_told in (("all", [], True), ("one", ["--league", "nim"], False)):
        folder = str(tmp_path / keys)
        assert ("they open every league of a broker" in run("init", "--dir", folder, *options)) == is_told
        run("add", "rollout", "r", "--dir", folder)
    run("add", "rollout", "s", "--league", "go", "--dir", str(tmp_path / "all"))
    listed = {keys: json.loads(run("list", "--json", "--dir", str(tmp_path / keys))) for keys in ("all", "one")}
    assert {(keys, user["name"]): user["league"] for keys, users in listed.items() for user in users} == {
        ("all", "r"): "*",
        ("all", "s"): "go",
        ("one", "r"): "nim",
    }
    assert "nim" in run("list", "--dir", str(tmp_path / "one"))


def test_every_kind_of_event_has_a_subject_where_it_belongs() -> None:
    for kind in e.EVENT_TYPES.values():
        if kind not in (e.MatchFinished, e.MatchFailed):
            assert subject_matches(worker_event_subject("nim", kind, "*"), worker_event_subject("nim", kind, "a"))
    left = e.WorkerLeft(worker="a", incarnation="x", reason="")
    assert is_allowed_on(left, event_subject("nim", left))
    assert not is_allowed_on(left, "league.nim.worker.left.b")
    assert not is_allowed_on(left, "league.nim.rating.updated")
    assert permissions("operator", "x").publish == [">"]


def openssl(*words: str, cwd: Path) -> None:
    done = subprocess.run(["openssl", *words], cwd=cwd, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """Certificates of two authorities, ``ca`` and ``other``, and of a broker that ``ca`` vouches for."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, so there is nothing to make certificates with")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for name in ("ca", "other"):
        files = ["-keyout", f"{name}.key", "-out", f"{name}.pem"]
        openssl("req", "-x509", *key, *files, "-subj", f"/CN={name}", "-days", "2", cwd=tmp_path)
    openssl("req", *key, "-keyout", "broker.key", "-out", "broker.csr", "-subj", "/CN=broker", cwd=tmp_path)
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", "2"]
    openssl("x509", "-req", "-in", "broker.csr", "-out", "broker.pem", *signed, cwd=tmp_path)
    return tmp_path


def test_an_encrypted_broker_is_trusted_by_its_certificate_only(certificates: Path) -> None:
    authority = Authority.create(certificates / "auth")
    authority.add("operator", ["operator"], days=1)
    tls = f'tls {{ cert_file: "{certificates / "broker.pem"}", key_file: "{certificates / "broker.key"}" }}\n'
    broker = Broker(certificates, authority, tls)

    async def body() -> None:
        client = await broker.connect("operator", certificates / "ca.pem")
        await ensure_streams(client.jetstream(timeout=10), ExperienceConfig())
        left = e.WorkerLeft(worker="a", incarnation="x", reason="")
        assert await JetStreamLog(client, "nim", "a").append(left) == 1
        await flush_and_close(client)
        creds = authority.credentials_path("operator")
        for ca in (certificates / "other.pem", None):
            with pytest.raises(AccessError, match=r"is not trusted: .*certificate"):
                await connect(broker.url, "operator", BrokerCredentials(creds, ca))

    try:
        asyncio.run(body())
    finally:
        broker.stop()


def test_a_broker_that_does_not_encrypt_is_refused_where_encryption_is_asked_for(
    broker: Broker, certificates: Path
) -> None:
    with pytest.raises(AccessError, match="does not encrypt"):
        asyncio.run(
            connect(
                broker.url,
                "rater",
                BrokerCredentials(broker.authority.credentials_path("rater"), certificates / "ca.pem"),
            )
        )
    with pytest.raises(AccessError, match="no certificate"):
        asyncio.run(connect(broker.url, "rater", BrokerCredentials(None, certificates / "names")))


def league(*words: str, log: Path) -> "subprocess.Popen[bytes]":
    with log.open("ab") as out:
        return subprocess.Popen([sys.executable, "-m", "ui", *words], stdout=out, stderr=out)


@pytest.mark.slow
def test_a_league_whose_workers_have_their_roles_credentials_trains_to_the_end(tmp_path: Path) -> None:
    auth, log = tmp_path / "auth", tmp_path / "log"
    for words in (["init"], ["add", "operator", "boss"], ["add", "dashboard", "guest"]):
        assert league("auth", *words, "--dir", str(auth), log=log).wait(300) == 0, log.read_text()
    authority = Authority(auth)
    roles = ("archivist", "rater", "inference", "trainer", "evaluator", "rollout", "tracker")
    for role in roles:
        authority.add(role, [f"{role}-1"], days=1)
    broker = Broker(tmp_path, authority)
    reach = ["--nats", broker.url, "--run", str(tmp_path / "run"), "--creds"]
    workers: list[subprocess.Popen[bytes]] = []

    async def finished() -> list[RecordedEvent]:
        client = await broker.connect("boss")
        history = JetStreamLog(client, "nim", "boss")
        async with asyncio.timeout(300):
            while True:
                events = [r async for r in history.read()]
                kinds = [type(r.event) for r in events]
                asked, done = kinds.count(e.EvaluationRequested), kinds.count(e.EvaluationFinished)
                if e.TrainingFinished in kinds and asked == done:
                    await flush_and_close(client)
                    return events
                await asyncio.sleep(0.5)

    try:
        opening = ["up", "--no-workers", "--config", str(CONFIG), *reach, str(authority.credentials_path("boss"))]
        assert league(*opening, log=log).wait(300) == 0, log.read_text()
        given = {role: str(authority.credentials_path(f"{role}-1")) for role in roles}
        workers += [league("worker", role, *reach, given[role], log=log) for role in roles]
        asyncio.run(finished())
        lasting = [worker for role, worker in zip(roles, workers, strict=True) if role not in ("trainer", "rollout")]
        for worker in reversed(lasting):
            worker.send_signal(signal.SIGTERM)
        assert [worker.wait(300) for worker in workers] == [0] * len(workers), log.read_text()
        events = asyncio.run(finished())
        guest = ["leaderboard", "--json", *reach, str(authority.credentials_path("guest"))]
        assert league(*guest, log=log).wait(300) == 0, log.read_text()
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        broker.stop()
    joined = {r.event.worker for r in events if isinstance(r.event, e.WorkerJoined)}
    assert joined == {f"{role}-1" for role in roles}
    assert [r.event.step for r in events if isinstance(r.event, e.GradientStepTaken)] == [1, 2, 3]
    assert not [r for r in events if r.error is not None]
    assert verify_events(events).is_identical
    assert "refuses" not in log.read_text()
    assert "does not let" not in log.read_text()


@pytest.mark.slow
def test_league_nats_lets_in_who_has_credentials_and_cuts_off_whose_are_revoked(tmp_path: Path) -> None:
    auth, log = tmp_path / "auth", tmp_path / "log"
    authority = Authority.create(auth)
    boss, guest = authority.add("operator", ["boss"], days=1)[0], authority.add("rollout", ["guest"], days=1)[0]
    with (tmp_path / "url").open("w") as out, log.open("w") as told:
        words = ["nats", "--folder", str(tmp_path / "nodes"), "--auth", str(auth)]
        nodes = subprocess.Popen([sys.executable, "-m", "ui", *words], stdout=out, stderr=told)

    async def body() -> None:
        async with asyncio.timeout(300):
            url = await asyncio.to_thread(printed, tmp_path / "url")
            client = await let_in(url, "boss", boss)
            await ensure_streams(client.jetstream(timeout=10), ExperienceConfig())
            worker = await let_in(url, "guest", guest)
            left = e.WorkerLeft(worker="guest", incarnation="x", reason="")
            assert await JetStreamLog(worker, "nim", "guest").append(left) == 1
            following = asyncio.create_task(to_its_end(JetStreamLog(worker, "nim", "guest")))
            assert league("auth", "revoke", "guest", "--dir", str(auth), log=log).wait(300) == 0
            with pytest.raises(AccessError, match="credentials of guest: revoked"):
                await following
            await flush_and_close(client)

    try:
        asyncio.run(body())
    finally:
        nodes.terminate()
        nodes.wait(300)


def printed(file: Path) -> str:
    """What a process writes into a file, once it has."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if text := file.read_text().strip():
            return text
        time.sleep(0.1)
    raise AssertionError(f"{file} stays empty")


async def let_in(url: str, name: str, creds: Path) -> Client:
    """Once the brokers are up."""
    while True:
        try:
            return await connect(url, name, BrokerCredentials(creds))
        except LogUnavailableError:
            await asyncio.sleep(0.25)


def test_what_is_published_twice_is_stored_once_under_ids_that_no_other_user_can_make(broker: Broker) -> None:
    """Each role may do what recognising its own messages takes, whether the broker answered them or not."""

    async def body() -> None:
        draw = e.OpponentsSampled(
            match_id="rollout-7", worker="rollout", hero="main@1", hero_seat=0, sampler="", sampler_digest="",
            standings_sequence=1, draw=0, picks=[],
        )  # fmt: skip
        ends = [match_finished(("a", 1.0), match_id=f"rollout-{n}", purpose="training", worker="rollout") for n in "78"]
        played, job = trajectory("rollout-7", policy="twice"), PlayMatch("e-1", "evaluation", ["a", "b"], seed=1)
        async with user(broker, "rollout") as rollout, user(broker, "evaluator") as evaluator:
            log, experience = JetStreamLog(rollout, "twice", "rollout"), ExperienceStream(rollout, "twice")
            queue = WorkQueue(evaluator, "twice")
            for _ in range(2):
                await log.append(draw)
                await log.append_batch(ends)
                await experience.publish(played)
                await queue.submit(job)
            with pytest.raises(AccessError):
                await rollout.jetstream().get_msg("EXPERIENCE", 1)
            assert [r.event async for r in log.read()] == [draw, *ends]
        async with user(broker, "operator") as boss:
            js = boss.jetstream()
            counts = {}
            for stream, subject in (("EXPERIENCE", "experience.twice.twice"), ("WORK", "work.twice.play_match")):
                counts |= (await js.stream_info(stream, subjects_filter=subject)).state.subjects or {}
                await js.purge_stream(stream, subject=subject)
            assert counts == {"experience.twice.twice": 1, "work.twice.play_match": 1}
            own = event_subject("twice", draw)
            stored = await js.get_last_msg("LEAGUE", own)
            assert (stored.headers or {})["Nats-Msg-Id"] != publication_digest([(own, encode_event(draw))])

    asyncio.run(asyncio.wait_for(body(), 300))
