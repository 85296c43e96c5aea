"""Cases of requests to the workbench."""

from typing import Any

from hypothesis import strategies as st

from fuzzing.drivers import workbench
from fuzzing.strategies.values import (
    FEW_DAMAGES,
    JSON_VALUES,
    Strategy,
    edits_of,
)

PATHS = (
    *("/api/fresh", "/api/experiment", "/api/sample", "/api/state", "/api/view", "/api/cone"),
    *("/api/python", "/api/sweeps", "/api/maps", "/api/report", "/api/estimators", "/api/probe"),
)
OTHER_PATHS = (
    *("/", "/api/about", "/api/sweeps/1", "/api/sweeps/99999999999/cancel", "/api/sweeps/x/cancel"),
    *("/static/../../etc/passwd", "/api/%00", "/api/view/", "//", "/static/page.js", "/\ud800"),
)
STATES = st.one_of(
    JSON_VALUES,
    st.sampled_from(
        (
            *(
                "number",
                "values",
                "share",
                "weights",
                "sequence",
                "reference",
                "zero",
                "construction",
            ),
            *("resid_pre", "hook_embed", "blocks.0.attn.hook_pattern", "scores", "z", "mlp_out"),
            *("L1.lag", "token", "towards", "block", "head", "identify_algorithm", "two_step"),
            *([5, 6], [0, 6], [6, 0], [0, 1], [1, 0], [0.5, 0.5], [0.1] * 10, [0] * 512, [2] * 6),
        )
    ),
)


def workbench_cases(outline: dict[str, Any]) -> Strategy:
    """Cases of requests to the workbench."""

    def requests(path: str) -> Strategy:
        body = workbench.BODIES.get(path, workbench.STATE)
        return st.fixed_dictionaries(
            {"path": st.just(path), "edits": edits_of(body, STATES), "bytes": FEW_DAMAGES}
        )

    headers = st.dictionaries(
        st.sampled_from(
            ("host", "origin", "content-type", "content-length", "sec-fetch-site", "x")
        ),
        st.sampled_from(
            ("", "x", "null", "127.0.0.1:8765", "http://evil", "-1", "9" * 5000, "٣", "\xff")
        ),
        max_size=2,
    )
    odd = st.fixed_dictionaries(
        {
            "path": st.sampled_from((*PATHS, *OTHER_PATHS)),
            "method": st.sampled_from(
                ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "X" * 300)
            ),
            "headers": headers,
            "query": st.sampled_from(("", "a=b", "%ff", "\ud800")),
            "type": st.sampled_from(("http", "http", "http", "http", "websocket")),
        }
    )
    states = st.sampled_from(PATHS).flatmap(requests)
    return st.one_of(states, states, states, odd)
