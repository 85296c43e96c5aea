"""From a grid to cells: settings are checked by the flags of `mtdinterp train`, and resolved."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from mtdinterp import catalogue
from mtdinterp.checkpoint_files import model_name
from mtdinterp.checks import check_count, check_option
from mtdinterp.commands.task_flags import named_after_task
from mtdinterp.commands.train_flags import add_setting_flags, check_settings, make_training
from mtdinterp.providers import loaded_files
from mtdinterp.sweep.cells import REPORTS, Cell, Measure
from mtdinterp.sweep.grid import Grid, GridError, Settings
from mtdinterp.sweep.grid_values import shown
from mtdinterp.sweep.sources import sources_digest

CELL_SETTINGS = ("group", "threads", "probes", "report", "sequences")
"""Settings of a cell that are not flags of `mtdinterp train`; `group` only labels table rows."""
FILE_SETTINGS = ("transition",)
"""Settings that name a file, relative to the grid file."""
LEAST_SEQUENCES = 32
MOST_THREADS = 1024


@dataclass(frozen=True)
class Plan:
    """The cells of a grid, in its order; a parent precedes its children."""

    title: str
    cells: tuple[Cell, ...]
    varied: tuple[str, ...]
    """The settings that differ between cells."""


class _Parser(argparse.ArgumentParser):
    """A parser that raises its errors."""

    def error(self, message: str) -> NoReturn:
        raise GridError(message)


def plan(grid: Grid, folder: Path, threads: int = 1) -> Plan:
    """The cells of a grid; combinations that come to the same cell are one.

    Args:
        grid: the grid.
        folder: where relative paths in the grid start.
        threads: threads of a cell whose settings do not say.

    Returns:
        The cells.

    Raises:
        GridError: if a setting is unknown or wrong, with the combination that has it.
    """
    parser = _parser()
    cells: list[Cell] = []
    for combination in grid.combinations:
        parent = None if combination.parent is None else cells[combination.parent]
        # A null leaves a setting at its default.
        given = {name: value for name, value in combination.settings.items() if value is not None}
        try:
            cell = _cell(parser, {"threads": threads, **given}, folder)
            if parent is not None:
                _check_growth(parent, cell)
            elif given.get("recipe") == "grown":
                raise GridError("recipe: grown needs a model to start from; see from: in a grid")
        except ValueError as error:
            raise GridError(f"{_shown(combination.settings, grid.varied)}{error}") from error
        before = None if parent is None else parent.name
        cells.append(replace(cell, parent=before, settings=dict(combination.settings)))
    return Plan(grid.title, _unique(cells), grid.varied)


def _check_growth(parent: Cell, cell: Cell) -> None:
    """Refuse a cell that cannot start from the model of the one before it.

    A model is handed on with its weights: only its length may grow.
    """
    if cell.task != parent.task:
        raise GridError("from: a model can only be handed on to a cell with the same task")
    for name, value in cell.model.items():
        before = parent.model.get(name)
        if name == "length":
            if value < before:
                raise GridError(f"from: a model of length {before} cannot become shorter")
        elif value != before:
            raise GridError(
                f"from: a model with {name} {before} cannot be handed on to a cell with {name} "
                f"{value}; only the length may change"
            )


def _unique(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Each cell once; two that are trained alike must be measured alike, too."""
    unique: dict[str, Cell] = {}
    for cell in cells:
        first = unique.setdefault(cell.name, cell)
        if first.measure != cell.measure:
            raise GridError(
                "probes, report and sequences cannot vary between cells that are trained alike; "
                "to run several probes on each cell, give them as a list in a list"
            )
    return tuple(unique.values())


def _shown(settings: Settings, varied: Sequence[str]) -> str:
    """The varied settings of a combination, to say where an error is."""
    parts = [f"{name}={settings[name]}" for name in varied if name in settings]
    return f"{', '.join(parts)}: " if parts else ""


def _parser() -> _Parser:
    """The flags of `mtdinterp train` that settings may name."""
    # Abbreviations would let a misspelled setting pass for another one.
    parser = _Parser(prog="train", add_help=False, allow_abbrev=False)
    add_setting_flags(parser)
    return parser


def _cell(parser: _Parser, settings: Settings, folder: Path) -> Cell:
    """The cell of one combination, without its parent."""
    own = {name: settings[name] for name in CELL_SETTINGS if name in settings}
    flags = {name: value for name, value in settings.items() if name not in CELL_SETTINGS}
    options = parser.parse_args(_words(parser, flags, folder))
    catalogue_names(options)
    check_settings(options)
    made = make_training(options)
    label = model_name(
        options.architecture, options.order, options.length, options.layers, options.seed
    )
    return Cell(
        task=made.task.to_dict(),
        model=made.model.config.to_dict(),
        recipe=made.recipe.to_dict(),
        seeds=made.seeds,
        threads=check_count("threads", own["threads"], maximum=MOST_THREADS),
        plugins=_plugins(made.task, options.architecture),
        sources=sources_digest(),
        label=named_after_task(label, options),
        measure=_measure(own),
    )


def catalogue_names(options: argparse.Namespace) -> None:
    """Refuse a task or an architecture that is not registered."""
    from mtdinterp.registry import BY_KIND

    for kind in ("task", "architecture"):
        catalogue.check_known(getattr(options, kind), list(BY_KIND[kind]), kind)


def _words(parser: _Parser, flags: Settings, folder: Path) -> list[str]:
    """Settings as a command line."""
    known: dict[str, argparse.Action] = {}
    for action in parser._actions:
        for flag in action.option_strings:
            known[flag[2:].replace("-", "_")] = action
    words: list[str] = []
    for name, value in flags.items():
        catalogue.check_known(name, [*sorted(known), *CELL_SETTINGS], "setting")
        words += _words_of(known[name], name, value, folder)
    return words


def _words_of(action: argparse.Action, name: str, value: Any, folder: Path) -> list[str]:
    """One setting as words of a command line."""
    flag = action.option_strings[0]
    is_switch = action.nargs == 0
    if isinstance(value, bool) != is_switch:
        wanted = "true or false" if is_switch else "a number or a text"
        raise GridError(f"{name}: expected {wanted}, got {shown(value)}")
    if is_switch:
        return [flag] if value else []
    values = value if isinstance(value, list) else [value]
    takes_several = action.nargs is not None or isinstance(action, argparse._AppendAction)
    if isinstance(value, list) and not takes_several:
        raise GridError(f"{name}: expected a single value, got {shown(value)}")
    texts = [repr(entry) if isinstance(entry, float) else str(entry) for entry in values]
    if name in FILE_SETTINGS:
        texts = [str(folder / text) for text in texts]
    for text in texts:
        # It would be taken for another setting.
        if text.startswith("--"):
            raise GridError(f"{name}: expected a number or a text, got {shown(text)}")
    if isinstance(action, argparse._AppendAction):
        words: list[str] = []
        for text in texts:
            words += [flag, text]
        return words
    return [flag, *texts]


def _plugins(task: Any, architecture: str) -> dict[str, str]:
    """The plugins that may decide the numbers, each with its checksum or its version."""
    from mtdinterp.registry import ARCHITECTURES, TASKS

    found = {provider.name: provider.sha256 for provider in loaded_files()}
    for provider in (TASKS.provider(task.name), ARCHITECTURES.provider(architecture)):
        if provider is not None and provider.version:
            found[provider.name] = provider.version
    return found


def _measure(settings: Mapping[str, Any]) -> Measure:
    """What is measured of the trained model."""
    from mtdinterp.registry import PROBES

    names = _probe_names(settings.get("probes"))
    for name in names or ():
        catalogue.check_known(name, list(PROBES), "probes")
    sequences = settings.get("sequences")
    if sequences is not None:
        check_count("sequences", sequences, LEAST_SEQUENCES)
    report = check_option("report", settings.get("report", "quick"), REPORTS)
    if report != "none" and names is not None:
        raise GridError("probes: a report runs all probes; add report: none, or leave out probes")
    return Measure(None if names is None else tuple(names), report, sequences)


def _probe_names(probes: Any) -> list[str] | None:
    """The names of the probes that a setting asks for; None stands for all that apply."""
    if probes in (None, "all"):
        return None
    if probes == "none":
        return []
    names = probes if isinstance(probes, list) else [probes]
    return [str(name) for name in names]
