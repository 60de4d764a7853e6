"""`vg prepare pairs` and `tokenizer`: the data and the vocabulary of translation models."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any

from vgtools.commands.options import (
    Argument,
    Count,
    Flag,
    Quiet,
    Target,
    Value,
    check_streams,
    refuse_if,
    run_folder,
)
from vgtools.commands.signature import flags
from vgtools.io.errors import DataError, Exit, Tally
from vgtools.io.process import note


@flags
def pairs(
    source: Annotated[str, Argument("SOURCE")],
    translations: Annotated[str, Argument("TARGET")],
    target: Target,
    ratio: Annotated[float | None, Value("RATIO", min=1, show_default="all are kept")] = None,
    longest: Annotated[int | None, Count(show_default="all are kept")] = None,
    quiet: Quiet = False,
) -> None:
    r"""Write sentences with their translations.

    Rows are {"text", "target"}, as vg finetune translation reads them: line N of one file and of
    the other. Lines end at a line feed only. Pairs with an empty side are left out and counted.

    Examples:

        vg prepare pairs train.en train.de -o wmt/train.jsonl

        vg prepare pairs train.en.gz train.de.gz --ratio 1.5 --longest 250 -o wmt/train.jsonl

        vg prepare pairs dev.en dev.de | vg retrieve - --index coco.faiss -k 8 > dev.images.jsonl

    Args:
        source: One sentence per line.
        translations: Line N translates line N of SOURCE.
        ratio: Leave out pairs with more than RATIO times as many words on one side.
        longest: Leave out pairs with more than N words on a side.
    """
    from vgtools.datasets import pairs as parallel
    from vgtools.datasets.rows import save

    both = source == translations == "-"
    refuse_if(both, "TARGET", "only one of the files can come from a pipe")
    tally = Tally()
    bounds: dict[str, Any] = {"ratio": ratio, "longest": longest}
    rows = parallel.pairs(source, translations, tally, **bounds)
    config = {"command": "pairs", **bounds}
    inputs = [source, translations]
    save(rows, target.output, tally, "pairs", config, inputs, target.restart)


@flags
def tokenizer(
    texts: Annotated[list[str], Argument("FILE")],
    *,
    vocabulary: Annotated[int, Count(least=8, max=1 << 24)],
    output: Annotated[str, Value("DIR")],
    mask: Annotated[bool, Flag("--mask")] = False,
    quiet: Quiet = False,
) -> None:
    """Learn a vocabulary of subwords (BPE).

    It is joint over texts and their translations. Writes tokenizer.json, for -t of vg finetune
    translation or, with --mask, of vg pretrain --shape; tokenizer_config.json, with which
    transformers' AutoTokenizer opens the folder; and run.json, for vg lineage. Entries 0 to 3 are
    <pad>, <s>, </s> and <unk>. Unicode is composed (NFC), punctuation is apart, and decoding gives
    texts back.

    Examples:

        vg prepare tokenizer wmt/train.jsonl --vocabulary 40000 -o bpe

        cat train.en train.de | vg prepare tokenizer - --vocabulary 8000 -o bpe

        vg prepare tokenizer german.txt --vocabulary 8000 --mask -o bpe.de

    Args:
        texts: Rows of vg prepare pairs, or text; - is stdin.
        vocabulary: Most entries of the vocabulary.
        output: Folder to write.
        mask: For masked language models: <mask> is entry 4, and <s> comes before a text.
    """
    from vgtools.io.files import dumps, refuse_inputs, versions
    from vgtools.io.inputs import Inputs
    from vgtools.io.own import atomic_write, check, remove
    from vgtools.io.process import command_line
    from vgtools.io.written import END, FORMAT, seal
    from vgtools.models.sealed import TOKENIZER, claim_run, has_hash, kind_of, read_run
    from vgtools.text import subwords
    from vgtools.text.tokens import settings_for_transformers, tokenizer_fingerprint

    check_streams(texts, output)
    refuse_if(len(set(texts)) < len(texts), "FILE", "is named twice")
    folder = run_folder(output, restart=False)
    written = [folder / name for name in ("tokenizer_config.json", "tokenizer.json")]
    refuse_inputs((*written, folder / "run.json"), texts)

    def is_ours(file: Path) -> bool:
        return kind_of(file) == TOKENIZER

    claim_run(folder, "run.json", is_ours)
    check(folder / "run.json", is_ours)  # before any file is written
    inputs = Inputs(texts)

    learnt = subwords.train_bpe(subwords.both_sides(texts), vocabulary, texts[0], mask)
    facts = dumps(settings_for_transformers(learnt))
    contents = {written[0]: facts, written[1]: learnt.to_str(pretty=True).encode()}
    former: dict[str, Any] = {}
    known = folder / "run.json"
    if known.exists() and known.stat().st_size:  # an empty file is nobody's
        try:
            former = read_run(folder)["files"]
        except DataError as error:  # there is no --restart that would replace it
            raise DataError(error.why, error.file, code=Exit.CANNOT_CREATE) from None

    def is_former(file: Path) -> bool:
        return has_hash(former.get(file.name, {}).get("sha256"), contents[file], file)

    for file in written:
        check(file, is_former)
    for file in written:
        remove(file, is_former)
    body: dict[str, Any] = {
        "format": FORMAT,
        "kind": TOKENIZER,
        "inputs": inputs.entries,
        "fingerprint": tokenizer_fingerprint(learnt),
        "argv": command_line(),
        "versions": versions(),
        "files": {f.name: {"sha256": hashlib.sha256(contents[f]).hexdigest()} for f in written},
    }
    # First, so that after a kill the files that it names are known for vg's.
    atomic_write(folder / "run.json", dumps(body | {"sha256": seal(body, END)}), is_ours)
    for file, data in contents.items():
        atomic_write(file, data)
    size = learnt.get_vocab_size()
    fewer = (
        f" (the texts have no more than that, below {vocabulary:,})" if size < vocabulary else ""
    )
    note("prepare", f"{size:,} entries in {output}{fewer}")
