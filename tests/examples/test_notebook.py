"""The notebook runs, cell by cell, and its outputs are those that it holds."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.examples.make import ROOT

FOLDER = ROOT / "examples" / "notebook"
NUMBER = r"\d+\.\d\d"


@pytest.fixture
def runner() -> Any:
    spec = importlib.util.spec_from_file_location("run", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def texts(outputs: list[dict[str, Any]]) -> list[str]:
    found = [one.get("text") or one["data"]["text/plain"] for one in outputs]
    return ["".join(one) for one in found]


@pytest.mark.slow
def test_the_cells_run(runner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((FOLDER / "vokens.ipynb").read_text("utf-8"))
    drawn = 0
    for cell, outputs in runner.outputs_of(notebook):
        assert [one["output_type"] for one in outputs] == [
            one["output_type"] for one in cell["outputs"]
        ]
        for now, held in zip(texts(outputs), texts(cell["outputs"]), strict=True):
            assert re.sub(NUMBER, "N", now) == re.sub(NUMBER, "N", held)
            digits = [[float(one) for one in re.findall(NUMBER, text)] for text in (now, held)]
            assert digits[0] == pytest.approx(digits[1], abs=0.011)
        for one in outputs:
            html = "".join(one.get("data", {}).get("text/html", ""))
            drawn += html.count("<img ")
    assert drawn > 40
    assert list(tmp_path.iterdir()) == []


def test_the_notebook_is_one_that_jupyter_opens() -> None:
    notebook = json.loads((FOLDER / "vokens.ipynb").read_text("utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    names = [cell["id"] for cell in notebook["cells"]]
    assert len({*names}) == len(names)
    keys = {"code": {"execution_count", "outputs"}, "markdown": set()}
    for cell in notebook["cells"]:
        expected = {"cell_type", "id", "metadata", "source", *keys[cell["cell_type"]]}
        assert {*cell} == expected


def test_a_runner_keeps_what_a_cell_prints_and_its_last_value(runner: Any) -> None:
    cells = [
        {"cell_type": "code", "source": ["x = 2\n", "print(x)\n", "x + 1"]},
        {"cell_type": "markdown", "source": "text"},
        {"cell_type": "code", "source": "x = 5"},
    ]
    found = [outputs for _, outputs in runner.outputs_of({"cells": cells})]
    assert texts(found[0]) == ["2\n", "3"]
    assert found[1] == []
