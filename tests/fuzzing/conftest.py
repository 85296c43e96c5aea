"""One server for all tests of this folder."""

import pytest

from fuzzing.worker import Worker


@pytest.fixture(scope="session")
def worker(tmp_path_factory):
    with Worker(tmp_path_factory.mktemp("fuzzing")) as started:
        yield started
