"""Write docs/api.md: signature and docstring of every public name, grouped by module."""

import ast
import re

from api_source import ROOT, Name, members, parse, public_names

PAGE = ROOT / "docs" / "api.md"
MODULES = (
    "mtdinterp",
    "mtdinterp.tasks",
    "mtdinterp.estimators",
    "mtdinterp.models",
    "mtdinterp.construction",
    "mtdinterp.training",
    "mtdinterp.interventions",
    "mtdinterp.decompile",
    "mtdinterp.report",
    "mtdinterp.plugins",
    "mtdinterp.evidence",
    "mtdinterp.results",
    "mtdinterp.claims",
    "mtdinterp.readings",
    "mtdinterp.pages.blocks",
    "mtdinterp.architectures",
    "mtdinterp.errors",
    "probes",
)
"""The modules that users import from."""
SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields):$")
SPACE = " "


def main() -> None:
    """Write the page."""
    PAGE.write_text(api_page(), encoding="utf-8")


def api_page() -> str:
    """The whole page as Markdown."""
    parts = [
        "# API reference",
        "Written by `scripts/build_docs` from the source. These names are public: they stay for at "
        "least one minor release after a replacement is announced "
        "([CONTRIBUTING](../CONTRIBUTING.md)). Attributes that a class inherits are listed with "
        "the class that defines them.",
    ]
    parts += [f"- [`{module}`](#{_anchor(module)})" for module in MODULES]
    shown: dict[tuple[str, str], str] = {}
    for module in MODULES:
        parts += [f"## `{module}`", _paragraphs(ast.get_docstring(parse(module)) or "")]
        for entry in public_names(module):
            first = shown.setdefault((entry.module, entry.name), module)
            if first == module:
                parts += _entry(entry, module)
            else:
                parts += [f"### `{module}.{entry.name}`", f"The same as `{first}.{entry.name}`."]
    text = "\n\n".join(part for part in parts if part)
    return re.sub(r"(?m)^(- .*)\n\n(?=- )", r"\1\n", text) + "\n"


def _anchor(module: str) -> str:
    """How a heading with this module is linked to."""
    return module.replace(".", "")


def _entry(entry: Name, module: str) -> list[str]:
    """The heading, signature and docstring of one name."""
    parts = [f"### `{entry.name}`"]
    if entry.module != module:
        parts.append(f"Defined in `{entry.module}`.")
    node = entry.node
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        parts.append(_code(f"class {node.name}({bases})" if bases else f"class {node.name}"))
        parts.append(_paragraphs(entry.doc))
        parts += [_member(name, *found) for name, found in members(node).items()]
    elif isinstance(node, ast.FunctionDef):
        parts += [_code(_signature(node)), _paragraphs(entry.doc)]
    else:
        parts += [_code(ast.unparse(node)), _paragraphs(entry.doc)]
    return parts


def _member(name: str, node: ast.AST, doc: str) -> str:
    """One line about a field or a method of a class."""
    summary = doc.split("\n\n")[0].replace("\n", SPACE)
    meaning = f": {summary}" if summary else ""
    if not isinstance(node, ast.FunctionDef):
        return f"- `{ast.unparse(node)}`{meaning}"
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    if decorators & {"property", "cached_property", "functools.cached_property"}:
        kind = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return f"- `{name}{kind}`{meaning}"
    return f"- `{_signature(node, short=True)}`{meaning}"


def _signature(node: ast.FunctionDef, short: bool = False) -> str:
    """A function's name, arguments and result; wrapped unless `short`."""
    arguments = ast.unparse(node.args)
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{node.name}({arguments}){result}"
    if short:
        return re.sub(r"\((self|cls)(, )?", "(", line, count=1)
    if len(line) <= 90:
        return line
    lines = [f"    {ast.unparse(single)}," for single in _single_arguments(node.args)]
    return "\n".join([f"{node.name}(", *lines, f"){result}"])


def _single_arguments(arguments: ast.arguments) -> list[ast.AST]:
    """Each argument as a list of its own, with its default."""
    found: list[ast.AST] = []
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    for argument, default in zip(positional, defaults, strict=True):
        found.append(_arguments(args=[argument], defaults=[default] if default else []))
    if arguments.vararg:
        found.append(_arguments(vararg=arguments.vararg))
    elif arguments.kwonlyargs:
        found.append(ast.Name("*"))
    for argument, keyword in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        # As a positional argument, or it would bring a star of its own.
        found.append(_arguments(args=[argument], defaults=[keyword] if keyword else []))
    if arguments.kwarg:
        found.append(_arguments(kwarg=arguments.kwarg))
    return found


def _arguments(**given: object) -> ast.arguments:
    """A list of arguments with only the given parts."""
    empty = {"posonlyargs": [], "args": [], "kwonlyargs": [], "kw_defaults": [], "defaults": []}
    return ast.arguments(**{**empty, **given})


def _code(text: str) -> str:
    return f"```text\n{text}\n```"


def _paragraphs(doc: str) -> str:
    """A docstring as Markdown: its sections become lists."""
    lines: list[str] = []
    section = ""
    for line in doc.splitlines():
        heading = SECTION.match(line)
        if heading:
            section = heading[1]
            lines += [f"**{section}**", ""]
        elif section and line.startswith(SPACE * 4) and not line.startswith(SPACE * 5):
            text = line.strip()
            starts_entry = section in ("Args", "Attributes") or not lines[-1].startswith(
                ("- ", SPACE)
            )
            lines.append(f"- {text}" if starts_entry else f"  {text}")
        elif section and line.strip():
            lines.append(f"  {line.strip()}")
        else:
            lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    main()
