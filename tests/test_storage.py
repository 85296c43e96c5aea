"""What is replaced, kept and never touched when files and directories are written."""

import contextlib
import errno
import fcntl
import os
import stat

import pytest
from faults.injection import kill_at, recorded, without_exchange

from mtdinterp.storage import (
    AlreadyThere,
    UnwritableFile,
    directories,
    publish,
    read_version,
    settled,
    staged,
    write_file,
    write_new_file,
)


def replace(target, content):
    """Replace a directory by one with a single file."""
    with staged(target) as staging:
        write_file(staging / "file", content)
        publish(staging, target)


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("name", [".model.replaced", ".model.0123456789abcdef", ".mtdinterp-model"])
def test_hidden_directories_of_other_programs_are_never_touched(name, tmp_path):
    foreign = tmp_path / name
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("all of it")
    assert not settled(tmp_path / "model")
    with without_exchange():
        replace(tmp_path / "model", b"first")
        replace(tmp_path / "model", b"second")
    assert (foreign / "thesis.tex").read_text() == "all of it"
    assert names_in(tmp_path) == sorted([name, "model"])


@pytest.mark.parametrize("name", ["模" * 85, "a" * 255, "m" * 200 + "1"])
def test_any_name_that_the_system_allows_can_be_replaced(name, tmp_path):
    with without_exchange():
        replace(tmp_path / name, b"first")
        replace(tmp_path / name, b"second")
    assert (tmp_path / name / "file").read_bytes() == b"second"
    assert names_in(tmp_path) == [name]


def test_similar_long_names_are_kept_apart(tmp_path):
    first, second = (tmp_path / ("m" * 210 + end) for end in "12")
    replace(first, b"first")
    os.rename(first, directories._aside(first))  # a kill between the two renames
    assert not settled(second)
    assert settled(first)


def test_a_reader_through_a_link_finds_what_an_interrupted_replacement_left(tmp_path):
    target = tmp_path / "real" / "model"
    replace(target, b"old")
    (tmp_path / "link").symlink_to(target)
    os.rename(target, directories._aside(target))  # a kill between the two renames
    content = read_version(
        tmp_path / "link", lambda handle: os.read(os.open("file", os.O_RDONLY, dir_fd=handle), 9)
    )
    assert content == b"old"


def test_a_replaced_file_keeps_its_permissions(tmp_path):
    path = tmp_path / "report.html"
    write_file(path, b"old")
    path.chmod(0o600)
    write_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_that_leads_nowhere_is_replaced(tmp_path):
    path = tmp_path / "report.html"
    path.symlink_to(path)
    write_file(path, b"new")
    assert path.read_bytes() == b"new"


def without_locks(monkeypatch):
    """A file system like NFS, which cannot lock directories."""

    def refuse(handle, how):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_without_locks_directories_and_files_are_replaced_all_the_same(tmp_path, monkeypatch):
    without_locks(monkeypatch)
    with without_exchange():
        replace(tmp_path / "model", b"first")
        replace(tmp_path / "model", b"second")
    write_file(tmp_path / "model" / "file", b"third")
    assert (tmp_path / "model" / "file").read_bytes() == b"third"
    assert names_in(tmp_path) == ["model"]


def test_without_locks_nothing_that_may_be_in_use_is_removed(tmp_path, monkeypatch):
    without_locks(monkeypatch)
    unfinished = tmp_path / ".writing-0123456789abcdef"
    unfinished.write_bytes(b"of another process")
    with staged(tmp_path / "model") as staging:
        replace(tmp_path / "model", b"first")
        assert staging.is_dir()
    write_file(tmp_path / "file", b"new")
    assert unfinished.exists()


def test_without_locks_an_interrupted_replacement_is_undone_after_a_minute(tmp_path, monkeypatch):
    without_locks(monkeypatch)
    target = tmp_path / "model"
    replace(target, b"old")
    os.rename(target, directories._aside(target))  # a kill between the two renames
    monkeypatch.setattr(directories, "PATIENCE", 0.05)
    assert not settled(target), "its process may still live"
    monkeypatch.setattr(directories, "LONGEST_REPLACEMENT", -1.0)
    assert settled(target)
    assert (target / "file").read_bytes() == b"old"


def test_any_other_failure_to_lock_is_an_error(tmp_path, monkeypatch):
    def fail(handle, how):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(UnwritableFile, match="Input/output error"):
        write_file(tmp_path / "file", b"new")


def test_of_several_writers_of_a_new_file_the_first_wins(tmp_path):
    path = tmp_path / "done.json"
    write_new_file(path, b"first")
    with pytest.raises(AlreadyThere, match="another process has written this file first"):
        write_new_file(path, b"second")
    assert path.read_bytes() == b"first"
    assert names_in(tmp_path) == ["done.json"]


def test_a_new_file_is_synced_before_it_has_its_name(tmp_path):
    calls = recorded(lambda: write_new_file(tmp_path / "done.json", b"all of it"))
    names = [call.name for call in calls]
    assert names == ["create_file", "write", "sync_file", "link", "unlink", "sync_directory"]


@pytest.mark.parametrize("place", range(6))
def test_a_new_file_is_whole_or_missing_whatever_happens(place, tmp_path):
    path = tmp_path / "done.json"

    def action():
        write_new_file(path, b"all of it")

    assert kill_at(place, action)
    assert not path.exists() or path.read_bytes() == b"all of it"
    with contextlib.suppress(AlreadyThere):
        action()
    assert path.read_bytes() == b"all of it"
    assert names_in(tmp_path) == ["done.json"]
