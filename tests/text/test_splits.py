"""No system of `vg pretrain` learns from rows that are marked to validate or to test on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import save_feats
from tests.tiny.clip import clip_tokenizer, save_captions, save_tower
from tests.tiny.clip import save_shape as save_clip_shape
from tests.tiny.lm import save_shape, save_tokenizer
from tests.tiny.runs import refused
from tests.tiny.visual import open_tiny
from vgtools import cli
from vgtools.io import Exit
from vgtools.text.splits import refuse_held_out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("splits")
    save_feats(folder / "f.npy")
    save_tokenizer(folder / "t")
    save_shape(folder / "s.json")
    open_tiny(folder / "r.npy")
    (folder / "c").mkdir()
    clip_tokenizer().save(str(folder / "c" / "tokenizer.json"))
    save_clip_shape(folder / "clip.json")
    save_tower(folder / "tower")
    return folder


SYSTEMS = {
    "clip": "--feats f.npy --shape clip.json -t c",
    "": "--shape s.json -t t",
    "grounding": "--strategy none --encoder builtin:minilm",
    "visualbert": "--text-only --weight mlm=1 --regions r.npy --shape s.json -t t",
    "xdbert": "--encoder builtin:minilm --teacher tower",
}


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("split", ["test", "dev", "val2014"])
def test_rows_to_evaluate_on_are_not_learned_from(
    folder: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    system: str,
    split: str,
) -> None:
    monkeypatch.chdir(folder)
    rows = [(f"image{i:03}", "bam bet bis") for i in range(4)]
    save_captions(folder / "rows.jsonl", rows)
    lines = (folder / "rows.jsonl").read_text().splitlines()
    for number, name in ((0, "train"), (2, split)):
        lines[number] = f'{{"split": "{name}", {lines[number][1:]}'
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    args = ["pretrain", *([system] if system else []), "rows.jsonl", *SYSTEMS[system].split()]
    args += ["--steps", "1", "--device", "cpu", "-q", "-o", str(tmp_path / "run")]
    assert cli.run(args) == Exit.DATA
    refused(capfd, f"rows.jsonl:3: \"split\" is '{split}'", 'select(.split == "train")')


def test_other_splits_and_none_are_learned_from() -> None:
    for split in ("train", "restval", "unlabelled", "", None, 3):
        refuse_held_out({"split": split}, "x.jsonl", 1)
    refuse_held_out({}, "x.jsonl", 1)
