"""Words for the command line: every command, every flag of its parser, and odd values."""

import argparse

from hypothesis import strategies as st

from mtdinterp.cli import COMMANDS, build_parser

NUMBERS = (
    *("0", "-1", "1", "2", "3", "5", "6", "7", "64", "100", "1000000", "2147483648"),
    *("9223372036854775807", "9223372036854775808", "1" * 5000, "0.5", "1e9", "1e-9", "1e300"),
    *("1e-300", "1e400", "nan", "inf", "-inf", "0x10", "1_000", "٣", " 1", "1 ", "+1", "--1"),
)
PATHS = (
    *("run", "empty", "nowhere", "run/config.json", "pi.csv", "pi.npy", "pi.json", "pipe.csv"),
    *(
        "plugin.py",
        "grid.yaml",
        "sweep",
        "s3://bucket/x",
        "weights.pt",
        "mapping.json",
        "reference.npz",
        "run/model.safetensors",
        "out",
    ),
    *("run/training.pt", "/dev/zero", "/dev/null/x", "/proc/self/mem", "~", "~nobody/x", ".", "/"),
    *("x" * 300, "out/x.html", "out/x.png", "out.md", "a\nb", "\x1b[31m", "\udcff", "-", "--", ""),
)
NAMES = (
    *("mtd", "lag-specific", "disentangled", "standard", "one_step", "two_step", "tied", "torch"),
    *(
        "cpu",
        "cuda",
        "meta",
        "cuda:99",
        "pattern",
        "resid_pre",
        "hook_embed",
        "block",
        "zero",
        "mean",
    ),
    *("identify_algorithm", "recover_beta", "truth", "float64", "d_rel=3", "d_head=0", "blocks=[]"),
    *("x=", "=1", "blocks=[[1,2]]", "d_model=1e9", "fast", "paper", "all", "figure-1", "L1.lag"),
    *("beta", "learning_rate", "é", "%s", "{}", "\u202e", "\x7f", "@file", "'", '"', "\\"),
)
UNKNOWN = ("--unknown", "-x", "--ord", "--out=", "--help", "--version", "--resume=run", "--json=1")


def options_of(command: str) -> list[argparse.Action]:
    """The flags and positional arguments of a command, without its help."""
    parser = build_parser([command])
    commands = next(
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    )
    return _without_help(commands.choices[command]._actions)


def _without_help(actions: list[argparse.Action]) -> list[argparse.Action]:
    """Flags and positional arguments; those of its actions for a command that has actions."""
    found: list[argparse.Action] = []
    for action in actions:
        if isinstance(action, argparse._SubParsersAction):
            for parser in action.choices.values():
                found += _without_help(parser._actions)
        elif action.dest != "help":
            found.append(action)
    return found


def _values() -> st.SearchStrategy[str]:
    printed = st.text(st.characters(exclude_characters="\0"), max_size=8)
    listed = st.one_of(*map(st.sampled_from, (NUMBERS, NUMBERS, PATHS, NAMES)))
    return st.one_of(listed, listed, listed, printed)


def _words_of(action: argparse.Action) -> st.SearchStrategy[list[str]]:
    """One use of a flag or positional argument, with a fitting or an odd number of values."""
    value = _values()
    if action.choices:
        value = st.sampled_from(tuple(map(str, action.choices))) | value
    least, most = 1, 1
    if action.nargs == 0:
        least, most = 0, 0
    elif action.nargs in ("+", "*") or isinstance(action.nargs, int):
        most = 3
    values = st.lists(value, min_size=least, max_size=most)
    if not action.option_strings:
        return values
    flags = st.sampled_from(tuple(action.option_strings))
    return st.builds(lambda flag, given: [flag, *given], flags, values)


def _usual(command: str) -> list[list[str]]:
    """Words that make the command reach its work, so that other flags are looked at too."""
    return {
        "train": [["--order", "2", "--length", "6", "--out", "out"], ["--resume", "run"], []],
        "probe": [["run"]],
        "patch": [["run", "--hook", "pattern", "--layer", "0"], ["run", "--sweep", "head"]],
        "app": [["--port", "0", "--no-browser"], ["run", "--port", "0", "--no-browser"]],
        "report": [["run"], ["run", "-o", "out/x.html"]],
        "reproduce": [["all"], ["--list"]],
        "construct": [
            ["--order", "2", "--length", "6"],
            ["--transition", "pi.csv", "--length", "9"],
        ],
        "sweep": [
            ["run", "grid.yaml", "--out", "out"],
            ["run", "smoke", "--dry-run"],
            ["cell", "run"],
            ["status", "sweep"],
            ["table", "sweep"],
        ],
        "import": [["weights.pt", "--config", "run/config.json", "--out", "out"]],
    }.get(command, [[]])


def _line(command: str) -> st.SearchStrategy[list[str]]:
    actions = options_of(command)
    known = st.sampled_from(actions).flatmap(_words_of)
    stray = st.lists(st.one_of(st.sampled_from(UNKNOWN), _values()), min_size=1, max_size=2)
    rest = st.lists(st.one_of(known, known, known, known, stray), max_size=4)
    start = st.one_of(
        st.sampled_from(_usual(command)), st.sampled_from(_usual(command)), st.just([])
    )
    return st.builds(
        lambda begin, groups: [command, *begin, *(word for group in groups for word in group)],
        start,
        rest,
    )


def command_words() -> st.SearchStrategy[list[str]]:
    """Words after `mtdinterp`."""
    lines = {command: _line(command) for command in COMMANDS}
    any_words = st.lists(_values(), max_size=4)
    chosen = st.sampled_from(tuple(COMMANDS)).flatmap(lines.__getitem__)
    return st.one_of(*[chosen] * 9, any_words)
