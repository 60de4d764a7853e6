"""`vg probe-attention` as a user runs it: results, files, splits, and what is said of bad input."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.tiny import WORDS, save_encoder
from tests.tiny import probe as t
from tests.tiny.runs import refused
from tests.tiny.xdbert import save_xdbert
from vgtools.cli import run
from vgtools.io.artifact import read_manifest
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import dumps
from vgtools.io.written import END, FORMAT, seal
from vgtools.systems.attention_probes import scores
from vgtools.systems.attention_probes.text import ProbeTexts


@dataclass
class World:
    """Files of a tiny world."""

    folder: Path
    rows: list[dict[str, Any]]

    @property
    def given(self) -> list[str]:
        return [
            str(self.folder / "phrases.jsonl"),
            "--encoder",
            str(self.folder / "vb"),
            "--regions",
            str(self.folder / "r.npy"),
        ]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    sets = t.region_sets(8)
    t.save_regions(folder / "r.npy", sets)
    rows = t.caption_rows(sets, 24)
    for number, row in enumerate(rows):
        row["split"] = "val" if int(row["image"][5]) % 2 else "test"
        row["text"] = row["text"] + (" <b>&" if number == 0 else "")
    t.save_rows(folder / "phrases.jsonl", rows)
    (folder / "p.conllu").write_text(t.conllu([r["text"] for r in rows]))
    t.save_visualbert(folder / "vb")
    (folder / "photos").mkdir()
    for image in sets:
        Image.new("RGB", (t.SIDE, t.SIDE), "#4a7").save(folder / "photos" / image)
    (folder / "photos" / "photo2.jpg").write_bytes(b"no picture")
    return World(folder, rows)


def probe(capfdbinary: Any, *args: Any) -> tuple[int, list[dict[str, Any]], str]:
    code = run(["probe-attention", *map(str, args), "--device", "cpu"])
    out, err = capfdbinary.readouterr()
    return code, [json.loads(line) for line in out.splitlines()], err.decode()


def test_everything_goes_into_the_folder_and_the_records_to_stdout(
    world: World, tmp_path: Path, capfdbinary: Any
) -> None:
    out, photos = tmp_path / "out", world.folder / "photos"
    extra = ["--parser", world.folder / "p.conllu", "--images", photos, "--samples", 50, "-o", out]
    split = ["--split", "test", "--select-on", "val"]
    code, records, err = probe(capfdbinary, *world.given, *extra, *split, "--reported")
    assert code == 0, err
    kinds = [r["kind"] for r in records]
    assert kinds.count("head") == 6
    assert kinds.count("layer") == 3
    assert kinds[-1] == "summary"
    test = [r for r in world.rows if r["split"] == "test"]
    summary = records[-1]
    assert summary["captions"] == len(test)
    assert summary["photos"] == 4
    assert summary["entities"] == sum(len(r["phrases"]) for r in test)
    assert summary["selected_on"] == "val"
    controls = {r["control"]: r for r in records if r["kind"] == "control"}
    assert list(controls)[:3] == [
        "asked by a caption of another photo",
        "asked by another entity of the caption",
        "random region",
    ]
    assert summary["word_specific"] == next(iter(controls.values()))["difference"]
    assert controls["first region"]["entities"] == summary["entities"]
    assert 0 < controls["asked by a caption of another photo"]["entities"] < summary["entities"]
    assert [json.loads(line) for line in (out / "probe.jsonl").read_text().splitlines()] == records
    assert read_manifest(out / "probe.jsonl", "attention-probe")["config"]["select_on"] == "val"
    names = {p.name for p in out.iterdir()}
    assert {
        "tables.md",
        "page.html",
        "entity.svg",
        "entity.png",
        "relations.svg",
        "relations.png",
        "example-1.png",
    } <= names
    tables = (out / "tables.md").read_text()
    assert f"| most confident region | {summary['baseline']:.2f}" in tables
    assert kinds.count("reported") == 11
    assert "| entities | 17.33 | 50.77 | – |" in tables
    assert "| num | 23.15 | 67.44 | 9-11 |" in tables
    assert "Reported in Li et al. 2020, Table 2; its model" in tables
    assert "photo2.jpg: " in err
    assert "the page shows the boxes alone" in err
    page = (out / "page.html").read_text()
    assert "<b>&" not in page
    assert "&lt;b&gt;" in page or "&lt;" in page
    with Image.open(out / "entity.png") as figure:
        assert figure.size == (1280, 860)


def test_the_best_head_is_the_one_of_the_other_split(world: World, capfdbinary: Any) -> None:
    given = [*world.given, "--samples", 20]
    _, val, _ = probe(capfdbinary, *given, "--split", "val")
    _, test, _ = probe(capfdbinary, *given, "--split", "test")
    _, both, _ = probe(capfdbinary, *given, "--split", "test", "--select-on", "val")
    assert both[-1]["head"] == val[-1]["head"]
    named = next(r for r in test if r.get("name") == both[-1]["head"])
    assert both[-1]["accuracy"] == named["accuracy"]
    assert both[-1]["accuracy_where_chosen"] == val[-1]["accuracy"]
    assert [r for r in both if r["kind"] == "head"] == [r for r in test if r["kind"] == "head"]


def test_no_active_head_is_a_result(
    world: World, tmp_path: Path, capfdbinary: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a single region per photo, on which no head lays more than the text."""
    monkeypatch.setattr(scores, "ACTIVE", 2.0)
    out = tmp_path / "out"
    code, records, err = probe(capfdbinary, *world.given, "--samples", 50, "-o", out)
    assert code == 0, err
    assert (records[-1]["head"], records[-1]["active_heads"]) == (None, 0)
    rules = [r for r in records if r["kind"] == "control" and not r["same_head"]]
    assert rules
    assert not any("difference" in rule for rule in rules)
    found = (out / "tables.md").read_text()
    assert "| best active head: none is active | – |" in found
    (row,) = (line for line in found.splitlines() if line.startswith("| first region |"))
    assert row.endswith(" | – | – |")
    assert "\nNo head is active: nothing is compared with the controls.\n" in found
    assert "none is active" in (out / "page.html").read_text()


def test_the_batch_size_changes_nothing(world: World, capfdbinary: Any) -> None:
    given = [*world.given, "--samples", 30, "-q"]
    (_, first, _), (_, second, _) = (
        probe(capfdbinary, *given, "--batch-size", size) for size in (3, 24)
    )
    assert [r["kind"] for r in first] == [r["kind"] for r in second]
    for a, b in zip(first, second, strict=True):
        assert {k: v for k, v in a.items() if not isinstance(v, float)} == {
            k: v for k, v in b.items() if not isinstance(v, float)
        }
        assert [v for v in a.values() if isinstance(v, float)] == pytest.approx(
            [v for v in b.values() if isinstance(v, float)], abs=2e-4
        )


def test_text_alone_needs_no_regions(world: World, tmp_path: Path, capfdbinary: Any) -> None:
    encoder = save_encoder(tmp_path / "bert")
    (tmp_path / "t.txt").write_text("bam dis , fom .\nkas lim\n")
    (tmp_path / "t.conllu").write_text(t.conllu(["bam dis , fom .", "kas lim"]))
    out = tmp_path / "out"
    given = ["text", tmp_path / "t.txt", "--encoder", encoder, "-o", out]
    given += ["--parser", tmp_path / "t.conllu"]
    code, records, err = probe(capfdbinary, *given)
    assert code == 0, err
    assert {r["kind"] for r in records} == {"text-head", "dependency", "text-summary"}
    assert {p.name for p in out.iterdir()} == {
        "probe.jsonl",
        "probe.json",
        "tables.md",
        "patterns.svg",
        "patterns.png",
        "heads.svg",
        "heads.png",
        "dependencies.svg",
        "dependencies.png",
        "page.html",
    }
    code, joint, _ = probe(
        capfdbinary, "text", tmp_path / "t.txt", "--encoder", world.folder / "vb"
    )
    assert code == 0
    assert joint[-1]["texts"] == 2


def test_a_classifier_learns_on_one_split_and_heads_are_chosen_on_another(
    world: World, tmp_path: Path, capfdbinary: Any
) -> None:
    encoder = save_encoder(tmp_path / "bert")
    rows = [
        {"text": r["text"].replace(" <b>&", ""), "split": ("a", "b", "c")[n % 3]}
        for n, r in enumerate(world.rows)
    ]
    path, parses, out = (
        t.save_rows(tmp_path / "t.jsonl", rows),
        tmp_path / "t.conllu",
        tmp_path / "out",
    )
    parses.write_text(t.conllu([r["text"] for r in rows]))
    given = [
        "text",
        path,
        "--encoder",
        encoder,
        "--parser",
        parses,
        "--samples",
        30,
        "--classifier",
        "attention",
    ]
    split = ["--split", "a", "--select-on", "b", "--train-on", "c", "-o", out]
    code, records, err = probe(capfdbinary, *given, *split)
    assert code == 0, err
    tried = [r for r in records if r["kind"] == "classifier"]
    assert tried[0]["trained_on"] == 8
    assert tried[0]["words"] == sum(len(r["text"].split()) - 1 for r in rows if r["split"] == "a")
    assert records[-1]["texts"] == 8
    assert records[-1]["selected_on"] == "b"
    assert "accuracy_where_chosen" in next(r for r in records if r["kind"] == "dependency")
    assert read_manifest(out / "probe.jsonl")["config"]["train_on"] == "c"
    page, tables = (out / "page.html").read_text(), (out / "tables.md").read_text()
    shown = f"{tried[0]['accuracy']:.2f} ({tried[0]['low']:.1f} to {tried[0]['high']:.1f})"
    assert shown in page
    assert shown in tables
    assert probe(capfdbinary, *given, *split)[1] == records, "the same twice"
    (tmp_path / "v.txt").write_text("bam 1 2\ndis 0 1\n")
    more = ["--classifier", "words", "--epochs", 1]
    for extra in ([], ["--vectors", tmp_path / "v.txt"]):
        code, other, err = probe(capfdbinary, *given, *more, *extra)
        assert code == 0, err
        tried = [r for r in other if r["kind"] == "classifier"]
        assert tried[0]["classifier"] == "words"
        assert tried[0]["trained_on"] + other[-1]["texts"] == len(rows), (
            "without splits every text is on one side"
        )
    (tmp_path / "v.txt").write_text("bam 1 2\ndis 0\n")
    code, _, err = probe(capfdbinary, *given, *more, "--vectors", tmp_path / "v.txt")
    assert code == 65
    assert "v.txt:2: expected a word and 2 finite numbers" in err


def test_a_classifier_that_cannot_go_on_leaves_the_rest(
    world: World, tmp_path: Path, capfdbinary: Any
) -> None:
    encoder, texts = save_encoder(tmp_path / "bert"), [f"bam dis kas {w}" for w in WORDS]
    (tmp_path / "t.txt").write_text("\n".join(texts) + "\n")
    sides = [x.side for x in ProbeTexts(str(tmp_path / "t.txt"), seed=0)]
    parses = t.conllu(texts).split("\n\n")
    last = max(n for n, side in enumerate(sides) if side == "report")
    cut = (
        "\n\n".join(p for n, p in enumerate(parses) if n <= last) + "\n"
    )  # what is reported has its parses, the rest not all
    assert "train" in sides[last:]
    (tmp_path / "t.conllu").write_text(cut)
    given = [
        "text",
        tmp_path / "t.txt",
        "--encoder",
        encoder,
        "--parser",
        tmp_path / "t.conllu",
        "--classifier",
        "attention",
    ]
    code, records, err = probe(capfdbinary, *given, "--samples", 20, "-o", tmp_path / "out")
    assert code == 65
    assert "t.conllu: has no sentence for the text" in err
    assert "has no sentence" in records[-1]["stopped"]
    assert {r["kind"] for r in records} == {"text-head", "dependency", "text-summary"}
    assert (tmp_path / "out" / "page.html").exists()


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--classifier", "attention"], 2, "No such option: --classifier"),
        (["--train-on", "val"], 2, "No such option: --train-on"),
        (["--select-on", "val"], 2, "--select-on: names the split to choose heads on"),
        (["--split", "val", "--select-on", "val"], 2, "--select-on: names the split"),
        (["--images", "x"], 2, "--images: is for the page"),
        (["--phrase", "first"], 2, "'first' is not one of 'last', 'mean'"),
        (["--split", "dev"], 65, 'phrases.jsonl: has no caption of the split "dev" with an entity'),
        (["--parser", "lost.conllu"], 66, "lost.conllu: does not exist"),
        (["--parser", "builtin:big"], 2, "no parser is called 'builtin:big'"),
        (["--regions", "lost.npy"], 66, "lost.npy: does not exist"),
        (["--encoder", "/lost"], 66, "/lost: is not a model directory"),
    ],
)
def test_wrong_flags_and_missing_files_are_named(
    world: World, args: list[str], code: int, message: str, capfdbinary: Any
) -> None:
    found, records, err = probe(capfdbinary, *world.given, *args)
    assert (found, records) == (code, [])
    assert message in err


def test_figures_do_not_go_among_the_photos(world: World, tmp_path: Path, capfdbinary: Any) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    code, records, err = probe(capfdbinary, *world.given, "--images", photos, "-o", photos)
    assert (code, records) == (2, [])
    assert "which this command reads; choose another" in err
    assert not list(photos.iterdir())


def test_bad_rows_are_named_before_the_work_or_counted(
    world: World, tmp_path: Path, capfdbinary: Any
) -> None:
    rows = json.loads(json.dumps(world.rows[:4]))
    rows[1]["phrases"][0]["end"] = 999
    rows[2]["image"] = "lost.jpg"
    path = t.save_rows(tmp_path / "bad.jsonl", rows)
    given = [path, *world.given[1:], "--samples", 20]
    code, records, err = probe(capfdbinary, *given)
    assert (code, records) == (65, [])
    assert "bad.jsonl:2: phrase 1 has the span" in err
    code, records, err = probe(capfdbinary, *given, "--on-error", "skip")
    assert code == 0
    assert records[-1]["captions"] == 2
    assert records[-1]["skipped"] == {"bad item": 2}
    assert "bad.jsonl:3: " in err
    assert "skipped: bad item: 2" in err
    code, _, err = probe(capfdbinary, *given, "--on-error", "skip", "--max-errors", 1)
    assert code == 65
    assert "--max-errors allows 1" in err


def test_regions_of_another_backbone_than_the_runs_are_refused(
    world: World, tmp_path: Path, capfdbinary: Any
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (world.folder / "vb").rename(folder / "encoder")

    def record(backbone: dict[str, str]) -> None:
        body = {"format": FORMAT, "kind": "visualbert", "fingerprint": "f" * 64, "files": {}}
        body |= {"backbone": backbone}
        (folder / "run.json").write_bytes(dumps(body | {"sha256": seal(body, END)}))

    try:
        record({"ref": "other", "fingerprint": "c" * 64})
        for encoder in (folder, folder / "encoder"):  # the run, or the network in it
            given = [world.given[0], "--encoder", encoder, *world.given[3:], "--samples", 20]
            code, _, err = probe(capfdbinary, *given)
            assert code == 65
            assert "was made with the backbone tiny (bbb" in err
            assert "expected other (ccc" in err
        for mark in (
            "b" * 64,
            "b" * 64 + " ",
        ):  # a run of vg pretrain names the preprocessing, too; here there is none
            record({"ref": "tiny", "fingerprint": mark})
            given[2] = folder
            assert probe(capfdbinary, *given)[0] == 0
    finally:
        (folder / "encoder").rename(world.folder / "vb")


def test_captions_come_through_a_pipe_and_too_long_ones_are_counted(
    world: World, capfdbinary: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = json.loads(json.dumps(world.rows[:3]))
    rows[0]["text"] += " bam" * 80
    for count in (3, 1):
        body = "".join(json.dumps(r) + "\n" for r in rows[:count]).encode()
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(body)))
        code, records, err = probe(capfdbinary, "-", *world.given[1:], "--samples", 20)
        if count == 3:
            assert code == 0, err
            assert records[-1]["captions"] == 2
            assert records[-1]["skipped"] == {"caption longer than the encoder": 1}
            assert "skipped: caption longer than the encoder: 1" in err
        else:
            assert (code, records) == (65, [])
            assert (
                "standard input: no usable captions or texts; skipped: caption "
                "longer than the encoder: 1" in err
            )


def test_what_stops_it_in_the_middle_leaves_the_results_up_to_there(
    world: World, tmp_path: Path, capfdbinary: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vgtools.systems.attention_probes import region_heads

    monkeypatch.setattr(region_heads, "_WINDOW", 8)
    parses, out = (world.folder / "p.conllu").read_text().split("\n\n"), tmp_path / "out"
    (tmp_path / "short.conllu").write_text("\n\n".join(parses[:20]) + "\n")
    code, records, err = probe(
        capfdbinary, *world.given, "--parser", tmp_path / "short.conllu", "--samples", 20, "-o", out
    )
    assert code == 65
    assert "short.conllu: has no sentence for the text" in err
    assert records[-1]["captions"] == 16, "two windows of eight"
    assert "has no sentence" in records[-1]["stopped"]
    assert (out / "probe.jsonl").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--classifier", "all"], "'all' is not one of 'attention', 'words'"),
        (["--classifier", "attention"], "--classifier: needs --parser"),
        (["--train-on", "val"], "--train-on: is about --classifier"),
        (
            ["--classifier", "attention", "--parser", "p.conllu", "--vectors", "v"],
            "--vectors: is for --classifier words",
        ),
        (
            ["--classifier", "attention", "--parser", "p.conllu", "--split", "a"],
            "--train-on: names the split to learn from",
        ),
        (
            ["--classifier", "attention", "--parser", "p.conllu", "--train-on", "a"],
            "--train-on: names the split to learn from",
        ),
        (
            [
                "--classifier",
                "attention",
                "--parser",
                "p.conllu",
                "--train-on",
                "a",
                "--split",
                "a",
            ],
            "--train-on: names the split to learn from",
        ),
        (["--images", "x"], "No such option: --images"),
        (["--reported"], "No such option: --reported"),
    ],
)
def test_wrong_flags_of_the_text_side_are_named(
    tmp_path: Path, args: list[str], message: str, capfdbinary: Any
) -> None:
    code, records, err = probe(capfdbinary, "text", tmp_path / "t.txt", "--encoder", "x", *args)
    assert (code, records) == (2, [])
    assert message in err


@pytest.mark.parametrize("first", ["head", "second"])
def test_a_stop_leaves_the_results_up_to_there(
    world: World, tmp_path: Path, capfdbinary: Any, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    from vgtools.systems.attention_probes import region_heads

    monkeypatch.setattr(region_heads, "_WINDOW", 8)
    ask, asked = region_heads.GroundingProbe._window, list[int]()

    def window(self: Any, captions: Any) -> None:
        asked.append(len(captions))
        ask(self, captions)
        if len(asked) == (1 if first == "head" else 2):
            os.kill(os.getpid(), signal.SIGINT if first == "head" else signal.SIGTERM)

    monkeypatch.setattr(region_heads.GroundingProbe, "_window", window)
    out = tmp_path / "out"
    code, records, err = probe(capfdbinary, *world.given, "--samples", 20, "-o", out)
    assert code == (130 if first == "head" else 75)
    assert asked == [8] * (1 if first == "head" else 2)
    assert records[-1]["captions"] == sum(asked)
    assert "stopped" in records[-1]
    assert [json.loads(line) for line in (out / "probe.jsonl").read_text().splitlines()] == records
    assert "stopped: the results cover the rows read up to there" in err


def test_results_go_to_stdout_even_where_the_disk_is_full(
    world: World, tmp_path: Path, capfdbinary: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vgtools.io.parts import Part

    def full(part: Part, data: bytes) -> None:
        raise DataError("no space left", part.final, code=Exit.IO)

    monkeypatch.setattr(Part, "write", full)
    code, records, err = probe(capfdbinary, *world.given, "--samples", 20, "-o", tmp_path / "out")
    assert code == 74
    assert records[-1]["captions"] == 24
    assert "probe.jsonl: no space left" in err
    assert not (tmp_path / "out").exists()


def test_a_line_that_cannot_be_read_leaves_what_was_read_before_it(
    world: World, tmp_path: Path, capfdbinary: Any
) -> None:
    lines = (world.folder / "phrases.jsonl").read_text().splitlines()
    (tmp_path / "cut.jsonl").write_text("\n".join([*lines[:5], lines[5][:40]]) + "\n")
    given = [tmp_path / "cut.jsonl", *world.given[1:], "--samples", 20, "--on-error", "skip"]
    code, records, err = probe(capfdbinary, *given)
    assert code == 65
    assert "cut.jsonl:6: not valid JSON" in err
    assert records[-1]["captions"] == 5
    assert "not valid JSON" in records[-1]["stopped"]


@pytest.mark.parametrize("late", [False, True])
def test_weights_that_make_attention_nan_are_named(
    world: World, tmp_path: Path, capfdbinary: Any, late: bool
) -> None:
    from safetensors.torch import load_file, save_file

    broken = t.save_visualbert(tmp_path / "broken", bypass_transformer=late)
    tensors = load_file(broken / "model.safetensors")
    name = next(n for n in tensors if n.endswith("encoder.layer.0.attention.self.query.weight"))
    save_file(
        tensors | {name: tensors[name] * 1e38},  # finite, but no product of them is
        broken / "model.safetensors",
        {"format": "pt"},
    )
    given = [world.given[0], "--encoder", broken, *world.given[3:], "--samples", 20]
    (tmp_path / "t.txt").write_text("bam dis\n")
    for args in (given, ["text", tmp_path / "t.txt", "--encoder", broken]):
        code, records, err = probe(capfdbinary, *args)
        assert (code, records) == (65, [])
        assert "too large numbers in 1 weight, the first" in err
        assert "encoder.layer.0.attention.self.query.weight" in err


def test_numbers_of_half_the_width_change_little(
    world: World, tmp_path: Path, capfdbinary: Any
) -> None:
    late = t.save_visualbert(tmp_path / "late", bypass_transformer=True)
    for encoder in (late, world.folder / "vb"):
        given = [world.given[0], "--encoder", encoder, *world.given[3:], "--samples", 20]
        full, half = (
            [
                r["attention"]
                for r in probe(capfdbinary, *given, "--dtype", kind)[1]
                if r["kind"] == "layer"
            ]
            for kind in ("float32", "bfloat16")
        )
        assert half != full, "--dtype is heeded"
        assert half == pytest.approx(full, abs=4)


def test_a_visualbert_without_early_fusion_has_one_layer_more(
    world: World, tmp_path: Path, capfdbinary: Any
) -> None:
    late = t.save_visualbert(tmp_path / "late", bypass_transformer=True)
    code, records, err = probe(
        capfdbinary, world.given[0], "--encoder", late, *world.given[3:], "--samples", 20
    )
    assert code == 0, err
    layers = [r for r in records if r["kind"] == "layer"]
    assert [r["attention"] > 0 for r in layers] == [False, False, False, True]


# ------------------------------------------------------------------------------------------- cross


def test_what_two_streams_look_at(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Records on stdout, the same in the folder, and a picture per example and layer."""
    model = save_xdbert(tmp_path)
    dev = tmp_path / "dev.tsv"
    dev.write_text("index\tsentence1\tsentence2\tlabel\n" + "".join(
        f"{n}\tbam den\tfur the kit {n}\tentailment\n" for n in range(6)
    ))  # fmt: skip
    args = ["probe-attention", "cross", f"rte={dev}", "--encoder", str(model), "--limit", "5"]
    args += ["--samples", "50", "--device", "cpu", "-q"]
    assert run([*args, "--examples", "1", "-o", str(tmp_path / "maps")]) == 0
    out = capfd.readouterr().out
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["kind"] for row in rows] == ["cross-head"] * 8 + ["cross-layer"] * 4 + [
        "cross-summary"
    ]
    assert rows[-1]["texts"] == 5
    maps = tmp_path / "maps"
    assert (maps / "probe.jsonl").read_text() == out
    pictures = [f"example-1.layer-{n}.{kind}" for n in (1, 2) for kind in ("png", "svg")]
    names = sorted([*pictures, "probe.json", "probe.jsonl", "tables.md"])
    assert sorted(p.name for p in maps.iterdir()) == names
    assert read_manifest(maps / "probe.jsonl", "cross-attention")["config"]["limit"] == 5
    tables = (maps / "tables.md").read_text()
    assert "student on teacher" in tables
    rows_of, columns_of = (line.split() for line in tables.splitlines()[-2:])
    assert rows_of[0] == "[CLS]"
    assert columns_of.count("<|startoftext|>") == 2, "each text of the pair has its own block"
    assert "head 2: " in (maps / "example-1.layer-2.svg").read_text()
    assert run(args) == 0, "without a folder nothing is written"
    assert capfd.readouterr().out == out


def test_cross_is_for_runs_of_xdbert(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = save_xdbert(tmp_path)
    text = tmp_path / "a.txt"
    text.write_text("bam\n")
    (tmp_path / "empty.txt").write_text("\n")
    for args, code, why in (
        ([text, "--encoder", model / "encoder"], Exit.NO_INPUT, "is not a finished vg run"),
        ([text, "--encoder", model, "--parser", "x"], Exit.USAGE, "No such option: --parser"),
        ([text, "--encoder", model, "--dtype", "float16"], Exit.USAGE, "No such option: --dtype"),
        ([tmp_path / "empty.txt", "--encoder", model], Exit.DATA, "holds no text"),
        ([f"no={text}", "--encoder", model], Exit.USAGE, "no"),
    ):
        whole = ["probe-attention", "cross", *args, "--device", "cpu", "-q"]
        assert run([str(a) for a in whole]) == code
        refused(capfd, why)


def test_photos_and_texts_of_two_splits(world: World, tmp_path: Path, capfdbinary: Any) -> None:
    """Heads are not chosen on what is reported: a photo is refused, a text counts once."""
    rows = [row | {"split": ("val", "test")[n // 8 % 2]} for n, row in enumerate(world.rows)]
    path = t.save_rows(tmp_path / "p.jsonl", rows)
    split = ["--split", "test", "--select-on", "val", "--samples", 30]
    code, _, err = probe(capfdbinary, path, *world.given[1:], *split)
    assert code == 65
    first = next(n for n, r in enumerate(rows) if any(o["image"] == r["image"] for o in rows[:n]))
    assert f"p.jsonl:{first + 1}: the photo {rows[first]['image']!r} is of the split" in err
    texts = [f"bam dis {'lor ' * n}".strip() for n in range(6)]
    both = [{"text": x, "split": s} for x in texts for s in ("val", "test")]
    both += [{"text": f"lor {x}", "split": "val"} for x in texts]
    path = t.save_rows(tmp_path / "t.jsonl", both[6:] + both[:6])
    encoder = save_encoder(tmp_path / "bert")
    code, records, err = probe(capfdbinary, "text", path, "--encoder", encoder, *split)
    assert code == 65
    assert 'no text of the split "test", but all are texts of another split' in err
    path = t.save_rows(tmp_path / "t.jsonl", [*both, {"text": "dis", "split": "test"}])
    code, records, err = probe(capfdbinary, "text", path, "--encoder", encoder, *split)
    assert code == 0, err
    assert records[-1]["texts"] == 1
    assert records[-1]["skipped"]["text of an earlier split"] == 6
