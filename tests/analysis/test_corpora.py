"""Table 1 of small corpora, worked out by hand; grounded types; diversity of vokens."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from vgtools.analysis.corpora import CorpusStats, GroundedTypes, content_types, diversity
from vgtools.io.errors import DataError
from vgtools.text.ngrams import WordTypes, count
from vgtools.text.vokens import VokenWriter


@pytest.fixture
def captions(tmp_path: Path) -> str:
    path = tmp_path / "captions.jsonl"
    texts = ["The dog runs.", "A dog and the cat.", "the dog, the cat: wow"]
    path.write_text(
        "".join(json.dumps({"image": str(i), "text": t}) + "\n" for i, t in enumerate(texts))
    )
    return str(path)


@pytest.fixture
def wiki(tmp_path: Path) -> str:
    path = tmp_path / "wiki.txt"
    path.write_text("The dog is a mammal .\n\nCats and dogs , cat and dog .\n")
    return str(path)


def test_a_record_by_hand(captions: str, wiki: str) -> None:
    survey = CorpusStats(WordTypes(), None, wiki, captions, above=1, keep=[captions])
    # Grounded: dog 3, cat 2; "the" 4 is a stop word, "." 2 has no letter, wow 1 is too rare.
    record = survey.record(wiki)
    assert record == {
        "corpus": wiki,
        "tokenizer": "words",
        "tokens": 14,
        "sentences": 2,
        "empty_lines": 1,
        "types": 11,
        "vocabulary": 0,
        "tokens_per_sentence": 7.0,
        "reference": wiki,
        "jsd_base": 2,
        "jsd_1": 0.0,
        "jsd_2": 0.0,
        "captions": captions,
        "grounded_above": 1,
        "grounded_types": 2,
        "grounded_punctuation": False,
        "grounding_of": "all tokens",
        "grounding_ratio": 3 / 14,
    }
    other = survey.record(captions)
    assert other["tokens"] == 17
    assert other["grounding_ratio"] == 5 / 17
    assert 0 < other["jsd_1"] < other["jsd_2"] < 1


def test_stop_words_and_punctuation_by_flag(captions: str, wiki: str) -> None:
    # Content tokens of wiki: dog mammal cats dogs cat dog.
    assert (
        CorpusStats(WordTypes(), None, None, captions, above=1, content_only=True).record(wiki)[
            "grounding_ratio"
        ]
        == 3 / 6
    )
    # With punctuation "." is grounded, too: twice in either.
    assert (
        CorpusStats(WordTypes(), None, None, captions, above=1, punctuation=True).record(wiki)[
            "grounding_ratio"
        ]
        == 5 / 14
    )
    assert CorpusStats(
        WordTypes(), frozenset({"dog"}), None, captions, above=1
    ).grounded_types() == [
        {"type": "the", "count": 4},
        {"type": "cat", "count": 2},
    ]


def test_more_often_than_means_more(captions: str) -> None:
    types = [
        r["type"] for r in CorpusStats(WordTypes(), None, None, captions, above=2).grounded_types()
    ]
    assert types == ["dog"]


def test_grounded_types_with_their_counts_elsewhere(captions: str, wiki: str) -> None:
    assert CorpusStats(WordTypes(), None, None, captions, above=1).grounded_types([wiki]) == [
        {"type": "dog", "count": 3, "in": {wiki: 2}},
        {"type": "cat", "count": 2, "in": {wiki: 1}},
    ]


def test_the_order_of_corpora_changes_nothing(captions: str, wiki: str, tmp_path: Path) -> None:
    third = tmp_path / "third.txt"
    third.write_text("unheard words of cat and dog\n")
    names = [captions, wiki, str(third)]
    records = [
        {
            n: CorpusStats(
                WordTypes(), None, wiki, captions, above=1, keep=names, content_only=True
            ).record(n)
            for n in names
        }
    ]
    for order in (names, names[::-1]):
        survey = CorpusStats(
            WordTypes(), None, wiki, captions, above=1, keep=order, content_only=True
        )
        records.append({name: survey.record(name) for name in order})
    assert records[0] == records[1] == records[2]


def test_limit_takes_the_first_lines(wiki: str) -> None:
    assert CorpusStats(WordTypes(), limit=1).record(wiki)["tokens"] == 6


def test_an_empty_corpus_has_no_ratios(captions: str, wiki: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n \n")
    record = CorpusStats(WordTypes(), None, wiki, captions, above=1).record(str(empty))
    assert (record["tokens"], record["sentences"], record["empty_lines"]) == (0, 0, 2)
    assert [record[k] for k in ("tokens_per_sentence", "jsd_1", "jsd_2", "grounding_ratio")] == [
        None
    ] * 4
    with pytest.raises(DataError, match="holds no token"):
        CorpusStats(WordTypes(), reference=str(empty))
    with pytest.raises(DataError, match="holds no token"):
        CorpusStats(WordTypes(), captions=str(empty))


def test_a_corpus_of_single_words_has_no_2_grams(wiki: str, tmp_path: Path) -> None:
    single = tmp_path / "single.txt"
    single.write_text("dog\ncat\n")
    record = CorpusStats(WordTypes(), reference=wiki).record(str(single))
    assert record["jsd_2"] is None
    assert 0 < record["jsd_1"] < 1


def test_captions_that_ground_nothing_are_refused(captions: str) -> None:
    with pytest.raises(DataError, match=r"more than 100 times.*--grounded-above"):
        CorpusStats(WordTypes(), captions=captions)


def test_content_of_word_pieces() -> None:
    names = ["[SEP]", "the", "Ġthe", "▁The", "##the", "##k", "Ġdog", "…", "", "2"]
    assert content_types(names).tolist() == [
        True,
        False,
        False,
        False,
        True,
        True,
        True,
        False,
        False,
        True,
    ]
    assert content_types(names, punctuation=True).tolist()[7] is True


def test_the_ratio_of_one_text() -> None:
    types = WordTypes()
    grounding = GroundedTypes(count(["dog dog cat"], types).unigrams, above=1)
    found = count(["a dog and a new word"], types)
    content = content_types(types.names())
    assert grounding.ratio(found.unigrams, content) == 1 / 6
    assert grounding.ratio(found.unigrams, content, content_only=True) == 1 / 3
    assert grounding.ratio(np.zeros(0, np.int64), content) is None


# ------------------------------------------------------------------------------------------- vokens


def voken_rows(vokens: list[list[int]]) -> list[dict[str, object]]:
    return [
        {"text": "A dog", "spans": [[0, 1], [2, 5]], "vokens": vokens[0], "scores": [0.5, 0.5]},
        {"text": "", "spans": [], "vokens": [], "scores": []},
        {
            "text": "a Dog dog",
            "spans": [[0, 1], [2, 5], [6, 9]],
            "vokens": vokens[1],
            "scores": [0.5, 0.5, 0.0],
        },
    ]


EXPECTED = {
    # a: images 4, 4; dog: 4, 7 and one without. Shares: 3/4 and 1/4. Images per type: 1 and 2.
    "tokens": 5,
    "with_voken": 4,
    "images_covered": 2,
    "images_effective": pytest.approx(math.exp(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))),
    "types": 2,
    "images_per_type": {"max": 2, "mean": 1.5, "std": 0.5},
}


def test_diversity_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "v.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in voken_rows([[4, 4], [4, 7, -1]])))
    assert diversity(str(path)) == {"vokens": str(path), **EXPECTED}
    first = diversity(str(path), limit=1)
    assert (first["tokens"], first["images_covered"]) == (2, 1)


def test_diversity_counts_the_best_of_k(tmp_path: Path) -> None:
    path = tmp_path / "v.jsonl"
    rows = voken_rows([[[4, 9], [4, 8]], [[4, 7], [7, 4], [-1, -1]]])
    for row in rows:
        row["scores"] = [[s, s] for s in row["scores"]]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    assert diversity(str(path)) == {"vokens": str(path), **EXPECTED}


def test_diversity_of_packed_vokens(tmp_path: Path) -> None:
    path = str(tmp_path / "v.npy")
    with VokenWriter(path, {}) as out:
        out.write(voken_rows([[4, 4], [4, 7, -1]]), np.array([1, 2, 1, 2, 2]))
        out.commit("")
        out.finish()
    assert diversity(path) == {"vokens": path, **EXPECTED}
    assert diversity(path, limit=1)["tokens"] == 2


def test_diversity_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "v.jsonl").write_text("")
    found = diversity(str(tmp_path / "v.jsonl"))
    assert (
        found["tokens"],
        found["images_covered"],
        found["images_effective"],
        found["types"],
    ) == (0, 0, 0.0, 0)
