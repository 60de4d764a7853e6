"""Pairs of sentences: official files, cosines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vgtools.io.errors import DataError
from vgtools.measures.run import open_evaluation
from vgtools.measures.sentences import SentencePairs

STS = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
FILES = {
    "dev.tsv": STS + "".join(f"{n}\tg\tf\t-\t1\tx\ty\ta {n}\tb {n}\t{n}.5\n" for n in range(3)),
    "sts-dev.csv": "".join(f"g\tf\t2012\t{n}\t{n}.500\ta {n}\tb {n}\n" for n in range(3)),
    "SICK_trial.txt": "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    + "".join(f"{n}\ta {n}\tb {n}\t{n}.5\tNEUTRAL\n" for n in range(3)),
    "rows.jsonl": "".join(
        f'{{"sentence1":"a {n}","sentence2":"b {n}","score":{n}.5}}\n' for n in range(3)
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_official_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FILES[name])
    (found,) = open_evaluation(str(tmp_path / name))
    assert isinstance(found, SentencePairs)
    assert found.items.name == name
    assert found.items.keys == ["0", "1", "2"]
    assert found.items.gold.tolist() == [0.5, 1.5, 2.5]
    assert found.texts == ["a 0", "b 0", "a 1", "b 1", "a 2", "b 2"]


def test_a_sentence_counts_once_in_the_mean() -> None:
    pairs = [("x", "y"), ("x", "z")]
    found = SentencePairs("s", ["1", "2"], pairs, np.array([1.0, 2]))
    vectors = np.array([[0.0, 0], [3, 0], [0, 3]])
    unit = vectors - 1
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    expected = [unit[0] @ unit[1], unit[0] @ unit[2]]
    np.testing.assert_allclose(found.predict(vectors, np.ones(3, bool)), expected)


def test_refusals(tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text(FILES["dev.tsv"].replace("\t1.5\n", "\tx\n"))
    with pytest.raises(DataError, match=r"dev\.tsv:3: 'x' in \"score\"; expected a number"):
        open_evaluation(str(tmp_path / "dev.tsv"))
    (tmp_path / "dev.tsv").write_text("".join(FILES["dev.tsv"].splitlines(True)[:2]))
    with pytest.raises(DataError, match="has 1 pairs; a ranking needs 3 or more"):
        open_evaluation(str(tmp_path / "dev.tsv"))
