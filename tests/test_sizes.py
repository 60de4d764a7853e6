"""A command is read in one go: flags, open, call, write; what is longer belongs elsewhere."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.measure import body_lines

COMMANDS = Path(__file__).parents[1] / "vgtools" / "commands"
LONGEST_BODY = 60  # lines of a function, without its docstring
LONGEST_MODULE = 150  # lines of code and comments, beside flags, docstrings and imports
# Modules and functions that cannot keep to them, with the reason. None is needed.
EXCEPTIONS: dict[str, str] = {}
_WAY_OUT = "move the work to the package that it belongs to (CONTRIBUTING.md)"


def is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def is_flag(node: ast.AST) -> bool:
    """Return whether a node defines a flag: a setting, or an alias, a field or a parameter that
    is `Annotated`.
    """
    called = ast.unparse(node.value.func) if isinstance(getattr(node, "value", 0), ast.Call) else ""
    if isinstance(node, ast.AnnAssign) and called in ("value", "count", "file"):
        return True
    if isinstance(node, ast.arg | ast.AnnAssign):
        return node.annotation is not None and "Annotated[" in ast.unparse(node.annotation)
    return isinstance(node, ast.Assign) and "Annotated[" in ast.unparse(node.value)


def code_lines(source: str) -> int:
    """Return the lines of a module that are neither blank nor flags, docstrings or imports."""
    lines = {n for n, line in enumerate(source.splitlines(), 1) if line.strip()}
    for node in ast.walk(ast.parse(source)):
        imports = isinstance(node, ast.Import | ast.ImportFrom)
        if imports or is_flag(node) or (isinstance(node, ast.stmt) and is_docstring(node)):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def long_functions(source: str) -> list[str]:
    return [
        f"{node.name}: {body_lines(node)}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and body_lines(node) > LONGEST_BODY
    ]


@pytest.mark.parametrize(
    "module",
    sorted(COMMANDS.rglob("*.py")),
    ids=lambda path: path.relative_to(COMMANDS).with_suffix("").as_posix(),
)
def test_a_command_is_short(module: Path) -> None:
    source = module.read_text()
    if module.relative_to(COMMANDS).as_posix() not in EXCEPTIONS:
        lines = code_lines(source)
        assert lines <= LONGEST_MODULE, (
            f"{module.name} has {lines} lines beside flags, docstrings and imports, "
            f"{LONGEST_MODULE} are allowed; {_WAY_OUT}"
        )
        assert long_functions(source) == [], f"at most {LONGEST_BODY} lines each; {_WAY_OUT}"


def test_exceptions_are_needed() -> None:
    for name, why in EXCEPTIONS.items():
        source = (COMMANDS / name).read_text()
        assert why
        assert code_lines(source) > LONGEST_MODULE or long_functions(source), name


SOURCE = '''"""A module."""

import os

Name = Annotated[
    str,
    Flag("--name"),
]


@dataclass
class Group:
    """A group."""

    size: Annotated[
        int, Flag("--size")
    ] = 3
    width: int = count(
        4, "Its width."
    )

    def half(self) -> int:
        from math import floor

        return floor(self.size / 2)  # a comment


# A reason.
def command(
    name: Annotated[
        str, Flag()
    ],
) -> None:
    """Do it.

    At length.
    """
    print(
        name,
    )
'''


def test_lines_are_counted_beside_flags_docstrings_and_imports() -> None:
    # @dataclass, class, def half, return; the reason, def command, its end, three lines of print
    assert code_lines(SOURCE) == 10
    assert long_functions(SOURCE) == []
    longer = SOURCE + "    print()\n" * (LONGEST_BODY - 2)
    assert long_functions(longer) == ["command: 61"]
    assert code_lines(longer) == 10 + LONGEST_BODY - 2
