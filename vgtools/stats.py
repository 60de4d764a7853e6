"""What corpora are made of, how visually grounded they are, and how diverse vokens are: behind `vg stats`.

Source: Tan & Bansal 2020 (Vokenization), section 2.3, Table 1, appendix A.2 and A.7.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from vgtools import io
from vgtools.io import DataError
from vgtools.ngrams import VOCABULARY_ABOVE, Array, Counts, Ids, PairCounts, Types, count, jsd, jsd_pairs
from vgtools.text import load_stop_words
from vgtools.vokens import parse_rows

GROUNDED_ABOVE = 100  # a grounded type occurs more often than this in the captions (section 2.3)

# Corpus, tokens, sentences, vocabulary, tokens a sentence, 1-gram and 2-gram JSD, grounding ratio.
REPORTED = (
    ("MS COCO", 7.0e6, 0.6e6, 9e3, 11.8, 0.15, 0.27, 0.548),
    ("Visual Genome", 29.2e6, 5.3e6, 13e3, 5.5, 0.16, 0.28, 0.576),
    ("Conceptual Captions", 29.9e6, 2.8e6, 17e3, 10.7, 0.09, 0.20, 0.417),
    ("Wiki103", 111e6, 4.2e6, 29e3, 26.5, 0.01, 0.05, 0.266),
    ("English Wikipedia", 2889e6, 120e6, 29e3, 24.1, 0.00, 0.00, 0.277),
    ("CNN/Daily Mail", 294e6, 10.9e6, 28e3, 26.9, 0.04, 0.10, 0.283),
)

# --------------------------------------------------------------------------------------------------------------- reading


def read_sentences(path: str, stats: io.TextStats | None = None) -> Iterator[str]:
    """Yield the lines of a text, or the `text` of the rows of a `.jsonl` (voken rows and captions are such).

    Raises:
        DataError: it cannot be read, is an array, or a row has no `text`.
    """
    name = path.removesuffix(".gz").removesuffix(".zst")
    if name.endswith((".npy", ".npz", ".faiss", ".safetensors")):
        raise DataError("is no text; a text or a .jsonl was wanted", path)
    if name.endswith(".jsonl"):
        return (row["text"] for _, row in io.read_jsonl(path, {"text": str}))
    return io.read_lines(path, stats)


# ------------------------------------------------------------------------------------------------------------- grounding


def content_types(names: Sequence[str], stop_words: frozenset[str] | None = None, punctuation: bool = False) -> Array:
    """Return which types have a letter or digit and are no stop word: (V,) bool.

    A piece is compared without its space mark (`Ġthe`), not without its `##`: the paper counts `##k` and `##l` as types.

    Args:
        names: what each id stands for.
        stop_words: lower-case words; our own list if None.
        punctuation: types without letter or digit are content, too.

    Source: Tan & Bansal 2020 (Vokenization), section 2.3, "after removing all stop words", which leaves open whether
    punctuation marks remain. XDBERT's appendix D puts them among the stop words.
    """
    stop = load_stop_words() if stop_words is None else stop_words
    plain = (name.lstrip("Ġ▁").lower().replace("’", "'") for name in names)
    return np.fromiter(((punctuation or any(map(str.isalnum, name))) and name not in stop for name in plain), bool, len(names))


@dataclass(frozen=True)
class Grounding:
    """The visually grounded types, estimated from captions.

    Source: Tan & Bansal 2020 (Vokenization), section 2.3: more than 100 occurrences in MS COCO, stop words removed.
    """

    counts: Array  # (V,) how often each type occurs in the captions
    above: int = GROUNDED_ABOVE

    def types(self, content: Array) -> Array:
        """Return the ids of grounded types, the most frequent first; `content` is what `content_types` says of all ids."""
        ids = np.flatnonzero((self.counts > self.above) & content[: len(self.counts)])
        return ids[np.argsort(-self.counts[ids], kind="stable")]

    def ratio(self, unigrams: Array, content: Array, content_only: bool = False) -> float | None:
        """Return the share of a text's tokens whose type is grounded; None where it has no token.

        Args:
            unigrams: (W,) counts of the text by id.
            content: (>= W,) what `content_types` says of all ids.
            content_only: leave stop words and punctuation out of what the share is of, as XDBERT's appendix D does.

        Source: section 2.3 (all tokens); XDBERT (Hsu et al. 2022), appendix D (without stop words).
        """
        ids = self.types(content)
        hits = int(unigrams[ids[ids < len(unigrams)]].sum())
        total = int((unigrams[content[: len(unigrams)]] if content_only else unigrams).sum())
        return hits / total if total else None


# ---------------------------------------------------------------------------------------------------------------- survey


class Survey:
    """Records of one corpus after another against the same reference and captions, each of which is counted once.

    Args:
        types: what a token is.
        stop_words: lower-case words.
        reference: corpus to measure the divergence from, or None.
        captions: text that says which types are grounded, or None.
        base: of the divergence, "2" or "e".
        above: how often a grounded type occurs at least in the captions, less one.
        content_only: ratio of tokens that are content, not of all.
        punctuation: punctuation marks are content, too.
        memory: bytes for the 2-gram counts of one corpus.
        limit: lines of each text, or None.
        keep: corpora that will be asked for.
        stats: told of lines and replaced bytes.
        progress: told of tokens.

    Raises:
        DataError: a text cannot be read or holds no token, or captions ground nothing.
    """

    def __init__(
        self,
        types: Types,
        stop_words: frozenset[str] | None = None,
        reference: str | None = None,
        captions: str | None = None,
        *,
        base: str = "2",
        above: int = GROUNDED_ABOVE,
        content_only: bool = False,
        punctuation: bool = False,
        memory: int = 1 << 30,
        limit: int | None = None,
        keep: Sequence[str] = (),
        stats: io.TextStats | None = None,
        progress: io.Progress | None = None,
    ) -> None:
        self.types, self.reference, self.captions, self.base = types, reference, captions, base
        self._stop = load_stop_words() if stop_words is None else stop_words
        self._content = np.zeros(0, bool)
        self._content_only, self._punctuation, self._memory, self._limit = content_only, punctuation, memory, limit
        self._stats, self._progress = stats, progress
        self._kept = dict[str, Counts]()
        for name in dict.fromkeys(n for n in (captions, reference) if n is not None):
            found = self._kept[name] = self._count(name, pairs=reference is not None and name in (reference, *keep))
            if not found.tokens:
                raise DataError("holds no token; a text with some was wanted", name)
        self.grounding = Grounding(self._kept[captions].unigrams, above) if captions is not None else None
        if self.grounding is not None and not len(self.grounding.types(self.content)):
            raise DataError(
                f"no word but stop words occurs more than {above} times, so nothing would be grounded; name more captions or "
                "give a smaller --grounded-above",
                captions,
            )

    @property
    def content(self) -> Array:
        """Which of the types met so far are content: (V,) bool."""
        names = self.types.names()
        if len(self._content) < len(names):
            self._content = np.concatenate(
                [self._content, content_types(names[len(self._content) :], self._stop, self._punctuation)]
            )
        return self._content

    def _count(self, name: str, pairs: bool) -> Counts:
        sentences = islice(read_sentences(name, self._stats), self._limit)
        return count(sentences, self.types, PairCounts(self._memory) if pairs else None, self._progress)

    def _counts(self, name: str, pairs: bool) -> Counts:
        return self._kept.get(name) or self._count(name, pairs)

    def record(self, name: str) -> dict[str, Any]:
        """Return the row of Table 1 of one corpus; a measure that its emptiness leaves undefined is None."""
        found = self._counts(name, pairs=self.reference is not None)
        record: dict[str, Any] = {
            "corpus": name,
            "tokenizer": self.types.name,
            "tokens": found.tokens,
            "sentences": found.sentences,
            "empty_lines": found.empty,
            "types": found.types,
            "vocabulary": found.vocabulary,
            "tokens_per_sentence": found.tokens / found.sentences if found.sentences else None,
        }
        if self.reference is not None:
            other = self._kept[self.reference]
            assert found.pairs is not None
            assert other.pairs is not None
            record |= {
                "reference": self.reference,
                "jsd_base": self.base if self.base == "e" else int(self.base),
                "jsd_1": jsd(found.unigrams, other.unigrams, self.base) if found.tokens else None,
                "jsd_2": jsd_pairs(found.pairs, other.pairs, self.base) if found.pairs.total and other.pairs.total else None,
            }
        if self.grounding is not None:
            record |= {
                "captions": self.captions,
                "grounded_above": self.grounding.above,
                "grounded_types": len(self.grounding.types(self.content)),
                "grounded_punctuation": self._punctuation,
                "grounding_of": "content tokens" if self._content_only else "all tokens",
                "grounding_ratio": self.grounding.ratio(found.unigrams, self.content, self._content_only),
            }
        return record

    def grounded_types(self, corpora: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Return each grounded type with its count in the captions, the most frequent first, and in each of the corpora."""
        assert self.grounding is not None, "a survey without captions"
        counts = {name: self._counts(name, pairs=False).unigrams for name in corpora}
        names = self.types.names()
        rows = list[dict[str, Any]]()
        for number in self.grounding.types(self.content).tolist():
            row: dict[str, Any] = {"type": names[number], "count": int(self.grounding.counts[number])}
            if corpora:
                row["in"] = {name: int(c[number]) if number < len(c) else 0 for name, c in counts.items()}
            rows.append(row)
        return rows


# ------------------------------------------------------------------------------------------------------ voken diversity


def diversity(
    path: str, progress: io.Progress | None = None, memory: int = 1 << 30, limit: int | None = None
) -> dict[str, Any]:
    """Return how many different images the tokens of voken rows got, in all and for each token type.

    A type is the lower-case text of a token's span, or its id in the packed form. With k vokens a token, the first counts.

    Args:
        path: voken rows (`.jsonl`, `-`, compressed) or packed `.npy`.
        progress: told of the tokens as they pass.
        memory: as of `PairCounts`.
        limit: stop after this many rows.

    Returns:
        tokens, with_voken; images_covered; images_effective, e to the entropy of the images' shares; types; and max, mean
        and (population) standard deviation of the number of images a type got.

    Raises:
        DataError: a row is no voken row, or the file is damaged.
    """
    pairs, images, tokens, ids = PairCounts(memory), np.zeros(0, np.int64), 0, Ids()
    for types, vokens in _packed(path, limit) if path.endswith(".npy") else _rows(path, ids, limit):
        tokens += len(vokens)
        kept = vokens >= 0
        pairs.add(types[kept], vokens[kept])
        known, times = np.unique(vokens[kept], return_counts=True)
        if len(known) and len(images) <= known[-1]:
            images = np.concatenate([images, np.zeros(int(known[-1]) + 1, np.int64)])
        images[known] += times
        if progress is not None:
            progress.advance(len(vokens))
    per_type = np.zeros(0, np.int64)
    for first, _, _ in pairs.blocks():
        if len(first) and len(per_type) <= first[-1]:
            per_type = np.concatenate([per_type, np.zeros(int(first[-1]) + 1, np.int64)])
        np.add.at(per_type, first.astype(np.int64), 1)
    per_type = per_type[per_type > 0]
    shares = images[images > 0] / max(1, pairs.total)
    return {
        "vokens": path,
        "tokens": tokens,
        "with_voken": pairs.total,
        "images_covered": len(shares),
        "images_effective": float(np.exp(-(shares * np.log(shares)).sum())) if len(shares) else 0.0,
        "types": len(per_type),
        "images_per_type": {
            "max": int(per_type.max(initial=0)),
            "mean": float(per_type.mean()) if len(per_type) else 0.0,
            "std": float(per_type.std()) if len(per_type) else 0.0,
        },
    }


def _packed(path: str, limit: int | None) -> Iterator[tuple[Array, Array]]:
    """Yield token ids and vokens of a packed file, both int64."""
    io.read_manifest(path, "vokens")
    array = io.open_npy(path, ndim=2)
    if array.shape[1] != 2 or array.dtype.kind != "i":
        raise DataError(f"has shape {array.shape} of {array.dtype}; packed vokens are (tokens, 2) integers", path)
    if limit is not None:
        ends = io.open_npy(path.removesuffix("npy") + "rows.npy", ndim=1)
        array = array[: int(ends[:limit].max(initial=0))]
    for start in range(0, len(array), 1 << 20):
        block = np.asarray(array[start : start + (1 << 20)], np.int64)
        yield block[:, 0], block[:, 1]


def _rows(path: str, ids: Ids, limit: int | None) -> Iterator[tuple[Array, Array]]:
    """Yield ids of lower-case token texts and vokens of voken rows, both int64."""
    for window in io.read_windows(path, 2048, limit=limit):
        rows = parse_rows(window.lines, path, window.first).rows
        types = [ids[row["text"][start:end].lower()] for row in rows for start, end in row["spans"]]
        vokens = [v[0] if isinstance(v, list) else v for row in rows for v in row["vokens"]]
        yield np.array(types, np.int64), np.array(vokens, np.int64)


# ---------------------------------------------------------------------------------------------------------------- output

COLUMNS = (  # key, heading, log scale in the plot, how a value is printed
    ("tokens", "Tokens", True, "{:,.0f}"),
    ("sentences", "Sentences", True, "{:,.0f}"),
    ("vocabulary", "Vocabulary", True, "{:,.0f}"),
    ("tokens_per_sentence", "Tokens a sentence", False, "{:.1f}"),
    ("jsd_1", "1-gram JSD", False, "{:.3f}"),
    ("jsd_2", "2-gram JSD", False, "{:.3f}"),
    ("grounding_ratio", "Grounding ratio", False, "{:.1%}"),
)


def reported() -> list[dict[str, Any]]:
    """Return the rows of the paper's Table 1 as records, marked as reported."""
    keys = [key for key, *_ in COLUMNS]
    return [{"corpus": row[0], "source": "reported in the paper", **dict(zip(keys, row[1:], strict=True))} for row in REPORTED]


def name_of(record: dict[str, Any]) -> str:
    """Return what a corpus is called in the table and the plot."""
    return f"{record['corpus']} ({record['source']})" if "source" in record else io.plain(io.name_of(record["corpus"]))


def notes(records: Sequence[dict[str, Any]]) -> list[str]:
    """Return how records were counted, for people; the first of them is no reported one."""
    record = records[0]
    lines = [
        f"Tokens are {'words in lower case and punctuation marks' if record['tokenizer'] == 'words' else record['tokenizer']}; "
        f"the vocabulary is the types seen more than {VOCABULARY_ABOVE} times."
    ]
    if "reference" in record:
        unit = {2: "base 2: 0 to 1 bit", "e": "base e: 0 to 0.69 nats", 10: "base 10: 0 to 0.30"}[record["jsd_base"]]
        lines.append(f"JSD: Jensen-Shannon divergence to {io.name_of(record['reference'])} ({unit}).")
    if "captions" in record:
        removed = "stop words" if record["grounded_punctuation"] else "stop words and punctuation"
        lines.append(
            f"Grounded: the {record['grounded_types']:,} types with more than {record['grounded_above']} occurrences in "
            f"{io.name_of(record['captions'])}, {removed} removed; "
            + ("of all tokens." if record["grounding_of"] == "all tokens" else "of the tokens that these leave.")
        )
    if any("source" in record for record in records):
        lines.append(
            "Reported: Tan & Bansal 2020, Table 1, to English Wikipedia, in a base and with punctuation that it leaves open."
        )
    return [io.plain(line) for line in lines]


def plot(records: Sequence[dict[str, Any]]) -> bytes:
    """Return an SVG with a row for each corpus and a column for each measure of Table 1 that any of them has."""
    import jinja2

    columns = []
    for key, heading, log, form in COLUMNS:
        values = [record.get(key) for record in records]
        there = [v for v in values if v is not None]
        if not there:
            continue
        # A divergence is drawn against its largest possible value.
        bound = {"e": math.log(2), 10: math.log10(2)}.get(records[0].get("jsd_base", 2), 1.0) if key.startswith("jsd") else 0.0
        top = max(bound, *there) or 1
        scaled = [math.log10(1 + v) / math.log10(1 + top) if log else v / top for v in (v or 0 for v in values)]
        cells = [None if v is None else {"share": s, "label": form.format(v)} for v, s in zip(values, scaled, strict=True)]
        columns.append({"heading": heading, "log": log, "cells": cells})
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("vgtools", "assets"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    rows = [
        {"name": name_of(r) if "source" not in r else r["corpus"], "reported": "source" in r, "full": name_of(r)}
        for r in records
    ]
    return environment.get_template("stats.svg").render(rows=rows, columns=columns, remarks=notes(records)).encode()


def _console() -> Any:
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], remarks: Sequence[str] = ()) -> None:
    """Print a table on the terminal that is standard output; the first column is text, the others are numbers."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(io.plain(cell)) for cell in row))
    console = _console()
    console.print(table)
    for remark in remarks:
        console.print(Text(remark, style="dim"))


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]], remarks: Sequence[str] = ()) -> str:
    """Return a table in markdown; the first column is text, the others are numbers."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(io.plain(cell).strip().replace("|", "\\|") for cell in cells) + " |\n"

    rule = "|---|" + "--:|" * (len(headings) - 1) + "\n"
    return line(headings) + rule + "".join(map(line, rows)) + "".join(f"\n{io.plain(remark)}\n" for remark in remarks)


def corpora_table(records: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]], list[str]]:
    """Return headings, rows and remarks of records of corpora as Table 1, measures that none of them has left out."""
    columns = [c for c in COLUMNS if any(r.get(c[0]) is not None for r in records)]
    rows = [
        [name_of(r), *("–" if (v := r.get(key)) is None else form.format(v) for key, _, _, form in columns)] for r in records
    ]
    return ["Corpus", *(heading for _, heading, _, _ in columns)], rows, notes(records)


def print_corpora(records: Sequence[dict[str, Any]]) -> None:
    """Print records of corpora as Table 1."""
    print_table(*corpora_table(records))


def print_types(records: Sequence[dict[str, Any]]) -> None:
    """Print grounded types with their counts."""
    corpora = list(records[0].get("in", ()))
    rows = ([r["type"], f"{r['count']:,}", *(f"{r['in'][name]:,}" for name in corpora)] for r in records)
    print_table(["Grounded type", "In captions", *(f"In {io.name_of(name)}" for name in corpora)], rows)


def print_diversity(records: Sequence[dict[str, Any]]) -> None:
    """Print how diverse vokens are."""
    keys = ("tokens", "with_voken", "images_covered", "images_effective", "types")
    rows = (
        [io.name_of(r["vokens"]), *(f"{r[key]:,.0f}" for key in keys),
         *("{max:,} {mean:.2f} {std:.2f}".format(**r["images_per_type"]).split())]
        for r in records
    )  # fmt: skip
    headings = ("Tokens", "With voken", "Images", "Effective", "Types", "Images a type: max", "mean", "std")
    print_table(["Vokens", *headings], rows)
