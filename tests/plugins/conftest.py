"""A real package with one plugin of every kind, built and installed by pip into a folder."""

import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "package"


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """The folder that the package is installed in; it must be on the path to be found."""
    copy = tmp_path_factory.mktemp("source") / "package"
    # setuptools writes next to what it builds.
    subprocess.run(["cp", "-r", str(SOURCE), str(copy)], check=True)
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    flags = ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(folder)]
    done = subprocess.run([*pip, *flags, str(copy)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder
