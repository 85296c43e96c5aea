"""Compiling the kernels: once, privately, and without drama where it cannot be done."""

import logging
import os
import subprocess
import sys

import pytest

from mtdinterp.native import BuildError, build, use_kernels


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A cache of its own, and a library that is not loaded yet."""
    monkeypatch.setenv("MTDINTERP_CACHE", str(tmp_path / "cache"))
    build.load_library.cache_clear()
    build._private_directory.cache_clear()
    yield tmp_path / "cache"
    build.load_library.cache_clear()
    build._private_directory.cache_clear()


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
    private = build.cache_directory()
    assert private != fresh
    assert private.stat().st_mode & 0o077 == 0
    assert "can be written by others" in caplog.text


def test_a_read_only_cache_without_the_library_is_stepped_around(fresh, monkeypatch, caplog):
    fresh.mkdir()
    monkeypatch.setattr(build.os, "access", lambda path, mode: False)
    assert build.cache_directory() != fresh
    assert "is read-only" in caplog.text


def test_a_cache_that_cannot_be_made_is_stepped_around(fresh, monkeypatch, caplog, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MTDINTERP_CACHE", str(tmp_path / "file" / "cache"))
    assert build.cache_directory().is_dir()
    assert "cannot be created" in caplog.text


def test_the_key_depends_on_sources_compiler_and_flags(monkeypatch):
    plain = build._key(("c++",), ())
    assert build._key(("c++",), ()) == plain
    assert build._key(("c++",), ("-g",)) != plain
    monkeypatch.setattr(build, "_processor", lambda: "another")
    assert build._key(("c++",), ()) != plain


@pytest.mark.slow
def test_two_processes_build_once_and_both_get_it(fresh):
    code = "from mtdinterp.native.build import library_path; print(library_path())"
    command = [sys.executable, "-c", code]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    results = [process.communicate() for process in processes]
    assert len({out for out, _ in results}) == 1
    assert sum("compiling kernels" in err for _, err in results) == 1
    assert len(list(fresh.glob("*.so"))) == 1
    assert list(fresh.glob("build-*")) == []


@pytest.mark.slow
@pytest.mark.promise
def test_the_kernels_are_clean_under_the_sanitizers(tmp_path):
    """The same tests with AddressSanitizer and UndefinedBehaviorSanitizer compiled in."""
    # The C++ runtime comes along, or the sanitizer does not find the exceptions that torch throws.
    runtimes = [
        subprocess.run(
            [*build.find_compiler(), f"-print-file-name={name}"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    environment = {
        **os.environ,
        "MTDINTERP_CACHE": str(tmp_path),
        "MTDINTERP_CXXFLAGS": "-g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all",
        "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    tests = [
        "tests/native/test_fused_attention.py",
        "tests/native/test_fused_step.py",
        "tests/tasks/test_mtd_task.py",
        "tests/estimators/test_bayes.py::test_both_implementations_of_the_likelihood_agree",
    ]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
