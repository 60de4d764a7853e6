"""`vg evaluate-matcher`: finished matchers become figures on photos that none was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

from vgtools.commands.options import Argument, Flag, Runtime, Value, refuse_if
from vgtools.commands.signature import flags
from vgtools.io.errors import amount, plain
from vgtools.io.process import note
from vgtools.io.settings import count, file, value

if TYPE_CHECKING:
    from vgtools.io.artifact import Features
    from vgtools.io.process import Progress
    from vgtools.systems.vokenization.evaluation import Evaluation


@dataclass(frozen=True, kw_only=True)
class ParsedWordFlags:
    """Further measures, with a parser.

    Attributes:
        parser: Adds recall by part of speech: builtin:spacy-sm, a spaCy model, or a .conllu file of
            CAPTIONS' split, then the first caption of each photo in --phrases, then --text.
        phrases: Rows of vg prepare flickr30k-entities: adds concept hit of the nouns in phrases.
        text: Text: adds which photos of --bank-split its words get.
        lines: Lines of --text, empty ones not counted.
        bank_split: Split of the photos for --text.
    """

    parser: str | None = value(None, metavar="REF")
    phrases: str | None = file(None)
    text: str | None = file(None)
    lines: int = count(2000)
    bank_split: str = value("train", metavar="NAME")


@flags
def evaluate_matcher(
    captions: Annotated[str, Argument("CAPTIONS")],
    feats: Annotated[str, Argument("FEATS")],
    runs: Annotated[list[str], Argument("RUN", show_default=False)],
    words: ParsedWordFlags,
    runtime: Runtime,
    split: Annotated[str, Value("NAME")] = "dev",
    context: Annotated[
        list[float] | None, Value("W", min=0, max=1000, show_default="the run's")
    ] = None,
    reading: Annotated[
        Literal["state", "word"] | None, Value("READING", show_default="word")
    ] = None,
    table: Annotated[bool, Flag("--table")] = False,
) -> None:
    r"""Measure matchers on captions and photos that none of them was trained on.

    Prints one record per RUN (with `learned_from`, and a note, if it learned from some of these
    photos), in percent: true recall R@1, 5, 10 of the own photo among all of the split (`word`,
    `content` words, `caption`), and `concept`, how often a content word's best photo has a caption
    with that word's stem. `interval` holds the 95 % intervals, from samples of photos. Controls are
    `chance`, `untrained`, the same network with random weights, and, of `concept`, `blind`:
    `best_voken`, the one photo that is right for the most of these words, given to all of them, and
    `permuted`, the words' photos dealt out at random.

    --phrases adds, of the nouns in the annotated phrases of each photo's first caption, how many
    have a best photo with the same lemma in a caption: `concept` among all photos, `others` without
    the caption's own. --text adds how many photos its words get, and how many of its nouns get one
    with the noun's stem in a caption (`noun_hit`), also of those with the best and worst scores.
    Both have `chance` and the controls of `blind`. For a run that was validated in training,
    `reliability` compares scores with the share that was right, from 0 to 100 in fifths: for
    content words, and for the nouns of --text.

    Examples:

        vg evaluate-matcher captions.jsonl feats.npy matcher | jq .word.r10

        vg evaluate-matcher captions.jsonl feats.npy runs/* --split test --parser builtin:spacy-sm \
            --phrases phrases.jsonl --table

    Args:
        captions: Rows {"image": ID, "text": …}: .jsonl, .gz, -.
        feats: X.npy of vg extract-image-feats.
        runs: Run of vg train-matcher, or a CLIP and its kin.
        split: If rows have a "split", evaluate on this split.
        context: Weight of the sentence next to the word; repeatable: a record per RUN and weight.
        reading: Embedding of a CLIP's tokens, as in vg vokenize.
        table: Print markdown: runs NAME.s0, NAME.s1, … are seeds of one recipe.
    """
    needed = words.parser is None and (words.phrases or words.text)
    refuse_if(needed, "--parser", "--phrases and --text need one, which finds the nouns")
    piped = [captions, words.phrases, words.text, words.parser].count("-") > 1 or feats == "-"
    refuse_if(piped, "-", "only one of CAPTIONS, --phrases and --text can come from a pipe")
    from vgtools.io.artifact import open_features
    from vgtools.io.files import dumps
    from vgtools.io.names import is_stream
    from vgtools.io.own import open_stream
    from vgtools.io.process import Progress

    twice = words.text is not None and is_stream(captions)
    refuse_if(twice, "CAPTIONS", "is read twice with --text; give a file")
    from vgtools.models.dual import is_dual
    from vgtools.models.runs import read_run
    from vgtools.reports import tables
    from vgtools.systems.vokenization.dual import check_own
    from vgtools.systems.vokenization.evaluation import LEAST_HITS
    from vgtools.systems.vokenization.vokenize import language_of, open_matcher, with_context
    from vgtools.training.splits import photo_marks

    trained = {ref: read_run(ref) for ref in runs if not is_dual(ref)}
    spoken = {language_of(info, ref) for ref, info in trained.items()} or {"en"}
    why = f"learned words of different languages: {', '.join(sorted(spoken))}"
    refuse_if(len(spoken) > 1, "RUN", why)
    bank = open_features(feats)
    out = open_stream("-")
    records = list[dict[str, Any]]()
    weights: Sequence[float | None] = context or [None]
    with Progress("evaluate-matcher", "tokens") as bar:
        evaluation = _open(captions, bank, split, words, bar, *spoken)
        own = photo_marks(bank.ids[photo] for photo in evaluation.photos.tolist())
        for ref in runs:
            # A trained matcher has its own reading.
            how = reading if is_dual(ref) else None
            run = open_matcher(ref, device=runtime.device, reading=how)
            check_own(run.matcher, bank, run.info.get("backbone"), feats)
            record = {"run": ref, "best_epoch": run.info.get("best", {}).get("epoch")}
            if not is_dual(ref):
                record |= _note_learned(ref, run.info, own)
            for weight in weights:
                given = {} if weight is None else {"context_weight": weight}
                measured = evaluation.measure(with_context(run, weight))
                records.append({**record, **given, **measured})
                if evaluation.fewest < LEAST_HITS:
                    why = f"an interval is of {amount(int(evaluation.fewest), 'hit')}; with fewer"
                    why += f" than {LEAST_HITS} it is too narrow: take more photos"
                    note("evaluate-matcher", f"{plain(ref)}: {why}")
                if not table:
                    out.write(dumps(records[-1]))
                    out.flush()
    if table:
        out.write("\n".join(map(tables.markdown, tables.matcher_tables(records))).encode())


def _note_learned(ref: str, info: Mapping[str, Any], own: Sequence[str]) -> dict[str, int]:
    """Note that a run learned from some of these photos; return their number, if there are any.

    Args:
        ref: the run.
        info: run.json, with the marks of the photos that it learned from.
        own: marks of the photos to evaluate on.
    """
    known = len({*own}.intersection(info.get("learned_photos", ())))
    if "learned_photos" not in info:
        why = "lacks the photos that it learned from, on which it looks better than it is"
        why += "; take photos that it did not see"
    elif known:
        why = f"learned from {known} of these {amount(len(own), 'photo')}, so looks better than it"
        why += " is; take a split that it did not see"
    else:
        return {}
    note("evaluate-matcher", f"{plain(ref)}: {why}")
    return {"learned_from": known} if known else {}


def _open(
    captions: str, bank: Features, split: str, words: ParsedWordFlags, bar: Progress, language: str
) -> Evaluation:
    """Read the rows and texts that matchers are evaluated on."""
    from vgtools.io.streams import read_texts
    from vgtools.systems.vokenization.evaluation import Evaluation
    from vgtools.text.parses import open_parser
    from vgtools.training.splits import read_splits

    parser = None if words.parser is None else open_parser(words.parser, lemmas=True)
    splits = read_splits(captions, bank.ids, split, None)
    if splits.unsplit:
        left_out = amount(splits.unsplit, "caption")
        note("evaluate-matcher", f"{left_out} without a split left out, others have one")
    evaluation = Evaluation(bank, splits.train, parser, bar.advance, language, captions)
    if words.phrases is not None:
        evaluation.add_phrases(words.phrases)
    if words.text is not None:
        lines = islice((line for line in read_texts(words.text) if line.strip()), words.lines)
        evaluation.add_text(
            list(lines), read_splits(captions, bank.ids, words.bank_split, None).train
        )
    return evaluation
