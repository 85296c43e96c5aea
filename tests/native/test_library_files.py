"""Cached libraries: whatever happens to one, only what was compiled is loaded."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from native.stubs import forget, names

from mtdinterp.native import build, cache, library_files
from mtdinterp.native.failures import LoadFailed, UnusableLibrary


def loaded_answer():
    """What the tiny library answers, in a process that has not loaded it yet."""
    forget()
    library = build.load_library()
    assert library is not None
    return library.answer()


def cached(directory):
    """The library in the cache."""
    (path,) = directory.glob("kernels-*.so")
    return path


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def empty(path):
    os.truncate(path, 0)


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def lengthen(path):
    with path.open("ab") as file:
        file.write(b"\0")


def replace_by_a_link(path):
    elsewhere = path.parent.parent / "elsewhere.so"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def replace_by_a_pipe(path):
    path.unlink()
    os.mkfifo(path)


def let_the_group_write(path):
    path.chmod(0o720)


def remove(path):
    path.unlink()


def of_record(change):
    """The same change to the record."""

    def change_record(path):
        change(library_files.record_path(path))

    return change_record


def use_the_record_of_another_library(path):
    library_files.record_path(path).write_text(f"sha256 {'0' * 64} size {path.stat().st_size}\n")


def claim_a_huge_size(path):
    record = library_files.record_path(path)
    digest = record.read_text().split()[1]
    record.write_text(f"sha256 {digest} size 999999999999\n")


DAMAGE = {
    "truncated": (truncate, "bytes instead of"),
    "empty": (empty, "has 0 bytes instead of"),
    "bit flipped": (flip_a_bit, "does not match its SHA-256"),
    "lengthened": (lengthen, "bytes instead of"),
    "link": (replace_by_a_link, "is a link"),
    "pipe": (replace_by_a_pipe, "is not a regular file"),
    "group-writable": (let_the_group_write, "can be written by others"),
    "no record": (of_record(remove), "cannot be read: No such file"),
    "empty record": (of_record(empty), "is not the record of a library"),
    "record is a link": (of_record(replace_by_a_link), "is a link"),
    "record is a pipe": (of_record(replace_by_a_pipe), "is not a regular file"),
    "group-writable record": (of_record(let_the_group_write), "can be written by others"),
    "foreign record": (use_the_record_of_another_library, "does not match its SHA-256"),
    "huge size": (claim_a_huge_size, "is not the record of a library"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_library_is_compiled_again_and_never_loaded(name, fresh, stub, capfd):
    damage, reason = DAMAGE[name]
    assert loaded_answer() == 42
    capfd.readouterr()
    damage(cached(fresh))
    assert loaded_answer() == 42
    assert stub.builds == 2
    message = capfd.readouterr().err
    assert message.startswith("mtdinterp: compiling kernels for this machine (again: kernels-")
    assert reason in message
    assert len(names(fresh)) == 2
    assert loaded_answer() == 42
    assert stub.builds == 2


def test_a_library_of_another_user_is_not_loaded(fresh, stub, monkeypatch):
    assert loaded_answer() == 42
    stranger = os.getuid() + 1
    monkeypatch.setattr(library_files.os, "getuid", lambda: stranger)
    with pytest.raises(UnusableLibrary, match="belongs to another user"):
        library_files.verified_library(cached(fresh))


def test_an_intact_library_is_loaded_without_a_word(fresh, stub, capfd):
    assert loaded_answer() == 42
    assert "(once)" in capfd.readouterr().err
    assert loaded_answer() == 42
    assert stub.builds == 1
    assert capfd.readouterr().err == ""


def test_what_is_loaded_is_what_was_verified(fresh, stub, tmp_path):
    build.load_library()
    library = library_files.verified_library(cached(fresh))
    impostor = tmp_path / "impostor"
    impostor.write_bytes(b"not a library")
    os.replace(impostor, cached(fresh))
    assert library.load().answer() == 42


def test_without_descriptors_as_files_a_replaced_library_is_found_out(
    fresh, stub, tmp_path, monkeypatch
):
    monkeypatch.setattr(library_files, "DESCRIPTORS", tmp_path / "nowhere")
    assert loaded_answer() == 42
    library = library_files.verified_library(cached(fresh))
    impostor = tmp_path / "impostor"
    impostor.write_bytes(stub.library.read_bytes())
    os.replace(impostor, cached(fresh))
    with pytest.raises(LoadFailed, match="was replaced while it was loaded"):
        library.load()


def test_a_library_that_does_not_load_is_compiled_again_once(fresh, stub, capfd, caplog):
    good = stub.library.read_bytes()
    stub.library.write_bytes(b"not a library")
    build.load_library()
    assert stub.builds == 1
    assert "does not load: " in caplog.text
    stub.library.write_bytes(good)
    assert loaded_answer() == 42
    assert stub.builds == 2
    assert "again: " in capfd.readouterr().err


def test_where_no_library_loads_commands_stop_compiling(fresh, stub):
    stub.library.write_bytes(b"not a library")
    for _ in range(4):
        forget()
        assert build.load_library() is None
    assert stub.builds == 2


def test_files_are_on_disk_before_their_names_and_the_directory_after(fresh, stub, monkeypatch):
    calls = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(descriptor):
        calls.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        real_sync(descriptor)

    def replace(source, target):
        calls.append(("rename", Path(source).name))
        real_replace(source, target)

    monkeypatch.setattr(library_files.os, "fsync", sync)
    monkeypatch.setattr(library_files.os, "replace", replace)
    assert loaded_answer() == 42
    assert calls == [
        ("sync", "kernels.so"),
        ("sync", "record"),
        ("rename", "kernels.so"),
        ("rename", "record"),
        ("sync", fresh.name),
    ]


def test_the_users_umask_does_not_matter(fresh, stub):
    before = os.umask(0o000)
    try:
        assert loaded_answer() == 42
        assert loaded_answer() == 42
    finally:
        os.umask(before)
    assert stub.builds == 1


def start_loading(prelude="", **options):
    """Another process that loads the library."""
    code = f"{prelude}\nfrom mtdinterp.native.build import _load\nprint(_load().answer())"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


KILL_AT_RENAME = """
import os, signal
real, left = os.replace, {which}
def replace(source, target):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    real(source, target)
os.replace = replace
"""


@pytest.mark.parametrize("moment", ["link", "first rename", "second rename"])
def test_a_killed_build_leaves_nothing_that_the_next_one_does_not_mend(moment, fresh, stub):
    prelude = ""
    if moment == "link":
        stub.before_link("kill -9 $PPID")
    else:
        prelude = KILL_AT_RENAME.format(which=["first rename", "second rename"].index(moment))
    process = start_loading(prelude)
    process.communicate()
    assert process.returncode == -9
    assert len(list(fresh.glob("build-*"))) == 1
    stub.before_link("")
    assert loaded_answer() == 42
    assert len(names(fresh)) == 2


def test_two_processes_at_once_compile_once_and_both_load(fresh, stub):
    stub.before_link("sleep 1")
    processes = [start_loading() for _ in range(2)]
    results = [process.communicate() for process in processes]
    assert [out for out, _ in results] == ["42\n", "42\n"]
    assert stub.builds == 1
    assert sum("compiling kernels" in err for _, err in results) == 1
    assert len(names(fresh)) == 2


def test_old_leftovers_go_and_what_may_be_in_use_stays(fresh, stub, tmp_path):
    old, young = fresh / "build-old", fresh / "build-kernels-other-young"
    elsewhere = tmp_path / "elsewhere"
    for directory in (old, young, elsewhere):
        directory.mkdir(parents=True)
        (directory / "file").write_text("")
    link = fresh / "build-link"
    link.symlink_to(elsewhere)
    long_ago = time.time() - 2 * cache.ABANDONED_SECONDS
    os.utime(old, (long_ago, long_ago))
    os.utime(link, (long_ago, long_ago), follow_symlinks=False)
    fresh.chmod(0o700)
    assert loaded_answer() == 42
    assert not old.exists()
    assert young.exists()
    assert (elsewhere / "file").exists()
