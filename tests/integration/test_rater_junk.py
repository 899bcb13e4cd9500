"""Replayed messages, and junk on any subject, through real brokers: ratings are as if there were none."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from random import Random

import msgspec
import pytest

from league.auth.authority import Authority
from league.log.access import BrokerCredentials
from league.log.base import RecordedEvent
from league.log.connection import connect
from league.log.jetstream import JetStreamLog, flush_and_close
from league.log.server import EmbeddedServer, find_nats_server, free_port, spawn, terminate
from league.log.streams import ensure_streams
from league.matchmaking.schedule import initial_agent_events
from league.ratings.fold import RatingFold
from league.run import Run
from league.state import LeagueState
from lifecycle.control import append_decision, pause
from schemas import events as e
from schemas.codec import encode_event
from schemas.config import ExperienceConfig, HistoryConfig, LeagueConfig, to_builtins
from schemas.errors import AccessError, LogUnavailableError
from schemas.subjects import event_subject, worker_event_subject
from tests.builders import match_finished
from workers import archivist, rater
from workers.run_worker import ServeFunction
from workers.runtime import Context, beside

CONFIG = LeagueConfig(name="nim", history=HistoryConfig(archive_events=200, snapshot_events=50))
ENDS = (e.MatchFinished, e.MatchFailed)
AGENTS = ("base_model", "random_bot", "chaos_bot")


class Place(msgspec.Struct):
    """A broker, and who is let in."""

    url: str
    folder: Path
    authority: Authority | None = None

    def access(self, user: str) -> BrokerCredentials:
        return BrokerCredentials(self.authority.credentials_path(user) if self.authority is not None else None)

    @contextlib.asynccontextmanager
    async def log(self, user: str) -> AsyncIterator[JetStreamLog]:
        for _ in range(2_000):
            with contextlib.suppress(LogUnavailableError):
                client = await connect(self.url, user, self.access(user))
                break
            await asyncio.sleep(0.05)
        yield JetStreamLog(client, CONFIG.name, user)
        await flush_and_close(client)

    @contextlib.asynccontextmanager
    async def worker(self, user: str) -> AsyncIterator[JetStreamLog]:
        """The history, for a worker that has joined."""
        async with self.log(user) as history:
            await history.append(joined(user))
            yield history

    async def open(self) -> None:
        async with self.log("operator") as history:
            await ensure_streams(history.client.jetstream(), ExperienceConfig(max_bytes=1_000_000))
            opened = e.LeagueOpened(league=CONFIG.name, config=to_builtins(CONFIG), model="none")
            await history.append_batch([opened, *initial_agent_events(CONFIG)])

    def run(self, user: str) -> Run:
        return Run(self.folder, nats=self.url, name=CONFIG.name, access=self.access(user))

    async def work(self, user: str, serve: ServeFunction) -> list[RecordedEvent]:
        """Run a worker until it has nothing to do; the history then."""
        async with self.log(user) as history:
            context = Context(self.run(user), history.client, history, user)
            context.folds_ratings = True
            context.checks_ratings = serve is rater.serve
            await context.load_snapshot()
            async with asyncio.timeout(300), beside(context.follow()):
                await context.wait_for_sequence(await history.last_sequence())
                context.stop()
                await serve(context)
            return [r async for r in history.read()]

    async def rate(self, user: str = "rater") -> list[RecordedEvent]:
        return await self.work(user, rater.serve)


@pytest.fixture
def open_broker(tmp_path: Path) -> Iterator[Place]:
    """One that lets in anybody."""
    with EmbeddedServer(tmp_path / "nats") as server:
        yield Place(server.url, tmp_path)


@pytest.fixture
def guarded_broker(tmp_path: Path) -> Iterator[Place]:
    """One that lets in who has credentials."""
    authority = Authority.create(tmp_path / "auth")
    for role in ("operator", "evaluator", "rater", "archivist"):
        authority.add(role, [role], days=1)
    authority.add("evaluator", ["thief"], days=1)
    port = free_port()
    own = f'listen: "127.0.0.1:{port}"\nmax_payload: 8MB\njetstream {{ store_dir: "{tmp_path / "store"}" }}\n'
    (tmp_path / "broker.conf").write_text(own + authority.broker_config_path.read_text())
    pid = spawn([find_nats_server(), "-c", str(tmp_path / "broker.conf")], tmp_path / "broker.log")
    yield Place(f"nats://127.0.0.1:{port}", tmp_path, authority)
    terminate(pid)


def joined(worker: str, incarnation: str = "1") -> e.WorkerJoined:
    return e.WorkerJoined(worker=worker, role="evaluator", incarnation=incarnation, host="", pid=1, version="1")


def result(number: int, worker: str = "evaluator") -> e.MatchFinished:
    rng = Random(number)
    seats = [(agent, rng.random()) for agent in AGENTS]
    return match_finished(*seats, match_id=f"m-{number}", worker=worker, seed=number)


async def publish(history: JetStreamLog, payload: bytes, name: str, worker: str = "evaluator") -> int:
    """Bytes as they are, where results of a worker lie."""
    subject = event_subject(CONFIG.name, result(0, worker))
    return int((await history.client.jetstream().publish(subject, payload, headers={"Nats-Msg-Id": name})).seq)


def standings(events: Sequence[RecordedEvent]) -> list[e.AgentRating]:
    fold = RatingFold(CONFIG)
    for recorded in events:
        fold.apply(recorded.sequence, recorded.event)
    assert not fold.due_corrections
    assert not fold.unrecorded
    return fold.rated_agents("nim")


def ratings_of(*matches: e.MatchFinished) -> list[e.AgentRating]:
    """What a history with only these gives."""
    fold = RatingFold(CONFIG)
    told = [*initial_agent_events(CONFIG), *matches]
    for sequence, event in enumerate(told, 1):
        fold.apply(sequence, event)
    return fold.rated_agents("nim")


def test_with_credentials_nobody_else_joins_or_reports_under_a_name(guarded_broker: Place) -> None:
    async def body() -> list[RecordedEvent]:
        await guarded_broker.open()
        async with guarded_broker.worker("evaluator") as history, guarded_broker.worker("thief") as thief:
            await history.append(result(0))
            for subject in (worker_event_subject("nim", e.WorkerJoined, "evaluator"), event_subject("nim", result(0))):
                with pytest.raises(AccessError, match="does not let thief publish on"):
                    await thief.client.jetstream().publish(subject, b"{}")
            # On its own subjects it can say what it likes: nothing of another worker belongs there.
            own = worker_event_subject("nim", e.WorkerJoined, "thief")
            await thief.client.jetstream().publish(own, encode_event(joined("evaluator", "2")))
            await publish(thief, encode_event(result(7)), "in another's name", worker="thief")
        return await guarded_broker.rate()

    events = asyncio.run(asyncio.wait_for(body(), 300))
    assert [r.sequence for r in events if r.error is not None]
    assert standings(events) == ratings_of(result(0))


def test_a_replayed_message_changes_nothing(open_broker: Place) -> None:
    async def body() -> tuple[list[RecordedEvent], list[RecordedEvent]]:
        await open_broker.open()
        async with open_broker.worker("evaluator") as history:
            for number in range(3):
                await history.append(result(number))
            before = await open_broker.rate()
            payloads = [r.payload for r in before if isinstance(r.event, e.MatchFinished)]
            # Under ids of their own, as after the broker has forgotten the first ones.
            places = [await publish(history, payloads[n], f"a new id {n}") for n in range(2)]
            subject, payload = (
                worker_event_subject("nim", e.WorkerJoined, "evaluator"),
                encode_event(joined("evaluator")),
            )
            again = await history.client.jetstream().publish(subject, payload, headers={"Nats-Msg-Id": "a new id"})
            places.append(again.seq)
            assert min(places) > before[-1].sequence
            return before, await open_broker.rate("standby")

    before, after = asyncio.run(asyncio.wait_for(body(), 300))
    assert len(after) == len(before) + 3
    assert standings(after) == standings(before) == ratings_of(*map(result, range(3)))
    states = [LeagueState(), LeagueState()]
    for state, events in zip(states, (before, after), strict=True):
        for recorded in events:
            state.apply(recorded.sequence, recorded.event)
    assert states[0].standings() == states[1].standings()
    assert states[0].finished_matches() == states[1].finished_matches()


@pytest.mark.parametrize("junk", [b"junk", b'{"type":"io.nats.api.Answer"}', b'{"type":"RatingUpdated"}'])
def test_the_rater_steps_over_junk_that_lies_among_the_ratings(open_broker: Place, junk: bytes) -> None:
    async def body() -> list[RecordedEvent]:
        await open_broker.open()
        async with open_broker.worker("evaluator") as history:
            js, subject = history.client.jetstream(), worker_event_subject("nim", e.RatingUpdated, "")
            await js.publish(subject, junk)
            await history.append(result(0))
            await open_broker.rate()
            for _ in range(3):
                await js.publish(subject, junk)
            await history.append(result(1))
            # Voids are corrected by the same writer, under the same condition.
            sequence = await history.append(result(2))
            await history.append(e.MatchVoided(match=result(2), match_sequence=sequence, reason="a bug"))
            return await open_broker.rate("standby")

    events = asyncio.run(asyncio.wait_for(body(), 300))
    assert standings(events) == ratings_of(result(0), result(1))
    assert sum(isinstance(r.event, e.RatingsCorrected) for r in events) == 1


def test_junk_on_every_subject_stops_nobody(guarded_broker: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    # This process goes on with other tests, and may not raise its priority again.
    monkeypatch.setattr("os.setpriority", lambda *_: None)
    subjects = [worker_event_subject("nim", kind, "evaluator") for kind in e.EVENT_TYPES.values() if kind not in ENDS]
    subjects += [event_subject("nim", result(0)), event_subject("nim", result(0, "rater"))]

    async def junk() -> None:
        # Only an operator can direct the broker's answers to a stream.
        async with guarded_broker.log("operator") as boss:
            for subject in subjects:
                await boss.client.jetstream().publish(subject, b"{}")
                await boss.client.publish("$JS.API.STREAM.INFO.LEAGUE", b"", reply=subject)
            await boss.client.flush()
            await boss.last_sequence()

    async def body() -> list[RecordedEvent]:
        await guarded_broker.open()
        async with guarded_broker.worker("evaluator") as history:
            await junk()
            await history.append(result(0))
            await guarded_broker.rate()
            await guarded_broker.work("archivist", archivist.serve)
            await junk()
            await history.append_batch([result(number) for number in range(1, 12)])
            async with guarded_broker.log("operator") as operator:
                sequence = await history.append(result(99))
                await operator.append(e.MatchVoided(match=result(99), match_sequence=sequence, reason="a bug"))
                told = await append_decision(
                    guarded_broker.run("operator"), operator, e.LeaguePaused, lambda state: pause(state, "", "junk")
                )
                assert len(told) == 1
            await guarded_broker.rate()
            return await guarded_broker.work("archivist", archivist.serve)

    events = asyncio.run(asyncio.wait_for(body(), 300))
    assert {r.subject for r in events if r.event is None} >= set(subjects)
    assert standings(events) == ratings_of(*map(result, range(12)))
    played = max(r.sequence for r in events if isinstance(r.event, e.MatchFinished))
    for kind in (e.SnapshotTaken, e.HistoryArchived):
        assert max(r.sequence for r in events if isinstance(r.event, kind)) > played
