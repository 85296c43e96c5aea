"""One registry with a local checkpoint, a client without a network, and states to start from."""

import pytest
from starlette.testclient import TestClient

from mtdinterp import load_checkpoint, save_checkpoint
from mtdinterp.app.models import Registry
from mtdinterp.app.server import create_app
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.tasks import MTDTask

PORT = 8765


@pytest.fixture(scope="session")
def local_checkpoint(tmp_path_factory):
    """A small untrained model of its own task, with two heads: nothing about it is in the zoo."""
    path = tmp_path_factory.mktemp("given") / "two-heads"
    task = MTDTask.random(vocab_size=3, order=2, seed=5)
    model = DisentangledTransformer(
        DisentangledConfig(vocab_size=3, length=12, n_layers=3, n_heads=2, d_rel=2)
    )
    save_checkpoint(path, model, task)
    return path


@pytest.fixture(scope="session")
def registry(local_checkpoint):
    return Registry([local_checkpoint])


@pytest.fixture(scope="session")
def client(registry):
    with TestClient(create_app(registry, PORT), base_url=f"http://127.0.0.1:{PORT}") as client:
        yield client


@pytest.fixture
def fresh(client):
    """A state to begin with for a model."""

    def begin(name="disentangled-m4-T64", **model):
        answer = client.post("/api/fresh", json={"model": {"name": name, **model}})
        assert answer.status_code == 200, answer.text
        return answer.json()

    return begin


@pytest.fixture
def view(client):
    def look(state):
        answer = client.post("/api/view", json=state)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return look


@pytest.fixture(scope="session")
def checkpoint():
    return load_checkpoint("disentangled-m4-T64")
