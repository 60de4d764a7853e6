"""One place replaces and removes files: `vgtools.io.own`, which knows what is vg's own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "vgtools"
OWN = PACKAGE / "io" / "own.py"
# By module or object, what replaces, removes or overwrites.
FUNCTIONS = {
    "os": {
        "unlink", "remove", "rename", "renames", "replace", "rmdir", "removedirs", "truncate",
        "ftruncate", "link", "symlink", "mkfifo",
    },
    "shutil": {"rmtree", "move", "copy", "copy2", "copyfile", "copytree"},
}  # fmt: skip
METHODS = {
    "unlink", "rmdir", "rename", "write_bytes", "write_text", "touch", "hardlink_to", "symlink_to",
    "rmtree",
}  # fmt: skip
SAVERS = {"savefig", "save_file", "tofile", "savez", "savez_compressed", "to_csv"}
DEVNULL = {"cli.py", "models/references.py"}  # open the null device for writing


def faults(source: str) -> Iterator[str]:
    """Yield the calls of a module that may replace or remove a file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in FUNCTIONS:
            wrong = FUNCTIONS[node.module] & {alias.name for alias in node.names}
            yield from (f"{node.lineno}: {name}" for name in wrong)
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        base, _, name = called.rpartition(".")
        # `a.replace(b)` is of a path; of a string it has two arguments.
        path = name == "replace" and len(node.args) == 1 and not node.keywords
        if base == "formatter":  # A help text is written into memory.
            continue
        if name in FUNCTIONS.get(base, ()) or (base and name in METHODS) or path or name in SAVERS:
            yield f"{node.lineno}: {called}"
        words = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        words += [k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)]
        modes = [w for w in words if isinstance(w, str) and set(w) <= set("rwxabt+")]
        # A number is a descriptor: whoever opened it has asked.
        opens = name == "open" and base != "os"
        asked = base in ("", "io") and bool(node.args) and _is_descriptor(node.args[0])
        if opens and not asked and any(set(mode) & set("wxa+") for mode in modes):
            yield f"{node.lineno}: {called} {modes}"
        if called == "os.open" and any(flag in ast.unparse(node) for flag in ("WR", "CREAT")):
            yield f"{node.lineno}: {called}"


def _is_descriptor(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int)
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("own.reopen", "os.open")


@pytest.mark.parametrize(
    "file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE))
)
def test_only_one_module_replaces_and_removes(file: Path) -> None:
    if file == OWN:
        return
    found = [*faults(file.read_text())]
    if file.relative_to(PACKAGE).as_posix() in DEVNULL:
        source = file.read_text().splitlines()
        found = [one for one in found if "devnull" not in source[int(one.partition(":")[0]) - 1]]
    assert found == [], (
        "write outputs by vgtools.io.output; remove and replace files by vgtools.io.own"
    )


@pytest.mark.parametrize(
    "source",
    [
        "os.unlink(path)",
        "path.unlink(missing_ok=True)",
        "path.replace(other)",
        "os.replace(a, b)",
        "open(path, 'wb')",
        "open(path, mode='r+b')",
        "Path(x).open('x')",
        "shutil.rmtree(folder)",
        "from shutil import rmtree",
        "os.open(path, os.O_RDWR | os.O_CREAT)",
        "path.write_text('x')",
        "figure.savefig(path)",
        "gzip.open(path, 'wb')",
    ],
)
def test_what_replaces_or_removes_is_found(source: str) -> None:
    assert [*faults(source)]


@pytest.mark.parametrize(
    "source",
    [
        "text.replace('a', 'b')",
        "replace(config, a=1)",
        "dataclasses.replace(config, a=1)",
        "open(path, 'rb')",
        "open(path)",
        "open(own.reopen(path), 'wb')",
        "own.remove(path)",
    ],
)
def test_what_only_reads_is_not(source: str) -> None:
    assert not [*faults(source)]
