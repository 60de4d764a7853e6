"""Makefiles are code: every `vg` call parses, no two write one file, every target is run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples import calls, make
from tests.examples.table import FILES, ROWS


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> make.Places:
    found = make.Places(tmp_path_factory.mktemp("official"), networks=False)
    for name in ("scene.faiss", "feats.npy"):
        path = Path(found["bank"]) / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return found


def groups(example: str, places: make.Places) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield folder, targets and variables of rows that one call of make can print."""
    found: dict[tuple[str, ...], list[str]] = {}
    for row in ROWS:
        if row.example == example:
            key = (row.place, *make.variables(row, places, toy=False))
            found.setdefault(key, []).extend(row.targets.split())
    for (place, *given), targets in found.items():
        yield place, targets, given


def calls_of(
    example: str, targets: list[str], given: list[str], folder: Path
) -> tuple[list[calls.Call], list[str]]:
    """Return the calls of targets at their full sizes, and what is wrong with them.

    A make that is called by make does not see what the first one would make: it is then there.
    """
    found: dict[calls.Call, None] = {}
    faults: dict[str, None] = {}
    while True:
        lines, missing = make.recipes(example, targets, given, folder)
        for words in calls.record(calls.joined(lines), folder):
            try:
                found[calls.parse(words)] = None
            except ValueError as error:
                faults[str(error)] = None
        made = {output for call in found for output in call.outputs}
        known = {name for name in missing if made & {name, os.path.dirname(name)}}
        if not known:
            return list(found), [*faults, *(f"{name}: no rule makes it" for name in missing)]
        for name in known:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()


def absent(call: calls.Call, folder: Path) -> list[str]:
    """Return what a call names in a folder of invented files that is not there; networks aside."""
    named = [Path(word) for word in call.words if word.startswith(f"{folder}/")]
    tops = {path: folder / path.relative_to(folder).parts[0] for path in named}
    return [str(path) for path, top in tops.items() if top.exists() and not path.exists()]


@pytest.mark.parametrize("example", make.EXAMPLES)
def test_calls_parse_name_files_and_write_different_ones(
    example: str, places: make.Places, tmp_path: Path
) -> None:
    faults: list[str] = []
    by_place: dict[str, dict[calls.Call, None]] = {}
    for number, (place, targets, given) in enumerate(groups(example, places)):
        folder = tmp_path / str(number)
        folder.mkdir()
        found, wrong = calls_of(example, targets, given, folder)
        faults += [f"{place} {' '.join(targets)}: {fault}" for fault in wrong]
        for call in found:
            faults += [f"{path} is not there:\n    {call}" for path in absent(call, places.folder)]
        by_place.setdefault(place, {}).update(dict.fromkeys(found))
    for found_there in by_place.values():
        faults += calls.collisions(found_there)
    assert not faults, "\n" + "\n".join(faults)


@pytest.mark.parametrize("scale", make.SCALES)
@pytest.mark.parametrize("example", make.EXAMPLES)
def test_every_target_is_run(example: str, scale: str) -> None:
    rows = [row for row in ROWS if row.example == example and row.scale in (scale, "")]
    run = {target for row in rows for target in row.targets.split()}
    there = make.phony(example, scale)
    missing = sorted(there - run)
    assert not missing, f"{missing} of examples/{example} at SCALE={scale}: no row runs them"
    assert run <= there, f"{sorted(run - there)}: rows name targets that are not there"


@pytest.mark.parametrize("program", ["jq", "parallel"])
def test_what_needs_a_program_says_so_before_any_work(
    program: str, places: make.Places, tmp_path: Path
) -> None:
    bin = tmp_path / "bin"
    bin.mkdir()
    for name in ("bash", "make", "sed", "sort", "head", "expr", "printf", "dirname"):
        (bin / name).symlink_to(str(shutil.which(name)))
    found = 0
    for row in ROWS:
        folder = Path(make.makefile(row.example)).parent
        texts = [path.read_text() for path in (folder / "Makefile", *folder.glob("*.mk"))]
        if not any(f"command -v {program}" in text for text in texts):
            assert not any(re.search(rf"^[^#]*\b{program} -", text, re.M) for text in texts), folder
            continue
        given = make.variables(row, places, toy=False)
        for target in row.targets.split():
            lines, _ = make.recipes(row.example, [target], given, tmp_path)
            if not re.search(rf"\b{program} -", lines):
                continue
            found += 1
            command = ["make", "-f", make.makefile(row.example), target, *given, "VG=false"]
            done = subprocess.run(
                command, cwd=tmp_path, env={"PATH": str(bin)}, capture_output=True, text=True,
                check=False,
            )  # fmt: skip
            assert done.returncode, row.name
            assert re.match(rf".*this needs .*{program}", done.stderr), (row.name, done.stderr)
            assert not done.stdout, row.name
    assert found


@pytest.mark.parametrize("example", make.EXAMPLES)
def test_a_pipe_fails_if_a_part_of_it_does(example: str, tmp_path: Path) -> None:
    """The exit code of `vg … | tee` would otherwise be that of tee."""
    command = ["make", "-f", make.makefile(example), "--eval", "piped: ; false | cat", "piped"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 2


def test_no_pipe_ends_before_its_input() -> None:
    """A `vg … | head` would fail: vg ends with 141 when nobody reads on."""
    files = [path for path in (make.ROOT / "examples").glob("*/*") if path.suffix in ("", ".mk")]
    texts = {path: path.read_text() for path in files if path.is_file()}
    piped = [text for text in texts.values() if re.search(r"\$\(VG\) [^\n]*\|", text)]
    assert len(piped) > 3
    assert not [
        path
        for path, text in texts.items()
        if re.search(r"\| *head\b", text.replace("sort -n | head", ""))
    ]


def test_every_example_is_in_the_table() -> None:
    assert {name for name in FILES if ":" not in name} == {*make.EXAMPLES}


def test_no_two_rows_have_one_name() -> None:
    names = [row.name for row in ROWS]
    assert len({*names}) == len(names)
