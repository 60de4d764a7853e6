"""`vg retrieve` as its users run it: pipes, kills, text of every kind, indexes of every kind."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import Runner, vg_command
from tests.tiny import grounding as tiny_grounding
from tests.tiny import save_encoder, save_run_of, text
from vgtools.analysis.recall import text_ranks
from vgtools.cli import run
from vgtools.io.files import sha256_file
from vgtools.io.streams import open_read
from vgtools.retrieval.index import open_index
from vgtools.systems.grounding.keys import caption_keys, noun_keys
from vgtools.systems.vokenization.vokenize import Vokenizer, open_matcher

Retrieve = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def retrieve(tiny: Path, tmp_path: Path) -> Retrieve:
    """Retrieve for a file in this process and return the rows; flags are passed on."""

    def call(path: Path, *flags: str | Path, index: Path = tiny / "vg.faiss") -> list[Any]:
        out = tmp_path / "out.jsonl"
        args = ["retrieve", path, "--index", index, "-o", out, "--device", "cpu", "-q", *flags]
        assert run([*map(str, args), "--restart"]) == 0
        return [json.loads(line) for line in out.read_bytes().splitlines()]

    return call


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("".join(line + "\n" for line in text(3000, seed=3)))
    return path


@pytest.fixture(scope="module")
def captions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write rows that name their own images, of 20 of the bank's 60 and of one outside it."""
    path = tmp_path_factory.mktemp("captions") / "captions.jsonl"
    lines = [f"{line} {i}" for i, line in enumerate(text(60, seed=8))]  # no two alike
    rows = [
        {"image": f"image{i % 20:03}", "text": line, "split": "dev", "n": i}
        for i, line in enumerate(lines)
    ]
    rows[7]["image"] = "elsewhere"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def relevance_of(tiny: Path, lines: list[str]) -> np.ndarray:
    """Return the (B, 60) relevance of texts and images, text by text, in float64."""
    bank = open_index(tiny / "vg.faiss")
    assert bank.bank is not None
    worker = Vokenizer(open_matcher(tiny / "run"), bank)
    found = np.full((len(lines), 60), -np.inf)
    for i, line in enumerate(lines):
        with torch.inference_mode():
            parts = list(worker.embed(worker.tokenize([line])))
        if parts:
            mean = np.concatenate([part.vectors.double().numpy() for part in parts]).mean(0)
            found[i] = bank.bank.astype(np.float64) @ (mean / np.linalg.norm(mean))
    return found


def refused(capsys: pytest.CaptureFixture[str], *args: str | Path) -> tuple[int, str]:
    code = run(["retrieve", *map(str, args)])
    return code, capsys.readouterr().err


# -------------------------------------------------------------------------------------------- rows


@pytest.mark.slow
def test_a_line_through_a_pipe(tiny: Path, vg: Runner) -> None:
    done = vg("retrieve", "--index", tiny / "vg.faiss", "-k", "3", "-q", input=b"bam den\n\nfis")
    assert (done.returncode, done.stderr) == (0, b"")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["text"] for row in rows] == ["bam den", "", "fis"]
    assert [len(row["images"]) for row in rows] == [3, 0, 3]
    assert done.stdout.splitlines()[1] == b'{"text":"","images":[],"scores":[]}'


def test_images_are_those_of_brute_force(tiny: Path, corpus: Path, retrieve: Retrieve) -> None:
    lines = corpus.read_text().split("\n")[:80]
    scores = relevance_of(tiny, lines)
    rows = retrieve(corpus, "--limit", "80")
    assert [row["text"] for row in rows] == lines
    for row, expected in zip(rows, scores, strict=True):
        if not np.isfinite(expected).all():
            assert row["images"] == []
            continue
        assert len(set(row["images"])) == 16
        np.testing.assert_allclose(row["scores"], np.sort(expected)[::-1][:16], rtol=0, atol=6e-5)
        np.testing.assert_allclose(row["scores"], expected[row["images"]], rtol=0, atol=6e-5)


def test_a_bank_smaller_than_k_gives_them_all(retrieve: Retrieve, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("bam\n")
    (row,) = retrieve(tmp_path / "t.txt", "-k", "99")
    assert sorted(row["images"]) == list(range(60))
    assert row["scores"] == sorted(row["scores"], reverse=True)


def test_text_of_every_kind_gives_a_row_per_line(retrieve: Retrieve, tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(
        b"\xef\xbb\xbfbam\r\n\n \xff\xfe den\nfis\xe2\x80\xa8dat\rkon\n\xf0\x9f\x90\x88 b"
    )
    rows = retrieve(path, "-k", "2")
    assert [row["text"] for row in rows] == [
        "bam",
        "",
        " \ufffd\ufffd den",
        "fis\u2028dat\rkon",
        "\U0001f408 b",
    ]


@pytest.mark.slow
def test_a_file_its_compressed_form_and_a_pipe_give_the_same_bytes(
    tiny: Path, captions: Path, tmp_path: Path, vg: Runner
) -> None:
    flags = ["--index", tiny / "vg.faiss", "-k", "2", "-q", "--device", "cpu"]
    whole = vg("retrieve", captions, *flags).stdout
    assert whole.count(b"\n") == 60
    first = json.loads(whole.splitlines()[0])
    assert list(first) == ["text", "images", "scores", "split", "image"]
    assert vg("retrieve", "-", *flags, input=captions.read_bytes()).stdout == whole
    packed = tmp_path / "c.jsonl.gz"
    packed.write_bytes(gzip.compress(captions.read_bytes()))
    assert vg("retrieve", packed, *flags, "-o", tmp_path / "o.jsonl.zst").returncode == 0
    assert b"".join(open_read(tmp_path / "o.jsonl.zst")) == whole


def test_the_texts_own_image_is_never_returned(
    captions: Path, retrieve: Retrieve, tiny: Path, tmp_path: Path
) -> None:
    every = retrieve(captions, "-k", "60")
    rest = retrieve(captions, "-k", "60", "--not-own")
    ids = (tiny / "vg.ids").read_text().split()
    for whole, row in zip(every, rest, strict=True):
        kept = [image for image in whole["images"] if ids[image] != row["image"]]
        assert row["images"] == kept
    assert json.loads((tmp_path / "out.json").read_text())["own_left_out"] == 59
    few = retrieve(captions, "-k", "3", "--not-own")
    assert [row["images"] for row in few] == [row["images"][:3] for row in rest]


def test_the_own_image_is_left_out_after_texts_that_ask_for_nothing(
    captions: Path, retrieve: Retrieve, tiny: Path, tmp_path: Path
) -> None:
    ids = (tiny / "vg.ids").read_text().split()
    rows = [json.loads(line) for line in captions.read_text().splitlines()]
    rows = [row for row in rows if row.get("image") in ids][:6]
    empty = [{"text": "", "image": row["image"]} for row in rows]
    mixed = [row for pair in zip(empty, rows, strict=True) for row in pair]
    path = tmp_path / "mixed.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in mixed))
    every = retrieve(path, "-k", "60")
    assert [bool(row["images"]) for row in every] == [False, True] * 6
    for whole, row in zip(every, retrieve(path, "-k", "60", "--not-own"), strict=True):
        assert row["images"] == [image for image in whole["images"] if ids[image] != row["image"]]


def test_own_images_that_are_nowhere_are_reported(
    tiny: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = refused(
        capsys, corpus, "--index", tiny / "vg.faiss", "--not-own", "--limit", "2", "-q"
    )
    assert code == 0
    assert 'no row has an "image" of the bank; --not-own left nothing out' in said


def test_the_manifest_names_the_index_and_its_ids(
    retrieve: Retrieve, corpus: Path, tiny: Path, tmp_path: Path
) -> None:
    retrieve(corpus, "--limit", "30", "-k", "2")
    body = json.loads((tmp_path / "out.json").read_text())
    assert (body["kind"], body["rows"], body["k"], body["count"]) == ("retrieved", 30, 2, 60)
    assert (tmp_path / body["index"]).resolve() == tiny / "vg.faiss"
    ids = body["config"]["index_sha256"]["vg.ids"]["sha256"]
    assert ids == sha256_file(tiny / "vg.ids")
    empty = sum(not line for line in corpus.read_text().split("\n")[:30])
    assert body["without"] == empty > 0


# ------------------------------------------------------------------------------------------- faults


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_killed_at_any_time_it_ends_byte_identical(
    name: str, tiny: Path, corpus: Path, tmp_path: Path
) -> None:
    def command(out: Path) -> list[str]:
        flags = ["--index", tiny / "vg.faiss", "-k", "3", "-q", "--device", "cpu", "-o", out]
        return vg_command("retrieve", corpus, *flags)

    whole = tmp_path / name
    assert subprocess.run(command(whole), timeout=600).returncode == 0
    out = tmp_path / "k" / name
    out.parent.mkdir()
    rng = random.Random(0)
    committed = 0
    for _ in range(3):
        process = subprocess.Popen(command(out))
        journal = out.with_name(f"{name}.journal")
        while process.poll() is None:
            rows = json.loads(journal.read_bytes())["state"]["rows"] if journal.exists() else 0
            if rows > committed:
                committed = rows
                break
            time.sleep(0.002)
        time.sleep(rng.random() * 0.05)
        process.kill()
        process.wait()
    assert committed > 0
    assert subprocess.run(command(out), timeout=600).returncode == 0
    assert digest(out) == digest(whole)
    assert sorted(p.name for p in out.parent.iterdir()) == ["out.json", name]


@pytest.mark.slow
def test_a_stopped_run_resumes_and_refuses_other_settings(
    tiny: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    flags = ["--index", str(tiny / "vg.faiss"), "-q", "--device", "cpu"]
    process = subprocess.Popen(
        vg_command("retrieve", corpus, *flags, "-o", out), stderr=subprocess.PIPE
    )
    journal = tmp_path / "out.jsonl.journal"
    while not journal.exists() and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    code, said = refused(capsys, corpus, *flags, "-o", out, "-k", "3")
    assert code == 78
    assert "used different settings: k was 16, is now 3" in said
    assert run(["retrieve", str(corpus), *flags, "-o", str(out)]) == 0
    done = subprocess.run(vg_command("retrieve", corpus, *flags), capture_output=True, timeout=120)
    assert out.read_bytes() == done.stdout
    code, said = refused(capsys, corpus, *flags[:2], "--device", "cpu", "-o", out)
    assert (code, said) == (0, f"vg retrieve: {out} is up to date\n")


@pytest.mark.slow
def test_head_closes_the_pipe_quietly(tiny: Path, corpus: Path) -> None:
    command = " ".join(vg_command("retrieve", corpus, "--index", tiny / "vg.faiss", "-q"))
    shell = f"set -o pipefail; {command} | head -1"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, timeout=120)
    assert (done.returncode, done.stderr) == (141, b"")
    assert json.loads(done.stdout)["text"] == corpus.read_text().split("\n")[0]


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b'{"text": "a"}\n{"text": ', "t.jsonl:2: not valid JSON"),
        (b'{"text": 3}\n', '"text" must be a string'),
        (b'{"text": "a", "image": 3}\n', '"image" must be a string, got 3'),
    ],
)
def test_bad_rows_are_named_with_their_line(
    tiny: Path, tmp_path: Path, body: bytes, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(body)
    out = tmp_path / "o.jsonl"
    code, said = refused(capsys, path, "--index", tiny / "vg.faiss", "-o", out)
    assert code == 65
    assert where in said
    assert said.count("\n") == 1
    assert not out.exists()


def test_an_index_of_another_matcher_or_damaged_is_refused(
    tiny: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = save_run_of(tmp_path / "run", save_encoder(tmp_path / "encoder"), seed=9)
    code, said = refused(capsys, corpus, "--index", tiny / "vg.faiss", "--matcher", other)
    prints = [
        json.loads((folder / "run.json").read_text())["fingerprint"]
        for folder in (tiny / "run", other)
    ]
    assert code == 65
    assert all(one[:12] in said for one in prints)
    code, said = refused(capsys, corpus, "--index", tmp_path / "none.faiss")
    assert code == 66
    for end in ("faiss", "ids", "json"):
        (tmp_path / f"vg.{end}").write_bytes((tiny / f"vg.{end}").read_bytes())
    body = bytearray((tmp_path / "vg.faiss").read_bytes())
    body[60] ^= 1
    (tmp_path / "vg.faiss").write_bytes(body)
    code, said = refused(
        capsys, corpus, "--index", tmp_path / "vg.faiss", "--matcher", tiny / "run"
    )
    assert code == 65
    assert "is damaged or from another run" in said


def test_flags_that_do_not_fit_the_index_are_usage_errors(
    tiny: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vg = tiny / "vg.faiss"
    scene = save_scene(tmp_path)
    for flags, said in (
        ([vg, "--clusters", "2"], "--clusters"),
        ([vg, "--tagger", "x"], "--tagger"),
        ([scene, "--matcher", tiny / "run"], "--matcher"),
        ([vg, "--score", "--not-own"], "drop --not-own"),
        ([vg, "-o", tmp_path / "x.npy"], "expected .jsonl"),
        ([vg, "-k", "0"], "-k"),
    ):
        code, message = refused(capsys, corpus, "--index", *flags)
        assert code == 2, flags
        assert said in message
    words = tmp_path / "words.jsonl"
    words.write_text("{}\n")
    code, message = refused(capsys, corpus, "--index", words, "-o", f"{tmp_path}/./words.jsonl")
    assert (code, "is an input of this command" in message) == (73, True)
    body = json.loads((tmp_path / "scene.json").read_text())
    (tmp_path / "scene.json").write_text(json.dumps(body | {"keys": "smells"}))
    code, message = refused(capsys, corpus, "--index", scene)
    assert code == 65
    assert 'has keys "smells", expected one of matcher, captions, nouns, keywords' in message
    (tmp_path / "scene.json").write_text(json.dumps(body | {"keys": {}}))
    code, message = refused(capsys, corpus, "--index", scene)
    assert (code, '"keys"' in message) == (65, True)


# -------------------------------------------------------------------------------- scene and objects

CAPTIONS = ["a dog chases a cat", "the red car", "two puppy fish", "a truck"]


def save_scene(folder: Path, stop: frozenset[str] = tiny_grounding.STOP) -> Path:
    words = tiny_grounding.save_vectors(folder / "words.npy")
    bank = caption_keys(
        tiny_grounding.rows(*CAPTIONS), tiny_grounding.vectors(), tiny_grounding.STOP
    )
    return tiny_grounding.save_index(folder / "scene.faiss", bank, "captions", words, stop)


def test_own_images_under_another_name_are_noted(
    retrieve: Retrieve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.jsonl"
    rows = [{"text": "a puppy", "image": name} for name in ("3", "img/3.jpg", "img/4.jpg")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    retrieve(path, "-k", "2", "--not-own", index=save_scene(tmp_path))
    assert (
        '2 rows with an "image" that the bank does not have by this name' in capsys.readouterr().err
    )
    body = json.loads((tmp_path / "out.json").read_text())
    assert (body["own_left_out"], body["own_unknown"]) == (1, 2)


def test_another_list_of_stop_words_is_another_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The word is in no caption, so that the files of the index stay as they are."""
    (tmp_path / "t.txt").write_text("a puppy truck\n")
    index = str(save_scene(tmp_path))
    before = Path(index).read_bytes()
    ask = ["retrieve", str(tmp_path / "t.txt"), "--index", index, "-o", str(tmp_path / "r.jsonl")]
    assert run(ask) == run(ask) == 0
    assert "is up to date" in capsys.readouterr().err
    save_scene(tmp_path, tiny_grounding.STOP | {"puppy"})
    assert Path(index).read_bytes() == before
    first = (tmp_path / "r.jsonl").read_bytes()
    assert run(ask) == 0
    assert "is up to date" not in capsys.readouterr().err
    assert (tmp_path / "r.jsonl").read_bytes() != first


def test_an_index_of_captions_finds_scenes(retrieve: Retrieve, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    texts = ["a puppy", "the", "", "a truck"]
    path.write_text("".join(json.dumps({"text": t, "image": "3"}) + "\n" for t in texts))
    scene = save_scene(tmp_path)
    rows = retrieve(path, "-k", "2", index=scene)
    # puppy (.8, .6) with puppy fish (.8, .6), then dog chases cat.
    assert [row["images"] for row in rows] == [[2, 0], [], [], [3, 1]]
    assert rows[0]["scores"][0] == 1.0
    assert rows[3]["scores"][0] == 1.0
    rows = retrieve(path, "-k", "2", "--not-own", index=scene)
    assert rows[3]["images"] == [1, 0]
    body = json.loads((tmp_path / "out.json").read_text())
    assert (body["without"], body["own_left_out"]) == (2, 4)


def test_more_clusters_than_images_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = tiny_grounding.save_vectors(tmp_path / "words.npy")
    rows = [(1, {"image": "0", "nouns": ["shark"], "text": "large fish"})]
    bank = noun_keys(rows, tiny_grounding.vectors(), tiny_grounding.STOP, "rows.jsonl")
    index = tiny_grounding.save_index(tmp_path / "o.faiss", bank, "nouns", words)
    (tmp_path / "t.txt").write_text("a dog\n")
    args = [tmp_path / "t.txt", "--index", index, "-k", "4", "--clusters", "5"]
    code, said = refused(capsys, *args)
    assert code == 2
    assert "5 clusters need as many images; raise -k (4)" in said


# ------------------------------------------------------------------------------------------- scores


@pytest.mark.slow
def test_scores_are_those_of_brute_force(
    tiny: Path, captions: Path, vg: Runner, tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in captions.read_bytes().splitlines()]
    used = [row for row in rows if row["image"] != "elsewhere"]
    done = vg("retrieve", captions, "--index", tiny / "vg.faiss", "--score", "-q")
    record = json.loads(done.stdout)
    assert done.stdout.count(b"\n") == 1
    assert (record["texts"], record["images"], record["left_out"]) == (59, 20, 1)
    scores = relevance_of(tiny, [row["text"] for row in used])[:, :20]
    own = np.array([int(row["image"][-3:]) for row in used])
    ranks = text_ranks(scores, own)
    best = [1 + int((scores[:, i] > scores[own == i, i].max()).sum()) for i in range(20)]
    for way, expected in (("text_to_image", ranks), ("image_to_text", np.array(best))):
        for k in (1, 5, 10):
            assert record[way][f"r{k}"] == round(100 * float((expected <= k).mean()), 2)
            assert record[way][f"r{k}_low"] <= record[way][f"r{k}"] <= record[way][f"r{k}_high"]
        assert record[way]["median_rank"] == float(np.median(expected))
    out = tmp_path / "score.jsonl"
    args = ["retrieve", captions, "--index", tiny / "vg.faiss", "--score", "-q", "-o", out]
    assert run([*map(str, args)]) == 0
    assert out.read_bytes() == done.stdout


def test_scores_do_not_depend_on_the_order_of_equal_texts(tiny: Path, tmp_path: Path) -> None:
    found = []
    texts = ("bam den", "fis", "bam den", "gor", "fis")
    rows = [{"image": f"image{i % 8:03}", "text": texts[i % 5]} for i in range(20)]
    for number, order in enumerate((rows, rows[::-1])):
        file = tmp_path / f"{number}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in order))
        args = [file, "--index", tiny / "vg.faiss", "--score", "-q", "-o", file.with_suffix(".out")]
        assert run(["retrieve", *map(str, args)]) == 0
        found.append(json.loads(file.with_suffix(".out").read_text()))
    assert found[0] == found[1]


def test_nothing_to_score_is_65(
    tiny: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = refused(capsys, corpus, "--index", tiny / "vg.faiss", "--score")
    assert code == 65
    assert 'has no row with an "image" of the 60 in' in said
