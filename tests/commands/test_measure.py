"""`vg measure`: word pairs, kept items, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from tests.tiny import save_encoder
from vgtools.cli import run
from vgtools.measures.evaluation import rows_of, runs_of


def write_vectors(folder: Path, name: str, rows: dict[str, list[float]]) -> str:
    text = "".join(f"{word} {' '.join(map(str, row))}\n" for word, row in rows.items())
    (folder / f"{name}.txt").write_text(f"{len(rows)} 2\n{text}")
    source, target = str(folder / f"{name}.txt"), f"{folder}/{name}.npy"
    assert run(["prepare", "vectors", source, "-o", target, "-q"]) == 0
    return target


ROWS = {
    "cat": [1.0, 0.0], "dog": [1.0, 0.2], "car": [0.1, 1.0], "bus": [0.0, 1.0], "idea": [1.0, 1.0],
    "hope": [1.0, -1.0],
}  # fmt: skip
PAIRS = [
    ("cat", "dog", 9.0), ("cat", "car", 2.0), ("car", "bus", 8.0), ("dog", "bus", 3.0),
    ("idea", "hope", 5.0), ("cat", "idea", 1.0), ("bus", "hope", 0.0), ("idea", "unicorn", 4.0),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = "".join(f"{a}\t{b}\t{score}\n" for a, b, score in PAIRS)
    (tmp_path / "pairs.tsv").write_text(lines)
    (tmp_path / "captions.txt").write_text("a cat and a dog\na car and a bus\n" * 2)
    return tmp_path


def records_of(args: list[str], capfd: Any) -> list[dict[str, Any]]:
    capfd.readouterr()
    assert run(["measure", *args, "--samples", "200", "-q"]) == 0
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def test_pairs_groups_and_gains(folder: Path, capfd: Any) -> None:
    turned = {word: [row[0], abs(row[1])] for word, row in ROWS.items()}
    refs = [write_vectors(folder, "one", ROWS), write_vectors(folder, "two", turned)]
    grounded = ["--grounding", f"{folder}/captions.txt", "--grounded-above", "1"]
    records = records_of([*refs, "--on", f"{folder}/pairs.tsv", *grounded], capfd)
    found = {(r["encoder"], r["group"]): r for r in records}
    assert [found[refs[0], group]["items"] for group in ("all", "grounded", "other")] == [7, 4, 3]
    for ref, rows in zip(refs, (ROWS, turned), strict=True):
        centred = np.array([*rows.values()]) - np.mean([*rows.values()], 0)
        unit = dict(zip(rows, centred / np.linalg.norm(centred, axis=1)[:, None], strict=True))
        cosine = [unit[a] @ unit[b] for a, b, _ in PAIRS[:7]]
        expected = spearmanr([score for *_, score in PAIRS[:7]], cosine).statistic
        assert found[ref, "all"]["value"] == pytest.approx(expected, abs=1e-12)
        assert found[ref, "all"]["left_out"] == 1
    gain = found[refs[1], "all"]["difference"]
    values = [found[ref, "all"]["value"] for ref in refs]
    assert gain["value"] == pytest.approx(values[1] - values[0])
    assert {"low", "high", "p", "p_holm", "significant"} < gain.keys()


def test_a_table(folder: Path, capfd: Any) -> None:
    vectors = write_vectors(folder, "one", ROWS)
    capfd.readouterr()
    args = ["measure", vectors, vectors, "--on", f"{folder}/pairs.tsv", "--samples", "200"]
    assert run([*args, "--table", "-q"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "| Encoder | pairs.tsv: Spearman, 7 |"
    assert lines[2].startswith("| one.npy | ")
    assert lines[3].startswith("| one.npy (2) | ")
    assert lines[3].endswith(", +0.000 ± 0.000 |")
    assert lines[-1] == "Left out, items that not all of them know: pairs.tsv 1."


def test_kept_items_give_the_same_records_without_the_encoders(folder: Path, capfd: Any) -> None:
    one = write_vectors(folder, "one", ROWS)
    two = write_vectors(folder, "two", {word: [y, x * x] for word, (x, y) in ROWS.items()})
    on = ["--on", f"{folder}/pairs.tsv"]
    both = records_of([one, two, *on, "-o", f"{folder}/both.jsonl"], capfd)
    for ref in (one, two):
        records_of([ref, *on, "-o", f"{ref}.jsonl"], capfd)
        Path(ref).unlink()
    assert records_of([f"{folder}/both.jsonl"], capfd) == both
    assert records_of([f"{one}.jsonl", f"{two}.jsonl"], capfd) == both


def test_any_encoder_is_the_one_that_others_are_compared_with(folder: Path, capfd: Any) -> None:
    one = write_vectors(folder, "one", ROWS)
    two = write_vectors(folder, "two", {word: [y, x * x] for word, (x, y) in ROWS.items()})
    args = ["--on", f"{folder}/pairs.tsv", "-o", f"{folder}/both.jsonl"]
    expected = records_of([two, one, *args], capfd)
    for name in (two, "two.npy"):
        assert records_of([one, two, *args, "--against", name], capfd) == expected
    assert records_of([f"{folder}/both.jsonl", "--against", "two.npy"], capfd) == expected
    assert "difference" in expected[1]


def test_classes_of_words_are_kept_by_name(folder: Path, capfd: Any) -> None:
    rng = np.random.default_rng(0)
    words = [f"{a}{b}" for a in "bdfgkl" for b in "aeiou"]
    kinds = [("low", "high")[n % 3 == 0] for n in range(30)]
    rows = [json.dumps({"word": w, "value": k}) for w, k in zip(words, kinds, strict=True)]
    (folder / "kinds.jsonl").write_text("\n".join(rows) + "\n")
    refs = list[str]()
    for name, noise in (("one", 5.0), ("two", 0.01)):
        shape = {
            w: [k == "low", 0.5] + noise * rng.normal(size=2)
            for w, k in zip(words, kinds, strict=False)
        }
        refs.append(write_vectors(folder, name, {w: list(v) for w, v in shape.items()}))
    on = ["--on", f"{folder}/kinds.jsonl"]
    both = records_of([*refs, *on, "-o", f"{folder}/both.jsonl"], capfd)
    assert [record["statistic"] for record in both] == ["accuracy"] * 2
    assert (both[0]["majority"], both[1]["value"]) == (20 / 30, 1)
    kept = [json.loads(line) for line in (folder / "both.jsonl").read_text().splitlines()]
    assert [row["gold"] for row in kept] == [row["predictions"][1] for row in kept] == kinds
    assert records_of([f"{folder}/both.jsonl"], capfd) == both


def test_items_with_another_gold_value_are_refused(folder: Path, capfd: Any) -> None:
    one = write_vectors(folder, "one", ROWS)
    on = ["--on", f"{folder}/pairs.tsv"]
    records_of([one, *on, "-o", f"{folder}/a.jsonl"], capfd)
    text = (folder / "pairs.tsv").read_text().replace("9.0", "7.0")
    (folder / "pairs.tsv").write_text(text)
    records_of([one, *on, "-o", f"{folder}/b.jsonl"], capfd)
    assert run(["measure", f"{folder}/a.jsonl", f"{folder}/b.jsonl"]) == 65
    message = "b.jsonl:1: 'cat dog' has gold 7.0, in an earlier file 9.0"
    assert message in capfd.readouterr().err


@pytest.mark.parametrize("name", ["norms.jsonl", "pairs.tsv"])
def test_predictions_that_other_items_shaped_are_not_joined(
    folder: Path, capfd: Any, name: str
) -> None:
    words = [f"{a}{b}" for a in "bdfgkl" for b in "aeiou"]
    rows = [json.dumps({"word": word, "value": n % 7}) for n, word in enumerate(words)]
    if name == "pairs.tsv":
        rows = [
            f"{a} {b} {n}" for n, (a, b) in enumerate(zip(words[::2], words[1::2], strict=True))
        ]
    vectors = np.random.default_rng(0).normal(size=(len(words), 2)).tolist()
    full = write_vectors(folder, "full", dict(zip(words, vectors, strict=True)))
    few = write_vectors(folder, "few", dict(zip(words[:28], vectors, strict=False)))
    on = folder / name
    first, *others = (f"{folder}/{number}.jsonl" for number in range(3))
    # The same encoder: alone, next to one that knows fewer words, and on an earlier file.
    for refs, kept, output in (
        ([full], rows, first), ([full, few], rows, others[0]), ([full], rows[:-1], others[1])
    ):  # fmt: skip
        on.write_text("\n".join(kept) + "\n")
        records_of([*refs, "--on", str(on), "-o", output], capfd)
    for other in others:
        assert run(["measure", first, other]) == 65
        assert f"{other}:1: {name} is of other items than in {first}" in capfd.readouterr().err


def test_encoders_in_contexts(folder: Path, capfd: Any) -> None:
    save_encoder(folder / "net")
    (folder / "pairs.tsv").write_text("bam dem 0\ndem fim 1\nfim gom 2\ngom kin 3\nbam gom 3\n")
    (folder / "text.txt").write_text("bam dem fim.\ngom bam fim dem\n" * 5)
    args = [str(folder / "net"), "--on", f"{folder}/pairs.tsv"]
    (record,) = records_of([*args, "--contexts", f"{folder}/text.txt"], capfd)
    assert (record["items"], record["left_out"]) == (4, 1), "no line has kin"
    alone, given = (records_of([*args, *more], capfd) for more in ([], ["--vectors", "alone"]))
    assert alone == given
    assert alone != records_of([*args, "--vectors", "input"], capfd)


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["a.npy"], "--on: name a file to measure on"),
        (["a.npy", "b.jsonl"], "encoders or items, X.jsonl of -o, not both"),
        (["b.jsonl", "--on", "x"], "items were measured already"),
        (["a.npy", "--on", "x", "--vectors", "contexts"], "--contexts: name a text"),
        (["a.npy", "--on", "x", "--vectors", "input", "--contexts", "y"], "is not read with"),
        (["a.npy", "--on", "x/men.txt", "--on", "y/men.txt"], "two files are called men.txt"),
        (["a.npy", "--on", "x", "-o", "-"], "-o: name a file, which has a manifest"),
        (["a.npy", "d/b.npy", "--on", "x", "--against", "c"], "expected one of a.npy, b.npy"),
    ],
)
def test_usage(args: list[str], why: str, capfd: Any) -> None:
    assert run(["measure", *args]) == 2
    assert why in capfd.readouterr().err


def test_two_probes_of_one_name_are_refused(tmp_path: Path, capfd: Any) -> None:
    probes = list[str]()
    for name in "ab":  # as official folders, whose files are called alike
        (tmp_path / name).mkdir()
        for split in ("train", "dev"):
            rows = "".join(
                f"{word}\t{n % 2}\n" for n, word in enumerate(["bam", "dem", "fim", "gom"])
            )
            (tmp_path / name / f"{split}.tsv").write_text(f"sentence\tlabel\n{rows}")
        probes += ["--probe", f"sst-2={tmp_path / name}"]
    assert run(["measure", "a.npy", *probes]) == 2
    assert "two files are called sst-2 dev.tsv, the name of an evaluation" in capfd.readouterr().err


@pytest.mark.parametrize("page", ["a.jsonl", "./a.json", "a.jsonl.part"])
def test_a_page_with_a_name_of_the_items_is_refused(folder: Path, page: str, capfd: Any) -> None:
    args = [write_vectors(folder, "one", ROWS), "--on", f"{folder}/pairs.tsv"]
    assert run(["measure", *args, "-o", f"{folder}/a.jsonl", "--page", f"{folder}/{page}"]) == 2
    assert "--page: is a name that vg uses for -o" in capfd.readouterr().err
    assert not (folder / "a.jsonl").exists()


def test_word_vectors_are_not_written_over(folder: Path, capfd: Any) -> None:
    one = Path(write_vectors(folder, "one", ROWS))
    before = one.read_bytes()
    assert (
        run(["measure", str(one), "--on", f"{folder}/pairs.tsv", "-o", f"{folder}//one.npy"]) == 73
    )
    assert "is an input of this command and would be overwritten" in capfd.readouterr().err
    assert one.read_bytes() == before


def test_pairs_that_nobody_knows_are_refused_and_written_over_no_others(
    folder: Path, capfd: Any
) -> None:
    kept = folder / "kept.jsonl"
    asked = ["--on", f"{folder}/pairs.tsv", "-q"]
    assert run(["measure", write_vectors(folder, "one", ROWS), *asked, "-o", str(kept)]) == 0
    before = kept.read_bytes()
    vectors = write_vectors(folder, "two", {"sun": [1, 0], "moon": [0, 1]})
    for more in ([], ["-o", str(kept)]):
        assert run(["measure", vectors, *asked, *more]) == 65
        why = "pairs.tsv: 0 of its 8 items are known to all; 3 are needed"
        assert why in capfd.readouterr().err
    assert kept.read_bytes() == before


def test_runs_that_differ_by_their_seed_are_one_row(folder: Path, capfd: Any) -> None:
    runs = [folder / row / f"seed-{seed}" for row in "ab" for seed in range(2)]
    for seed, place in enumerate(runs):
        place.parent.mkdir(exist_ok=True)
        save_encoder(place, seed=seed)
    pairs = ["--on", f"{folder}/pairs.tsv"]
    single = records_of([*map(str, runs), *pairs], capfd)
    assert [r["encoder"] for r in single] == [str(folder / "a"), str(folder / "b")]
    for record, own in zip(single, (runs[:2], runs[2:]), strict=True):
        alone = [records_of([str(run), *pairs], capfd)[0]["value"] for run in own]
        assert record["runs"] == pytest.approx(alone, abs=1e-6)
        assert record["value"] == pytest.approx(np.mean(alone), abs=1e-6)


def test_a_folder_of_runs_names_them(tmp_path: Path) -> None:
    for seed in range(11):
        (tmp_path / f"row/seed-{seed}").mkdir(parents=True)
    row = str(tmp_path / "row")
    assert runs_of(row) == [row]
    for place in tmp_path.glob("row/seed-*"):
        (place / "run.json").write_text("{}")
    assert runs_of(row) == [f"{row}/seed-{seed}" for seed in range(11)]
    (tmp_path / "row/run.json").write_text("{}")
    assert runs_of(row) == [row]
    assert rows_of(["a/seed-0", "x", "a/seed-1/", "x"]) == {"a": [0, 2], "x": [1], "x (2)": [3]}
    assert rows_of(["a/seed-0/model"]) == {"a/seed-0/model": [0]}


def test_a_page_is_written_next_to_the_records(folder: Path, capfd: Any) -> None:
    one = write_vectors(folder, "one", ROWS)
    page = folder / "page.html"
    args = [one, one, "--on", f"{folder}/pairs.tsv"]
    assert records_of([*args, "--page", str(page)], capfd) == records_of(args, capfd)
    assert "pairs.tsv" in page.read_text()
    page.write_text("mine")
    assert run(["measure", *args, "--page", str(page)]) == 73
    assert page.read_text() == "mine"
