"""Calls are found in shell lines, parsed, and compared by what they write."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.calls import collisions, joined, parse, record

FLICKR = "prepare flickr8k t.txt --images photos --images-out out/photos.jsonl -o out/flickr.jsonl"


def test_the_shell_expands_loops_pipes_and_branches(tmp_path: Path) -> None:
    lines = joined(
        "for s in train:a test:b; do vg prepare squad ${s%:*}.json -o ${s#*:}.txt || exit; done\n"
        "test -f none || { echo needs; exit 66; }\n"
        "cat x | vg prepare wikitext - \\\n    --trim | head -3 > o.txt\n"
        "python timed.py cost vg stats 'a b' \"$$\" && OMP_NUM_THREADS=1 vg env\n"
        "set -- $(cut x) && vg show $1\n"
    )
    found = record(lines, tmp_path)
    assert found[:3] == [
        ("prepare", "squad", "train.json", "-o", "a.txt"),
        ("prepare", "squad", "test.json", "-o", "b.txt"),
        ("prepare", "wikitext", "-", "--trim"),
    ]
    assert [call[0] for call in found[3:]] == ["stats", "env", "show"]
    assert found[3][1] == "a b"
    assert found[5] == ("show", "1_1_1")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("vokenize a.txt --index i.faiss --topk 3", "No such option"),
        ("finetune rte RTE -e x -o y --keep worst", "'worst' is not one of"),
        ("finetune rte RTE -e x -o y --lr", "requires an argument"),
        ("finetune rte RTE -e x -o y --lr high", "number"),
        ("prepare coco", "Missing argument"),
        ("prepare coco a b", "unexpected extra argument"),
        ("pretrian x", "No such command"),
    ],
)
def test_what_vg_does_not_understand(line: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(line.split())


def test_outputs_and_manifests() -> None:
    call = parse(FLICKR.split())
    assert sorted(call.outputs) == ["out/flickr.jsonl", "out/photos.jsonl"]
    assert sorted(call.manifests) == ["out/flickr.json", "out/photos.json"]
    run = parse(["pretrain", "wiki.txt", "--shape", "bert-small", "-t", "x", "-o", "out/photos"])
    assert (run.outputs, run.manifests) == (("out/photos",), ())


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("extract-image-feats p -o out/photos.npy", ["out/photos.json"]),
        ("extract-image-feats p -o out/feats.npy", []),
        ("vokenize a --index i -o ./out/flickr.jsonl", ["out/flickr.json", "out/flickr.jsonl"]),
        ("vokenize a --index i -o out/flickr.jsonl.zst", ["out/flickr.json"]),
        ("show x -o out/flickr.html", []),
    ],
)
def test_outputs_that_share_a_manifest(line: str, names: list[str]) -> None:
    found = collisions([parse(FLICKR.split()), parse(line.split())])
    assert sorted(fault.split(" is written")[0] for fault in found) == names
