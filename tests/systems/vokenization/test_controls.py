"""Labels without a matcher: against loops, and the command that writes them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.tiny import save_feats
from tests.tiny.lm import make_tokenizer, save_rows
from vgtools.cli import run
from vgtools.io.errors import DataError
from vgtools.systems.vokenization.controls import RandomLabels, frequent_words, word_centroids
from vgtools.training.splits import other_images

WORDS = ["bam", "den", "fis", "gor", "lat"]
ID = make_tokenizer().token_to_id


def test_every_image_gets_the_captions_of_another_one() -> None:
    images = np.array([7, 7, 3, 9, 3, 20])
    for seed in range(20):
        other = other_images(images, seed)
        assert (other != images).all()
        assert set(other) == set(images)
        assert other[0] == other[1]
        assert other[2] == other[4]
    assert len({tuple(other_images(images, seed)) for seed in range(20)}) > 3


@pytest.mark.parametrize("permute", [None, 4])
def test_centroids_are_those_of_loops(tmp_path: Path, permute: int | None) -> None:
    feats = save_feats(tmp_path / "feats.npy")
    array = np.load(feats).astype(np.float64)
    ids = [f"image{i:03}" for i in range(40)]
    rng = np.random.default_rng(0)
    rows = [
        {"image": f"image{rng.integers(45):03}", "text": " ".join(rng.choice(WORDS, 2))}
        for _ in range(60)
    ]
    captions = str(save_rows(tmp_path / "captions.jsonl", rows))
    found = word_centroids(make_tokenizer(), ids, [captions], str(feats), permute)
    made = found(["bam den fis gor lat h"])
    bank = array[:40]
    bank = (bank - bank.mean(0)) / bank.std(0)
    bank /= np.linalg.norm(bank, axis=1, keepdims=True)
    known = [row for row in rows if row["image"] in ids]
    shown = sorted({ids.index(row["image"]) for row in known})
    other = dict(
        zip(shown, shown if permute is None else other_images(shown, permute), strict=True)
    )
    for word, label, score in zip(WORDS, made.vokens[:5, 0], made.scores[:5, 0], strict=True):
        mine = {other[ids.index(row["image"])] for row in known if word in row["text"].split()}
        mean = np.mean([bank[image] for image in mine], axis=0)
        relevance = bank @ mean / np.linalg.norm(mean)
        assert (label, score) == (relevance.argmax(), pytest.approx(relevance.max(), abs=1e-4))
    assert (made.vokens[5:] == -1).all()
    assert found.captions == len(known)


def test_the_most_frequent_tokens_have_labels_of_their_own(tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text("den den den\nbam fis fis\n\nden bam gor gor gor gor\n")
    found = frequent_words(make_tokenizer(), 3, [str(text)])(["gor den fis bam lat"])
    # 4 gor, 4 den; of equals, the lower id comes first. 2 fis and 2 bam: one of them has a label.
    first = sorted(["gor", "den"], key=ID)
    third = min(["bam", "fis"], key=ID)
    labels = {first[0]: 0, first[1]: 1, third: 2}
    words = ["gor", "den", "fis", "bam", "lat"]
    assert found.vokens[:, 0].tolist() == [labels.get(word, -1) for word in words]


def test_captions_that_cannot_make_a_control_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("\n\n")
    with pytest.raises(DataError, match=r"t\.txt: has no token to count"):
        frequent_words(make_tokenizer(), 3, [str(tmp_path / "t.txt")])
    feats = str(save_feats(tmp_path / "feats.npy"))
    captions = save_rows(tmp_path / "c.jsonl", [{"image": "image000", "text": "bam"}] * 2)
    with pytest.raises(DataError, match=r"c\.jsonl: has captions of one image of the bank, to pe"):
        word_centroids(make_tokenizer(), ["image000", "image001"], [str(captions)], feats, 1)


def test_random_labels_are_even_and_a_function_of_sentence_and_seed() -> None:
    texts = [f"bam {a} {b} den" for a in WORDS for b in WORDS] * 40
    texts = [f"{text} {i}" for i, text in enumerate(texts)]
    labels = RandomLabels(make_tokenizer(), 5, 0)(texts).vokens[:, 0]
    counts = Counter(labels.tolist())
    size = len(labels) / 5
    assert set(counts) == set(range(5))
    assert all(abs(count - size) < 5 * np.sqrt(size) for count in counts.values())
    again = RandomLabels(make_tokenizer(), 5, 0)(["", texts[3]])
    assert again.tokens.starts[1] == 0
    whole = RandomLabels(make_tokenizer(), 5, 0)(texts[3:4])
    assert again.vokens.tolist() == whole.vokens.tolist()
    other = RandomLabels(make_tokenizer(), 5, 1)(texts)
    assert (other.vokens[:, 0] != labels).mean() > 0.7


def test_the_command_writes_each_control_and_refuses_flags_of_another(
    tiny: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [{"image": f"image{i:03}", "text": WORDS[i % 5]} for i in range(60)]
    captions = str(save_rows(tmp_path / "captions.jsonl", rows))
    text = tmp_path / "t.txt"
    text.write_text("bam den\n\nfis bam\n")
    made = {}
    feats = ("--captions", captions, "--feats", str(tiny / "feats.npy"))
    for name, flags in {
        "random": (),
        "frequent": ("--captions", captions),
        "centroid": feats,
        "permuted": (*feats, "--permute-images", "3"),
    }.items():
        control = "centroid" if name == "permuted" else name
        args = ["vokenize", str(text), "--index", str(tiny / "vg.faiss"), "--control", control]
        assert run([*args, *flags, "-q", "-o", str(tmp_path / f"{name}.jsonl")]) == 0
        lines = (tmp_path / f"{name}.jsonl").read_text().splitlines()
        made[name] = [label for line in lines for label in json.loads(line)["vokens"]]
        assert json.loads((tmp_path / f"{name}.json").read_text())["count"] == 60
    assert made["centroid"] != made["permuted"]
    assert sorted({*made["frequent"]}) == [0, 1, 2]
    for name in ("frequent", "centroid", "permuted"):
        assert made[name][0] == made[name][3]  # bam, in two sentences
    for flags, why in {
        ("--control", "frequent"): "needs --captions",
        ("--control", "random", "--captions", captions): "reads no --captions",
        ("--control", "centroid", "--captions", captions): "needs --feats",
        ("--feats", "x.npy"): "belong to --control",
        ("--control", "random", "--permute-images", "1"): "belongs to --control centroid",
        ("--control", "random", "--reading", "word"): "--context and --reading",
    }.items():
        assert run(["vokenize", str(text), "--index", str(tiny / "vg.faiss"), *flags]) == 2
        assert why in " ".join(capfd.readouterr().err.split())


def test_captions_of_another_column_make_another_control(
    tiny: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "c.csv"
    table.write_text("image,a,b\n" + "".join(f"image{i:03},bam,den\n" for i in range(60)))
    (tmp_path / "t.txt").write_text("bam den\n")

    def vokenize(column: str) -> int:
        flags = ["--control", "frequent", "--captions", f"{table}#text={column}", "-q"]
        output = ["--index", str(tiny / "vg.faiss"), "-o", f"{tmp_path}/v.jsonl/"]
        return run(["vokenize", str(tmp_path / "t.txt"), *flags, *output])

    assert (vokenize("a"), vokenize("a"), vokenize("b")) == (0, 0, 78)
    assert "captions was [" in capfd.readouterr().err
