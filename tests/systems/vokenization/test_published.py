"""Files of the published code against files that h5py writes as that code does, and back."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.tiny import BACKBONE, save_feats
from tests.tiny.lm import make_tokenizer, save_packed, save_shape, save_tokenizer
from vgtools.cli import run
from vgtools.io.artifact import open_features
from vgtools.io.files import write_manifest
from vgtools.io.output import Output
from vgtools.systems.vokenization import published
from vgtools.text.blocks import open_packed
from vgtools.text.tokens import tokenizer_fingerprint

TOKENS = [7, 8, 9, 10, 11, 12, 7]
VOKENS = [0, 2, -100, 1, 1, 0, 2]
IDS = ["vg_nococo/31", "vg_nococo/4", "vg_nococo/77"]


def save_h5(path: Path, name: str, values: Any, dtype: str, growing: bool = False) -> Path:
    """Write a dataset as the published scripts do: tokens grow, vokens and keys do not."""
    array = np.array(values, dtype)
    with h5py.File(path, "w") as file:
        if growing:
            data = file.create_dataset(name, (0,), maxshape=(None,), dtype=dtype)
            data.resize(array.shape)
        else:
            data = file.create_dataset(name, array.shape, dtype=dtype)
        data[:] = array
    return path


def save_corpus(
    folder: Path, tokens: Any = TOKENS, vokens: Any = VOKENS, edges: Any = (0, 3, 4, 7)
) -> tuple[str, str]:
    save_h5(folder / "c.bert.hdf5", "tokens", tokens, "int32", growing=True)
    (folder / "c.bert.sent").write_text("".join(f"{edge}\n" for edge in edges))
    save_h5(folder / "c.vg.hdf5", "vokens", vokens, "int32")
    (folder / "c.vg.ids").write_text("".join(f"{name}\n" for name in IDS))
    save_tokenizer(folder / "tokenizer")
    return str(folder / "c.bert.hdf5"), str(folder / "c.vg.hdf5")


def prepared(folder: Path, *more: object, code: int = 0) -> list[Any]:
    call = ["prepare", "vokens", folder / "c.bert.hdf5", folder / "c.vg.hdf5", "-q"]
    call += ["-t", folder / "tokenizer", "-o", folder / "v.npy", *more]
    assert run([*map(str, call)]) == code
    return [] if code else open_packed(folder / "v.npy")


def read(path: Path, name: str) -> np.ndarray[Any, Any]:
    with h5py.File(path, "r") as file:
        return np.array(file[name])


def test_published_vokens_become_packed_ones_and_train_a_model(tmp_path: Path) -> None:
    save_corpus(tmp_path)
    (packed,) = prepared(tmp_path)
    assert packed.tokens.tolist() == [
        [7, 0], [8, 2], [9, -1], [10, 1], [11, 1], [12, 0], [7, 2],
    ]  # fmt: skip
    assert packed.ends.tolist() == [3, 4, 7]
    assert packed.vokens == 3
    manifest = json.loads((tmp_path / "v.json").read_text())
    assert manifest["tokenizer"]["sha256"] == tokenizer_fingerprint(make_tokenizer())
    assert (manifest["rows"], manifest["level"]) == (3, "token")
    shape = save_shape(tmp_path / "shape.json")
    call = ["pretrain", "lm", tmp_path / "v.npy", "--shape", shape, "-t", tmp_path / "tokenizer"]
    call += ["--block", "8", "--steps", "1", "--device", "cpu", "-q", "-o", tmp_path / "run"]
    assert run([*map(str, call)]) == 0
    info = json.loads((tmp_path / "run/run.json").read_text())
    assert info["voken_lm"]["vokens"] == 3
    assert info["voken_lm"]["losses"] == ["mlm", "voken_cls"]


def test_lines_are_the_rows_without_sentences_and_without_vokens_there_are_none(
    tmp_path: Path,
) -> None:
    tokens, _ = save_corpus(tmp_path)
    (tmp_path / "c.bert.sent").unlink()
    (tmp_path / "c.bert.line").write_text("0\n4\n7\n")
    call = ["prepare", "vokens", tokens, "-t", tmp_path / "tokenizer", "-o", tmp_path / "v.npy"]
    assert run([*map(str, call), "-q"]) == 0
    (packed,) = open_packed(tmp_path / "v.npy")
    assert packed.ends.tolist() == [4, 7]
    assert packed.tokens.tolist() == [[token, -1] for token in TOKENS]


def test_vokens_of_sentences_are_each_token_s(tmp_path: Path) -> None:
    # [2, -3, -3]: three tokens of a sentence with voken 2; [0, -1]: two with voken 0.
    save_corpus(tmp_path, vokens=[2, -3, -3, 0, 1, -2, -2])
    prepared(tmp_path, code=65)
    (packed,) = prepared(tmp_path, "--level", "sentence")
    assert packed.tokens[:, 1].tolist() == [2, 2, 2, 0, 1, 1, 1]
    save_corpus(tmp_path, vokens=[-100, -100, -100, 0, 1, -100, -2])
    (packed,) = prepared(tmp_path, "--level", "sentence")
    assert packed.tokens[:, 1].tolist() == [-1, -1, -1, 0, 1, -1, 1]


@pytest.mark.parametrize("level", ["token", "sentence"])
def test_there_and_back_is_bit_exact(
    tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "_STEP", 5)  # steps that end inside sentences
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, 9, 40)
    edges = [0, *np.cumsum(sizes).tolist()]
    tokens = rng.integers(0, make_tokenizer().get_vocab_size(), edges[-1])
    vokens = rng.integers(97, 102, edges[-1])
    vokens[::11] = -100
    if level == "sentence":
        first = np.repeat(rng.integers(97, 102, 40), sizes)
        vokens = -first - 1  # the -100 that means none is also that of voken 99
        vokens[edges[:-1]] = first[edges[:-1]]
    save_corpus(tmp_path, tokens, vokens, edges)
    (tmp_path / "c.vg.ids").write_text("".join(f"{image}\n" for image in range(102)))
    (packed,) = prepared(tmp_path, "--level", level)
    expected = first if level == "sentence" else np.maximum(vokens, -1)
    assert packed.tokens[:, 1].tolist() == expected.tolist()
    call = ["prepare", "hdf5", "v.npy", "--ids", "c.vg.ids", "--tokens", "d.bert.hdf5"]
    monkeypatch.chdir(tmp_path)
    assert run([*call, "-o", "d.vg.hdf5", "-q"]) == 0
    for name, kind in (("bert", "tokens"), ("vg", "vokens")):
        ours = read(tmp_path / f"d.{name}.hdf5", kind)
        theirs = read(tmp_path / f"c.{name}.hdf5", kind)
        assert ours.dtype == theirs.dtype == np.int32
        assert ours.tobytes() == theirs.tobytes()
    for name in ("bert.sent", "vg.ids"):
        assert (tmp_path / f"d.{name}").read_text() == (tmp_path / f"c.{name}").read_text()
    call = ["prepare", "vokens", "d.bert.hdf5", "d.vg.hdf5", "-t", "tokenizer", "--level", level]
    assert run([*call, "-o", "w.npy", "-q"]) == 0
    for end in (".npy", ".rows.npy"):
        assert (tmp_path / f"w{end}").read_bytes() == (tmp_path / f"v{end}").read_bytes()


def test_features_of_the_vokens_images_are_known_by_their_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_corpus(tmp_path)
    prepared(tmp_path)
    keys = np.random.default_rng(0).normal(size=(4, 2))
    save_h5(Path("vg_nococo.hdf5"), "keys", keys, "f4")
    Path("vg_nococo.ids").write_text("31\n4\n77\n5\n")
    shape = save_shape(tmp_path / "shape.json")
    call = ["pretrain", "lm", "v.npy", "--shape", str(shape), "-t", "tokenizer", "--block", "8"]
    call += ["--steps", "1", "--device", "cpu", "-q", "--weight", "voken_reg=1", "-o", "run"]
    for limit, code in (("4", 65), ("3", 0)):
        feats = f"feats{limit}.npy"
        assert run(["prepare", "keys", "vg_nococo.hdf5", "--limit", limit, "-o", feats, "-q"]) == 0
        assert run([*call, "--feats", feats]) == code
        assert ("other images or another order" in capsys.readouterr().err) == bool(code)
    Path("other.ids").write_text("vg_nococo/4\nvg_nococo/31\nvg_nococo/77\n")
    call = ["prepare", "hdf5", "v.npy", "--ids", "other.ids", "--tokens", "d.t.hdf5"]
    assert run([*call, "-o", "d.vg.hdf5"]) == 65
    assert "other.ids has" in capsys.readouterr().err


def test_empty_rows_are_no_sentences_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_packed(Path("v.npy"), [[], [(7, 1), (8, -1)], [], [], [(9, 0)], []], count=3)
    Path("vg.ids").write_text("a\nb\nc\n")
    call = ["prepare", "hdf5", "v.npy", "--ids", "vg.ids", "--tokens", "c.t.hdf5", "-q"]
    assert run([*call, "-o", "c.vg.hdf5"]) == 0
    assert Path("c.t.sent").read_text() == "0\n2\n3\n"
    assert read(Path("c.vg.hdf5"), "vokens").tolist() == [1, -100, 0]
    assert read(Path("c.t.hdf5"), "tokens").tolist() == [7, 8, 9]


def test_keys_become_features_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(published, "_STEP", 4)
    arrays = [np.random.default_rng(n).normal(size=(n, 2)).astype("f4") for n in (5, 3)]
    for name, array in zip(("vg_nococo", "cc_train"), arrays, strict=True):
        save_h5(Path(f"{name}.hdf5"), "keys", array, "f4")
        Path(f"{name}.ids").write_text("".join(f"{10 * i}\n" for i in range(len(array))))
    assert run(["prepare", "keys", "vg_nococo.hdf5", "cc_train.hdf5", "-o", "all.npy", "-q"]) == 0
    found = open_features("all.npy")
    assert np.asarray(found.array).tobytes() == np.concatenate(arrays).tobytes()
    assert found.ids[4:7] == ["vg_nococo/40", "cc_train/0", "cc_train/10"]
    call = ["prepare", "keys", "vg_nococo.hdf5", "cc_train.hdf5", "--limit", "6"]
    assert run([*call, "-o", "six.npy", "-q"]) == 0
    assert open_features("six.npy").ids == found.ids[:6]
    assert run(["prepare", "keys", "vg_nococo.hdf5", "-o", "vg.npy", "-q"]) == 0
    Path("out").mkdir()
    assert run(["prepare", "hdf5", "vg.npy", "-o", "out/vg_nococo.hdf5", "-q"]) == 0
    assert read(Path("out/vg_nococo.hdf5"), "keys").tobytes() == arrays[0].tobytes()
    assert Path("out/vg_nococo.ids").read_text() == Path("vg_nococo.ids").read_text()


def test_sets_of_keys_of_two_networks_are_not_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, pooling in (("one", "mean"), ("two", "max"), ("three", "mean")):
        Path(name).mkdir()
        network = {"ref": "net", "fingerprint": "f"}
        feats = save_feats(Path(f"{name}.npy"), np.eye(3, 2) + 1, network)
        body = json.loads(feats.with_suffix(".json").read_text())
        feats.with_suffix(".json").write_text(json.dumps(body | {"pooling": pooling}))
        assert run(["prepare", "hdf5", str(feats), "-o", f"{name}/keys{name}.hdf5", "-q"]) == 0
    one, two, three = (f"{name}/keys{name}.hdf5" for name in ("one", "two", "three"))
    assert run(["prepare", "keys", one, three, "-o", "same.npy", "-q"]) == 0
    assert run(["prepare", "keys", one, two, "-o", "all.npy", "-q"]) == 65
    said = capsys.readouterr().err
    assert "keystwo.hdf5: was made with the backbone net, pooling max" in said
    assert "expected net, pooling mean" in said
    assert not Path("all.npy").exists()
    # The same features under the right name of their network.
    write_manifest(
        Path("two.npy"), ["two.npy", "two.ids"], kind="image-features", backbone=BACKBONE
    )
    assert run(["prepare", "hdf5", "two.npy", "-o", "two/keystwo.hdf5", "-q"]) == 0
    assert json.loads(Path("two/keystwo.json").read_text())["backbone"] == BACKBONE


def test_images_that_would_become_one_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    feats = save_feats(Path("f.npy"), np.eye(2, 2) + 1)
    Path("f.ids").write_text("S/a\na\n")
    write_manifest(feats, [feats, "f.ids"], kind="image-features", backbone=BACKBONE)
    assert run(["prepare", "hdf5", "f.npy", "-o", "S.hdf5", "-q"]) == 65
    assert "has the images 'a' and 'S/a', which are one in S.hdf5" in capsys.readouterr().err
    assert not Path("S.hdf5").exists()
    # Ids with folders of their own survive the way there and back.
    names = ["S/a", "S/b/a"]
    Path("f.ids").write_text("".join(f"{name}\n" for name in names))
    write_manifest(feats, [feats, "f.ids"], kind="image-features", backbone=BACKBONE)
    assert run(["prepare", "hdf5", "f.npy", "-o", "S.hdf5", "-q"]) == 0
    assert run(["prepare", "keys", "S.hdf5", "-o", "back.npy", "-q"]) == 0
    assert Path("back.ids").read_text().splitlines() == names


def test_a_set_that_was_renamed_is_not_continued_under_two_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("aa.ids").write_text("".join(f"{n}.jpg\n" for n in range(6)))
    save_h5(Path("aa.hdf5"), "keys", np.eye(6, 2) + 1, "f4")
    monkeypatch.setattr("vgtools.systems.vokenization.published._STEP", 4)
    commit = Output.commit

    def stopped(self: Output, state: dict[str, Any]) -> None:
        commit(self, state)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Output, "commit", stopped)
        assert run(["prepare", "keys", "aa.hdf5", "-o", "out.npy", "-q"]) == 130
    for end in ("hdf5", "ids"):
        Path(f"aa.{end}").rename(f"bb.{end}")
    assert run(["prepare", "keys", "bb.hdf5", "-o", "out.npy", "-q"]) == 78
    assert "sets" in capsys.readouterr().err


def test_keys_in_another_order_than_they_were_written_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their ids, which have not changed, would name other images."""
    monkeypatch.chdir(tmp_path)
    save_h5(Path("cc.hdf5"), "keys", np.eye(3, 2) + 1, "f4")
    Path("cc.ids").write_text("1\n2\n3\n")
    assert run(["prepare", "keys", "cc.hdf5", "-o", "feats.npy", "-q"]) == 0
    Path("out").mkdir()
    assert run(["prepare", "hdf5", "feats.npy", "-o", "out/cc.hdf5", "-q"]) == 0
    assert run(["prepare", "keys", "out/cc.hdf5", "-o", "back.npy", "-q"]) == 0
    with h5py.File("out/cc.hdf5", "r+") as file:
        file["keys"][...] = file["keys"][()][::-1]
    assert run(["prepare", "keys", "out/cc.hdf5", "-o", "wrong.npy", "-q"]) == 65
    assert "out/cc.hdf5: is damaged or was rewritten: sha256" in capsys.readouterr().err
    assert not Path("wrong.npy").exists()


def test_sentences_that_end_elsewhere_than_they_were_written_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_packed(Path("v.npy"), [[(7, 1), (8, -1)], [(9, 0)]], count=3)
    Path("vg.ids").write_text("a\nb\nc\n")
    call = ["prepare", "hdf5", "v.npy", "--ids", "vg.ids", "--tokens", "c.t.hdf5", "-q"]
    assert run([*call, "-o", "c.vg.hdf5"]) == 0
    save_tokenizer(Path("tokenizer"))
    back = ["prepare", "vokens", "c.t.hdf5", "c.vg.hdf5", "-t", "tokenizer", "-q"]
    assert run([*back, "-o", "w.npy"]) == 0
    Path("c.t.sent").write_text("0\n1\n3\n")
    assert run([*back, "-o", "x.npy"]) == 65
    said = capsys.readouterr().err
    assert "c.t.sent: has sha256" in said
    assert "other tokens" in said


@pytest.mark.parametrize(
    ("change", "code", "why"),
    [
        ({"edges": (0, 3, 2, 7)}, 65, "c.bert.sent:3: expected the first token of a sentence"),
        ({"edges": (1, 3, 7)}, 65, "c.bert.sent:1: expected the first token of a sentence, 0"),
        ({"edges": (0, 3, 4)}, 65, "ends at token 4, expected 7"),
        ({"edges": (0, 3, 8)}, 65, "from 3 to 7, got '8'"),
        ({"edges": (0, "9" * 5000, 7)}, 65, "c.bert.sent:2: expected the first token"),
        ({"vokens": VOKENS[:-1]}, 65, "has 6 vokens for the 7 tokens"),
        ({"vokens": [0, 1, 2, 3, 0, 0, 0]}, 65, "sentence 2 has the number 3, expected -1 to 2"),
        ({"vokens": [0, -2, 2, 1, 0, 0, 0]}, 65, "need --level sentence"),
        ({"tokens": [7, 8, 9, 10, 999, 11, 12]}, 65, "sentence 3 has the number 999"),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, change: dict[str, Any], code: int, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_corpus(tmp_path, **change)
    prepared(tmp_path, code=code)
    assert why in capsys.readouterr().err
    assert not (tmp_path / "v.npy").exists()


@pytest.mark.parametrize(
    ("values", "files", "why"),
    [
        ([[1.0, 2.0], [np.nan, 1.0]], 1, "vg.hdf5: row 1 (vg/b) is NaN, infinite or all zero"),
        ([[1e300, 2.0], [1.0, 1.0]], 1, "vg.hdf5: row 0 (vg/a) is NaN, infinite or all zero"),
        ([[1.0, 2.0], [0.0, 0.0]], 1, "vg.hdf5: row 1 (vg/b) is NaN, infinite or all zero"),
        (np.zeros((2, 0)), 1, "vg.hdf5: expected numbers, got none: shape (2, 0)"),
        ([[1.0, 2.0], [3.0, 4.0]], 2, "vg.hdf5: another file also has the image 'vg/a'"),
    ],
)
def test_keys_that_no_command_could_read_are_refused(
    tmp_path: Path, values: Any, files: int, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = save_h5(tmp_path / "vg.hdf5", "keys", values, "float64")
    (tmp_path / "vg.ids").write_text("a\nb\n")
    output = tmp_path / "feats.npy"
    assert run(["prepare", "keys", *[str(keys)] * files, "-o", str(output)]) == 65
    assert why in capsys.readouterr().err
    assert not output.exists()


def test_other_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens, vokens = save_corpus(tmp_path)
    Path(vokens).write_bytes(b"not HDF5")
    prepared(tmp_path, code=65)
    assert "c.vg.hdf5: cannot be read as HDF5" in capsys.readouterr().err
    Path(vokens).write_bytes(Path(tokens).read_bytes())
    prepared(tmp_path, code=65)
    assert "has the datasets ['tokens'], expected 'vokens'" in capsys.readouterr().err
    with h5py.File(vokens, "w") as file:
        file["vokens"] = h5py.Empty("i4")
    prepared(tmp_path, code=65)
    assert "'vokens' is () of int32, expected 1 axes of integers" in capsys.readouterr().err
    Path(vokens).unlink()
    prepared(tmp_path, code=66)
    save_corpus(tmp_path)
    (tmp_path / "c.bert.sent").unlink()
    prepared(tmp_path, code=66)
    assert "expected c.bert.sent, or .line, next to it" in capsys.readouterr().err


def test_without_h5py_its_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_corpus(tmp_path)
    monkeypatch.setitem(sys.modules, "h5py", None)
    prepared(tmp_path, code=69)
    assert "pip install 'vgtools[hdf5]'" in capsys.readouterr().err


def test_a_stopped_export_resumes_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(published, "_STEP", 3)
    rng = np.random.default_rng(0)
    rows = [[(int(t), int(t) % 3) for t in rng.integers(7, 12, n)] for n in rng.integers(0, 6, 30)]
    save_packed(Path("v.npy"), rows, count=3)
    Path("vg.ids").write_text("a\nb\nc\n")

    def export(name: str) -> int:
        call = ["prepare", "hdf5", "v.npy", "--ids", "vg.ids", "--tokens", f"{name}.t.hdf5", "-q"]
        return run([*call, "-o", f"{name}.vg.hdf5"])

    assert export("whole") == 0
    commit = published.Output.commit
    seen = []

    def stopping(self: Any, state: Any) -> None:
        commit(self, state)
        seen.append(state)
        if len(seen) == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr(published.Output, "commit", stopping)
    assert export("cut") == 130
    monkeypatch.setattr(published.Output, "commit", commit)
    assert export("cut") == 0
    for end in ("vg.hdf5", "vg.ids", "t.hdf5", "t.sent"):
        assert Path(f"cut.{end}").read_bytes() == Path(f"whole.{end}").read_bytes()
