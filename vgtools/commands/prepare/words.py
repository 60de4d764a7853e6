"""`vg prepare norms`, `wordnet`, `vectors`, `imagenet`: words, their values, pictures of nouns."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

from vgtools.commands.options import (
    Argument,
    ArrayFile,
    Count,
    Errors,
    File,
    Flag,
    Limit,
    Quiet,
    Restart,
    Seed,
    Target,
    Value,
    refuse_if,
)
from vgtools.commands.prepare.photos import ImagesOut, RowOutputs
from vgtools.commands.signature import flags
from vgtools.io.errors import Tally, amount
from vgtools.io.process import note


@flags
def norms(
    table: Annotated[str, Argument("FILE")],
    value: Annotated[str, Value("COLUMN", "--value")],
    target: Target,
    word: Annotated[str | None, Value("COLUMN", show_default="the first column")] = None,
    quiet: Quiet = False,
) -> None:
    r"""Write values of words, or their classes.

    Rows are {"word", "value"}, for vg measure --on. Words are in lower case; if one is duplicate,
    its first value counts. Norms of concreteness (Brysbaert et al. 2014) are free for research;
    vg ships no table.

    Examples:

        vg prepare norms Concreteness_ratings_Brysbaert_et_al_BRM.txt --value Conc.M \
            -o concreteness.jsonl

        vg prepare norms valence.csv --word Word --value V.Mean.Sum | head -3

    Args:
        table: Table with a header, columns between tabs or commas, quoted or not.
        value: Its numbers, or its names of classes.
        word: Its words.
    """
    from vgtools.datasets import norms as source
    from vgtools.datasets.rows import save

    tally = Tally()
    rows = source.norms(table, word, value, tally)
    config = {"command": "norms", "word": word, "value": value}
    save(rows, target.output, tally, "words", config, [table], target.restart)


@flags
def wordnet(
    index: Annotated[str, Argument("FILE")],
    target: Target,
    classes: Annotated[Literal["supersense", "pos"], Flag()] = "supersense",
    least: Annotated[int, Count()] = 5,
    share: Annotated[float, Value("SHARE", min=0.5, max=1)] = 0.8,
    quiet: Quiet = False,
) -> None:
    """Write the WordNet classes of words.

    Rows are {"word", "value"}, for vg measure --on. WordNet's licence permits any use; index.sense
    is in its archive, in NLTK's copy, and in Debian's wordnet-sense-index.

    Examples:

        vg prepare wordnet dict/index.sense -o supersense.jsonl

        vg prepare wordnet dict/index.sense --classes pos | jq -r .value | sort | uniq -c

    Args:
        index: index.sense of WordNet 3.0 or 3.1
        classes: Supersenses (nouns, verbs) or parts of speech.
        least: Leave out words with fewer uses in WordNet's tagged texts.
        share: Least share of a word's uses in its class.
    """
    from vgtools.datasets import norms as source
    from vgtools.datasets.rows import save

    tally = Tally()
    rows = source.wordnet(index, classes, least, share, tally)
    config = {"command": "wordnet", "classes": classes, "least": least, "share": share}
    save(rows, target.output, tally, "words", config, [index], target.restart)


@flags
def vectors(
    file: Annotated[str, Argument("FILE")],
    output: ArrayFile,
    limit: Limit = None,
    restart: Restart = False,
    quiet: Quiet = False,
) -> None:
    """Convert word vectors from their text form.

    Lines are a word and its numbers, as fastText, GloVe and word2vec have them, with or without a
    first line of their counts; .gz and .zst are read as they are. X.npy has a row per word, X.ids
    the words. If a word is duplicate, its first vector counts. Binary forms are refused.

    Examples:

        vg prepare vectors crawl-300d-2M.vec -o crawl.npy

        unzip -p crawl-300d-2M.vec.zip | vg prepare vectors - --limit 200000 -o common.npy

    Args:
        file: crawl-300d-2M.vec, glove.6B.300d.txt or the like
    """
    refuse_if(not output.endswith(".npy"), "--output", f"must end in .npy, got {output!r}")
    from vgtools.text.vector_files import pack_vectors

    count, left_out, complete = pack_vectors(file, output, limit=limit, restart=restart)
    if complete:
        note("prepare", f"{output} is up to date")
        return
    left = [f"{reason}: {number:,}" for reason, number in left_out.items()]
    report = f"vectors of {amount(count, 'word')} in {output}"
    note("prepare", f"{report}; left out: {', '.join(left)}" if left else report)


@flags
def imagenet(
    folder: Annotated[str, Argument("DIR")],
    target: Target,
    errors: Errors,
    least: Annotated[int, Count()] = 1,
    most: Annotated[int | None, Count()] = None,
    seed: Seed = 0,
    glosses: Annotated[str | None, File()] = None,
    images_out: ImagesOut = None,
    quiet: Quiet = False,
) -> None:
    r"""Write the nouns that ImageNet's pictures show.

    Rows are {"image", "synset", "nouns", "text"}, the bank of vg build-index --vectors for object
    association. Nouns and definitions of 21,844 synsets are in the timm package.

    Examples:

        vg prepare imagenet imagenet22k --least 10 --most 10 --images-out nouns.images.jsonl \
            -o nouns.jsonl

        vg prepare imagenet imagenet22k | jq -r '.nouns[0]' | uniq | sort | head

    Args:
        folder: Pictures in folders named by synset (n01440764), or files whose names start so.
        least: Leave out synsets with fewer pictures (paper: 10).
        most: Draw N pictures of each synset that has more (paper: 10).
        glosses: Further synsets: wnid, nouns between commas, definition, between tabs.
    """
    from vgtools.datasets import imagenet as source
    from vgtools.datasets.rows import Folder

    tally = errors.tally()
    written = RowOutputs(images=folder, images_out=images_out, **asdict(target), **asdict(errors))
    files = Folder(folder)
    synsets = source.read_synsets(glosses)
    rows = source.imagenet(files, synsets, tally, least=least, most=most, seed=seed)
    config = {
        "command": "imagenet",
        "folder": files.digest(),
        "least": least,
        "most": most,
        "seed": seed,
    }
    inputs = [glosses] if glosses else []
    written.write(rows, "rows", tally, inputs, config)
