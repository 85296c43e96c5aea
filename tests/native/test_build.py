"""Compiling the kernels: once, privately, and without drama where it cannot be done."""

import errno
import logging
import os

import pytest
from native.stubs import forget, names, write_program

from mtdinterp.native import BuildError, build, cache, compiling, library_files, use_kernels
from mtdinterp.native.compiling import Compiler


def test_without_a_compiler_it_says_so_once_and_goes_on(fresh, monkeypatch, caplog):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with caplog.at_level(logging.WARNING, logger="mtdinterp"):
        assert not use_kernels()
        assert not use_kernels()
    assert [record.message for record in caplog.records] == [
        "mtdinterp: compiled kernels are not available, using the slower ones "
        "(no C++ compiler found; install one or set CXX)"
    ]


def test_a_failing_compiler_is_no_disaster_unless_the_kernels_are_insisted_on(
    fresh, monkeypatch, caplog
):
    monkeypatch.setenv("CXX", "false")
    assert not use_kernels()
    assert "false failed" in caplog.text
    monkeypatch.setenv("MTDINTERP_KERNEL", "fused")
    with pytest.raises(
        BuildError, match="MTDINTERP_KERNEL=fused, but the compiled kernels are not available"
    ):
        use_kernels()
    assert list(fresh.glob("*.so")) == []


def test_the_choice_of_kernel_is_checked(monkeypatch):
    monkeypatch.setenv("MTDINTERP_KERNEL", "fussed")
    with pytest.raises(
        ValueError,
        match="MTDINTERP_KERNEL: expected one of auto, eager, fused; got 'fussed'; did you",
    ):
        use_kernels()
    monkeypatch.setenv("MTDINTERP_KERNEL", "eager")
    assert not use_kernels()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_cache_that_others_can_write_is_not_used(fresh, mode, caplog):
    fresh.mkdir()
    fresh.chmod(mode)
    private = cache.cache_directory()
    assert private != fresh
    assert private.stat().st_mode & 0o077 == 0
    assert "can be written by others" in caplog.text


def only_readable(path, mode):
    """`os.access` on a file system that is mounted read-only."""
    return not mode & os.W_OK


def test_a_read_only_cache_without_the_library_is_stepped_around(fresh, stub, monkeypatch, caplog):
    fresh.mkdir(mode=0o700)
    monkeypatch.setattr(build.os, "access", only_readable)
    assert use_kernels()
    assert "is read-only" in caplog.text
    assert list(fresh.iterdir()) == []


def test_a_read_only_cache_with_the_library_is_used(fresh, stub, monkeypatch, caplog):
    assert use_kernels()
    forget()
    monkeypatch.setattr(build.os, "access", only_readable)
    assert use_kernels()
    assert stub.builds == 1
    assert caplog.text == ""


def test_without_a_home_kernels_are_compiled_for_the_process(fresh, stub, monkeypatch, caplog):
    def nobody_knows(number):
        raise KeyError(number)

    for name in ("HOME", "XDG_CACHE_HOME", "MTDINTERP_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody_knows)
    assert use_kernels()
    assert caplog.messages == [
        "mtdinterp: kernels are compiled for this process only "
        "(there is no home directory; set MTDINTERP_CACHE)"
    ]


def test_a_cache_that_cannot_be_made_is_stepped_around(fresh, monkeypatch, caplog, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MTDINTERP_CACHE", str(tmp_path / "file" / "cache"))
    assert cache.cache_directory().is_dir()
    assert "cannot be created" in caplog.text


def unavailable(caplog):
    """Why the kernels are not available, as the one warning says."""
    assert build.load_library() is None
    (message,) = caplog.messages
    start = "mtdinterp: compiled kernels are not available, using the slower ones ("
    assert message.startswith(start)
    return message.removeprefix(start).removesuffix(")")


@pytest.mark.parametrize("variable", ["CXX", "MTDINTERP_CXXFLAGS"])
def test_unbalanced_quotes_are_named(variable, fresh, monkeypatch, caplog):
    monkeypatch.setenv(variable, "'c++")
    expected = f"""{variable}: expected shell words, got "'c++" (no closing quotation)"""
    assert unavailable(caplog) == expected


def test_a_compiler_that_does_not_tell_its_version_is_not_waited_for(
    fresh, stub, monkeypatch, caplog
):
    monkeypatch.setattr(compiling, "QUESTION_SECONDS", 0.2)
    program = stub.directory / "stub"
    write_program(program, "#!/bin/sh\nsleep 60\n")
    assert unavailable(caplog) == f"{program} did not finish within 0.2 s"


def test_a_compiler_that_cannot_be_executed_is_named(fresh, stub, caplog):
    program = stub.directory / "stub"
    write_program(program, "#!/no/such/interpreter\n")
    assert unavailable(caplog) == f"{program} did not run: No such file or directory"


def test_a_version_in_any_encoding_is_a_version(fresh, stub):
    program = stub.directory / "stub"
    script = program.read_text().replace("echo stub", r"printf '\377\376'")
    write_program(program, script)
    assert use_kernels()


def test_a_full_disk_is_one_sentence(fresh, stub, monkeypatch, caplog):
    stub.before_link("echo 'ld: final link failed: No space left on device' >&2; exit 1")
    sentence = f"no space left in {fresh}; free some, or set MTDINTERP_CACHE elsewhere"
    assert unavailable(caplog) == sentence
    assert stub.builds == 1

    def sync(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(library_files.os, "fsync", sync)
    stub.before_link("")
    caplog.clear()
    forget()
    assert unavailable(caplog) == sentence
    assert names(fresh) == []


def test_a_place_that_cannot_be_written_is_one_sentence(fresh, stub, caplog):
    key = compiling.library_key(compiling.find_compiler())
    taken = fresh / f"kernels-{key}.so"
    taken.mkdir(parents=True)
    fresh.chmod(0o700)
    assert unavailable(caplog) == f"{taken} cannot be written: Is a directory"


def test_the_key_depends_on_sources_compiler_and_flags(monkeypatch):
    plain = compiling.library_key(Compiler(("c++",), ()))
    assert compiling.library_key(Compiler(("c++",), ())) == plain
    assert compiling.library_key(Compiler(("c++",), ("-g",))) != plain
    monkeypatch.setattr(compiling, "processor", lambda: "another")
    assert compiling.library_key(Compiler(("c++",), ())) != plain


def test_the_key_tells_apple_chips_apart(monkeypatch, tmp_path):
    """They share a machine name, and there is no /proc/cpuinfo."""
    monkeypatch.setattr(compiling, "PROCESSOR_FILE", tmp_path / "nowhere")
    monkeypatch.setattr(compiling, "QUESTION_SECONDS", 0.5)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    sysctl = tmp_path / "sysctl"
    keys = []
    for answer in (
        "echo machdep.cpu.brand_string: Apple M1",
        "echo machdep.cpu.brand_string: Apple M4",
        "echo machdep.cpu.brand_string: Apple M4; echo hw.optional.arm.FEAT_SME: 1",
        "exec sleep 60",
    ):
        write_program(sysctl, f"#!/bin/sh\n{answer}\n")
        keys.append(compiling.library_key(Compiler(("c++",), ())))
    assert len(set(keys)) == 4
