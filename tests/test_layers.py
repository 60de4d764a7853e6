"""Imports point one way, start-up stays light, and every command is documented."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vgtools.cli import COMMANDS

ROOT = Path(__file__).parents[1]
# Lower layers first; a module may import from its own layer or a lower one, systems not from each other's papers.
LAYERS = [
    {"io", "output", "errors", "process"},
    {
        "checkpoint",
        "images",
        "decoding",
        "folding",
        "nn",
        "retrieval",
        "text",
        "training",
        "vokens",
        "prepare",
        "jsonstream",
        "openmoji",
        "corpus",
        "blocks",
        "sources",
        "ngrams",
        "tasks",
        "comparison",
        "weights",
        "finetuning",
        "regions",
        "precomputed",
        "boxes",
        "region_features",
        "parses",
        "analysis",
    },
    {"systems"},
    {"reports"},
    {"commands"},
    {"cli"},
    {"__main__"},
]
HEAVY = {"numpy", "torch", "transformers", "timm", "faiss", "nltk", "PIL", "jinja2", "spacy", "tokenizers"}


def layer_of(module: str) -> int:
    part = module.split(".")[1] if "." in module else "__init__"
    return next((i for i, names in enumerate(LAYERS) if part in names), -1)


@pytest.mark.parametrize("file", sorted((ROOT / "vgtools").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(file: Path) -> None:
    own = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    if own == "vgtools.__init__":
        return
    assert layer_of(own) >= 0, f"{own} belongs to no layer: add it to LAYERS"
    for node in ast.walk(ast.parse(file.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module in ("vgtools", "vgtools.systems"):
            names += [f"{node.module}.{a.name}" for a in node.names]
        for name in names:
            if name.startswith("vgtools.") and layer_of(name) > layer_of(own):
                pytest.fail(f"{own} (layer {layer_of(own)}) imports {name} (layer {layer_of(name)})")


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_imports_nothing_heavy(name: str) -> None:
    code = (
        f"import sys; from vgtools.cli import run; run({[name, '--help'] if name else ['--help']}); "
        f"print(sorted({HEAVY} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
    assert done.stdout.startswith("Usage:")
    if name:
        assert "Examples:" in done.stdout or name == "prepare", "a help ends with examples"


def test_every_command_has_a_man_page_and_a_readme_row() -> None:
    readme = (ROOT / "README.md").read_text()
    for name in COMMANDS:
        assert (ROOT / "man" / f"vg-{name}.1").exists(), name
        assert f"`vg {name}`" in readme, f"README.md has no row for vg {name}"
    done = subprocess.run([sys.executable, ROOT / "man" / "build.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def shell_blocks() -> list[str]:
    return re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


def test_readme_shell_blocks_name_existing_flags() -> None:
    lines = [x for block in shell_blocks() for x in block.replace("\\\n", " ").splitlines()]
    parts = (part.strip().removeprefix("do ") for x in lines for part in re.split(r"[|;&]", x.split("#")[0]))
    calls = [part for part in parts if re.match(r"vg \w", part)]
    assert len(calls) >= 6
    for call in calls:
        words = call.split()[1:]
        depth = 2 if words[0] == "prepare" or words[1] == "visualbert" else 1
        help_text = subprocess.run(
            [sys.executable, "-m", "vgtools", *words[:depth], "--help"], capture_output=True, text=True
        ).stdout
        assert help_text.startswith("Usage:"), call
        for flag in re.findall(r"(?<=\s)(--?[a-z][a-z-]*)", " ".join(words[depth:])):
            assert re.search(rf"(?<![\w-]){flag}(?![\w-])", help_text), f"{flag} in {call!r}"
