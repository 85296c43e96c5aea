"""What is replaced, kept and never touched when files and directories are written."""

import os
import stat

import pytest
from faults.injection import without_exchange

from mtdinterp.storage import (
    directories,
    publish,
    read_version,
    settled,
    staged,
    write_file,
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
