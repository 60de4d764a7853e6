"""Every command that has --device, on a GPU: its outputs are those of the CPU, but for rounding.

Dropout, of images too, is left out, because a GPU draws other numbers. The tolerances are far above
the rounding of tiny networks in float32 (2**-24 of a number, some hundred times over) and far below
any real fault; `tests/test_devices.py` bounds the networks themselves. Weights are not compared:
the first step of Adam has the size of the learning rate whatever the size of a gradient, so that
rounding decides where a gradient is 0.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.nn import functional as F

from tests.faults.cases import BY_NAME, CASES
from tests.tiny.devices import ON_GPU
from vgtools.cli import run
from vgtools.models import products

SCORES = 1e-3  # of the largest number of a file: results of networks as they are
LEARNED = 2e-2  # losses after some steps
# A CPU is compared with itself, its products by another library where there is one.
ON_CPU = ("extract", "build-index", "vokenize", "retrieve", "pretrain", "train-matcher", "finetune")
DEVICES = [c.name for c in CASES if "--device cpu" in c.argv and "--shard-size" not in c.argv]


@pytest.fixture
def _no_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = F.scaled_dot_product_attention

    def plain(*args: Any, dropout_p: float = 0.0, **named: Any) -> Any:
        return attention(*args, **named)

    monkeypatch.setattr(F, "dropout", lambda x, *_, **__: x)
    monkeypatch.setattr(F, "scaled_dot_product_attention", plain)


def outputs(folder: Path, words: list[str]) -> dict[str, Any]:
    """Run a command in a folder; return its exit code and files as values to compare."""
    found: dict[str, Any] = {"exit": [run(words)]}
    for path in sorted(folder.rglob("*")):
        # The names of cached states are hashes, of the device's type among others.
        name = re.sub(r"\b[0-9a-f]{16}\b", "KEY", str(path.relative_to(folder)))
        if name.startswith("in/") or not path.is_file():
            continue
        if name.endswith(".npy"):
            found[name] = np.load(path)
        elif name.endswith((".jsonl", ".jsonl.gz")):
            data = gzip.decompress(path.read_bytes()) if name[-1] == "z" else path.read_bytes()
            found[name] = [json.loads(line) for line in data.splitlines()]
        else:
            found[name] = None  # only that it is there
    return found


def numbers(value: Any, path: str = "") -> list[tuple[str, float]]:
    """Return the fractions in a value with their places; all else is part of the place."""
    if isinstance(value, dict):
        return [x for key, part in value.items() for x in numbers(part, f"{path}.{key}")]
    if isinstance(value, list):
        return [x for i, part in enumerate(value) for x in numbers(part, f"{path}[{i}]")]
    if isinstance(value, float):
        return [(path, value)]
    return [(f"{path}={value}", 0.0)]


def compare(name: str, found: Any, expected: Any) -> None:
    if expected is None:
        assert found is None
    elif isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        if expected.dtype.kind != "f":
            np.testing.assert_array_equal(found, expected)
        else:
            largest = float(np.abs(expected).max(initial=0))
            np.testing.assert_allclose(found, expected, rtol=0, atol=SCORES * largest)
    elif name.endswith("metrics.jsonl"):
        # Which epoch is best, and scores that count examples, hang on ties.
        losses = [[(k, v) for k, v in row.items() if "loss" in k] for row in (*found, *expected)]
        mine, theirs = np.array_split(np.array([v for row in losses for _, v in row]), 2)
        assert len(found) == len(expected)
        np.testing.assert_allclose(mine, theirs, rtol=LEARNED)
    else:
        one, other = numbers(found), numbers(expected)
        assert [place for place, _ in one] == [place for place, _ in other]
        values = np.array([value for _, value in other])
        largest = float(np.abs(values).max(initial=0))
        np.testing.assert_allclose([v for _, v in one], values, rtol=0, atol=SCORES * largest)


@pytest.mark.slow
@pytest.mark.usefixtures("_no_dropout")
@pytest.mark.parametrize(
    ("device", "name"),
    [
        *(("cpu", name) for name in ON_CPU),
        *(pytest.param("cuda", name, marks=ON_GPU) for name in DEVICES),
    ],
)
def test_a_device_writes_what_a_cpu_writes(
    artefacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, name: str
) -> None:
    both = list[dict[str, Any]]()
    faster = products.is_faster()
    for place in ("cpu", device):
        folder = tmp_path / str(len(both))
        folder.mkdir()
        (folder / "in").symlink_to(artefacts)
        monkeypatch.chdir(folder)
        if both and device == "cpu":
            monkeypatch.setattr(products, "is_faster", lambda *given, **named: not faster)
        argv = BY_NAME[name].argv.replace("--device cpu", f"--device {place}")
        words = argv.replace("--image-dropout 0.5", "").split()
        both.append(outputs(folder, words))
    expected, found = both
    assert found.keys() == expected.keys()
    for file, value in expected.items():
        compare(file, found[file], value)
