"""`vg prepare vokens`, `keys`, `hdf5`: files of the published vokenization code, in and out."""

from __future__ import annotations

from typing import Annotated, Literal

from vgtools.commands.options import (
    Argument,
    ArrayFile,
    File,
    Flag,
    Limit,
    Offline,
    Quiet,
    Restart,
    Value,
    refuse_if,
)
from vgtools.commands.signature import flags
from vgtools.io.errors import amount
from vgtools.io.process import note


@flags
def vokens(
    tokens: Annotated[str, Argument("TOKENS")],
    output: ArrayFile,
    tokenizer: Annotated[str, Value("REF")],
    file: Annotated[str | None, Argument("VOKENS")] = None,
    ids: Annotated[str | None, File(show_default="VOKENS' .ids")] = None,
    level: Annotated[Literal["token", "sentence"], Flag()] = "token",
    restart: Restart = False,
    offline: Offline = False,
    quiet: Quiet = False,
) -> None:
    r"""Read tokens and vokens in the HDF5 files of the published vokenization code.

    X.npy is the packed form of vg vokenize, which vg pretrain lm reads, with a row per sentence, or
    per line where TOKENS has only .line. Vokens are lines of the .ids file. Needs h5py, of the
    extra hdf5.

    Examples:

        vg prepare vokens wiki.train.raw.bert-base-uncased.hdf5 wiki.train.raw.vg_nococo.hdf5 \
            --tokenizer google-bert/bert-base-uncased -o vokens.npy

        vg pretrain lm vokens.npy --shape bert-base -t google-bert/bert-base-uncased -o run

    Args:
        tokens: CORPUS.TOKENIZER.hdf5; .sent or .line next to it
        tokenizer: Whose ids TOKENS holds: hub name, directory, vg run or builtin:NAME.
        file: CORPUS.SET.hdf5; else none has any.
        ids: Images that the vokens number.
        level: The unit that has a voken; -v - 1 marks the further tokens of a sentence.
    """
    refuse_if(not output.endswith(".npy"), "--output", f"must end in .npy, got {output!r}")
    refuse_if(ids is not None and file is None, "--ids", "needs VOKENS")
    from vgtools.models.references import load_tokenizer
    from vgtools.systems.vokenization.published import read_vokens
    from vgtools.text.tokens import tokenizer_fingerprint

    loaded = load_tokenizer(tokenizer)
    counts = read_vokens(
        tokens,
        file,
        output,
        ids=ids,
        vocabulary=loaded.get_vocab_size(),
        tokenizer={"ref": tokenizer, "sha256": tokenizer_fingerprint(loaded)},
        level=level,
        restart=restart,
    )
    _report(counts, output)


@flags
def keys(
    files: Annotated[list[str], Argument("SET.hdf5")],
    output: ArrayFile,
    backbone: Annotated[str, Value("NAME")] = "published keys",
    limit: Limit = None,
    restart: Restart = False,
    quiet: Quiet = False,
) -> None:
    """Read image features in the HDF5 files of the published vokenization code.

    X.npy and X.ids are as vg extract-image-feats writes them, with images SET/ID, one set after the
    other: rows have the numbers that the published vokens have. Needs h5py, of the extra hdf5.

    Examples:

        vg prepare keys keys/vg_nococo.hdf5 --limit 50000 -o feats.npy

        vg pretrain lm vokens.npy --feats feats.npy --weight voken_reg=1 --shape bert-base -o run

    Args:
        files: SET.ids next to each.
        backbone: The network that made them: features of another name do not go with a matcher.
    """
    refuse_if(not output.endswith(".npy"), "--output", f"must end in .npy, got {output!r}")
    from vgtools.systems.vokenization.published import read_keys

    limits = {"backbone": backbone, "limit": limit, "restart": restart}
    _report(read_keys(files, output, **limits), output)  # type: ignore[arg-type]


@flags
def hdf5(
    file: Annotated[str, Argument("X.npy")],
    output: Annotated[str, File()],
    ids: Annotated[str | None, File()] = None,
    tokens: Annotated[str | None, File()] = None,
    restart: Restart = False,
    quiet: Quiet = False,
) -> None:
    r"""Write vokens or image features as the published vokenization code reads them.

    From vokens: token ids (and .sent) and vokens (and .ids), both int32; no voken is -100, which
    its loss leaves out. Rows of vg vokenize become packed with vg revokenize. From features: the
    keys (and .ids). Needs h5py, of the extra hdf5.

    Examples:

        vg prepare hdf5 vokens.npy --ids vg.ids --tokens wiki.raw.bert-base-uncased.hdf5 \
            -o wiki.raw.vg_nococo.hdf5

        vg prepare hdf5 feats.npy -o vg_nococo.hdf5

    Args:
        file: Packed vokens, or features of images.
        output: CORPUS.SET.hdf5, or SET.hdf5 of features.
        ids: For vokens: the bank's .ids, of vg build-index.
        tokens: For vokens: CORPUS.TOKENIZER.hdf5 to write, in the same folder.
    """
    import os

    refuse_if(not output.endswith(".hdf5"), "--output", f"must end in .hdf5, got {output!r}")
    from vgtools.io.artifact import read_manifest
    from vgtools.systems.vokenization import published

    if read_manifest(file, verify=False).get("kind") == "image-features":
        refuse_if(ids or tokens, "--ids", "and --tokens belong to vokens, not to features")
        _report(published.write_keys(file, output, restart), output)
        return
    refuse_if(not ids, "--ids", "is needed: the .ids file of the vokens' index")
    refuse_if(not tokens, "--tokens", "is needed: CORPUS.TOKENIZER.hdf5")
    assert ids is not None
    assert tokens is not None
    places = [os.path.realpath(path) for path in (tokens, output)]
    unlike = len({os.path.dirname(place) for place in places}) > 1 or len({*places}) < 2
    unlike = unlike or not tokens.endswith(".hdf5")
    refuse_if(unlike, "--tokens", f"must be another .hdf5 in the folder of -o {output}")
    _report(published.write_vokens(file, ids, output, tokens, restart), output)


def _report(counts: dict[str, int] | None, output: str) -> None:
    if counts is None:
        note("prepare", f"{output} is up to date")
        return
    more = amount(counts["tokens"], "token") if "tokens" in counts else f"width {counts['dim']}"
    note("prepare", f"{amount(counts['rows'], 'row')}, {more} in {output}")
