"""A cache and a compiler of their own for the tests of the kernels' build."""

import pytest
from native.stubs import StubCompiler, forget, tiny_library


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A cache of its own, and a library that is not loaded yet."""
    monkeypatch.setenv("MTDINTERP_CACHE", str(tmp_path / "cache"))
    forget()
    yield tmp_path / "cache"
    forget()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A tiny library, compiled once."""
    return tiny_library(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def stub(fresh, tiny, monkeypatch, tmp_path):
    """A stub instead of the compiler."""
    compiler = StubCompiler(tmp_path, tmp_path / "tiny.so")
    compiler.library.write_bytes(tiny.read_bytes())
    compiler.write()
    monkeypatch.setenv("CXX", str(tmp_path / "stub"))
    monkeypatch.delenv("MTDINTERP_CXXFLAGS", raising=False)
    return compiler
