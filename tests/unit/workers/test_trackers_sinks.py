"""Sinks of charts: what is written, where a next tracker goes on, and what a failure leaves behind."""

import contextlib
import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.config import LeagueConfig, Plugin, convert, to_builtins
from schemas.errors import BusyError, ConfigError, RemoteError
from workers.trackers import Row
from workers.trackers.sinks import SINKS, Place, read

pytest.importorskip("wandb")

ROWS = [Row(sequence, sequence * 10, sequence // 3, {"learner/loss": 1.0 / sequence}) for sequence in (2, 5, 6, 9)]


def place(folder: Path, identity: str = "0123456789abcdef0") -> Place:
    return Place(folder / "tracking", "nim", identity, to_builtins(LeagueConfig(name="nim")))


def fill(kind: str, where: Place, rows: list[Row], **settings: Any) -> int:
    """Write what is new and close; returns the position before."""
    sink = SINKS.build(Plugin(kind, settings))
    try:
        position = sink.open(where)
        for row in rows:
            if row.sequence > position:
                sink.write(row, {"inference/a/queued": 3.0})
    finally:
        sink.close()
    return position


def offline_runs(folder: Path) -> list[list[Any]]:
    """Records of every offline run, in the order of their rows, once all rows are there or minutes have passed.

    Closing a run does not wait until wandb's own process has written its file.
    """
    deadline = time.monotonic() + 300
    while True:
        found = written_runs(folder)
        if sum(len(logged(run)) for run in found) >= len(ROWS) or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def written_runs(folder: Path) -> list[list[Any]]:
    """What lies in the files now: LevelDB's log format."""
    from wandb.proto import wandb_internal_pb2

    def records(data: bytes) -> Iterator[Any]:
        assert b":W&B".startswith(data[:4])
        place, whole = 7, b""
        while place + 7 <= len(data):
            if (left := 32_768 - place % 32_768) < 7:
                place += left
                continue
            _, size, kind = struct.unpack_from("<IHB", data, place)
            if place + 7 + size > len(data):
                return
            whole, place = whole + data[place + 7 : place + 7 + size], place + 7 + size
            if kind in (1, 4):
                record = wandb_internal_pb2.Record()
                record.ParseFromString(whole)
                whole = b""
                yield record

    files = (folder / "tracking" / "wandb").glob("offline-run-*/*.wandb")
    return sorted((list(records(path.read_bytes())) for path in files), key=lambda run: min(logged(run), default=0))


def logged(run: list[Any]) -> dict[int, dict[str, Any]]:
    """Values by step, as they were logged."""
    history = [record.history for record in run if record.WhichOneof("record_type") == "history"]
    values = [
        {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in h.item} for h in history
    ]
    return {h.step.num: said for h, said in zip(history, values, strict=True)}


def test_lines_of_json_go_on_where_the_last_tracker_ended(tmp_path: Path) -> None:
    assert fill("jsonl", place(tmp_path), ROWS[:2]) == 0
    assert fill("jsonl", place(tmp_path), ROWS) == 5
    (path,) = (tmp_path / "tracking").iterdir()
    assert [(line.sequence, line.step, line.values) for line in read(path)] == [
        (row.sequence, row.step, row.values) for row in ROWS
    ]
    assert read(path)[0].now == {"inference/a/queued": 3.0}


@pytest.mark.parametrize(
    "damage", [b'{"sequence":6,"time_', b"\0" * 30, b'{"sequence":6}\n', b"nonsense\n", b'{"values":{"\xff":1}}\n']
)
def test_a_torn_line_is_cut_off_and_written_again(tmp_path: Path, damage: bytes) -> None:
    fill("jsonl", place(tmp_path), ROWS[:2])
    (path,) = (tmp_path / "tracking").iterdir()
    with path.open("ab") as file:
        file.write(damage)
    assert fill("jsonl", place(tmp_path), ROWS) == 5
    assert [line.sequence for line in read(path)] == [2, 5, 6, 9]
    assert path.read_bytes().count(b"\n") == 4


def test_a_file_has_one_writer_and_another_history_another_file(tmp_path: Path) -> None:
    sink = SINKS.build(Plugin("jsonl"))
    sink.open(place(tmp_path))
    with pytest.raises(BusyError, match="another tracker"):
        SINKS.build(Plugin("jsonl")).open(place(tmp_path))
    assert fill("jsonl", place(tmp_path, "fedcba9876543210"), ROWS) == 0
    sink.close()
    assert len(list((tmp_path / "tracking").iterdir())) == 2


def test_standard_output_gets_the_same_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill("stdout", place(tmp_path), ROWS)
    fill("jsonl", place(tmp_path), ROWS)
    (path,) = (tmp_path / "tracking").iterdir()
    assert capsys.readouterr().out == path.read_text()


def test_wandb_has_one_chart_of_elo_with_three_lines_over_the_training_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "5" * 40)
    lines = {"Hero_Elo": 1100.0, "Baseline_Elo": 900.0, "Past_Best_Elo": 1050.0}
    elo = {f"League/Elo_Rating/{name}": rating for name, rating in lines.items()}
    rows = [msgspec.structs.replace(row, values=row.values | elo) for row in ROWS]
    fill("wandb", place(tmp_path), rows[:2], mode="offline")
    fill("wandb", place(tmp_path), rows, mode="offline")
    (run,) = offline_runs(tmp_path)
    assert logged(run)[9]["League/Elo_Rating_table/nrows"] == len(lines) * len(rows)
    tables = [json.loads(path.read_text()) for path in (tmp_path / "tracking").rglob("*Elo_Rating_table*.json")]
    whole = max(tables, key=lambda table: len(table["data"]))
    assert whole["columns"][0] == "step"
    assert sorted(map(tuple, whole["data"])) == sorted(
        (row.step, name, rating) for row in rows for name, rating in lines.items()
    )


def test_an_offline_run_of_wandb_that_goes_on_holds_every_row_in_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "5" * 40)
    assert fill("wandb", place(tmp_path), ROWS[:3], project="charts", mode="offline") == 0
    assert fill("wandb", place(tmp_path), ROWS, project="charts", mode="offline") == 6
    (run,) = offline_runs(tmp_path)
    values = logged(run)
    assert list(values) == [2, 5, 6, 9]
    for row in ROWS:
        said = values[row.sequence]
        assert {name: said[name] for name in row.values} == row.values
        assert said["gradient_step"] == row.step
        assert said["inference/a/queued"] == 3.0
    (opened,) = [record.run for record in run if record.WhichOneof("record_type") == "run"]
    assert (opened.run_id, opened.project, opened.display_name) == ("nim-0123456789abcdef", "charts", "nim")
    over = [
        (record.metric.glob_name, record.metric.step_metric)
        for record in run
        if record.WhichOneof("record_type") == "metric" and record.metric.step_metric
    ]
    assert over == [("League/*", "gradient_step"), ("learner/*", "gradient_step")]
    files = [path for path in (tmp_path / "tracking").rglob("*") if path.is_file()]
    assert not [path for path in files if b"5" * 40 in path.read_bytes()]


def test_a_server_that_is_away_is_an_error_without_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "5" * 40
    monkeypatch.setenv("WANDB_API_KEY", key)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    said = []
    for _ in range(2):
        with pytest.raises(RemoteError, match="W&B: the run was not opened") as caught:
            fill("wandb", place(tmp_path), ROWS, mode="online", init_timeout_s=1.0)
        said.append(str(caught.value))
    assert not [text for text in said if key in text]
    # A failure leaves nothing behind that keeps the same process from opening the run later.
    for _ in range(300):
        with contextlib.suppress(RemoteError):
            fill("wandb", place(tmp_path), ROWS, mode="offline")
            break
        # Its own process may take its time to end.
        time.sleep(1.0)
    rows = [step for run in offline_runs(tmp_path) for step in logged(run)]
    assert rows == [row.sequence for row in ROWS]


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        (Plugin("csv"), r"tracker.sinks.name: 'csv' is unknown; expected 'jsonl', 'stdout' or 'wandb'"),
        (Plugin("jsonl", {"path": "x"}), r"path: unknown key"),
        (Plugin("wandb", {"mode": "later"}), r"mode: 'later'; expected '', 'offline' or 'online'"),
        (Plugin("wandb", {"api_key": "x"}), r"api_key: unknown key"),
    ],
)
def test_a_sink_that_is_none_is_refused(plugin: Plugin, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SINKS.build(plugin)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"workers": -1}, "0 or more"), ({"every_s": 0.0}, "more than 0"), ({"window": 0}, "1 to 1,000,000")],
)
def test_settings_that_make_no_charts_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"tracker\.{next(iter(settings))}: .*expected {message}"):
        convert({"tracker": settings}, LeagueConfig, "")


def test_sinks_are_found_by_name() -> None:
    assert SINKS.names() == ["jsonl", "stdout", "wandb"]
