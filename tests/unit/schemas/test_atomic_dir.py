"""Folders that take their place whole."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.files import LockedError, atomic_folder, hold_lock, move_durably, remove_abandoned_drafts


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    made = tmp_path / "draft"
    (made / "inner").mkdir(parents=True)
    (made / "config.json").write_text("{}")
    (made / "inner" / "weights").write_bytes(b"weights")
    return made


def test_all_that_is_in_a_folder_is_on_the_disk_before_the_folder_is_in_its_place(
    draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, synced, sync = tmp_path / "place", dict[str, bool](), os.fsync

    def noted(file: int) -> None:
        synced[os.readlink(f"/proc/self/fd/{file}")] = place.exists()
        sync(file)

    monkeypatch.setattr(os, "fsync", noted)
    files = [draft / "config.json", draft / "inner", draft / "inner" / "weights", draft]
    move_durably(draft, place)
    assert (place / "inner" / "weights").read_bytes() == b"weights"
    assert synced == {**{str(file): False for file in files}, str(tmp_path): True}


def test_a_place_that_is_taken_stays_as_it_is(draft: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "theirs").write_text("theirs")
    with pytest.raises(OSError, match="not empty"):
        move_durably(draft, place)
    assert [path.name for path in place.iterdir()] == ["theirs"]


def test_a_draft_that_another_process_removed_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = tempfile.mkdtemp, list[str]()

    def removed_at_first(**where: Any) -> str:
        made.append(make(**where))
        if len(made) == 1:
            os.rmdir(made[0])
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", removed_at_first)
    with atomic_folder(tmp_path / "place") as draft:
        assert [str(draft)] == made[1:]
    assert (tmp_path / "place").is_dir()


HOLDER = """
import sys, time
from pathlib import Path
from schemas.files import atomic_folder, hold_lock
target = Path(sys.argv[1])
with hold_lock(target.with_suffix(".lock")), atomic_folder(target) as draft:
    (draft / "half").write_text("a part of it")
    print(draft, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that is in the middle of writing the folder ``made``."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "made")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "made") as draft:
        (draft / "file").write_text("text")
        assert not (tmp_path / "made").exists()
    with pytest.raises(ZeroDivisionError), atomic_folder(tmp_path / "other"):
        raise ZeroDivisionError
    with pytest.raises(OSError, match="not empty"), atomic_folder(tmp_path / "made"):
        pass
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == ["made", "made/file"]


def test_the_draft_of_a_killed_process_is_removed_and_that_of_a_live_one_is_not(
    tmp_path: Path, holder: "subprocess.Popen[str]"
) -> None:
    assert holder.stdout is not None
    theirs = Path(holder.stdout.readline().strip())
    similar = tmp_path / ".made.draft-of-a-person"
    similar.mkdir()
    with atomic_folder(tmp_path / "other"):
        pass
    assert (theirs / "half").exists()
    holder.kill()
    holder.wait()
    with atomic_folder(tmp_path / "another"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [similar.name, "another", "made.lock", "other"]
    remove_abandoned_drafts(tmp_path / "nowhere")


def test_a_lock_names_its_holder_and_ends_with_it(tmp_path: Path, holder: "subprocess.Popen[str]") -> None:
    assert holder.stdout is not None
    holder.stdout.readline()
    with pytest.raises(LockedError, match=rf"process {holder.pid} on .+, since 20"), hold_lock(tmp_path / "made.lock"):
        pass
    holder.kill()
    holder.wait()
    with hold_lock(tmp_path / "made.lock"):
        assert str(os.getpid()) in (tmp_path / "made.lock").read_text()
