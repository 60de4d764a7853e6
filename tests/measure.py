"""Measure the size and shape of the code: `python tests/measure.py [CHECKOUT]` prints a table
(markdown).

A unit is what lies directly below `vgtools/`: a package or a module. An edge is an import from one
unit of another, inside functions and under TYPE_CHECKING, too. A unit's floor is one above the
highest that it imports; the units of a circle share one. An edge points upward where the order of
FLOORS says so.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.wording import PATTERNS, assignments, files, find, long_lines, trees, undocumented

# The order of CONTRIBUTING.md: a package imports from those before it.
FLOORS = (
    ("io", "__init__"),
    ("text", "images", "retrieval", "batch"),
    ("datasets", "models", "analysis"),
    ("training",),
    ("tasks",),
    ("systems",),
    ("reports",),
    ("commands",),
    ("cli",),
    ("__main__",),
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def module_of(path: str) -> str:
    """Return the dotted name of a file's module."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports(name: str, is_package: bool, tree: ast.Module) -> set[str]:
    """Return the dotted names that a module imports, relative ones resolved."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = name.split(".") if is_package else name.split(".")[:-1]
            base = (
                [*parts[: len(parts) - node.level + 1], node.module]
                if node.level
                else [node.module]
            )
            origin = ".".join(x for x in base if x)
            found |= {origin, *(f"{origin}.{alias.name}" for alias in node.names)}
    return found


def edges(root: Path) -> tuple[set[str], set[tuple[str, str]]]:
    """Return the units of a checkout and the imports between them."""
    modules = {
        module_of(path): (path.endswith("/__init__.py"), tree) for path, tree in trees(root).items()
    }
    units = {name: (name.split(".")[1:2] or ["__init__"])[0] for name in modules}
    found: set[tuple[str, str]] = set()
    for name, (is_package, tree) in modules.items():
        for imported in imports(name, is_package, tree):
            if imported in modules and imported != "vgtools":
                found.add((units[name], units[imported]))
    return set(units.values()), {(a, b) for a, b in found if a != b}


def circles(units: set[str], found: set[tuple[str, str]]) -> list[set[str]]:
    """Return the sets of units that import one another, directly or through others."""
    reach = {unit: {b for a, b in found if a == unit} for unit in units}
    for middle in units:
        for unit in units:
            if middle in reach[unit]:
                reach[unit] |= reach[middle]
    groups = {frozenset({u, *(v for v in reach[u] if u in reach[v])}) for u in units}
    return [set(group) for group in groups if len(group) > 1]


def floors(units: set[str], found: set[tuple[str, str]]) -> int:
    """Return on how many floors the units lie."""
    group = {
        u: next((frozenset(c) for c in circles(units, found) if u in c), frozenset({u}))
        for u in units
    }
    below = {g: {group[b] for a, b in found if group[a] == g} - {g} for g in group.values()}
    height: dict[frozenset[str], int] = {}

    def of(node: frozenset[str]) -> int:
        if node not in height:
            height[node] = 1 + max((of(lower) for lower in below[node]), default=0)
        return height[node]

    return max(of(node) for node in below)


def upward(found: set[tuple[str, str]]) -> str:
    """Return how many edges point to a higher floor of FLOORS, by name if they are few."""
    order = {unit: number for number, names in enumerate(FLOORS) for unit in names}
    known = {(a, b) for a, b in found if a in order and b in order}
    up = sorted(f"{a} -> {b}" for a, b in known if order[a] < order[b])
    others = len({unit for edge in found for unit in edge} - set(order))
    note = f"; {others} units are on no floor of the plan" if others else ""
    return f"{len(up)}{' (' + ', '.join(up) + ')' if up else ''}{note}"


def body_lines(node: Function) -> int:
    """Return the lines of a function from the first after its docstring to the last."""
    body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
    return (node.end_lineno or node.lineno) - body[0].lineno + 1


def parameters(node: Function) -> int:
    """Return how many parameters a function has, `self` and `cls` left out."""
    names = [x.arg for x in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len([x for x in names if x not in ("self", "cls")])


def kinds_of_line(source: str, tree: ast.Module) -> Counter[str]:
    """Count a file's lines as code, docstring, comment (alone on its line) or blank."""
    kinds = ["blank"] * (source.count("\n") + 1)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if kinds[token.start[0] - 1] == "blank":
                kinds[token.start[0] - 1] = "comment"
        elif token.string.strip() and token.type != tokenize.ENDMARKER:
            for number in range(token.start[0], token.end[0] + 1):
                kinds[number - 1] = "code"
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | Function)
            and ast.get_docstring(node, clean=False) is not None
        ):
            text = node.body[0]
            kinds[text.lineno - 1 : text.end_lineno] = ["doc"] * (
                (text.end_lineno or 0) - text.lineno + 1
            )
    return Counter(kinds[: source.count("\n")])


def table(root: Path) -> list[tuple[str, str]]:
    """Return what is measured and its value, in the order of the table."""
    parsed = trees(root)
    units, found = edges(root)
    rings = circles(units, found)
    functions = [
        (path, node)
        for path, tree in parsed.items()
        for node in ast.walk(tree)
        if isinstance(node, Function)
    ]
    long_path, longest = max(functions, key=lambda f: body_lines(f[1]))
    most_path, most = max(functions, key=lambda f: parameters(f[1]))
    lines: Counter[str] = Counter()
    for path, tree in parsed.items():
        lines += kinds_of_line((root / path).read_text(encoding="utf-8"), tree)
    total = lines.total()
    wide = len(long_lines(root))
    paired, assigned = assignments(root)
    conditional = sum(
        isinstance(node, ast.IfExp) for tree in parsed.values() for node in ast.walk(tree)
    )
    over = sum(body_lines(node) > 60 for _, node in functions)
    hits = Counter(hit.pattern for hit in find(files(root), root))
    rows = [
        ("modules", f"{len(parsed)}"),
        ("packages and modules below `vgtools/`", f"{len(units)}"),
        ("… directly: modules that are no package", f"{len(list(root.glob('vgtools/*.py')))}"),
        ("floors", f"{floors(units, found)}"),
        ("import edges between them", f"{len(found)}"),
        ("upward edges", upward(found)),
        ("circles", f"{len(rings)}{''.join(f' ({chr(44).join(sorted(r))})' for r in rings)}"),
        ("functions", f"{len(functions)}"),
        (
            "longest function, lines of body",
            f"{body_lines(longest)} (`{longest.name}`, {long_path})",
        ),
        ("functions over 60 lines of body", f"{over}"),
        ("most parameters", f"{parameters(most)} (`{most.name}`, {most_path})"),
        ("lines", f"{total:,}"),
        *(
            (f"… {kind}", f"{lines[kind]:,} ({lines[kind] / total:.1%})")
            for kind in ("code", "doc", "comment", "blank")
        ),
        ("lines over 100 columns", f"{wide:,} ({wide / total:.1%})"),
        (
            "`a, b = x, y` of all assignments",
            f"{len(paired)} of {assigned:,} ({len(paired) / assigned:.1%})",
        ),
        ("conditional expressions per 1,000 lines", f"{conditional / total * 1000:.1f}"),
        ("public names without docstring", f"{len(undocumented(root))}"),
        ("patterns of wording, in all files", f"{hits.total()}"),
    ]
    return rows + [(f"… {pattern}", f"{hits[pattern]}") for pattern in PATTERNS]


def main() -> None:
    """Print the table of one checkout."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    print("| measure | value |\n|---|---|")
    for name, value in table(root):
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
