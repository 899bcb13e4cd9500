"""Forged, altered, stripped and replayed results, through real brokers: ratings are as if there were none."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from random import Random

import msgspec
import pytest

from league.auth.authority import Authority
from league.history.replay import verify_events
from league.integrity.signatures import VOID_REASON, SignatureVerifier, Signer
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

CONFIG = LeagueConfig(name="nim", history=HistoryConfig(seal_events=50, archive_events=200, snapshot_events=50))
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
        """The history, for a worker that has joined and signs."""
        async with self.log(user) as history:
            history.signer = Signer(self.access(user).seed())
            await history.append(joined(user, history.signer.public_key))
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


@pytest.fixture(params=["open_broker", "guarded_broker"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


def joined(worker: str, key: str = "", incarnation: str = "1") -> e.WorkerJoined:
    return e.WorkerJoined(
        worker=worker, role="evaluator", incarnation=incarnation, host="", pid=1, version="1", public_key=key
    )


def result(number: int, worker: str = "evaluator") -> e.MatchFinished:
    rng = Random(number)
    seats = [(agent, rng.random()) for agent in AGENTS]
    return match_finished(*seats, match_id=f"m-{number}", worker=worker, seed=number)


async def publish(history: JetStreamLog, payload: bytes, name: str, worker: str = "evaluator") -> int:
    """Bytes as they are, where results of a worker lie."""
    subject = event_subject(CONFIG.name, result(0, worker))
    return int((await history.client.jetstream().publish(subject, payload, headers={"Nats-Msg-Id": name})).seq)


def forgeries(own: Signer, other: Signer) -> dict[str, bytes]:
    """What somebody who has not got a worker's key could make of what it has signed."""
    signed = own.encode(result(1))
    signature = signed.rpartition(b'"signature":"')[2][:86]
    return {
        "another key": other.encode(result(101)),
        "an altered byte": own.encode(result(102)).replace(b'"rank":1', b'"rank":2', 1),
        "another match's signature": encode_event(result(103)).replace(b're":""', b're":"' + signature + b'"'),
        "stripped": encode_event(result(104)),
        "no signature at all": encode_event(result(105)).replace(b're":""', b're":"yes"'),
    }


def standings(events: Sequence[RecordedEvent]) -> list[e.AgentRating]:
    fold = RatingFold(CONFIG)
    for recorded in events:
        fold.apply(recorded.sequence, recorded.event)
    assert not fold.pending_corrections
    assert not fold.unrecorded
    return fold.rated_agents("nim")


def ratings_of(*matches: e.MatchFinished) -> list[e.AgentRating]:
    """What a history with only these gives."""
    fold = RatingFold(CONFIG)
    told = [*initial_agent_events(CONFIG), *matches]
    for sequence, event in enumerate(told, 1):
        fold.apply(sequence, event)
    return fold.rated_agents("nim")


def voided(events: Sequence[RecordedEvent]) -> list[tuple[str, str]]:
    return [(r.event.match.match_id, r.event.reason) for r in events if isinstance(r.event, e.MatchVoided)]


def test_forged_results_are_voided_and_ratings_are_as_without_them(place: Place) -> None:
    async def body() -> list[RecordedEvent]:
        await place.open()
        async with place.worker("evaluator") as history, place.log("operator") as operator:
            assert history.signer is not None
            await history.append(result(0))
            for name, payload in forgeries(history.signer, Signer()).items():
                await publish(operator, payload, name)
            await history.append_batch([result(number) for number in range(1, 4)])
        return await place.rate()

    events = asyncio.run(asyncio.wait_for(body(), 300))
    assert voided(events) == [(f"m-{number}", VOID_REASON) for number in range(101, 106)]
    assert standings(events) == ratings_of(*map(result, range(4)))
    assert verify_events(events).is_identical
    judge = SignatureVerifier()
    assert [r.event.match_id for r in judge.verify_batch(events) if isinstance(r.event, e.MatchFinished)] == [
        f"m-{number}" for number in range(101, 106)
    ]
    assert judge.counts == {"signed": 4, "unsigned": 0, "forged": 5}


def test_a_forged_result_that_comes_while_the_rater_is_at_work_is_voided_too(open_broker: Place) -> None:
    async def body() -> list[RecordedEvent]:
        await open_broker.open()
        async with open_broker.worker("evaluator") as history:
            await history.append(result(0))
            await open_broker.rate()
            await publish(history, Signer().encode(result(9)), "forged")
            await history.append(result(1))
            return await open_broker.rate("standby")

    events = asyncio.run(asyncio.wait_for(body(), 300))
    assert voided(events) == [("m-9", VOID_REASON)]
    assert standings(events) == ratings_of(result(0), result(1))


def test_a_forged_copy_takes_no_true_result_away(open_broker: Place) -> None:
    async def body() -> list[list[RecordedEvent]]:
        await open_broker.open()
        async with open_broker.worker("evaluator") as history:
            await history.append(result(0))
            await publish(history, Signer().encode(result(0)), "before the rater begins")
            found = [await open_broker.rate()]
            await publish(history, encode_event(result(0)), "after a rating was recorded")
            await history.append(result(1))
            return [*found, await open_broker.rate("standby")]

    for count, events in enumerate(asyncio.run(asyncio.wait_for(body(), 300)), 1):
        assert voided(events) == []
        assert standings(events) == ratings_of(*map(result, range(count)))


def test_a_worker_that_never_announced_a_key_counts_as_before(open_broker: Place) -> None:
    async def body() -> list[RecordedEvent]:
        await open_broker.open()
        async with open_broker.log("evaluator") as history:
            await history.append(result(0))
            await history.append(joined("evaluator"))
            await history.append(result(1))
            await publish(history, Signer().encode(result(2)), "signed by nobody knows whom")
        return await open_broker.rate()

    events = asyncio.run(asyncio.wait_for(body(), 300))
    assert voided(events) == []
    assert standings(events) == ratings_of(*map(result, range(3)))


def test_with_credentials_nobody_else_announces_a_key_or_reports_under_a_name(guarded_broker: Place) -> None:
    async def body() -> list[RecordedEvent]:
        await guarded_broker.open()
        async with guarded_broker.worker("evaluator") as history, guarded_broker.worker("thief") as thief:
            await history.append(result(0))
            assert thief.signer is not None
            for subject in (worker_event_subject("nim", e.WorkerJoined, "evaluator"), event_subject("nim", result(0))):
                with pytest.raises(AccessError, match="does not let thief publish on"):
                    await thief.client.jetstream().publish(subject, b"{}")
            # On its own subjects it can say what it likes: nothing of another worker belongs there.
            own = worker_event_subject("nim", e.WorkerJoined, "thief")
            await thief.client.jetstream().publish(own, encode_event(joined("evaluator", thief.signer.public_key, "2")))
            await publish(thief, thief.signer.encode(result(7)), "in another's name", worker="thief")
        return await guarded_broker.rate()

    events = asyncio.run(asyncio.wait_for(body(), 300))
    assert [r.sequence for r in events if r.error is not None]
    assert standings(events) == ratings_of(result(0))
    assert voided(events) == []
    state = LeagueState()
    for recorded in events:
        state.apply(recorded.sequence, recorded.event)
    assert guarded_broker.authority is not None
    given = {user.name: user.public for user in guarded_broker.authority.users}
    assert state.keys.by_worker == {name: [given[name]] for name in ("evaluator", "thief")}


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
            places.append(await history.append(joined("evaluator", "", "1")))
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
            await publish(history, encode_event(result(2)), "stripped")
            return await open_broker.rate("standby")

    events = asyncio.run(asyncio.wait_for(body(), 300))
    assert standings(events) == ratings_of(result(0), result(1))
    assert sum(isinstance(r.event, e.RatingsCorrected) for r in events) == 1


def test_junk_on_every_subject_that_anybody_can_make_the_broker_write_stops_nobody(
    guarded_broker: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This process goes on with other tests, and may not raise its priority again.
    monkeypatch.setattr("os.setpriority", lambda *_: None)
    subjects = [worker_event_subject("nim", kind, "evaluator") for kind in e.EVENT_TYPES.values() if kind not in ENDS]
    subjects += [event_subject("nim", result(0)), event_subject("nim", result(0, "rater"))]

    async def junk() -> None:
        async with guarded_broker.log("thief") as thief:
            own = event_subject("nim", result(0, "thief"))
            for subject in subjects:
                # What it may publish is acknowledged where it says, and so is what it may ask.
                await thief.client.publish(own, b"{}", reply=subject)
                await thief.client.publish("$JS.API.STREAM.INFO.LEAGUE", b"", reply=subject)
            await thief.client.flush()
            await thief.last_sequence()

    async def body() -> list[RecordedEvent]:
        await guarded_broker.open()
        async with guarded_broker.worker("evaluator") as history:
            await junk()
            await history.append(result(0))
            await guarded_broker.rate()
            await guarded_broker.work("archivist", archivist.serve)
            await junk()
            await history.append_batch([result(number) for number in range(1, 12)])
            # Not by its worker, so that there is something to correct.
            async with guarded_broker.log("operator") as operator:
                await publish(operator, encode_event(result(99)), "stripped")
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
    for kind in (e.HistorySealed, e.SnapshotTaken, e.HistoryArchived):
        assert max(r.sequence for r in events if isinstance(r.event, kind)) > played
