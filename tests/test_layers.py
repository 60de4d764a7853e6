"""The house: which package may import which, where files go, light start-up,
documented commands.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
import typer

from vgtools.cli import COMMANDS, make_app

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "vgtools"
REFERENCE = ROOT / "man" / "reference.md"
FILES = sorted(PACKAGE.rglob("*.py"))
# What each package may import, beside itself. A file outside the table fails.
MAY_IMPORT = {
    "io": set(),
    "text": {"io"},
    "images": {"io"},
    "batch": {"io"},
    "datasets": {"io", "images"},
    "models": {"io", "text"},
    "retrieval": {"io", "models"},
    "analysis": {"io", "text"},
    "training": {"io", "models"},
    "tasks": {"io", "text", "images", "models", "training", "analysis"},
    "measures": {"io", "text", "images", "datasets", "models", "analysis", "tasks"},
    "systems": {"io", "text", "images", "models", "training", "analysis", "retrieval", "tasks"},
    "reports": {"io", "text", "images", "datasets", "analysis", "tasks", "systems"},
    "serving": {"io", "text", "images", "models", "retrieval", "systems", "reports"},
    "commands": {
        "io",
        "text",
        "images",
        "retrieval",
        "batch",
        "datasets",
        "models",
        "analysis",
        "training",
        "tasks",
        "measures",
        "systems",
        "reports",
        "serving",
    },
    "api": {"io", "text", "images", "models", "retrieval", "systems", "reports", "serving"},
    "cli": {"io", "commands"},
    "__main__": {"cli"},
}
_SHARED = ("completion", "config", "lines", "options", "signature", "topics")
HEAVY = {
    "numpy",
    "torch",
    "transformers",
    "timm",
    "faiss",
    "nltk",
    "PIL",
    "jinja2",
    "spacy",
    "tokenizers",
    "ray",
    "fsspec",
    "pyarrow",
    "starlette",
    "uvicorn",
}


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(file): file for file in FILES}


@cache
def imports_of(module: str) -> frozenset[str]:
    """Return our modules that a module imports: at its top, inside functions and under
    TYPE_CHECKING.
    """
    return frozenset(imports_in(MODULES[module].read_text()))


def imports_in(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                names.append(full if full in MODULES else str(node.module))
        yield from (name for name in names if name.split(".")[0] == "vgtools")


def allowed(package: str) -> str:
    return ", ".join(sorted(MAY_IMPORT[package])) or "nothing else"


def fault(own: str, other: str) -> str | None:
    """Return why a module may not import another, or None if it may."""
    _, floor, *inside = [*own.split("."), ""]
    if other == "vgtools":  # the version
        return None
    _, target, *below = [*other.split("."), ""]
    if floor not in MAY_IMPORT:
        return f"{own} is outside the table: add its package to MAY_IMPORT"
    if floor != target:
        return (
            None
            if target in MAY_IMPORT[floor]
            else f"{own} imports {other}: {floor} may import only {allowed(floor)} (MAY_IMPORT); "
            "move the code to one of these, or hand it over from `commands`"
        )
    if floor == "systems" and inside[0] != below[0]:
        return f"{own} imports {other}: a paper may not import another; move it to {allowed(floor)}"
    if floor == "commands" and inside[0] != below[0] and below[0] not in _SHARED:
        return f"{own} imports {other}: commands share only {', '.join(_SHARED)}"
    return None


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_keep_to_the_table(module: str) -> None:
    if module == "vgtools":  # for type checkers alone, and for nothing but the public names
        assert {name.split(".")[1] for name in imports_of(module)} <= {"api", "io"}
        return
    assert module.split(".")[1] in MAY_IMPORT, (
        f"{module} is outside the table: add its package to MAY_IMPORT"
    )
    assert [why for other in sorted(imports_of(module)) if (why := fault(module, other))] == []


def test_the_table_is_broken_by_imports_upward_or_across() -> None:
    assert fault("vgtools.io.streams", "vgtools.text.tokens")
    assert fault("vgtools.tasks.table", "vgtools.systems.visualbert.model")
    assert fault("vgtools.systems.visualbert.model", "vgtools.systems.vokenization.matcher")
    assert fault("vgtools.commands.show", "vgtools.commands.stats")
    assert fault("vgtools.misplaced", "vgtools.io")
    assert fault("vgtools.tasks.table", "vgtools.io") is None
    source = "def f():\n    from vgtools.systems.visualbert import model\n"
    assert list(imports_in(source)) == ["vgtools.systems.visualbert.model"], (
        "imports inside functions count"
    )


def test_no_packages_and_no_modules_import_each_other_in_a_circle() -> None:
    TopologicalSorter(MAY_IMPORT).prepare()
    # A package's __init__ is its face: what it re-exports may import the package.
    inner = {m: {o for o in imports_of(m) if MODULES[o].name != "__init__.py"} for m in MODULES}
    try:
        TopologicalSorter({m: others - {m} for m, others in inner.items()}).prepare()
    except CycleError as error:
        pytest.fail("these import each other: " + " -> ".join(error.args[1]))


def second_addresses(source: str) -> Iterator[str]:
    """Yield what is imported from `vgtools.io` or `vgtools.retrieval` by another address than that
    of its definition.
    """
    packages = ("io", "retrieval")
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ImportFrom):
            continue
        if node.module == "vgtools":
            yield from (f"vgtools.{x.name}" for x in node.names if x.name in packages)
        package = re.match(rf"vgtools\.({'|'.join(packages)})(\.|$)", str(node.module))
        if package is None:
            continue
        for alias in node.names:
            if f"{node.module}.{alias.name}" in MODULES:
                continue
            if not package[2] or alias.name not in defined_in(str(node.module)):
                yield f"{node.module}.{alias.name}"


@cache
def defined_in(module: str) -> frozenset[str]:
    """Return the names that a module defines at its top, not those that it imports from us."""
    names = set[str]()
    for node in ast.parse(MODULES[module].read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif not (isinstance(node, ast.ImportFrom) and str(node.module).startswith("vgtools.")):
            # `import` under a condition, and whatever is assigned.
            names |= {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}
            names |= {x.asname for x in ast.walk(node) if isinstance(x, ast.alias) and x.asname}
    return frozenset(names)


@pytest.mark.parametrize(
    "file",
    [*FILES, *sorted((ROOT / "tests").rglob("*.py"))],
    ids=lambda file: str(file.relative_to(ROOT)),
)
def test_a_thing_of_io_and_of_retrieval_has_one_address(file: Path) -> None:
    assert list(second_addresses(file.read_text())) == []


def test_a_second_address_is_found() -> None:
    assert [*second_addresses("from vgtools import io")] == ["vgtools.io"]
    assert [*second_addresses("from vgtools.retrieval import Index")] == ["vgtools.retrieval.Index"]
    assert [*second_addresses("def f():\n    from vgtools.io import DataError")] == [
        "vgtools.io.DataError"
    ]
    assert [*second_addresses("from vgtools.io.files import DataError, read_json")] == [
        "vgtools.io.files.DataError"
    ]
    right = "from vgtools.io import own\nfrom vgtools.io.streams import Window, zstd"
    assert [*second_addresses(right)] == []


def test_the_root_holds_packages_and_nothing_of_weight() -> None:
    files = {path.name for path in PACKAGE.iterdir() if path.is_file()}
    assert files == {"__init__.py", "__main__.py", "cli.py", "py.typed"}


@pytest.mark.parametrize("test", sorted((ROOT / "tests").rglob("test_*.py")), ids=lambda p: p.stem)
def test_tests_mirror_the_tree(test: Path) -> None:
    folder = test.relative_to(ROOT / "tests").parent
    # About the whole, about a module of the root, or about the examples or the site.
    if folder in (Path(), Path("faults"), Path("examples"), Path("docs")):
        return
    name = test.stem.removeprefix("test_")
    modules = sorted(path.stem for path in (PACKAGE / folder).glob("*") if path.stem[0] != "_")
    # A long test file may be cut by subject: test_MODULE_SUBJECT.py.
    assert any(name == module or name.startswith(f"{module}_") for module in modules), (
        f"{test.relative_to(ROOT)}: expected test_MODULE.py or test_MODULE_SUBJECT.py, with one of "
        f"vgtools/{folder} as MODULE: {', '.join(modules) or 'there is no such folder'}"
    )


def test_a_name_of_a_class_says_which() -> None:
    defined: dict[str, list[str]] = {}
    for file in FILES:
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                defined.setdefault(node.name, []).append(module_name(file))
    assert len(defined) > 300
    doubled = {name: places for name, places in defined.items() if len(places) > 1}
    assert not doubled, "several classes have one name: put the difference into it"


PAPERS = sorted(
    path.name for path in (PACKAGE / "systems").iterdir() if (path / "__init__.py").exists()
)


@pytest.mark.parametrize("paper", PAPERS)
def test_a_paper_maps_its_sections_to_the_definitions_that_implement_them(paper: str) -> None:
    package = importlib.import_module(f"vgtools.systems.{paper}")
    named = set()
    sections = re.findall(r"^ {4}(\S.*?): (.+(?:\n {8}.+)*)$", package.__doc__ or "", re.M)
    for section, listed in sections:
        cited = re.search(r"\b(section|appendix|table|figure) ([A-Z]|[A-Z]?[\d.]+)$", section)
        assert cited, section
        for place in re.split(r",\s+", listed):
            module, _, definition = place.partition(".")
            named.add(module)
            tree = ast.parse((PACKAGE / "systems" / paper / f"{module}.py").read_text())
            tops = {
                node.name: node
                for node in tree.body
                if isinstance(node, ast.ClassDef | ast.FunctionDef)
            }
            assert definition in tops, (
                f"{paper}/{module}.py does not define {definition} ({section})"
            )
            # The number is cited by the definition itself (its methods included) or on top of its
            # module.
            said = f"{ast.get_docstring(tree)} {ast.unparse(tops[definition])}"
            assert re.search(rf"(?<![\w.]){re.escape(cited[2])}(?!\w|\.\d)", said), (
                f"{place} does not cite {section}"
            )
    modules = {path.stem for path in (PACKAGE / "systems" / paper).glob("*.py")} - {"__init__"}
    assert named == modules, (
        f"The docstring of systems/{paper}/__init__.py has to name a definition of every module"
    )


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_imports_nothing_heavy(name: str) -> None:
    args = [name, "--help"] if name else ["--help"]
    code = (
        f"import sys; from vgtools.cli import run; run({args}); "
        f"print(sorted({HEAVY} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n", (
        "--help imports these: import them in the function that needs them"
    )
    assert done.stdout.startswith("Usage:")
    if name:
        assert "Examples:" in done.stdout or name == "prepare", "a help ends with examples"


def test_every_command_has_a_man_page_and_a_row_in_the_reference() -> None:
    reference = REFERENCE.read_text()
    for name in COMMANDS:
        assert (ROOT / "man" / f"vg-{name}.1").exists(), name
        assert f"| `vg {name}` | " in reference, f"man/reference.md has no row for vg {name}"
    done = subprocess.run(
        [sys.executable, ROOT / "man" / "build.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_man_pages_are_those_of_the_tree_that_the_script_is_in(tmp_path: Path) -> None:
    for name in ("man", "vgtools"):
        (tmp_path / name).mkdir()
    script = shutil.copy(ROOT / "man" / "build.py", tmp_path / "man")
    (tmp_path / "vgtools" / "__init__.py").write_text("raise SystemExit(__file__)")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True)
    assert done.stderr.strip() == str(tmp_path / "vgtools" / "__init__.py")


def is_defined(name: str) -> bool:
    """Return whether a dotted name is a module, a package, or one of its definitions."""
    module, _, attribute = name.rpartition(".")
    if name in MODULES:
        return True
    return module in MODULES and hasattr(importlib.import_module(module), attribute)


PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    REFERENCE,
    *sorted((ROOT / "man").glob("*.1")),
    *sorted((ROOT / "examples").glob("*/*.md")),
]


@pytest.mark.parametrize("file", [*FILES, *PAGES], ids=lambda file: str(file.relative_to(ROOT)))
def test_modules_that_are_named_in_words_exist(file: Path) -> None:
    text = file.read_text()
    paths = re.findall(r"\bvgtools/[a-z0-9_/]+\.py\b", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    names = re.findall(r"(?<![\w/@])vgtools(?:\.[A-Za-z_]\w*)+", text)
    assert [name for name in names if not is_defined(name)] == []


def test_a_module_that_was_moved_is_not_defined() -> None:
    assert is_defined("vgtools.tasks.kinds.Kind")
    assert not is_defined("vgtools.decoding")
    assert not is_defined("vgtools.io.nothing")


def shell_blocks() -> list[str]:
    texts = (ROOT / "README.md").read_text(), REFERENCE.read_text()
    return [block for text in texts for block in re.findall(r"```sh\n(.*?)```", text, re.S)]


def test_shell_blocks_name_existing_flags() -> None:
    lines = [x for block in shell_blocks() for x in block.replace("\\\n", " ").splitlines()]
    parts = (
        part.strip().removeprefix("do ")
        for x in lines
        for part in re.split(r"[|;&]", x.split("#")[0])
    )
    calls = [part for part in parts if re.match(r"vg \w", part)]
    assert len(calls) >= 40
    tree: Any = typer.main.get_command(make_app())
    for call in calls:
        name, *words = call.split()[1:]
        command = tree.commands[name]
        if inner := getattr(command, "commands", {}):
            command = inner.get(words[0]) or next(iter(inner.values()))  # the first is the default
        known = {flag for param in command.params for flag in param.opts}
        for flag in re.findall(r"(?<=\s)--?[a-z][a-z-]*", " " + " ".join(words)):
            assert flag in known, f"{flag} in {call!r}"
