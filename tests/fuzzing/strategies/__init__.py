"""Hypothesis strategies for damaged input: each draws a case, which is plain JSON."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from fuzzing.strategies.checkpoints import (
    config_cases,
    history_cases,
    training_cases,
    weights_cases,
)
from fuzzing.strategies.other_files import file_cases, plugin_cases, transition_cases
from fuzzing.strategies.requests import workbench_cases
from fuzzing.strategies.values import Strategy
from fuzzing.strategies.words import command_words


def command_cases(outline: dict[str, Any]) -> Strategy:
    """Cases of words on the command line."""
    return st.fixed_dictionaries({"words": command_words()})


READERS: dict[str, Callable[[dict[str, Any]], Strategy]] = {
    "config": config_cases,
    "weights": weights_cases,
    "history": history_cases,
    "training": training_cases,
    "files": file_cases,
    "plugins": plugin_cases,
    "transition": transition_cases,
    "workbench": workbench_cases,
    "command": command_cases,
}
"""The strategy of every reader, a function of the outline of the undamaged files."""
SHARES = {
    "config": 0.15,
    "weights": 0.13,
    "history": 0.09,
    "training": 0.14,
    "files": 0.06,
    "plugins": 0.08,
    "transition": 0.09,
    "workbench": 0.12,
    "command": 0.14,
}
"""The share of all cases that every reader gets."""
