"""What the server refuses, and that it stays up whatever it is sent."""

import copy
import json
import random
import string
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from mtdinterp.app.security import MOST_BYTES
from mtdinterp.app.server import create_app
from mtdinterp.app.static_files import STATIC

HOME = "http://127.0.0.1:8765"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8765",
        "127.0.0.1:9",
        "127.0.0.1",
        "",
        "localhost.evil:8765",
        "127.0.0.1:8765.evil.example",
    ],
)
def test_foreign_hosts_are_refused(client, host):
    for path in ("/", "/api/about", "/plotly.js"):
        assert client.get(path, headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:8765", "[::1]:8765"])
def test_own_names_are_answered(client, host):
    assert client.get("/api/about", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "http://127.0.0.1:9"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://localhost:8765"},
    ],
)
def test_other_pages_cannot_write(client, fresh, headers):
    body = json.dumps(fresh())
    sent = {"content-type": "application/json", **headers}
    assert client.post("/api/view", content=body, headers=sent).status_code == 403
    assert client.post("/api/sweeps/1/cancel", content="{}", headers=sent).status_code == 403


def test_our_own_page_can(client, fresh):
    headers = {"origin": HOME, "sec-fetch-site": "same-origin", "content-type": "application/json"}
    assert client.post("/api/view", content=json.dumps(fresh()), headers=headers).status_code == 200


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_forms_are_refused(client, fresh, kind):
    answer = client.post("/api/view", content=json.dumps(fresh()), headers={"content-type": kind})
    assert answer.status_code == 415


def test_large_requests_are_refused_with_and_without_a_length(client):
    headers = {"content-type": "application/json"}
    assert (
        client.post("/api/view", content=b" " * (MOST_BYTES + 1), headers=headers).status_code
        == 413
    )

    def drip():
        for _ in range(MOST_BYTES // 1000 + 2):
            yield b" " * 1000

    assert client.post("/api/view", content=drip(), headers=headers).status_code == 413


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/static/..%2fserver.py",
        "/static//etc/passwd",
        "/etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/index.html%00",
        "/static/",
        "/docs",
        "/openapi.json",
        "/static/__init__.py",
    ],
)
def test_no_other_file_is_served(client, path):
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"].endswith(".")


def test_all_static_files_are_ours_and_typed(client):
    assert {"index.html", "style.css", "main.js"} <= set(STATIC)
    for name in STATIC:
        answer = client.get(f"/static/{name}")
        assert answer.status_code == 200
        assert answer.headers["x-content-type-options"] == "nosniff"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        text = answer.text
        assert "https://" not in text
        assert "http://" not in text.replace("http://www.w3.org/", "")


@pytest.mark.parametrize(
    "name",
    [
        "nowhere",
        "../disentangled-m4-T64",
        "/etc",
        "disentangled-m4-T64/",
        "zoo/disentangled-m4-T64",
    ],
)
def test_only_listed_checkpoints_open(client, fresh, name):
    state = fresh()
    state["model"]["name"] = name
    answer = client.post("/api/view", json=state)
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error.startswith(f"There is no model {name!r} here. ")
    assert error.endswith("The Model panel lists the models that can be opened.")
    assert "standard-m5-T64" not in error  # not the whole list


def test_no_path_is_told(client, local_checkpoint):
    assert str(local_checkpoint.parent) not in client.get("/api/about").text


WRONG = [
    ({"tokens": []}, "tokens: expected at least one token"),
    ({"tokens": [0] * 513}, "tokens: expected a list of at most 512 entries, got 513"),
    ({"tokens": [0] * 65}, "source: expected 65 tokens, as many as in the sequence; got 64"),
    ({"tokens": [0] * 65, "source": None}, "tokens: expected a length in 1..64, got 65"),
    ({"tokens": [9] * 64}, "tokens: expected values in 0..4, got values in 9..9"),
    ({"tokens": [0.5] * 64}, "tokens[0]: expected an integer"),
    ({"tokens": [0, 1, 2, 3], "source": None}, "tokens: expected more than m = 4 tokens, got 4"),
    ({"weights": [0.5, 0.5]}, "weights: expected 4 weights, one per lag, got 2"),
    ({"weights": [2, -1, 0, 0]}, "weights: expected non-negative weights that sum to 1"),
    ({"position": 64}, "position: expected an integer in -64..63, got 64"),
    ({"edits": [{}] * 33}, "edits: expected a list of at most 32 entries, got 33"),
    ({"edits": [{"hook": "pattern"}]}, "edits[0]: source is missing"),
    (
        {"edits": [{"hook": "patern", "layer": 0, "source": {"kind": "zero"}}]},
        "did you mean 'pattern'?",
    ),
    (
        {"edits": [{"hook": "pattern", "layer": 3, "source": {"kind": "zero"}}]},
        "layer: expected a layer in 0..2, got 3",
    ),
    (
        {"edits": [{"hook": "z", "layer": 0, "key": [1, 2], "source": {"kind": "zero"}}]},
        "has no key axis",
    ),
    (
        {
            "edits": [
                {"hook": "resid_pre", "layer": 0, "block": "L1.lag", "source": {"kind": "zero"}}
            ]
        },
        "block: blocks.0.hook_resid_pre has no block L1.lag; its blocks are token",
    ),
    (
        {"edits": [{"hook": "pattern", "layer": 0, "source": {"kind": "share", "value": 2}}]},
        "a share between 0 and 1",
    ),
    (
        {"edits": [{"hook": "pattern", "layer": 0, "source": {"kind": "share", "value": 0.5}}]},
        "and give its keys",
    ),
    ({"edits": [{"hook": "pattern", "layer": 0, "source": {"kind": "number"}}]}, "needs value"),
    (
        {
            "edits": [
                {"hook": "pattern", "layer": 0, "source": {"kind": "values", "values": [1, 2]}}
            ]
        },
        "does not match",
    ),
    (
        {"edits": [{"hook": "pattern", "layer": 0, "source": {"kind": "evil"}}]},
        "edits[0].source.kind: expected one of",
    ),
    (
        {
            "edits": [
                {"hook": "pattern", "layer": 0, "position": [5, 5], "source": {"kind": "zero"}}
            ]
        },
        "start < stop",
    ),
    ({"edits": [{"hook": "pattern", "source": {"kind": "zero"}}]}, "hook: expected one of"),
    (
        {"edits": [{"hook": "pattern", "source": {"kind": "weights", "values": [1.0]}}]},
        "weights: expected 4 weights",
    ),
    (
        {
            "source": None,
            "edits": [{"hook": "pattern", "layer": 0, "source": {"kind": "sequence"}}],
        },
        "no source sequence",
    ),
    ({"version": 2}, "this workbench can read version 1 only, got 2"),
    ({"colour": 1}, "state's field: expected one of"),
    ({"model": {"name": "disentangled-m4-T64", "beta": 1e9}}, "beta: expected a number"),
    ({"model": {"name": "disentangled-m4-T64", "delta": -1}}, "delta: expected a number"),
    ({"head": 3}, "head: layer 1 has heads 0..0, got 3"),
]


@pytest.mark.parametrize(("wrong", "sentence"), WRONG, ids=[sentence[:40] for _, sentence in WRONG])
def test_bad_input_gets_a_clear_sentence(client, fresh, wrong, sentence):
    state = {**fresh(), **wrong}
    path, body = (
        ("/api/maps", {"state": state, "which": ["before"]})
        if "head" in wrong
        else ("/api/view", state)
    )
    answer = client.post(path, json=body)
    assert answer.status_code in (400, 422)
    assert sentence in answer.json()["error"]


PATHS = (
    "/api/view",
    "/api/maps",
    "/api/cone",
    "/api/python",
    "/api/report",
    "/api/sample",
    "/api/fresh",
    "/api/experiment",
    "/api/sweeps",
)
JUNK = (
    None,
    True,
    -1,
    0,
    3,
    1.5,
    1e300,
    -0.0,
    "",
    "x",
    "zero",
    "pattern",
    "../..",
    "\x00",
    "é" * 300,
    [],
    {},
    [[]],
    [None],
    [1, 2],
    {"kind": "zero"},
    {"a": {"b": []}},
    10**30,
    float("nan"),
    float("inf"),
)


WORDS = (
    "z",
    "resid_pre",
    "pattern",
    "k",
    "hook_embed",
    "L1.lag",
    "L1.H2.lag",
    "token",
    "values",
    "reference",
    "mean",
    "weights",
    "share",
    "construction",
    "disentangled-m3-T64",
)


def replacement(value, random):
    """Something else, often of the same kind: what is well formed must be refused too where it is
    wrong."""
    if random.random() < 0.6 and isinstance(value, int) and not isinstance(value, bool):
        return random.randrange(-2, 14)
    if random.random() < 0.6 and isinstance(value, str):
        return random.choice(WORDS)
    return random.choice(JUNK)


def mutated(value, random):
    """The value with one thing in it changed, dropped, doubled or replaced."""
    value = copy.deepcopy(value)
    place = value
    while isinstance(place, dict | list) and place:
        key = (
            random.choice(list(place)) if isinstance(place, dict) else random.randrange(len(place))
        )
        if not isinstance(place[key], dict | list) or not place[key] or random.random() < 0.3:
            action = random.randrange(4)
            if action == 0:
                del place[key]
            elif action == 1 and isinstance(place, list):
                place.extend(copy.deepcopy(place[: random.choice((1, 40, 600))]))
            elif action == 2 and isinstance(place, dict):
                place["".join(random.choices(string.printable, k=5))] = random.choice(JUNK)
            else:
                place[key] = replacement(place[key], random)
            break
        place = place[key]
    return value


def test_thousands_of_malformed_requests_never_break_it(registry, fresh):
    """Some are by chance still good; nothing may be a 5xx, and every refusal says a sentence."""
    chance = random.Random(0)
    state = fresh("two-heads")
    state["edits"] = [
        {
            "hook": "pattern",
            "layer": 1,
            "position": [3, 5],
            "key": [0, 2],
            "source": {"kind": "sequence", "position": 2},
        },
        {
            "hook": "resid_pre",
            "layer": 2,
            "block": "L1.H1.lag",
            "source": {"kind": "values", "values": [0.5, 1.0]},
        },
        {"hook": "pattern", "layer": 2, "source": {"kind": "weights", "values": [0.5, 0.5]}},
        {"hook": "z", "layer": 0, "head": 1, "source": {"kind": "mean"}, "on": False},
    ]
    state["selected"] = 1
    bodies = {
        "/api/maps": {"state": state, "which": ["before", "cone"]},
        "/api/sweeps": {"state": state, "kind": "head", "aim": "away"},
        "/api/sample": {
            "model": {"name": "two-heads"},
            "length": 12,
            "weights": [0.5, 0.5],
            "seed": 1,
        },
        "/api/fresh": {"model": {"name": "two-heads"}, "seed": 1},
        "/api/experiment": {"state": state, "name": "steer"},
    }
    seen: dict[int, int] = {}
    with TestClient(create_app(registry, 8765), base_url=HOME) as client:
        for _ in range(1600):
            path = chance.choice(PATHS)
            body = bodies.get(path, state)
            for _ in range(chance.choice((1, 1, 2, 4))):
                body = mutated(body, chance)
            try:
                text = json.dumps(body)
            except ValueError:
                continue
            if chance.random() < 0.15:
                text = text[: chance.randrange(len(text))] + chance.choice(
                    ("", "]", '"', "\ud800", "[" * 3000)
                )
            answer = client.request(
                chance.choice(("POST",) * 9 + ("PUT",)),
                path,
                content=text.encode("utf-8", "surrogatepass"),
                headers={"content-type": "application/json"},
            )
            seen[answer.status_code] = seen.get(answer.status_code, 0) + 1
            assert answer.status_code < 500, (path, text[:500], answer.text)
            if answer.status_code >= 400:
                assert answer.json()["error"].endswith((".", "?")), answer.text
        for _ in range(500):
            path = "/" + quote(bytes(chance.randrange(256) for _ in range(chance.randrange(30))))
            answer = client.request(
                chance.choice(("GET", "POST", "DELETE", "HEAD", "OPTIONS")), path
            )
            assert answer.status_code < 500, path
        assert client.post("/api/view", json=state).status_code == 200
    assert seen[400] > 500
    assert seen[422] > 20
    assert seen[200] > 100


def test_web_sockets_are_closed(client):
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/"):
        pass


def test_python_refuses_what_the_view_refuses(client, fresh):
    edit = {"hook": "nothing", "layer": 0, "source": {"kind": "zero"}}
    answers = [
        client.post(path, json={**fresh(), "edits": [edit]})
        for path in ("/api/view", "/api/python", "/api/state")
    ]
    assert {answer.status_code for answer in answers} == {422}
    assert len({answer.text for answer in answers}) == 1


def test_a_report_may_not_call_anybody(client, fresh):
    assert "default-src 'none'" in client.post("/api/report", json=fresh()).text
