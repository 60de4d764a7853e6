"""The Python interface: light to import, the same names and parameters in every version."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

import vgtools as vg
from tests.test_layers import HEAVY, ROOT

# Whoever changes a line here breaks programs of users: add, and remove nothing before 2.0.
FUNCTIONS = {
    "load_encoder": "ref, device, dtype, offline",
    "locate": "queries, grid",
    "open_grid": "feats, matcher, images, heat, dims, device, offline",
    "open_index": "index, matcher, images, device, dtype, nprobe, level, reading, offline",
    "read": "path, index, images",
    "retrieve": "texts, index, k, not_own",
    "vokenize": "texts, index, k, min_score, context",
}
CLASSES = {
    "Arrays": "get, items, keys, to_pandas, to_polars, values",
    "DataError": "add_note, args, record, with_traceback",
    "HeatRow": "heat, image, point, records, text, to_dict",
    "ImageBank": "calibrated, ids, manifest",
    "ImageGrid": "",
    "ImageRow": "images, records, rows, scores, text, to_dict",
    "Rows": "head, to_pandas, to_polars",
    "VokenRow": "images, records, scores, spans, text, to_dict, tokens, vokens",
}


def test_the_names_are_listed_once_and_stay() -> None:
    assert vg.__all__ == sorted([*FUNCTIONS, *CLASSES])
    assert dir(vg) == sorted([*vg.__all__, "__version__"])
    with pytest.raises(AttributeError, match="'vgtools' has no attribute 'vokenise'"):
        _ = vg.vokenise


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_keeps_its_parameters(name: str) -> None:
    found = inspect.signature(getattr(vg, name)).parameters.values()
    assert ", ".join(one.name for one in found) == FUNCTIONS[name]
    assert all(one.annotation is not one.empty for one in found)
    doc = getattr(vg, name).__doc__
    assert all(f"    {one.name}: " in doc for one in found), "Args lists each"
    assert "    Returns:\n" in doc
    assert "    Raises:\n        DataError: " in doc


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_keeps_its_attributes(name: str) -> None:
    found = [one for one in dir(getattr(vg, name)) if not one.startswith("_")]
    assert ", ".join(found) == CLASSES[name]
    assert inspect.getdoc(getattr(vg, name))


def test_the_import_takes_a_tenth_of_a_second_and_nothing_heavy() -> None:
    code = (
        "import sys, time; first = time.process_time(); import vgtools; "
        "spent = time.process_time() - first; "
        f"print(sorted(({HEAVY} | {{'typer'}}) & set(sys.modules)), spent <= 0.1, spent)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[] True "), done.stdout


def calls_in(source: str) -> Iterator[ast.Call]:
    """Yield the calls of public names, by `vg.NAME(…)`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and re.fullmatch(r"vg\.\w+", ast.unparse(node.func)):
            yield node


@pytest.mark.parametrize("page", ["README.md", "man/reference.md"])
def test_python_on_a_page_calls_what_there_is(page: str) -> None:
    found = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)
    calls = [call for block in found for call in calls_in(block)]
    assert len(calls) >= 2
    for call in calls:
        name = ast.unparse(call.func).removeprefix("vg.")
        assert name in FUNCTIONS
        named = {str(one.arg): one.value for one in call.keywords}
        inspect.signature(getattr(vg, name)).bind(*call.args, **named)
