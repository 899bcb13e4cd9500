"""What a machine needs to join a league: who its workers are, how many it carries, where its files lie."""

from pathlib import Path

import pytest

from league.auth.authority import Authority
from lifecycle.connect_machine import ModelFootprint, default_folder, make_specs, worker_capacity
from schemas.errors import AccessError, UsageError
from ui.cli.machines import parse_worker_count
from workers.process import lock_folder, read_credentials, read_machine_token

GB = 1_000_000_000


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Gives credentials to eleven rollout workers, a rater and an operator."""
    authority = Authority.create(tmp_path_factory.mktemp("auth") / "auth")
    for number in range(1, 12):
        authority.add("rollout", [f"rollout-{number}"], days=1)
    authority.add("rater", ["rater-1"], days=1)
    authority.add("operator", ["boss"], days=1)
    return authority


def folder_of(authority: Authority, folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / f"{name}.creds").write_bytes(authority.credentials_path(name).read_bytes())
    return folder


def test_a_file_is_one_worker_and_a_folder_one_for_each_file_in_the_order_of_their_numbers(
    authority: Authority, tmp_path: Path
) -> None:
    assert list(read_credentials(authority.credentials_path("rollout-7"), "rollout")) == ["rollout-7"]
    many = folder_of(authority, tmp_path / "many", *(f"rollout-{number}" for number in (10, 2, 1)))
    (many / "readme.txt").write_text("not credentials")
    assert list(read_credentials(many, "rollout")) == ["rollout-1", "rollout-2", "rollout-10"]
    assert read_credentials(many, "rollout")["rollout-2"] == many / "rollout-2.creds"


def test_credentials_of_another_role_are_refused_before_anybody_is_started(authority: Authority) -> None:
    with pytest.raises(UsageError, match=r"rater-1\.creds: for a worker 'rater'; expected .*'rollout'"):
        read_credentials(authority.credentials_path("rater-1"), "rollout")
    assert list(read_credentials(authority.credentials_path("boss"), "rollout")) == ["boss"]


def test_what_is_no_credentials_says_so(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="found none"):
        read_credentials(tmp_path, "rollout")
    with pytest.raises(UsageError, match="found none"):
        read_credentials(tmp_path / "nowhere", "rollout")
    (tmp_path / "bad.creds").write_text("nothing")
    with pytest.raises(AccessError, match="no credentials"):
        read_credentials(tmp_path, "rollout")
    twice = folder_of(authority, tmp_path / "twice", "rollout-1")
    (twice / "again.creds").write_bytes(authority.credentials_path("rollout-1").read_bytes())
    with pytest.raises(UsageError, match="are both for 'rollout-1'"):
        read_credentials(twice, "rollout")


def test_every_worker_has_credentials_of_its_own_as_long_as_there_are_some(tmp_path: Path) -> None:
    creds = {"a": tmp_path / "a", "b": tmp_path / "b"}
    specs = make_specs("rollout", None, creds, "x", 2)
    assert [(spec.name, spec.creds) for spec in specs] == list(creds.items())


def test_made_up_names_differ_by_machine_and_stay_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    here, there = read_machine_token(tmp_path / "a"), read_machine_token(tmp_path / "b")
    assert here == read_machine_token(tmp_path / "a") != there
    names = [spec.name for spec in make_specs("rollout", "exploiter", None, here, 2)]
    assert names == [f"rollout-exploiter-{here}-1", f"rollout-exploiter-{here}-2"]


def test_one_folder_has_one_machine_s_workers_of_a_role(tmp_path: Path) -> None:
    here = tmp_path / "cache"
    with lock_folder(here, "rollout"):
        with pytest.raises(UsageError, match="have joined from here already"), lock_folder(here, "rollout"):
            pass
        with lock_folder(here, "evaluator"):
            pass
    with lock_folder(here, "rollout"):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="Not a directory"), lock_folder(tmp_path / "file" / "cache", "rollout"):
        pass


def test_a_machine_carries_as_many_as_its_cores_or_its_memory_hold() -> None:
    small = ModelFootprint(300_000_000, gpus=0)
    assert worker_capacity("rollout", small, cores=8, free_bytes=64 * GB) == 8
    assert worker_capacity("rollout", small, cores=64, free_bytes=9 * GB) == 20
    assert worker_capacity("evaluator", small, cores=64, free_bytes=0) == 1
    assert worker_capacity("rollout", ModelFootprint(3 * GB, gpus=4), cores=64, free_bytes=512 * GB) == 4
    assert worker_capacity("rollout", None, cores=16, free_bytes=GB) == 16
    assert worker_capacity("inference", ModelFootprint(3 * GB, gpus=4), cores=64, free_bytes=512 * GB) == 4
    for role in ("trainer", "rater", "archivist", "tracker"):
        assert worker_capacity(role, None, cores=64, free_bytes=512 * GB) == 1


def test_numbers_of_workers() -> None:
    assert parse_worker_count("auto") is None
    assert parse_worker_count("3") == 3
    for text in ("0", "-1", "2..16", "many", "", "1.5", "٣", "9" * 30):
        with pytest.raises(UsageError, match=r"--workers .*: expected a number from 1 to 999,999, or auto"):
            parse_worker_count(text)


def test_files_lie_in_the_user_s_cache_by_league(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder("nim") == tmp_path / "event-sourced-league" / "nim"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder("nim") == tmp_path / ".cache" / "event-sourced-league" / "nim"
