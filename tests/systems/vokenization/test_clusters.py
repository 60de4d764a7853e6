"""Clusters of states: the embedding against loops in float64, the draw of lines, the command."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiny import WIDTH, save_encoder, text
from tests.tiny.lm import exchange_words, make_tokenizer
from vgtools.cli import run
from vgtools.io.streams import Piece, read_windows
from vgtools.models.encoder import load_encoder
from vgtools.systems.vokenization import clusters
from vgtools.systems.vokenization.clusters import ClusterPlan, draw_lines, fit_clusters
from vgtools.text.tokens import tokenize

LINES = [line for line in text(300, seed=5) if line]


def states_of(folder: Path, layers: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the states of all tokens of `LINES` from transformers' own forward, and row starts."""
    encoder = load_encoder(str(folder))
    tokens = tokenize(encoder.tokenizer, LINES)
    found = []
    for a, b in pairwise(tokens.starts.tolist()):
        ids = [*encoder.prefix, *tokens.ids[a:b].tolist(), *encoder.suffix]
        with torch.no_grad():
            out = encoder.model(input_ids=torch.tensor([ids]), output_hidden_states=True)
        joined = torch.cat(out.hidden_states[-layers:], dim=2)[0]
        found.append(joined[len(encoder.prefix) : len(ids) - len(encoder.suffix)].double().numpy())
    return np.concatenate(found), tokens.starts


def expected_of(states: np.ndarray, starts: np.ndarray, weight: float) -> np.ndarray:
    """Return the embeddings of `StateEmbedding` in float64."""
    if weight:
        means = [np.repeat(states[a:b].mean(0)[None], b - a, 0) for a, b in pairwise(starts)]
        states = np.concatenate([states, np.concatenate(means)], axis=1)
    standard = (states - states.mean(0)) / states.std(0)
    half = len(standard[0]) // 2
    if weight:
        standard[:, half:] *= weight
    return standard / np.linalg.norm(standard, axis=1, keepdims=True)


@pytest.mark.parametrize(("layers", "weight"), [(1, 0.0), (2, 0.0), (2, 0.5)])
def test_labels_are_the_nearest_centroids_by_brute_force(
    tmp_path: Path, layers: int, weight: float
) -> None:
    folder = save_encoder(tmp_path / "encoder")
    (tmp_path / "t.txt").write_text("".join(f"{line}\n" for line in LINES))
    bank = tmp_path / "c.faiss"
    args = ["prepare", "clusters", tmp_path / "t.txt", "-e", folder, "-k", 12, "-q", "-o", bank]
    how = ["--layers", layers, "--context", weight, "--tokens", 9999, "--device", "cpu"]
    assert run([str(a) for a in (*args, *how)]) == 0
    out = tmp_path / "v.jsonl"
    flags = ["--index", bank, "-o", out, "--device", "cpu", "-q"]
    assert run([str(a) for a in ("vokenize", tmp_path / "t.txt", *flags)]) == 0
    import faiss

    index = faiss.read_index(str(bank))
    centroids = index.reconstruct_n(0, index.ntotal).astype(np.float64)
    assert centroids.shape == (12, layers * WIDTH * (2 if weight else 1))
    emb = expected_of(*states_of(folder, layers), weight)
    scores = emb @ centroids.T
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    found = np.concatenate([row["vokens"] for row in rows])
    best = np.sort(scores, 1)
    clear = best[:, -1] - best[:, -2] > 1e-5  # a tie may fall either way by rounding
    assert clear.mean() > 0.99
    assert (found == scores.argmax(1))[clear].all()
    assert np.concatenate([row["scores"] for row in rows]) == pytest.approx(best[:, -1], abs=1e-4)
    # Each centroid is the direction of the mean of its tokens: k-means has settled, or nearly.
    for number in range(12):
        mine = emb[found == number].mean(0)
        assert mine @ centroids[number] / np.linalg.norm(mine) > 0.98
    manifest = json.loads(bank.with_suffix(".json").read_text())
    assert manifest["clusters"]["context_weight"] == weight
    assert manifest["clusters"]["mean_cosine"] == pytest.approx(best[:, -1].mean(), abs=0.02)
    assert len(set(found.tolist())) == 12


def test_a_channel_of_rounding_alone_does_not_count() -> None:
    rng = np.random.default_rng(0)
    states = rng.standard_normal((500, 4)).astype(np.float32) * [1, 5, 1e-9, 0] + [0, 9, 3, 2]
    states = states.astype(np.float32)
    before = states.astype(np.float64)
    table = clusters._standardise(states, np.ones(4, np.float32))
    assert (states[:, 2:] == 0).all()
    assert (table[1, 2:] == 0).all()
    expected = (before[:, :2] - before[:, :2].mean(0)) / before[:, :2].std(0)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert states[:, :2] == pytest.approx(expected, abs=1e-5)


def test_tokens_to_fit_on_are_bounded_by_memory() -> None:
    assert clusters.tokens_of(1000, 768) == 256_000
    assert clusters.tokens_of(6913, 3072) == (1 << 32) // (4 * 3072)
    assert clusters.tokens_of(2_000_000, 3072) == 2_000_000


def test_names_are_the_most_frequent_words(tmp_path: Path) -> None:
    encoder = load_encoder(str(save_encoder(tmp_path / "encoder")))
    texts = ["bam bam bam den", "bam, den!"] * 4
    made = fit_clusters(encoder, texts, ClusterPlan(2, 1, 0.0, 1, 0))
    words = {word for name in made.names for word in name.split()[1:]}
    assert [name.split(":")[0] for name in made.names] == ["0", "1"]
    assert {"bam", "den"} <= words <= {"bam", "den", ",", "!"}
    assert made.tokens == 4 * 8


def test_lines_are_drawn_with_equal_probability_and_few_are_held(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("".join(f"{word}\n" for word in ["bam", "", "den", "fis", "gor", "lat"] * 2))
    counts = dict.fromkeys(["bam", "den", "fis", "gor", "lat"], 0)
    for seed in range(400):
        drawn = draw_lines(read_windows([Piece(str(path))], 4), make_tokenizer(), 3, seed)
        assert len(drawn) == 3
        for word in drawn:
            counts[word] += 1
    # 1,200 draws of five words: 240 each, with a deviation of 12 or less.
    assert all(abs(count - 240) < 5 * 12 for count in counts.values())
    whole = draw_lines(read_windows([Piece(str(path))], 4), make_tokenizer(), 99, 0)
    assert whole == ["bam", "den", "fis", "gor", "lat"] * 2


def test_a_bank_like_an_image_bank_sees_what_its_matcher_sees(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.txt").write_text("".join(f"{line}\n" for line in LINES))
    bank = tmp_path / "c.faiss"
    args = ["prepare", "clusters", tmp_path / "t.txt", "--like", tiny / "vg.faiss", "-o", bank]
    assert run([*map(str, args), "--device", "cpu"]) == 0
    assert "60 clusters" in capsys.readouterr().err
    manifest = json.loads(bank.with_suffix(".json").read_text())
    form = json.loads((tiny / "run/run.json").read_text())["matcher"]
    assert manifest["clusters"]["layers"] == form["layers"]
    assert manifest["clusters"]["context_weight"] == (form["context_weight"] * form["sentence"])
    assert (tmp_path / manifest["matcher"]["run"]).resolve() == (tiny / "run").resolve()
    assert run([*map(str, args), "--device", "cpu"]) == 0
    assert "is up to date" in capsys.readouterr().err
    for name in ("vg.faiss", "vg.ids", "vg.json", "run"):
        (tmp_path / name).symlink_to(tiny / name)
    over = [*args[:-2], "-o", tmp_path / "vg.faiss"]
    before = (tiny / "vg.faiss").read_bytes()
    assert run([*map(str, over), "--device", "cpu"]) == 73
    assert "is an input of this command and would be overwritten" in capsys.readouterr().err
    assert (tiny / "vg.faiss").read_bytes() == before


def test_the_same_weights_under_another_config_have_no_clusters_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.txt").write_text("".join(f"{line}\n" for line in LINES))
    encoder = save_encoder(tmp_path / "encoder")
    bank = str(tmp_path / "c.faiss")
    text = str(tmp_path / "t.txt")
    fit = ["prepare", "clusters", text, "-e", str(encoder), "-o", bank, "--layers", "1", "-k", "3"]
    ask = ["vokenize", text, "--index", bank, "--device", "cpu"]
    assert run([*fit, "--device", "cpu"]) == run(ask) == 0
    config = encoder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"hidden_act": "relu"}))
    capsys.readouterr()
    assert run(ask) == 65
    assert "was made with the matcher" in capsys.readouterr().err
    assert run([*fit, "--device", "cpu"]) == run(ask) == 0
    before = Path(bank).read_bytes()
    exchange_words(encoder, "bam", "den")
    assert run(ask) == 65
    assert "was made with the matcher" in capsys.readouterr().err
    assert run([*fit, "--device", "cpu"]) == run(ask) == 0
    assert Path(bank).read_bytes() != before


def test_mistakes_are_named(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, bank = tmp_path / "t.txt", tmp_path / "c.faiss"
    source.write_text("bam den\n")
    args = ["prepare", "clusters", source, "-e", tiny / "encoder", "-o", bank, "--layers", 1]

    def fails(*flags: object) -> tuple[int, str]:
        code = run([*map(str, flags), "--device", "cpu"])
        return code, capsys.readouterr().err

    assert fails(*args)[0] == 2
    assert fails(*args, "-k", 3) == (65, fails(*args, "-k", 3)[1])
    assert "has 2 tokens, expected at least one per cluster, 3" in fails(*args, "-k", 3)[1]
    code, error = fails(*args[:-1], 10**11, "-k", 2)
    assert (code, "expected at least 100000000000 layers, got" in error) == (65, True), error
    assert fails(*args, "-k", 2)[0] == 0
    code, error = fails(*args[:3], "--like", bank, "-o", tmp_path / "d.faiss")
    assert (code, "not a run of vg train-matcher; give -e, -k" in error) == (65, True), error
    found = fails("vokenize", source, "--index", bank, "--context", 1)
    assert found[0] == 78
    assert "the clusters decide it: vg prepare clusters --context" in found[1]
    other = save_encoder(tmp_path / "other", seed=3)
    found = fails("vokenize", source, "--index", bank, "--matcher", other)
    assert found[0] == 65
    found = fails("retrieve", source, "--index", bank)
    assert (found[0], "holds clusters of tokens" in found[1]) == (2, True)
