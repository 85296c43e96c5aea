"""`mtdinterp app` itself."""

import signal
import socket
import subprocess
import sys
import time

import httpx

from mtdinterp.bench import workbench
from mtdinterp.cli import main
from mtdinterp.commands import app


def test_it_serves_the_given_checkpoint_until_it_is_ended(local_checkpoint):
    command = [
        sys.executable,
        "-m",
        "mtdinterp",
        "app",
        str(local_checkpoint),
        "--port",
        "0",
        "--no-browser",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            line = process.stdout.readline()
            address = line.split()[1]
            assert address.startswith("http://127.0.0.1:")
            assert httpx.get(address).text.startswith("<!doctype html>")
            about = httpx.get(address + "api/about").json()
            assert about["first"] == "two-heads"
            assert httpx.get(address + "plotly.js").text.startswith("/**\n* plotly.js v")
            assert httpx.get(address, headers={"host": "evil.example"}).status_code == 403
        finally:
            process.terminate()


def test_a_missing_extra_is_said_with_how_to_install_it(monkeypatch, capsys):
    monkeypatch.setattr(app, "find_spec", lambda name: None if name == "plotly" else object())
    assert main(["app", "--no-browser"]) == 2
    assert capsys.readouterr().err == (
        "mtdinterp app: the workbench needs plotly; in a clone of "
        "the repository, run pip install -c constraints.txt -e '.[app]'\n"
    )


def test_a_port_that_is_taken_is_said(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["app", "--no-browser", "--port", str(taken.getsockname()[1])]) == 2
    assert "is in use or not allowed; choose another" in capsys.readouterr().err


def test_a_bench_without_a_browser_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(workbench, "missing", lambda: ["chromium", "selenium"])
    (line,) = workbench.click_to_bars(quick=True)
    assert line.value is None
    assert "chromium, selenium is missing" in line.name


def test_it_listens_on_this_machine_alone():
    with app.listen(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


SLOW_PROBE = """
import sys
import time

from mtdinterp.app.workbench import Workbench
from mtdinterp.cli import main

def compute():
    print("computing", flush=True)
    time.sleep(25)

Workbench.prepare_probe = lambda workbench, given: compute
sys.exit(main(["app", "--no-browser", "--port", "0"]))
"""


def test_ctrl_c_ends_it_soon_and_in_one_sentence_while_an_answer_is_computed():
    command = [sys.executable, "-c", SLOW_PROBE]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            port = int(server.stdout.readline().split("127.0.0.1:")[1].split("/")[0])
            with socket.create_connection(("127.0.0.1", port)) as client:
                lines = (
                    "POST /api/probe HTTP/1.1",
                    f"Host: 127.0.0.1:{port}",
                    "Content-Type: application/json",
                    "Content-Length: 2",
                )
                client.sendall("\r\n".join([*lines, "", "{}"]).encode())
                assert server.stdout.readline() == "computing\n"
                server.send_signal(signal.SIGINT)
                _, errors = server.communicate(timeout=10)
        finally:
            server.kill()
    last = errors.splitlines()[-1]
    assert last == "mtdinterp app: interrupted; an answer was still being computed"
    assert "Traceback" not in errors
    assert server.returncode == 130


def test_it_stops_although_a_request_was_sent_only_in_part():
    command = [sys.executable, "-m", "mtdinterp", "app", "--no-browser", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            port = int(server.stdout.readline().split("127.0.0.1:")[1].split("/")[0])
            with socket.create_connection(("127.0.0.1", port)) as client:
                lines = (
                    "POST /api/view HTTP/1.1",
                    f"Host: 127.0.0.1:{port}",
                    "Content-Type: application/json",
                    "Content-Length: 9",
                )
                client.sendall("\r\n".join([*lines, "", "{"]).encode())
                time.sleep(0.5)  # the request must have arrived
                server.terminate()
                server.communicate(timeout=20)
        finally:
            server.kill()
