"""Tokens, vokens (section 3.1) and image keys in the HDF5 files of the published code, in and out.

`CORPUS.TOKENIZER.hdf5` holds `tokens`, int32 (N,): the token ids of a text. Next to it `.sent`, or
`.line`, has a number per line: the first token of each sentence, or line, and at the end N.
`CORPUS.SET.hdf5` holds `vokens`, int32 (N,), and `CORPUS.SET.ids` the images that they number, a
line each: `vg_nococo/ID`. `SET.hdf5` holds `keys`, float32 (images, D), and `SET.ids` their ids.

At the sentence level the first token of a sentence has its voken v, all others -v - 1. A token
without a voken has -100 there, which its loss leaves out, and -1 here.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.artifact import open_features, origin_of, read_ids, read_manifest
from vgtools.io.errors import DataError, Exit, file_errors
from vgtools.io.files import sha256_file
from vgtools.io.inputs import Inputs
from vgtools.io.names import is_shards, refuse_stream
from vgtools.io.output import Output
from vgtools.io.splits import inherited
from vgtools.io.streams import read_lines
from vgtools.io.written import check_made, is_marked, manifest_beside
from vgtools.models.references import check_same
from vgtools.text.blocks import check_range, open_packed
from vgtools.text.vokens import VokenWriter, check_banks, has_rows, hash_of, hashes_of, rows_of

_STEP = 1 << 22  # tokens, or numbers of keys, between commits
_ROWS = 1 << 16  # sentences between commits, at most
_IGNORED = -100
_MOST = 2**31 - 1


class Dataset:
    """One dataset of an HDF5 file, read by rows.

    Raises:
        DataError: h5py is not installed (69), the file cannot be read, or has no such dataset of
            numbers of that kind.
    """

    def __init__(self, path: str | Path, name: str, ndim: int, kind: str = "i") -> None:
        h5py = _h5py()
        self.path = str(path)
        refuse_stream(path)
        with file_errors(path, reading=True), Path(path).open("rb"):
            pass  # The error then states that it is missing, a folder, or not ours to read.
        with self._readable():
            file = h5py.File(path, "r")
            if name not in file:
                expected = f"has the datasets {sorted(file)}, expected {name!r}"
                raise DataError(f"{expected} of the published code", path)
            self._data = file[name]
            self.shape: tuple[int, ...] = self._data.shape or ()  # None: a null dataspace
            dtype = self._data.dtype
        if len(self.shape) != ndim or dtype.kind != kind:
            what = "integers" if kind == "i" else "floating-point numbers"
            why = f"{name!r} is {self.shape} of {dtype}, expected {ndim} axes of {what}"
            raise DataError(why, path)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        # h5py raises any of these for a damaged file.
        except (OSError, RuntimeError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise DataError(f"cannot be read as HDF5: {error}", self.path) from None

    def __len__(self) -> int:
        return self.shape[0]

    def rows(self, start: int, stop: int) -> Array:
        """Return rows [start, stop)."""
        with self._readable():
            return np.asarray(self._data[start:stop])


def _h5py() -> Any:
    try:
        import h5py
    except ImportError:
        why = "HDF5 needs the package h5py: pip install 'vgtools[hdf5]'"
        raise DataError(why, code=Exit.UNAVAILABLE) from None
    return h5py


def offsets_beside(tokens: str) -> str:
    """Return the file of offsets of tokens: `.sent`, or else `.line`, instead of `.hdf5`.

    Raises:
        DataError: neither is there (66).
    """
    both = _beside(tokens, ".sent"), _beside(tokens, ".line")
    found = next(filter(os.path.exists, both), None)
    if found is None:
        expected = f"{os.path.basename(both[0])}, or .line, next to it"
        raise DataError(f"expected {expected}", tokens, code=Exit.NO_INPUT)
    return found


def _beside(path: str, suffix: str) -> str:
    return str(Path(path).with_suffix(suffix))


def _ids_of(made: str, listed: str | Path, count: int | None = None) -> list[str]:
    """Return the ids of the images of published vokens or keys.

    Raises:
        DataError: their number is not `count`; or vg wrote `made` with other ids (65, both hashes).
    """
    names = read_ids(listed, count)
    found = hash_of(names)
    for name, expected in hashes_of(manifest_beside(made).get("files")).items():
        if name.endswith(".ids") and expected != found:
            why = f"has ids of sha256 {found}, {made} was written with {expected}"
            raise DataError(f"{why}: other images or another order", listed)
    return names


def _check_tokens(vokens: str, *tokens: str) -> None:
    """Refuse tokens, or offsets of their sentences, that vg did not write with these vokens.

    Raises:
        DataError: the manifest of the vokens has another hash of them (65, both hashes).
    """
    made = hashes_of(manifest_beside(vokens).get("files"))
    made.pop(os.path.basename(vokens), None)
    for path in tokens:
        for name, expected in made.items():
            if Path(name).suffix == Path(path).suffix and (found := sha256_file(path)) != expected:
                why = f"has sha256 {found}, {vokens} was written with {name} of {expected}"
                raise DataError(f"{why}: other tokens", path)


def _vokens_beside(tokens: str) -> str | None:
    """Return the vokens that vg wrote with these tokens, whose manifest is of both; None without.

    They lie in one folder. The manifest has the facts also where the vokens are gone.
    """
    real = Path(os.path.realpath(tokens))
    for manifest in sorted(real.parent.glob("*.json")):
        vokens = str(manifest.with_suffix(".hdf5"))
        if is_marked(manifest) and real.name in manifest_beside(vokens).get("files", {}):
            return vokens
    return None


def _check_facts(vokens: str, tokenizer: str, level: str | None) -> None:
    """Refuse files that vg wrote of another tokenizer's tokens, or vokens of the other level.

    Raises:
        DataError: the manifest has another tokenizer or level than given; both are printed (65).
    """
    made = manifest_beside(vokens)
    source = made.get("tokenizer")
    found = source.get("sha256") if isinstance(source, dict) else None
    if found is not None and found != tokenizer:
        why = f"has tokens of the tokenizer {found}, expected tokens of {tokenizer}"
        raise DataError(f"{why}; name the first with --tokenizer", vokens)
    if level is not None and made.get("level", level) != level:
        why = f"has vokens of the level {made['level']!r:.40}, got --level {level}"
        raise DataError(why, vokens)


def _windows(path: str, total: int, done: int) -> Iterator[Array]:
    """Yield the edges of successive rows after `done` ones: (R + 1,) first tokens, and their end.

    Raises:
        DataError: a line is not a number, the numbers fall, or they do not go from 0 to the number
            of tokens.
    """
    edges: list[int] = []
    last = 0
    for number, line in enumerate(read_lines(path)):
        # A line of very many digits would be an error of `int` itself.
        edge = int(line) if line.strip().isdecimal() and len(line) < 20 else -1
        if edge < last or (not number and edge) or edge > total:
            expected = f"from {last} to {total}" if number else "0"
            why = f"expected the first token of a sentence, {expected}, got {line!r:.40}"
            raise DataError(why, path, number + 1)
        last = edge
        if number >= done:
            edges.append(edge)
        if len(edges) > 1 and (edge - edges[0] >= _STEP or len(edges) > _ROWS):
            yield np.array(edges)
            edges = [edge]
    if last != total or not total:
        why = f"ends at token {last}, expected {total}, the number of tokens, at least 1"
        raise DataError(f"{why}; both must be of one corpus, whole", path)
    if len(edges) > 1:
        yield np.array(edges)


def read_vokens(
    tokens: str,
    vokens: str | None,
    output: str,
    *,
    ids: str | None,
    vocabulary: int,
    tokenizer: dict[str, str],
    level: str,
    restart: bool = False,
) -> dict[str, int] | None:
    """Write the packed form of published tokens and vokens, resumably.

    Args:
        tokens: `CORPUS.TOKENIZER.hdf5`, with its offsets next to it.
        vokens: `CORPUS.SET.hdf5`; without it no token has a voken.
        output: `X.npy`.
        ids: the images, one per line; by default `.ids` instead of the vokens' suffix.
        vocabulary: token ids that the tokenizer has.
        tokenizer: its "ref" and "sha256", for the manifest.
        level: `token` or `sentence`, whose vokens they are.
        restart: start over.

    Returns:
        Counts of rows and tokens; None if the output was up to date.

    Raises:
        DataError: files of two corpora, an id that the tokenizer does not have, a voken without an
            image, or a voken of the other level, with the row; or vg wrote them of tokens of
            another tokenizer.
    """
    offsets = offsets_beside(tokens)
    for path in (tokens, *([vokens] if vokens else [])):
        check_made(path)
    # The tokens may be vg's where the vokens are not.
    known = vokens if vokens and manifest_beside(vokens) else _vokens_beside(tokens)
    if known:
        _check_tokens(known, tokens, offsets)
        _check_facts(known, tokenizer["sha256"], level if known == vokens else None)
    listed = ids or (vokens and _beside(vokens, ".ids"))
    inputs = Inputs([path for path in (tokens, offsets, vokens, listed) if path])
    source = Dataset(tokens, "tokens", 1)
    total = len(source)
    made = Dataset(vokens, "vokens", 1) if vokens else None
    if made is not None and len(made) != total:
        why = f"has {len(made)} vokens for the {total} tokens of {tokens}"
        raise DataError(why, vokens)
    # The mark may be in the manifest of vokens that are not read.
    marked = inherited([known or tokens])
    config: dict[str, Any] = {"command": "vokens", "tokenizer": tokenizer["sha256"], **marked}
    count = 0
    if listed:
        names = _ids_of(vokens or tokens, listed)
        count = len(names)
        # As for vokens made here: by this entry vg pretrain recognises features of the same images.
        bank = {os.path.basename(listed): {"sha256": hash_of(names)}}
        config |= {"level": level, "index_sha256": bank}
    with VokenWriter(output, config, inputs=inputs, restart=restart) as out:
        if out.complete:
            return None
        for edges in _windows(offsets, total, out.counts["rows"]):
            start, stop = int(edges[0]), int(edges[-1])
            found = source.rows(start, stop)
            row = out.counts["rows"] + 1
            _check(tokens, found, edges, row, vocabulary, "the tokenizer's ids")
            column = np.full(len(found), -1, np.int32)
            if made is not None:
                column = _own(made.rows(start, stop), level, edges - start)
                _check(made.path, column, edges, row, count, f"the images of {listed}", -1)
            rows = [{"vokens": column[a:b]} for a, b in pairwise((edges - start).tolist())]
            out.write(rows, found)
            out.commit("")
        facts = {"count": count, "level": level} if vokens else {}
        out.finish(tokenizer=tokenizer, **facts, **marked)
        return out.counts


def _own(vokens: Array, level: str, edges: Array) -> Array:
    """Return published vokens as ours: -1 means none, all tokens of a sentence have its voken.

    `edges` are the first tokens of the sentences, and the number of tokens.
    """
    found = vokens.astype(np.int64)
    none = found == _IGNORED
    if level == "sentence":
        lengths = np.diff(edges)
        firsts = np.repeat(found[edges[:-1][lengths > 0]], lengths[lengths > 0])
        found = np.where(found < 0, -found - 1, found)
        # The further tokens of a sentence have -v - 1, which is the mark of none for one voken.
        none &= (firsts < 0) | (found != firsts)
    return np.where(none, -1, found)


def _check(
    path: str, found: Array, edges: Array, first: int, count: int, what: str, least: int = 0
) -> None:
    """Refuse numbers below `least` or from `count` on; `first` is the row of the first edge."""
    bad = np.flatnonzero((found < least) | (found >= count))
    if len(bad):
        row = first + int(np.searchsorted(edges, edges[0] + bad[0], "right")) - 1
        why = f"sentence {row} has the number {found[bad[0]]}, expected {least} to {count - 1}, "
        why += what
        if found[bad[0]] < -1:
            why += "; vokens of sentences (-v - 1 after the first token) need --level sentence"
        raise DataError(why, path)


def write_vokens(
    packed: str, ids: str, output: str, tokens: str, restart: bool = False
) -> dict[str, int] | None:
    """Write a packed file as the published code reads it, resumably.

    Empty rows, which end a document here, are left out: its files have none.

    Args:
        packed: `X.npy` of one voken per token, or a folder of its shards.
        ids: ids of the bank's images, one per line.
        output: `CORPUS.SET.hdf5`, next to which `.ids` goes.
        tokens: `CORPUS.TOKENIZER.hdf5` in the same folder, next to which `.sent` goes.
        restart: start over.

    Returns:
        Counts of rows and tokens; None if the output was up to date.

    Raises:
        DataError: no token, other images than the vokens', a voken beyond them, or a sentence
            without a voken where they are of sentences.
    """
    inputs = Inputs([packed, *([rows_of(packed)] if has_rows(packed) else []), ids])
    manifest = read_manifest(packed, "vokens")
    sentences = manifest.get("level") == "sentence"
    parts = open_packed(packed)
    names = read_ids(ids, parts[0].vokens)
    check_banks([packed], names, ids)
    total = sum(len(part.tokens) for part in parts)
    if not total:
        raise DataError("holds no token", packed)
    files = [output, _beside(output, ".ids"), tokens, _beside(tokens, ".sent")]
    # Who reads the files back needs these facts, and the level decides the form of the vokens.
    facts = {key: manifest[key] for key in ("tokenizer", "level") if manifest.get(key)}
    with Output(files, {"command": "hdf5", **facts}, inputs=inputs, restart=restart) as out:
        if out.complete:
            return None
        done = out.state or {"tokens": 0, "rows": 0}
        if not out.state:
            out.write(_around("vokens", "<i4", (total,))[0])
            out.write("".join(f"{name}\n" for name in names).encode(), 1)
            out.write(_around("tokens", "<i4", (total,))[0], 2)
            out.write(b"0\n", 3)
        base = 0
        for part in parts:
            check_range(part, _MOST, len(names))
            for start in range(0, len(part.tokens), _STEP):
                stop = min(start + _STEP, len(part.tokens))
                # A resumed run skips the blocks that were committed before.
                if base + stop <= done["tokens"]:
                    continue
                block = np.asarray(part.tokens[start:stop])
                heads = _heads(part.ends, start, stop)
                if sentences and (block[:, 1] < 0).any():
                    row = part.line_of(start + int((block[:, 1] < 0).argmax()))
                    why = "has no voken, which the published sentence level cannot express"
                    raise DataError(why, packed, row)
                column = np.where(block[:, 1] < 0, _IGNORED, block[:, 1])
                column = np.where(heads | (not sentences), column, -column - 1)
                out.write(column.astype("<i4").data)
                out.write(block[:, 0].astype("<i4").data, 2)
                low, high = np.searchsorted(part.ends, [start, stop], "right")
                ends = np.unique(part.ends[low:high]) + base
                out.write("".join(f"{end}\n" for end in ends.tolist()).encode(), 3)
                done = {"tokens": base + stop, "rows": done["rows"] + len(ends)}
                out.commit(done)
            base += len(part.tokens)
        out.write(_around("vokens", "<i4", (total,))[1])
        out.write(_around("tokens", "<i4", (total,))[1], 2)
        # Who reads the vokens back does not learn from texts to evaluate on either.
        out.finish(kind="published-vokens", **facts, **done, **inherited([packed]))
        return done


def _heads(ends: Array, start: int, stop: int) -> Array:
    """Return (stop - start,) bool: which of these tokens start a row."""
    heads = np.zeros(stop - start, bool)
    low, high = np.searchsorted(ends, [start, stop])
    heads[ends[low:high] - start] = True
    heads[0] |= start == 0
    return heads


def read_keys(
    files: Sequence[str],
    output: str,
    *,
    backbone: str,
    limit: int | None = None,
    restart: bool = False,
) -> dict[str, int] | None:
    """Write published image features, of one set after the other, as `X.npy` and `X.ids`.

    Args:
        files: `SET.hdf5`, each with its `SET.ids`; an image is SET/ID.
        output: `X.npy`.
        backbone: name of their network for the manifest.
        limit: images to take, the first ones.
        restart: start over.

    Returns:
        Counts of rows and width; None if the output was up to date.

    Raises:
        DataError: widths or numbers of ids that differ, two images of one id, no image, or an image
            that is NaN, infinite or all zero in float32.
    """
    inputs = Inputs([path for file in files for path in (file, _beside(file, ".ids"))])
    networks = dict[str, dict[str, Any]]()
    for file in files:
        check_made(file)
        made = read_manifest(file, verify=False) if manifest_beside(file) else {}
        if made.get("backbone"):
            networks[file] = origin_of({**made["backbone"], "pooling": made.get("pooling")})
    for file, network in networks.items():
        check_same("backbone", network, next(iter(networks.values())), file)
    sets = [Dataset(file, "keys", 2, "f") for file in files]
    width = sets[0].shape[1]
    for keys in sets:
        if keys.shape[1] != width:
            why = f"has keys of width {keys.shape[1]}, {files[0]} of {width}"
            raise DataError(why, keys.path)
        if not math.prod(keys.shape):
            raise DataError(f"expected numbers, got none: shape {keys.shape}", keys.path)
    images = list[list[str]]()
    for keys in sets:
        names = _ids_of(keys.path, _beside(keys.path, ".ids"), len(keys))
        images.append([_in_set(Path(keys.path).stem, name) for name in names])
        for others in images[:-1]:
            if both := set(others).intersection(images[-1]):
                raise DataError(f"another file also has the image {min(both)!r:.80}", keys.path)
    config = {
        "command": "keys",
        "limit": limit,
        "backbone": backbone,
        "sets": [Path(file).stem for file in files],  # ids start with these names
    }
    paths = [output, _beside(output, ".ids")]
    npy = {0: (np.dtype("<f4"), width)}
    with Output(paths, config, npy=npy, inputs=inputs, restart=restart) as out:
        if out.complete:
            return None
        step = max(1, _STEP // width)
        done = int(out.state.get("rows", 0))
        base = 0
        for keys, names in zip(sets, images, strict=True):
            most = len(keys) if limit is None else max(0, min(len(keys), limit - base))
            for start in range(0, most, step):
                stop = min(start + step, most)
                if base + stop <= done:
                    continue
                # A float64 beyond float32 becomes infinite here and is refused below, with its row.
                with np.errstate(over="ignore"):
                    block = keys.rows(start, stop).astype("<f4")
                bad = np.flatnonzero(~np.isfinite(block).all(1) | ~block.any(1))
                if len(bad):
                    row = start + int(bad[0])
                    why = f"row {row} ({names[row]}) is NaN, infinite or all zero; leave it out"
                    raise DataError(why, keys.path)
                out.write(np.ascontiguousarray(block).data)
                out.write("".join(f"{name}\n" for name in names[start:stop]).encode(), 1)
                out.commit({"rows": base + stop})
            base += most
        made_by = {"ref": backbone, "fingerprint": f"{backbone} {width}"}
        facts = {"rows": base, "dim": width}
        out.finish(kind="image-features", pooling="keys", backbone=made_by, **facts)
        return facts


def _in_set(name: str, image: str) -> str:
    return image if "/" in image else f"{name}/{image}"


def write_keys(feats: str, output: str, restart: bool = False) -> dict[str, int] | None:
    """Write image features as `SET.hdf5` and `SET.ids`; ids of the set lose its name.

    Returns:
        Counts of rows and width; None if the output was up to date.
    """
    inputs = Inputs([feats, *([] if is_shards(feats) else [_beside(feats, ".ids")])])
    found = open_features(feats)
    own = re.compile(rf"{re.escape(Path(output).stem)}/([^/]+)")
    names = [match[1] if (match := own.fullmatch(name)) else name for name in found.ids]
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        other = f"{Path(output).stem}/{twice}"
        why = f"has the images {twice!r:.80} and {other!r:.80}, which are one in {output}"
        raise DataError(f"{why}; choose another name for it", feats)
    files = [output, _beside(output, ".ids")]
    facts = {"rows": len(names), "dim": int(found.array.shape[1])}
    # Who reads several sets back does not mix the features of two networks.
    made = {name: found.manifest.get(name) for name in ("backbone", "pooling")}
    with Output(files, {"command": "hdf5", **made}, inputs=inputs, restart=restart) as out:
        if out.complete:
            return None
        step = max(1, _STEP // facts["dim"])
        if not out.state:
            out.write(_around("keys", "<f4", found.array.shape)[0])
            out.write("".join(f"{name}\n" for name in names).encode(), 1)
        for start in range(int(out.state.get("rows", 0)), len(names), step):
            block = np.ascontiguousarray(found.array[start : start + step], "<f4")
            out.write(block.data)
            out.commit({"rows": start + len(block)})
        out.write(_around("keys", "<f4", found.array.shape)[1])
        out.finish(kind="published-keys", **facts, **made)
    return facts


def _around(name: str, dtype: str, shape: tuple[int, ...]) -> tuple[bytes, bytes]:
    """Return the bytes of an HDF5 file with one dataset: before its numbers, and after them.

    With them it is written, and resumed, piece by piece like any other file. h5py lays it out with
    a hole for the numbers.
    """
    h5py = _h5py()
    size = math.prod(shape) * np.dtype(dtype).itemsize
    with file_errors(tempfile.gettempdir(), reading=False), tempfile.TemporaryFile() as file:
        with h5py.File(file, "w") as whole:
            layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            layout.set_layout(h5py.h5d.CONTIGUOUS)
            # The space is allocated at once and not filled, so that the file has its final layout
            # without writing the numbers; without times equal data gives equal bytes.
            layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            layout.set_obj_track_times(False)
            kind = h5py.h5t.py_create(np.dtype(dtype))
            space = h5py.h5s.create_simple(shape)
            data = h5py.h5d.create(whole.id, name.encode(), kind, space, layout)
            offset = int(data.get_offset())
        file.seek(0)
        before = file.read(offset)
        file.seek(offset + size)
        return before, file.read()
