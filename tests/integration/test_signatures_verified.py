"""``league verify`` says who signed the results: of a run, of its branch, and of what was exported of it."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from league.blobs import BrokerBlobStore, CachedBlobStore, FolderBlobStore
from league.integrity.archive import archive_sealed, archived_batches
from league.integrity.audit import audit_integrity
from league.integrity.seals import seal_through
from league.integrity.signatures import SignatureChecker, SignatureReport, Signer
from league.log.base import RecordedEvent
from league.log.jetstream import JetStreamLog
from league.log.streams import ensure_streams
from league.run import Run
from schemas.codec import encode_event
from schemas.config import EvaluationConfig, ExperienceConfig, LeagueConfig
from schemas.errors import UsageError
from schemas.events import Event, MatchFinished, WorkerJoined
from schemas.subjects import event_subject
from tests.builders import store_adapters
from tests.memory_log import MemoryLog
from tests.simulated_history import Simulation
from ui.cli import app

SMALL = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))
SIGNER = Signer()


class Signed(Simulation):
    """A history whose evaluator signs, but for the result with this number."""

    def __init__(self, forged: int | None = None, voided: bool = False) -> None:
        super().__init__(SMALL, registers=True)
        self._registered.add("evaluator-0")
        self.forged, self.voided, self.results = forged, voided, 0

    def append(self, event: Event) -> None:
        place = len(self.history)
        super().append(event)
        if isinstance(event, MatchFinished) and event.worker == "evaluator-0":
            self.results += 1
            signer = SIGNER if self.results != self.forged else Signer()
            old = self.history[place]
            self.history[place] = RecordedEvent(
                old.sequence, old.time_ns, old.subject, old.producer, signer.encode(event), old.schema
            )
            if self.results == self.forged and self.voided:
                self.void((old.sequence, event), "signature")

    def open(self) -> None:
        joined = WorkerJoined(
            worker="evaluator-0",
            role="evaluator",
            incarnation="1",
            host="",
            pid=1,
            version="1",
            public_key=SIGNER.public_key,
        )
        super().append(joined)
        super().open()


HISTORY, FORGED, VOIDED = Signed().run(6, 2), Signed(5).run(6, 2), Signed(5, voided=True).run(6, 2)
EVALUATIONS = sum(isinstance(r.event, MatchFinished) and r.event.worker == "evaluator-0" for r in HISTORY)
OTHERS = sum(isinstance(r.event, MatchFinished) and r.event.worker != "evaluator-0" for r in HISTORY)


def store(run: Path, history: list[RecordedEvent]) -> None:
    async def body() -> None:
        async with Run(run).connect("test") as client:
            await ensure_streams(client.jetstream(), ExperienceConfig(max_bytes=1_000_000))
            log = JetStreamLog(client, "league", "test")
            await log.copy(history)
            await store_adapters(BrokerBlobStore(client, "league"), history)
            await seal_through(log, len(history), len(history))

    asyncio.run(body())


def command(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


TOLD = f"results: {EVALUATIONS} signed by their workers, {OTHERS} of workers without a key"


def test_a_run_its_branch_and_its_exports_say_the_same(tmp_path: Path) -> None:
    run, copy, tables, lines = (tmp_path / name for name in ("run", "copy", "tables", "lines"))
    store(run, HISTORY)
    assert command("branch", "--at", str(len(HISTORY) + 1), "--from", str(run), "--run", str(copy)).exit_code == 0
    assert command("export", "--to", str(tables), "--run", str(run)).exit_code == 0
    lines.write_text(command("events", "--json", "--run", str(run)).stdout)
    for where in (["--run", str(run)], ["--run", str(copy)], ["--events", str(tables)], ["--events", str(lines)]):
        said = command("verify", *where)
        assert said.exit_code == 0, said.output
        assert f"{TOLD}\n" in said.stdout


@pytest.mark.parametrize("how", ["export", "events"])
def test_a_forged_result_that_counts_is_named_and_exits_1(tmp_path: Path, how: str) -> None:
    run, exported = ["--run", str(tmp_path / "run")], tmp_path / "exported"
    store(tmp_path / "run", FORGED)
    said = command("verify", *run)
    assert said.exit_code == 1
    assert "FORGED: results count" in said.stdout
    found = json.loads(command("verify", "--json", *run).stdout)
    assert [forged["worker"] for forged in found["results"]["forged"]] == ["evaluator-0"]
    assert (found["damage"], found["sound"]) == ([], False)
    if how == "export":
        command("export", "--to", str(exported), *run)
    else:
        exported.write_text(command("events", "--json", *run).stdout)
    again = command("verify", "--json", "--events", str(exported))
    assert again.exit_code == 1
    assert json.loads(again.stdout) == found["results"]


def test_a_forged_result_that_was_taken_back_is_counted_and_no_alarm(tmp_path: Path) -> None:
    store(tmp_path, VOIDED)
    said = command("verify", "--run", str(tmp_path))
    assert said.exit_code == 0
    assert ", 1 forged that count for nothing" in said.stdout


def test_results_are_verified_from_the_archive_alone(tmp_path: Path) -> None:
    async def body() -> tuple[SignatureReport, SignatureReport]:
        log, artifacts = (
            MemoryLog(),
            CachedBlobStore(FolderBlobStore(tmp_path / "store"), FolderBlobStore(tmp_path / "cache")),
        )
        await log.copy(FORGED)
        await seal_through(log, len(FORGED), 50)
        await archive_sealed(log, artifacts, 100, rest=True)
        checker = SignatureChecker()
        async for batch in archived_batches(log, artifacts, 1, len(FORGED)):
            checker.apply_batch(batch)
        return checker.finish(), (await audit_integrity(log, artifacts)).results

    archived, streamed = asyncio.run(body())
    assert archived == streamed
    assert len(archived.forged) == 1
    assert archived.signed == EVALUATIONS - 1


def test_a_forger_hides_nothing_by_writing_fields_in_another_order() -> None:
    joined, last = HISTORY[0], next(r for r in HISTORY if isinstance(r.event, MatchFinished))
    event = msgspec.structs.replace(last.event, worker="evaluator-0", purpose="evaluation")  # type: ignore[type-var]
    fields = msgspec.json.decode(encode_event(event))
    payload = msgspec.json.encode({"match_id": fields.pop("match_id"), **fields})
    checker = SignatureChecker()
    checker.apply_batch([joined, RecordedEvent(last.sequence, 0, event_subject("league", event), "", payload)])
    assert [forged.match_id for forged in checker.finish().forged] == [event.match_id]  # type: ignore[attr-defined]


def test_what_is_no_export_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("no lines")
    for path, expected in ((tmp_path, "league export"), (tmp_path / "lines", "--json"), (tmp_path / "no", "--json")):
        with pytest.raises(UsageError, match=expected):
            command("verify", "--events", str(path))
