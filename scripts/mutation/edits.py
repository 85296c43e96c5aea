"""The small changes of one statement.

Left out is what changes no behaviour that is worth a test: docstrings and other texts for people
(messages of errors and warnings, names given to checks, labels, help), type annotations,
decorators, `__all__`, colours and line styles, and `zip(strict=True)`, which only asserts something
about the code around it.
"""

import ast
from collections.abc import Iterator

COMPARISONS = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
}
"""An ordering is changed at its boundary and turned around."""

ARITHMETIC = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.MatMult: ("@", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}

LOGIC = {ast.And: ("and", "or"), ast.Or: ("or", "and")}

_PAIRS = (
    ("min", "max"),
    ("amin", "amax"),
    ("argmin", "argmax"),
    ("minimum", "maximum"),
    ("clamp_min", "clamp_max"),
    ("any", "all"),
    ("floor", "ceil"),
    ("zeros", "ones"),
    ("zeros_like", "ones_like"),
    ("tril", "triu"),
    ("startswith", "endswith"),
)
OPPOSITES = dict(_PAIRS) | {second: first for first, second in _PAIRS}
"""Functions and methods with an opposite that takes the same arguments."""

SPEAKING = {
    "print",
    "warn",
    "debug",
    "info",
    "warning",
    "error",
    "Style",
    "TypeVar",
    "add_argument",
    "cast",
}
"""Calls whose texts and numbers are for people, or name a type."""

LABELS = {"label", "labels", "help", "title", "description", "symbol", "style", "__all__", "msg"}
"""Names that hold texts for people."""

LARGE = 100
"""Integers from here on are budgets and bounds, of which one more or less is no fault."""

Edit = tuple[ast.AST, str, str]
"""A node, the text that takes its place, and the kind of the change."""


def edits_of(statement: ast.stmt, function: ast.FunctionDef | None, source: str) -> Iterator[Edit]:
    """All changes of a statement, without those of the statements inside it.

    Args:
        statement: the statement.
        function: the function around it, if any.
        source: the text of the file.

    Yields:
        A node, the text that takes its place, and the kind of the change.
    """
    yield from _statement_edits(statement, function, source)
    for node in _expressions(statement):
        yield from _expression_edits(node, source)


def _statement_edits(
    statement: ast.stmt, function: ast.FunctionDef | None, source: str
) -> Iterator[Edit]:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        if _called_name(statement.value) not in SPEAKING:
            yield statement, "pass", "call removed"
    elif isinstance(statement, ast.Assign) and function is not None:
        if all(_may_be_left_out(target, statement, function) for target in statement.targets):
            yield statement, "pass", "assignment removed"
    elif isinstance(statement, ast.AugAssign):
        yield statement, "pass", "assignment removed"
    elif isinstance(statement, ast.Raise) and statement.exc is not None:
        yield statement, "pass", "raise removed"
    elif isinstance(statement, ast.Break):
        yield statement, "continue", "break"
    elif isinstance(statement, ast.Continue):
        yield statement, "break", "continue"
    elif isinstance(statement, ast.Return) and statement.value is not None:
        yield from _return_edits(statement.value, function, source)
    if isinstance(statement, ast.If | ast.While):
        yield from _condition_edits(statement.test, source)


def _may_be_left_out(target: ast.expr, statement: ast.stmt, function: ast.FunctionDef) -> bool:
    """Whether the function still has a value for the target without this assignment."""
    if isinstance(target, ast.Attribute | ast.Subscript):
        return True
    if not isinstance(target, ast.Name):
        return False
    arguments = {
        argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)
    }
    earlier = {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Store)
        and node.lineno < statement.lineno
    }
    return target.id in arguments | earlier


def _return_edits(value: ast.expr, function: ast.FunctionDef | None, source: str) -> Iterator[Edit]:
    """Another value of the same type where the type is known, so that type checks do not see it."""
    if isinstance(value, ast.Constant):
        return
    text = _text(value, source)
    returns = "" if function is None or function.returns is None else ast.unparse(function.returns)
    if returns == "bool":
        yield value, f"(not ({text}))", "return value"
    elif returns in ("int", "float") or ("Tensor" in returns and "tuple" not in returns):
        yield value, f"(-({text}))", "return value"
    elif returns not in ("str", "None"):
        yield value, "None", "return value"


def _condition_edits(test: ast.expr, source: str) -> Iterator[Edit]:
    """Negate a condition that no other change negates."""
    if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant):
        yield test, f"not ({_text(test, source)})", "condition"


def _expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """All expressions of a statement that count, without those of the statements inside it."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return  # a docstring
    if isinstance(statement, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom):
        return
    if isinstance(statement, ast.Assign | ast.AnnAssign) and _names_of(statement) & LABELS:
        return
    skipped: list[ast.AST] = []
    if isinstance(statement, ast.AnnAssign):
        skipped = [statement.annotation]
    elif isinstance(statement, ast.FunctionDef):
        arguments = statement.args
        pending: list[ast.AST] = [*arguments.defaults]
        pending += [default for default in arguments.kw_defaults if default is not None]
        for default in pending:
            yield from _inside(default)
        return
    elif isinstance(statement, ast.ClassDef):
        return
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, ast.stmt) and child not in skipped:
            yield from _inside(child)


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.stmt | ast.JoinedStr | ast.excepthandler):
        return
    if isinstance(node, ast.Call) and _called_name(node) in SPEAKING:
        return
    if isinstance(node, ast.keyword) and node.arg in LABELS | {"strict"}:
        return
    if isinstance(node, ast.expr | ast.comprehension):
        yield node
    if _is_negative_number(node):
        return
    for child in ast.iter_child_nodes(node):
        if not (_is_text(child) and isinstance(node, ast.Call) and _is_check(node)):
            yield from _inside(child)


def _is_negative_number(node: ast.AST) -> bool:
    """Whether a node is a negative number, such as -1, which counts as one constant."""
    if not (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)):
        return False
    return isinstance(node.operand, ast.Constant)


def _is_check(node: ast.Call) -> bool:
    """Whether a call checks an argument; it is given the argument's name for its messages."""
    return _called_name(node).startswith("check_")


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _expression_edits(node: ast.AST, source: str) -> Iterator[Edit]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        symbol, others = COMPARISONS[type(node.ops[0])]
        for other in others:
            yield from _operator(node, node.left, node.comparators[0], symbol, other, source)
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not _has_text(node):
        yield from _operator(node, node.left, node.right, *ARITHMETIC[type(node.op)], source)
    elif isinstance(node, ast.BoolOp):
        symbol, other = LOGIC[type(node.op)]
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from _operator(node, left, right, symbol, other, source)
    elif _is_negative_number(node):
        yield from _number_edits(node, -node.operand.value)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node, f"({_text(node.operand, source)})", "sign or not"
    elif isinstance(node, ast.IfExp):
        yield from _condition_edits(node.test, source)
    elif isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield from _condition_edits(test, source)
    elif isinstance(node, ast.Constant):
        yield from _constant_edits(node)
    elif isinstance(node, ast.Call):
        yield from _call_edits(node, source)


def _operator(
    node: ast.expr, left: ast.expr, right: ast.expr, symbol: str, other: str, source: str
) -> Iterator[Edit]:
    """Change the operator between two operands; the syntax tree does not say where it stands."""
    whole = _text(node, source)
    head, between = _split(node, left, right, source)
    at = between.find(symbol)
    if at >= 0:
        start = len(head) + at
        changed = whole[:start] + other + whole[start + len(symbol) :]
        yield node, changed, f"{symbol} → {other}"


def _split(node: ast.expr, left: ast.expr, right: ast.expr, source: str) -> tuple[str, str]:
    """The text of a node up to the end of one operand, and from there to the next operand."""
    lines = source.encode().split(b"\n")

    def position(line: int, column: int) -> int:
        return sum(len(text) + 1 for text in lines[: line - 1]) + column

    encoded = source.encode()
    start = position(node.lineno, node.col_offset)
    end_of_left = position(left.end_lineno or 0, left.end_col_offset or 0)
    start_of_right = position(right.lineno, right.col_offset)
    return encoded[start:end_of_left].decode(), encoded[end_of_left:start_of_right].decode()


def _constant_edits(node: ast.Constant) -> Iterator[Edit]:
    value = node.value
    if isinstance(value, bool):
        yield node, str(not value), "constant"
    elif isinstance(value, int | float):
        yield from _number_edits(node, value)
    elif isinstance(value, str) and value:
        yield node, '""', "constant"


def _number_edits(node: ast.AST, value: float) -> Iterator[Edit]:
    if isinstance(value, float):
        others = [value + 1, 0.0]
    else:
        others = [1] if abs(value) >= LARGE else [value + 1, value - 1]
    for other in others:
        yield node, f"({other!r})" if other < 0 else repr(other), "constant"


def _call_edits(node: ast.Call, source: str) -> Iterator[Edit]:
    name = _called_name(node)
    if name in OPPOSITES:
        function = _text(node.func, source)
        yield (
            node.func,
            function.removesuffix(name) + OPPOSITES[name],
            f"{name} → {OPPOSITES[name]}",
        )


def _called_name(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _names_of(statement: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    inside = [node for target in targets for node in ast.walk(target)]
    names = {node.id for node in inside if isinstance(node, ast.Name)}
    return names | {node.attr for node in inside if isinstance(node, ast.Attribute)}


def _has_text(node: ast.BinOp) -> bool:
    """Whether an operand is a text, so that only + makes sense."""
    return any(
        isinstance(operand, ast.JoinedStr) or _is_text(operand)
        for operand in (node.left, node.right)
    )


def _text(node: ast.AST, source: str) -> str:
    return ast.get_source_segment(source, node) or ""
