"""`vg locate` as its users run it: rows, scores, kills, runs and grids that do not fit."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.conftest import Runner, vg_command
from tests.tiny import save_encoder, save_feats, save_grids, save_run_of
from tests.tiny.located import save_instances, save_queries
from tests.tiny.retriever import save_retriever
from vgtools.cli import run
from vgtools.images.maps import cell_centres
from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.io.files import dumps, write_manifest
from vgtools.io.splits import refuse_held_out
from vgtools.io.streams import read_jsonl
from vgtools.models.encoder import load_encoder
from vgtools.models.runs import save_run
from vgtools.systems.visual_awareness.retrieve import embed_texts, open_retriever
from vgtools.systems.visual_awareness.retriever import weldon
from vgtools.systems.vokenization.vokenize import open_matcher


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write runs of both kinds, a grid, queries and instances."""
    folder = tmp_path_factory.mktemp("locate")
    encoder = save_encoder(folder / "encoder")
    save_retriever(folder / "retriever", encoder)
    save_run_of(folder / "matcher", encoder)
    save_grids(folder / "grid.npy")
    save_queries(folder / "queries.jsonl")
    save_instances(folder / "instances.json")
    return folder


def locate(files: Path, *more: str | Path, matcher: str = "retriever") -> int:
    args = ["--matcher", files / matcher, "--feats", files / "grid.npy", "--device", "cpu", "-q"]
    return run(["locate", *map(str, [*more, *args])])


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def expected_maps(files: Path, texts: list[str], images: list[str], dims: int | None) -> list[Any]:
    """Return the heat of texts in pictures by the definition, in float64; None without words."""
    opened = open_retriever(files / "retriever")
    grids = np.load(files / "grid.npy").astype(np.float64)
    image = opened.retriever.image
    fc = image.fc.weight.double().numpy()
    conv, bias = image.conv.weight.double().numpy(), image.conv.bias.double().numpy()
    found = list[Any]()
    for text, name in zip(texts, images, strict=True):
        vectors, asking = embed_texts(opened.retriever, opened.reader, opened.reader.read([text]))
        if not len(asking):
            found.append(None)
            continue
        c = vectors[0].double().numpy()
        activations = grids[int(name.removeprefix("image"))] @ conv.T + bias
        best = np.argsort(-c, kind="stable")[:dims]
        strength = np.abs(c[best]) if dims else c[best]
        found.append((strength[:, None] * (fc[best] @ activations.T)).sum(0))
    return found


# -------------------------------------------------------------------------------------------- rows


@pytest.mark.parametrize(
    ("flags", "dims"),
    [((), 180), (("--dims", "3"), 3), (("--heat", "relevance"), None)],
)
def test_a_row_per_query_with_the_heat_of_its_definition(
    files: Path, tmp_path: Path, flags: tuple[str, ...], dims: int | None
) -> None:
    out = tmp_path / "heat.jsonl"
    assert locate(files, files / "queries.jsonl", "-o", out, *flags) == 0
    rows = rows_of(out)
    queries = rows_of(files / "queries.jsonl")
    asked = list[tuple[str, str]]()
    for query in queries:
        parts = query.get("phrases", [query])
        for part in parts:
            start, end = part.get("span", [part.get("start", 0), part.get("end")])
            asked.append((query["text"][start:end], query["image"]))
    assert len(rows) == len(asked) > 40
    texts, images = zip(*asked, strict=True)
    expected = expected_maps(files, list(texts), list(images), dims)
    for row, heat, text in zip(rows, expected, texts, strict=True):
        assert row["grid"] == [2, 2]
        assert row["text"][slice(*row.get("span", [None]))] == text
        if heat is None:
            assert (row["heat"], row["point"]) == ([], None)
            continue
        np.testing.assert_allclose(row["heat"], heat, atol=1e-4 * np.abs(heat).max())
        best = int(np.argmax(row["heat"]))
        assert row["point"] == cell_centres((2, 2))[best].tolist()
        if "hit" in row:
            x, y = row["point"][0] * row["width"], row["point"][1] * row["height"]
            ((x1, y1, x2, y2),) = row["boxes"]
            assert row["hit"] == (x1 <= x <= x2 and y1 <= y <= y2)
    assert sum("hit" in row for row in rows) > 10
    assert [] in [row["heat"] for row in rows]


@pytest.mark.parametrize("form", ["heat.jsonl", "heat.parquet"])
def test_heat_of_rows_to_evaluate_on_is_not_learned_from(
    files: Path, tmp_path: Path, form: str
) -> None:
    queries = tmp_path / "q.jsonl"
    rows = [row for row in rows_of(files / "queries.jsonl") if row["text"]][:3]
    for row, split in zip(rows, ("train", "dev", None), strict=True):
        row |= {} if split is None else {"split": split}
    queries.write_bytes(b"".join(map(dumps, rows)))
    out = tmp_path / form
    assert locate(files, queries, "-o", out) == 0
    found = [(row["text"], row.get("split")) for _, row in read_jsonl(out)]
    of = {row["text"]: row.get("split") for row in rows}
    assert found == [(text, of[text]) for text, _ in found]
    assert {split for _, split in found} == {"train", "dev", None}
    with pytest.raises(DataError, match="\"split\" is 'dev'"):
        for line, row in read_jsonl(out):
            refuse_held_out(row, out, line)
    # Where the manifest of the queries counts them, so does the manifest of the heat.
    write_manifest(queries, [queries], held_out=2)
    assert locate(files, queries, "-o", out) == 0
    assert json.loads((tmp_path / "heat.json").read_text())["held_out"] == 2


def test_heat_of_gradients(files: Path, tmp_path: Path) -> None:
    """The same retriever by autograd, in float64, from the feature map to the cosine."""
    query = tmp_path / "q.jsonl"
    texts = ["bam", "den", ""]
    query.write_text("".join(f'{{"text": "{t}", "image": "image007"}}\n' for t in texts))
    out = tmp_path / "heat.jsonl"
    assert locate(files, query, "-o", out, "--heat", "gradient") == 0
    rows = rows_of(out)
    assert rows[2]["heat"] == []
    opened = open_retriever(files / "retriever")
    vectors, _ = embed_texts(opened.retriever, opened.reader, opened.reader.read(texts))
    image = opened.retriever.image.double()
    grid = torch.from_numpy(np.load(files / "grid.npy")[7].astype(np.float64)).flatten(0, -2)
    for row, vector in zip(rows[:2], vectors.double(), strict=True):
        cells = image.project(grid).detach().requires_grad_()
        x = image.fc(weldon(cells, image.regions))
        (gradient,) = torch.autograd.grad(F.normalize(x, dim=0) @ vector, cells)
        heat = (cells * gradient.mean(0)).sum(1).detach()
        heat = heat * len(cells) * x.norm().item() / 2
        np.testing.assert_allclose(row["heat"], heat, atol=1e-4 * float(heat.abs().max()))
    assert json.loads((tmp_path / "heat.json").read_text())["config"]["heat"] == "gradient"


def test_a_matcher_embeds_each_position(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "heat.jsonl"
    query = tmp_path / "q.jsonl"
    query.write_text('{"text": "bam den", "image": "image007"}\n')
    assert locate(files, query, "-o", out, matcher="matcher") == 0
    ((row),) = rows_of(out)
    loaded = open_matcher(files / "matcher")
    ids = torch.tensor([loaded.encoder.tokenizer.encode("bam den").ids])
    with torch.inference_mode():
        model = load_encoder(str(files / "matcher")).model
        states = model(ids, output_hidden_states=True).hidden_states
        hidden = torch.cat([states[-1], states[-2]], 2)[0, 1:-1]
        cells = torch.from_numpy(np.load(files / "grid.npy")[7].astype(np.float32))
        heat = loaded.matcher.embed_images(cells)
        found = [
            F.normalize(loaded.matcher.embed_tokens(h, torch.tensor([2])).mean(0), dim=0) @ heat.T
            for h in (hidden, torch.cat([states[-2], states[-1]], 2)[0, 1:-1])
        ]
    # Which of two layers comes first in a token's features is the encoder's business.
    assert min(np.abs(np.array(row["heat"]) - one.numpy()).max() for one in found) < 2e-4
    manifest = json.loads((tmp_path / "heat.json").read_text())
    assert (manifest["kind"], manifest["queries"]) == ("heat", 1)
    assert manifest["config"]["heat"] == "relevance"


@pytest.mark.slow
def test_a_query_through_a_pipe(files: Path, vg: Runner) -> None:
    flags = ("--matcher", files / "retriever", "--feats", files / "grid.npy", "-q")
    lines = b'{"text": "bam", "image": "image001"}\n{"text": "", "image": "image001"}\n'
    done = vg("locate", *flags, input=lines)
    assert (done.returncode, done.stderr) == (0, b"")
    first, second = done.stdout.splitlines()
    assert len(json.loads(first)["heat"]) == 4
    assert second == b'{"text":"","image":"image001","grid":[2,2],"heat":[],"point":null}'


def test_classes_of_coco_are_segmented(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "heat.jsonl"
    assert locate(files, files / "instances.json", "-o", out) == 0
    rows = rows_of(out)
    assert len(rows) == 18
    assert [row["text"] for row in rows[:3]] == ["bam bams", "bam bams", "fis fiss"]
    assert json.loads((tmp_path / "heat.json").read_text())["config"]["dims"] == 10
    for row in rows:
        heat = np.array(row["heat"]).reshape(2, 2)
        tensor = torch.from_numpy(heat)[None, None]
        whole = F.interpolate(tensor, (12, 22), mode="bilinear", align_corners=False)[0, 0].numpy()
        mask = whole > whole.min() + 0.45 * (whole.max() - whole.min())
        gold = np.zeros((12, 22), bool)
        # Runs go down columns: 132 zeros are the left eleven. The polygon is the left half.
        gold[:, 11:] = row["text"] == "bam bams"
        gold[:, :11] = row["text"] == "fis fiss"
        iou = (mask & gold).sum() / (mask | gold).sum()
        assert row["iou"] == pytest.approx(iou, abs=6e-5)


# ------------------------------------------------------------------------------------------- score


def test_the_score_counts_what_rows_say(files: Path, tmp_path: Path) -> None:
    out, score = tmp_path / "heat.jsonl", tmp_path / "score.jsonl"
    assert locate(files, files / "queries.jsonl", "-o", out) == 0
    assert locate(files, files / "queries.jsonl", "--score", "-o", score) == 0
    rows = [row for row in rows_of(out) if "hit" in row]
    (record,) = rows_of(score)
    hits = [row["hit"] for row in rows]
    assert (record["queries"], record["heat"], record["dims"]) == (len(rows), "concepts", 180)
    assert record["images"] == len({row["image"] for row in rows})
    assert record["left_out"] == len(rows_of(out)) - len(rows)
    assert record["hit"] == pytest.approx(100 * np.mean(hits), abs=0.006)
    middle = list[bool]()
    cells = list[float]()
    for row in rows:
        ((x1, y1, x2, y2),) = row["boxes"]
        x, y = (cell_centres((2, 2)) * [row["width"], row["height"]]).T
        cells.append(float(((x >= x1) & (x <= x2) & (y >= y1) & (y <= y2)).mean()))
        middle.append(x1 <= row["width"] / 2 <= x2)
    assert record["centre"] == pytest.approx(100 * np.mean(middle), abs=0.006)
    assert record["random_cell"] == pytest.approx(100 * np.mean(cells), abs=0.006)
    assert record["hit_low"] <= record["hit"] <= record["hit_high"]


def test_the_score_of_classes(files: Path, tmp_path: Path) -> None:
    out, score = tmp_path / "heat.jsonl", tmp_path / "score.jsonl"
    assert locate(files, files / "instances.json", "-o", out) == 0
    assert locate(files, files / "instances.json", "--score", "-o", score) == 0
    (record,) = rows_of(score)
    rows = rows_of(out)
    over = [
        np.mean([row["iou"] > 0.3 for row in rows if row["text"] == name])
        for name in ("bam bams", "fis fiss")
    ]
    assert (record["queries"], record["classes"], record["dims"]) == (18, 2, 10)
    assert record["map"]["over_0.3"] == pytest.approx(100 * np.mean(over), abs=0.006)
    # Both masks are half of the picture: IoU .5 does not exceed .5.
    whole = record["whole_picture"]
    assert (whole["over_0.4"], whole["over_0.5"]) == (100.0, 0.0)


# ------------------------------------------------------------------------------------------ faults


@pytest.mark.slow
def test_it_resumes_after_a_kill_byte_by_byte(files: Path, tmp_path: Path) -> None:
    many = tmp_path / "many.jsonl"
    rows = (files / "queries.jsonl").read_text().splitlines()
    many.write_text("".join(f"{row}\n" for row in rows * 200))
    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    flags = ("--matcher", files / "retriever", "--feats", files / "grid.npy", "--device", "cpu")
    assert locate(files, many, "-o", whole) == 0
    process = subprocess.Popen(
        vg_command("locate", many, *flags, "-q", "-o", part), stderr=subprocess.PIPE
    )
    for _ in range(6000):
        if (tmp_path / "part.jsonl.journal").exists() or process.poll() is not None:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not part.exists()
    assert locate(files, many, "-o", part) == 0
    assert part.read_bytes() == whole.read_bytes()
    assert locate(files, many, "-o", part) == 0  # up to date


def test_it_resumes_classes_where_it_was(files: Path, tmp_path: Path) -> None:
    save_instances(tmp_path / "i.json", 60)
    whole, part = tmp_path / "whole.jsonl.gz", tmp_path / "part.jsonl.gz"
    assert locate(files, tmp_path / "i.json", "-o", whole) == 0
    assert len(gzip.decompress(whole.read_bytes()).splitlines()) == 90
    assert locate(files, tmp_path / "i.json", "--limit", "70", "-o", part) == 0
    assert len(gzip.decompress(part.read_bytes()).splitlines()) == 70


def refused(capsys: pytest.CaptureFixture[str], code: int) -> tuple[int, str]:
    return code, capsys.readouterr().err


def test_a_picture_without_a_grid(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = tmp_path / "q.jsonl"
    query.write_text('{"text": "bam", "image": "image001"}\n{"text": "bam", "image": "no.jpg"}\n')
    code, why = refused(capsys, locate(files, query, "-o", tmp_path / "o.jsonl"))
    assert code == 65
    assert "q.jsonl:2: names 'no.jpg', of which" in why
    assert "grid.npy has no grid" in why


def test_pooled_features_in_place_of_a_grid(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    feats = save_feats(tmp_path / "feats.npy")
    args = ["locate", files / "queries.jsonl", "--matcher", files / "retriever", "--feats", feats]
    code, why = refused(capsys, run([*map(str, args), "-q"]))
    assert code == 65
    assert "expected feature maps (N, P, D), got pooled features (60, 12)" in why
    assert "--pooling none" in why


def test_another_backbone(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = {"ref": "other", "fingerprint": "c" * 64, "preprocessing": {}}
    grid = save_grids(tmp_path / "grid.npy", backbone=other)
    args = ["locate", files / "queries.jsonl", "--matcher", files / "retriever", "--feats", grid]
    code, why = refused(capsys, run([*map(str, args), "-q"]))
    assert code == 65
    assert "the backbone other (" + "c" * 64 in why
    assert "expected tiny (" + "b" * 64 in why


def test_a_grid_of_another_width(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    array: Array = np.ones((20, 4, 5))
    grid = save_grids(tmp_path / "grid.npy", array)
    for matcher in ("retriever", "matcher"):
        args = ["locate", files / "queries.jsonl", "--matcher", files / matcher, "--feats", grid]
        code, why = refused(capsys, run([*map(str, args), "-q"]))
        assert code == 65
        assert "expected feature maps (images, positions, 12)" in why
        assert "got (20, 4, 5)" in why


def test_a_crop_needs_the_size_of_the_picture(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = {"input_size": [3, 64, 64], "crop_pct": 0.875, "crop_mode": "center"}
    crop = {"ref": "tiny", "fingerprint": "b" * 64, "preprocessing": seen}
    grid = save_grids(tmp_path / "grid.npy", backbone=crop)
    args = ["locate", files / "queries.jsonl", "--matcher", files / "retriever", "--feats", grid]
    code, why = refused(capsys, run([*map(str, args), "-q"]))
    assert code == 65
    assert 'queries.jsonl:1: needs "width" and "height"' in why
    assert "shows a centre crop" in why
    query = tmp_path / "q.jsonl"
    query.write_text('{"text": "bam", "image": "image001", "width": 146, "height": 73}\n')
    args[1] = query
    assert run([*map(str, args), "-q", "-o", str(tmp_path / "heat.jsonl")]) == 0
    (row,) = rows_of(tmp_path / "heat.jsonl")
    # 64 of floor(64 / .875) = 73 px of the short side; half of that share of the long one.
    share = 64 / 73
    expected = [(1 - share / 2) / 2, (1 - share) / 2, (1 + share / 2) / 2, (1 + share) / 2]
    assert row["frame"] == pytest.approx(expected, abs=6e-5)


@pytest.mark.parametrize(
    ("flags", "matcher", "code", "why"),
    [
        (("--dims", "5"), "matcher", 2, "belongs to a retriever"),
        (("--heat", "concepts"), "matcher", 2, "belongs to a retriever"),
        (("--heat", "relevance", "--dims", "5"), "retriever", 2, "belongs to --heat concepts"),
        (("-o", "heat.npy"), "retriever", 2, "expected .jsonl"),
        (("--dims", "0"), "retriever", 2, "greater than or equal to 1"),
        ((), "encoder", 66, "no run.json"),
        ((), "nowhere", 66, "does not exist"),
    ],
)
def test_flags_and_runs_that_do_not_fit(
    files: Path,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    matcher: str,
    code: int,
    why: str,
) -> None:
    found, message = refused(
        capsys, locate(files, files / "queries.jsonl", *flags, matcher=matcher)
    )
    assert (found, why in message) == (code, True), message


def test_a_run_of_another_kind(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_run(tmp_path / "lm", "lm", {}, {})
    args = ("--matcher", tmp_path / "lm", "--feats", files / "grid.npy", "-q")
    code, why = refused(capsys, run(["locate", *map(str, (files / "queries.jsonl", *args))]))
    expected = "expected a run of vg train-matcher (matcher, retriever), got one of kind 'lm'"
    assert (code, expected in why) == (65, True)


def test_nothing_to_score(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = tmp_path / "q.jsonl"
    query.write_text('{"text": "bam", "image": "image001"}\n')
    code, why = refused(capsys, locate(files, query, "--score"))
    assert (code, 'q.jsonl: has no query with "boxes" or masks' in why) == (65, True)
    query.write_text("")
    code, why = refused(capsys, locate(files, query, "--score"))
    assert code == 65
    assert locate(files, query, "-o", tmp_path / "none.jsonl") == 0
    assert (tmp_path / "none.jsonl").read_bytes() == b""
