"""Every small change of a file that some test should notice."""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from mutation.edits import edits_of


@dataclass(frozen=True)
class Mutant:
    """A file with one change."""

    file: str
    line: int
    before: str
    """The changed line, or all lines of a changed expression as one."""
    after: str
    kind: str
    source: str
    """The whole file after the change."""
    lines: tuple[int, ...]
    """The lines of the statement: whoever executes one of them touches the change."""
    on_import: bool
    """Whether the change takes effect when the module is imported."""
    occurrence: int = 1
    """1 for the first mutant of the file with this line before and after, 2 for the second, ...

    The same line can stand at several places of a file, and not all of them need be tested.
    """

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.kind}"


def mutants_of(file: str, source: str) -> list[Mutant]:
    """All mutants of a file.

    Args:
        file: its path, for the record.
        source: its text.

    Returns:
        The mutants in the order of the source; no two are the same text.
    """
    tree = ast.parse(source)
    encoded = source.encode()
    starts = _line_starts(encoded)
    found: dict[str, Mutant] = {}
    occurrences: Counter[tuple[str, str]] = Counter()
    for statement, on_import, function in _statements(tree, True, None):
        header = _header_lines(statement)
        for node, replacement, kind in edits_of(statement, function, source):
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            changed = (encoded[:start] + replacement.encode() + encoded[end:]).decode()
            if changed == source or changed in found or not _compiles(changed):
                continue
            before, after = _lines_changed(source, node, replacement)
            occurrences[before, after] += 1
            found[changed] = Mutant(
                file,
                node.lineno,
                before,
                after,
                kind,
                changed,
                header,
                on_import,
                occurrences[before, after],
            )
    return list(found.values())


def unchanged(file: str, source: str) -> Mutant:
    """The mutant that changes nothing, which all tests must let pass."""
    return Mutant(file, 1, "", "", "unchanged", source, (), True)


def _line_starts(encoded: bytes) -> list[int]:
    starts = [0]
    for line in encoded.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    return starts


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def _lines_changed(source: str, node: ast.AST, replacement: str) -> tuple[str, str]:
    """The lines of a node before and after its change, each as one line."""
    lines = source.split("\n")[node.lineno - 1 : node.end_lineno]
    head = lines[0].encode()[: node.col_offset].decode()
    tail = lines[-1].encode()[node.end_col_offset :].decode()
    return _one_line(lines), _one_line((head + replacement + tail).split("\n"))


def _one_line(lines: list[str]) -> str:
    return " ".join(line.strip() for line in lines)


def _statements(
    node: ast.AST, on_import: bool, function: ast.FunctionDef | None
) -> Iterator[tuple[ast.stmt, bool, ast.FunctionDef | None]]:
    """All statements that count, whether they run on import, and the function around them."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.FunctionDef):
            if child.name != "__repr__":
                yield child, True, function
                yield from _statements(child, False, child)
            continue
        if isinstance(child, ast.stmt):
            yield child, on_import, function
        yield from _statements(child, on_import, function)


def _header_lines(statement: ast.stmt) -> tuple[int, ...]:
    """The lines of a statement without the statements inside it."""
    last = statement.end_lineno or statement.lineno
    body = getattr(statement, "body", None)
    if body:
        last = max(statement.lineno, body[0].lineno - 1)
    return tuple(range(statement.lineno, last + 1))
