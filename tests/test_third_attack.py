"""Faults that two attackers found who had not seen the tests, each as its finder ran it.

Files of the user that vg took for its own, files of vg that were changed and taken for right, and
inputs that fill the memory or never end.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.tiny import BACKBONE, save_encoder, save_feats, save_run_of
from tests.tiny.tasks import save_sst2
from tests.tiny.tasks import sentences as reviews
from vgtools import cli
from vgtools.datasets.wikipedia import _is_closed, paragraphs
from vgtools.images.sources import natural_key
from vgtools.io import streams
from vgtools.io.errors import DataError
from vgtools.io.files import write_manifest
from vgtools.text.tokens import written_words

Run = Callable[..., tuple[int, str]]
MATCHER = {**BACKBONE, "pooling": "mean"}


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run `vg ARGS…` in this process and return its exit code and what it said."""

    def command(*args: object) -> tuple[int, str]:
        code = cli.run([*map(str, args)])
        return code, capfd.readouterr().err

    return command


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def bank(run: Run, folder: Path, name: str, matcher: Path, *more: object) -> Path:
    """Build an index of random features."""
    feats = save_feats(folder / f"{name}.feats.npy")
    words = [feats, "-m", matcher, "-o", folder / f"{name}.faiss", "--device", "cpu", "-q", *more]
    assert run("build-index", *words)[0] == 0
    return folder / f"{name}.faiss"


# ------------------------------------------------------------------------------- files of the user


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer_that_the_user_changed_stays(tmp_path: Path, run: Run, name: str) -> None:
    text = tmp_path / "t.txt"
    text.write_text("\n".join(text for text, _ in reviews(60)))
    words = ["prepare", "tokenizer", text, "--vocabulary", 60, "-o", tmp_path / "bpe"]
    assert run(*words)[0] == 0
    assert run(*words)[0] == 0  # again over its own
    (tmp_path / "bpe" / name).write_text('{"my": "own"}')
    before = files_of(tmp_path)
    code, said = run(*words)
    assert (code, name in said) == (73, True)
    assert files_of(tmp_path) == before


def test_an_empty_run_json_of_a_tokenizer_is_nobody_s(tmp_path: Path, run: Run) -> None:
    """There is no --restart: the same command makes it again."""
    text = tmp_path / "t.txt"
    text.write_text("\n".join(text for text, _ in reviews(60)))
    words = ["prepare", "tokenizer", text, "--vocabulary", 60, "-o", tmp_path / "bpe"]
    assert run(*words)[0] == 0
    before = files_of(tmp_path)
    (tmp_path / "bpe" / "run.json").write_bytes(b"")
    assert run(*words)[0] == 0
    assert files_of(tmp_path) == before


def test_a_tokenizer_that_was_edited_is_refused_where_it_is_read(tmp_path: Path, run: Run) -> None:
    text = tmp_path / "t.txt"
    text.write_text("\n".join(text for text, _ in reviews(60)))
    assert run("prepare", "tokenizer", text, "--vocabulary", 60, "-o", tmp_path / "bpe")[0] == 0
    rows = tmp_path / "v.jsonl"
    rows.write_text('{"text": "a", "spans": [[0, 1]], "vokens": [0]}\n')
    words = ["revokenize", rows, "-t", tmp_path / "bpe"]
    assert run(*words)[0] == 0
    file = tmp_path / "bpe" / "tokenizer.json"
    body = json.loads(file.read_bytes())
    vocabulary = body["model"]["vocab"]
    vocabulary["a"], vocabulary["e"] = vocabulary["e"], vocabulary["a"]
    file.write_text(json.dumps(body))
    code, said = run(*words)
    assert (code, "tokenizer.json: is damaged or from another run" in said) == (65, True)


def test_the_record_of_a_run_that_was_edited_is_not_followed(tmp_path: Path, run: Run) -> None:
    text = tmp_path / "t.txt"
    text.write_text("\n".join(text for text, _ in reviews(60)))
    words = ["prepare", "tokenizer", text, "--vocabulary", "60", "-o", tmp_path / "bpe"]
    assert run(*words)[0] == 0
    assert run("lineage", tmp_path / "bpe")[0] == 0
    record = tmp_path / "bpe" / "run.json"
    record.write_text(record.read_text().replace('"60"', '"50"'))
    for more in ([], ["--json"], ["--makefile"]):
        code, said = run("lineage", tmp_path / "bpe", *more)
        assert (code, "run.json: was edited or damaged" in said) == (65, True)
    code, said = run("prepare", "tokenizer", "--config", record, "-o", tmp_path / "again")
    assert (code, "run.json: was edited or damaged" in said) == (65, True)
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("levels", [300, 400, 900, 3000])
def test_records_that_are_nested_deeply_are_refused(tmp_path: Path, run: Run, levels: int) -> None:
    deep = levels * '{"a":' + "1" + levels * "}"
    facts = '"argv": ["vg", "stats"], "files": {"x.jsonl": {}}'
    (tmp_path / "x.jsonl").write_text("{}\n")
    (tmp_path / "x.json").write_text(f'{{"format":1, {facts}, "config": {deep}}}')
    for words in (["lineage", tmp_path / "x.jsonl"], ["stats", "--config", tmp_path / "x.json"]):
        code, said = run(*words)
        assert code == 65, said
        assert "x.json: is nested too deeply" in said or "x.json: not valid JSON" in said


def test_a_noisy_run_that_the_user_changed_stays(tmp_path: Path, run: Run) -> None:
    encoder = save_encoder(tmp_path / "e")
    words = ["compare", "weights", encoder, encoder, "--noise", tmp_path / "n"]
    assert run(*words)[0] == 0
    assert run(*words)[0] == 0
    (tmp_path / "n" / "encoder" / "config.json").write_text("mine")
    code, said = run(*words)
    assert (code, "or has changed" in said) == (73, True)
    assert (tmp_path / "n" / "encoder" / "config.json").read_text() == "mine"


def tuned(run: Run, folder: Path, *more: object) -> tuple[int, str]:
    words = ["finetune", "sst-2", folder / "sst", "-e", folder / "e", "--epochs", 1, "-q"]
    return run(*words, "--batch-size", 8, "--device", "cpu", "-o", folder / "ft", *more)


def test_a_restart_keeps_notes_next_to_a_seed_and_ends(tmp_path: Path, run: Run) -> None:
    save_encoder(tmp_path / "e")
    save_sst2(tmp_path / "sst")
    assert tuned(run, tmp_path)[0] == 0
    seed = next((tmp_path / "ft").glob("seed-*/"))
    mine = [seed / "notes.txt", seed.with_name(f"{seed.name}.keep") / "model" / "config.json"]
    for file in mine:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")
    assert tuned(run, tmp_path, "--restart", "--lr", 1e-4)[0] == 0
    assert [file.read_text() for file in mine] == ["mine", "mine"]
    assert (seed / "predictions.jsonl").exists()


def test_a_restart_refuses_a_run_that_holds_an_input(tmp_path: Path, run: Run) -> None:
    save_encoder(tmp_path / "e")
    save_sst2(tmp_path / "sst")
    assert tuned(run, tmp_path)[0] == 0
    rows = next((tmp_path / "ft").glob("seed-*/predictions.jsonl"))
    before = files_of(tmp_path / "ft")
    words = ["finetune", "classify", rows, "--text", "prediction", "--hold-out", 0.3]
    code, said = run(*words, "-e", tmp_path / "e", "-o", tmp_path / "ft", "--restart")
    assert (code, "which this command reads" in said) == (2, True), said
    assert files_of(tmp_path / "ft") == before


@pytest.mark.parametrize("restart", [(), ("--restart",)])
def test_files_with_the_names_of_shards_stay(
    tiny: Path, tmp_path: Path, run: Run, restart: tuple[str, ...]
) -> None:
    text = tmp_path / "t.txt"
    text.write_text("the red dog\na cat\n" * 20)
    index = ["--index", tiny / "vg.faiss", "--device", "cpu", "-q"]
    words = ["vokenize", text, *index, "-o", f"{tmp_path}/v.jsonl/", "--shard-size", 100]
    assert run(*words)[0] == 0
    folder = tmp_path / "v.jsonl"
    names = ("20261127-1a2b3c4d.log", "000003-deadbeef.jsonl", "900007.json", "20261127.json")
    mine = [folder / name for name in names]
    for file in mine:
        file.write_text("mine")
    before = files_of(folder)
    assert run(*words, *restart)[0] == 0
    assert [file.read_text() for file in mine] == ["mine"] * len(mine)
    assert restart or files_of(folder) == before


def test_a_run_may_have_the_name_of_its_command(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_encoder(Path("e"))
    save_sst2(Path("sst"))
    words = ["finetune", "sst-2", "sst", "-e", "e", "--epochs", 1, "-q", "--device", "cpu"]
    assert run(*words, "-o", "sst-2")[0] == 0
    for output in (["-o", "sst-2"], ["--output=sst-2"], ["-o", "sst-2/"]):
        assert run(*words, *output, "--restart")[0] == 0, output
    words[4] = "sst-2/seed-9595/model"
    assert run(*words, "-o", "sst-2", "--restart")[0] == 2
    assert Path("sst-2", "run.json").is_file()


# ------------------------------------------------------------------- files of vg that were changed


def test_features_of_another_pooling_are_refused(tmp_path: Path, run: Run) -> None:
    matcher = save_run_of(tmp_path / "m", save_encoder(tmp_path / "e"), backbone=MATCHER)
    feats = save_feats(tmp_path / "max.npy", pooling="max")
    more = ["--device", "cpu", "-o", tmp_path / "x.faiss"]
    code, said = run("build-index", feats, "-m", matcher, *more)
    assert (code, "pooling max" in said, "pooling mean" in said) == (65, True, True)
    good = save_feats(tmp_path / "mean.npy", pooling="mean")
    assert run("build-index", good, "-m", matcher, *more)[0] == 0
    captions = tmp_path / "c.jsonl"
    captions.write_text('{"image": "image000", "text": "the"}\n')
    code, said = run("evaluate-matcher", captions, feats, matcher, "--device", "cpu")
    assert (code, "pooling max" in said) == (65, True)


def test_embeddings_of_another_matcher_are_refused(tmp_path: Path, run: Run) -> None:
    encoder = save_encoder(tmp_path / "e")
    one, two = (save_run_of(tmp_path / f"m{n}", encoder, seed=n) for n in (1, 2))
    index = bank(run, tmp_path, "a", one, "--emb", tmp_path / "emb.npy")
    for emb in (index, tmp_path / "emb.npy"):
        given = ["build-index", "--emb", emb, "--ids", tmp_path / "a.ids", "--device", "cpu"]
        code, said = run(*given, "-m", two, "-o", tmp_path / "x.faiss")
        assert (code, "was made with the matcher" in said) == (65, True), emb
        assert run(*given, "-m", one, "-o", tmp_path / f"y{emb.suffix}.faiss")[0] == 0
    ids = tmp_path / "turned.txt"
    ids.write_text("".join(reversed((tmp_path / "a.ids").read_text().splitlines(keepends=True))))
    words = ["build-index", "--emb", tmp_path / "emb.npy", "--ids", ids, "-m", one]
    code, said = run(*words, "-o", tmp_path / "x.faiss", "--device", "cpu")
    assert (code, "its ids have sha256" in said) == (65, True)


def test_embeddings_with_a_name_in_another_manifest_need_a_name_of_their_own(
    tmp_path: Path, run: Run
) -> None:
    matcher = save_run_of(tmp_path / "m", save_encoder(tmp_path / "e"))
    bank(run, tmp_path, "a", matcher, "--emb", tmp_path / "emb.npy")
    np.save(tmp_path / "emb.npy", np.load(tmp_path / "emb.npy")[:5])
    (tmp_path / "my.txt").write_text("a\nb\nc\nd\ne\n")
    words = ["build-index", "--emb", tmp_path / "emb.npy", "--ids", tmp_path / "my.txt"]
    rest = ["-m", matcher, "-o", tmp_path / "x.faiss", "--device", "cpu"]
    code, said = run(*words, *rest)
    assert (code, "emb.npy: is damaged or from another run" in said) == (65, True)
    (tmp_path / "emb.npy").rename(tmp_path / "my.npy")
    words[2] = tmp_path / "my.npy"
    assert run(*words, *rest)[0] == 0


def test_embeddings_of_texts_are_no_bank(tiny: Path, tmp_path: Path, run: Run) -> None:
    text = tmp_path / "t.txt"
    text.write_text("the red dog\na cat\n")
    words = ["retrieve", text, "--index", tiny / "vg.faiss", "--emb", tmp_path / "e.npy"]
    assert run(*words, "-o", tmp_path / "t.jsonl", "--device", "cpu")[0] == 0
    (tmp_path / "names").write_text("a\nb\n")
    words = ["build-index", "--emb", tmp_path / "e.npy", "--ids", tmp_path / "names"]
    code, said = run(*words, "-m", tiny / "run", "-o", tmp_path / "x.faiss", "--device", "cpu")
    assert (code, "holds embeddings of texts" in said) == (65, True)


def test_tokens_of_other_vokens_are_refused(tiny: Path, tmp_path: Path, run: Run) -> None:
    pytest.importorskip("h5py")
    for name, words in (("a", "the red dog\na cat\n"), ("b", "the red cat\na dog\n")):
        (tmp_path / f"{name}.txt").write_text(words)
        out = [tmp_path / f"{name}.npy", "--device", "cpu", "-q"]
        assert (
            run("vokenize", tmp_path / f"{name}.txt", "--index", tiny / "vg.faiss", "-o", *out)[0]
            == 0
        )
        made = ["--tokens", tmp_path / f"{name}.t.hdf5", "-o", tmp_path / f"{name}.vg.hdf5"]
        given = ["--ids", tiny / "vg.ids"]
        assert run("prepare", "hdf5", tmp_path / f"{name}.npy", *given, *made)[0] == 0

    def read(tokens: str, vokens: str) -> tuple[int, str]:
        files = [tmp_path / f"{tokens}.t.hdf5", tmp_path / f"{vokens}.vg.hdf5"]
        more = ["--ids", tiny / "vg.ids", "-t", tiny / "encoder", "-o", tmp_path / "o.npy"]
        return run("prepare", "vokens", *files, *more, "--restart")

    assert read("a", "a")[0] == 0
    code, said = read("b", "a")
    assert (code, "other tokens" in said) == (65, True)
    (tmp_path / "a.vg.hdf5").write_bytes((tmp_path / "b.vg.hdf5").read_bytes())
    code, said = read("a", "a")
    assert (code, "a.vg.hdf5: is damaged" in said) == (65, True)


def swapped(rows: Path, unpack: bool = False) -> None:
    """Swap the first two rows of a file; its manifest and its size stay."""
    data = gzip.decompress(rows.read_bytes()) if unpack else rows.read_bytes()
    first, second, *rest = data.splitlines(keepends=True)
    data = b"".join([second, first, *rest])
    rows.write_bytes(gzip.compress(data, 6, mtime=0) if unpack else data)


def test_rows_for_shards_are_compared_with_their_manifest(
    tiny: Path, tmp_path: Path, run: Run
) -> None:
    text = tmp_path / "t.txt"
    text.write_text("the red dog\na cat\n")
    rows = tmp_path / "v.jsonl"
    assert (
        run("vokenize", text, "--index", tiny / "vg.faiss", "--device", "cpu", "-o", rows)[0] == 0
    )
    swapped(rows)
    for output in ("r.jsonl/", "r.npy/", "r.jsonl"):
        code, said = run("revokenize", rows, "-t", tiny / "encoder", "-o", f"{tmp_path}/{output}")
        assert (code, "v.jsonl: is damaged or was rewritten" in said) == (65, True), output


@pytest.mark.parametrize("ending", [".jsonl.gz", ".parquet"])
def test_other_rows_in_the_place_of_compressed_ones_are_refused(
    tiny: Path, tmp_path: Path, run: Run, ending: str
) -> None:
    for name in ("a", "b"):
        text = tmp_path / f"{name}.txt"
        text.write_text("the red dog\na cat\n" if name == "a" else "a cat\nthe red dog\n")
        output = ["-o", tmp_path / f"{name}{ending}"]
        words = ["vokenize", text, "--index", tiny / "vg.faiss", "--device", "cpu", *output]
        assert run(*words)[0] == 0
    size = (tmp_path / f"a{ending}").stat().st_size
    data = (tmp_path / f"b{ending}").read_bytes()
    (tmp_path / f"a{ending}").write_bytes(data)
    code, said = run("stats", "--vokens", tmp_path / f"a{ending}")
    stated = "is damaged or was rewritten" if len(data) == size else "its manifest states"
    assert (code, stated in said) == (65, True)


def test_a_manifest_with_files_of_another_type_is_refused(
    tiny: Path, tmp_path: Path, run: Run
) -> None:
    rows = tmp_path / "v.jsonl"
    rows.write_text('{"text": "a", "spans": [[0, 1]], "vokens": [0]}\n')
    write_manifest(rows, [rows], kind="vokens")
    body = json.loads((tmp_path / "v.json").read_text())
    (tmp_path / "v.json").write_text(json.dumps(body | {"files": 5}))
    code, said = run("stats", "--vokens", rows)
    assert (code, 'v.json: "files"' in said) == (65, True)


def test_a_training_file_that_has_changed_tells_nothing_about_a_run(
    tmp_path: Path, run: Run
) -> None:
    save_encoder(tmp_path / "e")
    save_sst2(tmp_path / "sst")
    assert tuned(run, tmp_path)[0] == 0
    captions = tmp_path / "c.jsonl"
    captions.write_text("".join(f'{{"image": "i", "text": "{text}"}}\n' for text, _ in reviews(24)))
    both = ["compare", tmp_path / "ft", shutil.copytree(tmp_path / "ft", tmp_path / "again")]
    train = tmp_path / "sst" / "train.tsv"
    train.write_text(train.read_text().replace("\t0", "\t1", 1))
    code, said = run(*both, "--grounding", captions, "--grounded-above", 0)
    assert (code, f"{train}: is damaged" in said) == (65, True), said


def test_a_matcher_that_is_gone_is_a_change(
    tmp_path: Path, run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    matcher = save_run_of(tmp_path / "m", save_encoder(tmp_path / "e"))
    index = bank(run, tmp_path, "a", matcher)
    matcher.rename(tmp_path / "elsewhere")
    assert cli.run(["lineage", str(index)]) != 1
    assert "m is missing" in capfd.readouterr().out


def test_copies_of_a_model_are_not_other_seeds(tmp_path: Path, run: Run) -> None:
    for number in (0, 1):
        save_run_of(tmp_path / "row" / f"seed-{number}", save_encoder(tmp_path / "e"))
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("red dog 1\ncat bus 3\nthe moon 4\na dog 2\n")
    runs = [tmp_path / "row" / f"seed-{number}" for number in (0, 1)]
    code, said = run("measure", *runs, "--on", pairs, "--samples", 100, "--device", "cpu")
    assert (code, "copies are not other seeds" in said) == (65, True), said


def test_an_index_without_its_manifest_is_compared_with_the_vokens(
    tiny: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("vg.faiss", "vg.ids", "vg.json"):
        shutil.copy(tiny / name, tmp_path)
    text = tmp_path / "t.txt"
    text.write_text("the red dog\n")
    index = ["--index", str(tmp_path / "vg.faiss"), "--matcher", str(tiny / "run"), "-q"]
    rows = str(tmp_path / "v.jsonl")
    assert cli.run(["vokenize", str(text), *index, "--device", "cpu", "-o", rows]) == 0
    (tmp_path / "vg.json").unlink()
    (tmp_path / "vg.faiss").write_bytes(b"another")
    capfd.readouterr()
    cli.run(["lineage", rows])
    assert "vg.faiss has changed" in capfd.readouterr().out


# --------------------------------------------------------------------------------- hostile inputs


def test_a_faiss_file_without_an_index_is_refused(tiny: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "n.faiss").write_bytes(b"null")
    (tmp_path / "n.txt").write_text("a\n")
    words = ["--emb", tmp_path / "n.faiss", "--ids", tmp_path / "n.txt", "-m", tiny / "run"]
    code, said = run("build-index", *words, "-o", tmp_path / "x.faiss", "--device", "cpu")
    assert (code, "n.faiss: is not a readable faiss index" in said) == (65, True)


def test_a_list_without_an_id_is_refused(tiny: Path, tmp_path: Path, run: Run) -> None:
    rows = tmp_path / "v.jsonl"
    rows.write_text('{"text": "a", "spans": [[0, 1]], "vokens": [0]}\n')
    (tmp_path / "e.ids").write_text("")
    code, said = run("show", rows, "--ids", tmp_path / "e.ids")
    assert (code, "e.ids: holds no image id" in said) == (65, True)


def test_a_line_without_end_is_refused_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_LONGEST", 1000)
    file = tmp_path / "t.txt.gz"
    file.write_bytes(gzip.compress(b"a line\n" + b"x" * 5000))
    lines = streams.read_lines(file)
    assert next(lines) == "a line"
    with pytest.raises(DataError, match=r"t\.txt\.gz:2: has more than 1,000 bytes"):
        next(lines)


def test_a_word_of_many_tokens_is_copied_once() -> None:
    text = ["the " + "x" * 9, "a"]
    spans = np.array([(0, 3), *[(4, 13)] * 9, (0, 1)], np.int32)
    words, number = written_words(text, spans, np.array([0, 10, 11]))
    assert words == ["the", "x" * 9, "a"]
    assert number.tolist() == [0, *[1] * 9, 2]


def test_names_that_go_on_with_digits_have_an_order() -> None:
    names = ["cat2", "cat", "cat10/a", "cat2/b", "cat/a"]
    assert sorted(names, key=natural_key) == ["cat", "cat2", "cat2/b", "cat10/a", "cat/a"]


@pytest.mark.parametrize("mark", ["<b>", "<ref name=", "{{a|", "[[a|", "[http://a ", "<ref>"])
def test_markup_that_closes_nothing_is_known(mark: str) -> None:
    assert not _is_closed(mark * 1000)


def test_markup_of_an_article_is_closed() -> None:
    article = "'''Red''' is a [[colour]].<ref name=a/> {{tl|x}} <br>\n* [http://a b]\n<b>Dogs</b>"
    assert _is_closed(article * 1000)
    assert paragraphs("A dog.\n<!-- hidden " + "<!--" * 1000) == ["A dog."]
    assert paragraphs("*" * 5000 + " item\n\nA dog.") == ["A dog."]


@pytest.mark.parametrize(
    ("name", "text"),
    [("b.yaml", "text: &a [*a]\nindex: vg.faiss\n"), ("b.json", '{"limit": ' + "[" * 100_000)],
)
def test_settings_without_end_are_refused(tmp_path: Path, run: Run, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    code, said = run("vokenize", "--config", tmp_path / name)
    assert (code, name in said) == (65, True)
