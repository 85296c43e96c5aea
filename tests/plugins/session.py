"""What a user of an installed plugin does, in one process; prints what happened as JSON.

Run as `python session.py DIR` with the plugin's folder on the path.
"""

import contextlib
import io
import json
import sys
from pathlib import Path

from mtdinterp.cli import main

PORT = 8765


def command(*words: str) -> dict:
    """Run the command line; its exit code and both streams."""
    printed, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        code = main(words)
    return {"code": code, "out": printed.getvalue(), "err": said.getvalue()}


def train(folder: Path) -> dict:
    sizes = ["--vocab-size", "3", "--order", "2", "--length", "12"]
    steps = ["--steps", "30", "--evaluate-every", "30", "--json"]
    model = ["--architecture", "narrow", "--layers", "2", "--setting", "d_head=6"]
    words = ["train", "--task", "powers", *sizes, *model, *steps]
    return command(*words, "--out", str(folder / "run"))


def page(folder: Path) -> dict:
    """The workbench on that run: its list of probes, a probe's answer, its estimators."""
    from starlette.testclient import TestClient

    from mtdinterp.app.models import Registry
    from mtdinterp.app.server import create_app

    registry = Registry([folder / "run"])
    address = f"http://127.0.0.1:{PORT}"
    with TestClient(create_app(registry, PORT), base_url=address) as client:
        model = {"name": registry.first}
        request = {"model": model, "name": "peak_offset"}
        state = client.post("/api/fresh", json={"model": model}).json()
        return {
            "probes": client.get("/api/about").json()["probes"],
            "answer": client.post("/api/probe", json=request).json(),
            "estimators": client.post("/api/estimators", json=state).json(),
        }


def figure() -> list[str]:
    """The methods of the figure that iterates estimators."""
    from mtdinterp.reproduce.estimators import estimators
    from mtdinterp.reproduce.figure import Context
    from mtdinterp.reproduce.models import ZooModels

    found = estimators(Context(ZooModels(), n_sequences=32), lengths=(12,))
    return [row["method"] for row in found.table]


if __name__ == "__main__":
    out = Path(sys.argv[1])
    happened = {"train": train(out)}
    happened["probe"] = command("probe", str(out / "run"), "--sequences", "32", "--json")
    happened["report"] = command("report", str(out / "run"), "-o", str(out / "report.html"))
    happened["workbench"] = page(out)
    happened["figure"] = figure()
    print(json.dumps(happened))
