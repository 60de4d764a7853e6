"""Official data sets → the toolkit's rows: captions, phrase boxes, instance boxes, image lists.

Every parser is a generator of rows in the order of the official files. It drops nothing by itself:
rows that a flag asks to leave out, and bad items that may be skipped, go through a `Tally`, which
counts them.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vgtools.images.sources import flickr_number, is_hidden, is_picture
from vgtools.io.errors import DataError, Exit, Tally, amount, input_changed, plain, storable
from vgtools.io.files import dumps, files_below
from vgtools.io.inputs import Inputs
from vgtools.io.names import bare, is_jsonl, is_stream, refuse_special
from vgtools.io.output import Output
from vgtools.io.process import is_quiet, note
from vgtools.io.splits import held_out_in, is_held_out
from vgtools.io.streams import read_lines

Row = dict[str, Any]


def errors_beside(path: str) -> str:
    """Return the list of bad items next to rows: `X.errors.jsonl` of `X.jsonl`."""
    return f"{bare(path).removesuffix('.jsonl')}.errors.jsonl"


def save(
    rows: Iterable[Row],
    path: str,
    tally: Tally,
    what: str,
    config: Mapping[str, Any],
    inputs: Inputs | Sequence[str | Path],
    restart: bool = False,
    step: int = 65536,
    **facts: Any,
) -> int:
    """Write rows to a file or stdout, resumably; report how many rows were left out and return how
    many were written.

    The suffix chooses the form: `.txt` (and stdout for a corpus, `what` being "lines" or
    "sentences") takes the text alone, anything else one JSON object per line. A resumed run parses
    from the start, compares the hash of the rows that it would have written, and writes only new
    rows. Further keywords go into the manifest. The report goes to stderr.

    Raises:
        DataError: the suffix asks for texts, and rows have none (usage); as `Output`.
    """
    name = bare(path)
    is_corpus = what in ("lines", "sentences") and not is_jsonl(path)
    as_text = name.endswith(".txt") or is_corpus
    files = [path]
    if tally.skip and not is_stream(path):
        files.append(errors_beside(path))
    digest = hashlib.sha256()
    count = held_out = broken = 0
    with Output(files, config, inputs=inputs, restart=restart) as out:
        done = int(out.state.get("rows", 0))
        for count, row in enumerate(rows, 1):
            held_out += as_text and is_held_out(row)
            # Rows of a finished output are still read, because the image list and the counts need
            # them.
            if out.complete:
                continue
            if as_text and "text" not in row:
                raise DataError(f"{what} have no text; name them .jsonl", path, code=Exit.USAGE)
            data = f"{_line(row['text'])}\n".encode() if as_text else dumps(row)
            broken += as_text and "\n" in row["text"]
            digest.update(data)
            if count > done:
                out.write(data)
                if count % step == 0:
                    out.commit({"rows": count, "sha256": digest.hexdigest()})
            # At the last committed row the hash must equal the committed hash: otherwise the input
            # changed, and appending would mix rows of two inputs.
            elif count == done and digest.hexdigest() != out.state["sha256"]:
                raise input_changed(path)
        if count < done:
            raise input_changed(path)
        if not out.complete:
            for error in tally.errors if len(files) > 1 else ():
                out.write(dumps(error.record()), 1)
            # Lines have no splits: the manifest counts the rows that nothing may learn from.
            paths = inputs.paths if isinstance(inputs, Inputs) else inputs
            held_out = max([held_out, *map(held_out_in, paths)])
            facts |= {"held_out": held_out} if held_out else {}
            out.finish(kind=what, rows=count, left_out=dict(+tally.left_out), **facts)
    if is_quiet():
        return count
    for error in tally.errors if len(files) == 1 else ():
        print(f"vg: skipped: {plain(error)}", file=sys.stderr)
    report = f"{amount(count, what[:-1], what)} in {'stdout' if path == '-' else path}"
    report += " (up to date)" if out.complete else ""
    if replaced := tally.text.replaced:
        report += f"; {amount(replaced, 'line')} had bytes that are not UTF-8, replaced"
    if broken:
        report += f"; {amount(broken, 'text')} with line breaks, which became blanks"
    left = [f"{reason}: {number:,}" for reason, number in tally.left_out.items() if number]
    note("prepare", f"{report}; left out: {', '.join(left)}" if left else report)
    return count


def _line(text: str) -> str:
    """Return a text as one line."""
    return " ".join(filter(None, map(str.strip, text.split("\n")))) if "\n" in text else text


_SPLIT_LIST = re.compile(r"Flickr_8k\.(\w+)Images\.txt|(train|val|test)\.txt")


def read_splits(folder: str | Path, flickr8k: bool | None = None) -> dict[str, str]:
    """Read the official lists of a folder: image -> split.

    They are `Flickr_8k.trainImages.txt` …, or `train.txt` … of Flickr30k.

    `flickr8k` decides which lists to read where both kinds exist; None where the data set is not
    known.

    Raises:
        DataError: no list there (66), both kinds and `flickr8k` is None, or an image is in two of
            them (65).
    """
    if not os.path.isdir(folder):
        why = "is not a folder; expected the one with the split lists"
        raise DataError(why, folder, code=Exit.NO_INPUT)
    names = sorted(os.listdir(folder))
    matches = [match for match in map(_SPLIT_LIST.fullmatch, names) if match]
    if len({match[1] is None for match in matches}) > 1:
        if flickr8k is None:
            why = "holds split lists of Flickr8k and of Flickr30k; name a folder with one of them"
            raise DataError(why, folder)
        matches = [match for match in matches if (match[1] is not None) == flickr8k]
    lists = {match[1] or match[2]: Path(folder, match[0]) for match in matches}
    if not lists:
        why = "holds no split list (Flickr_8k.trainImages.txt …, or train.txt …)"
        raise DataError(why, folder, code=Exit.NO_INPUT)
    splits: dict[str, str] = {}
    listed: dict[str, str] = {}  # an image may be named with or without its suffix
    for split, path in lists.items():
        for number, line in enumerate(read_lines(path), 1):
            name = line.strip()
            if not name:
                continue
            first = listed.setdefault(Path(name).stem, split)
            if name in splits or first != split:
                why = f"duplicate image {name!r:.80} (already in the {first} list)"
                raise DataError(why, path, number)
            splits[name] = split
    return splits


def with_split(
    rows: Iterable[Row], splits: Mapping[str, str], only: str | None, tally: Tally
) -> Iterator[Row]:
    """Give each row its split, if a list names its image; keep `only` one split if asked to.

    Raises:
        DataError: no list is called `only` (usage), or there are lists, and none names an image of
            any row (65): they are another data set's.
    """
    if only is not None and only not in splits.values():
        known = ", ".join(sorted(set(splits.values())))
        known = known or "none: --splits names the folder of the lists"
        raise DataError(f"--split {only}: unknown split; known are {known}", code=Exit.USAGE)
    image = ""
    fits = not splits
    for row in rows:
        image = row["image"]
        split = splits.get(image) or splits.get(Path(image).stem)
        fits = fits or split is not None
        if only is not None and split != only:
            tally.left_out[f"not in {only}"] += 1
            continue
        yield row | {"split": split} if split else row
    if image and not fits:
        why = f"--splits: no list names an image of the rows, such as {image!r:.80} or its stem"
        raise DataError(f"{why}; expected the folder with the lists of this data set")


def in_split(rows: Iterable[Row], split: str | None) -> Iterator[Row]:
    """Return rows with the same "split", or as they are if there is none."""
    return (row | {"split": split} for row in rows) if split else iter(rows)


# Suffixes of files next to a photo; a downloader may give a photo any other suffix, or none.
_NOTES = (".cls", ".csv", ".html", ".json", ".md5", ".npy", ".npz", ".tsv", ".txt", ".xml")


def _may_be_photo(file: str, name: str) -> bool:
    """Return whether a file without a picture's suffix may be the photo of a name."""
    return os.path.basename(file) == name or not file.lower().endswith(_NOTES)


def _stat(path: Path) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError:  # a link that leads nowhere
        return os.lstat(path)


class Folder:
    """The files of a folder and of those below it, by path, name, stem, or Flickr's number.

    `1000268201_693b08cb0e.jpg` of Flickr8k is the photo `1000268201.jpg` of Flickr30k.
    Pictures take precedence over other files. Hidden files, and those in hidden folders, are left
    out.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.used: dict[str, str] = {}
        self._images: dict[str, str] = {}  # path -> the image that took it
        if not self.path.is_dir():
            why = "is not a folder" if self.path.exists() else "does not exist"
            raise DataError(why, path, code=Exit.NO_INPUT)
        # Sorted files give the same rows on every disk.
        self.files = sorted(file for file in files_below(os.fspath(path)) if not is_hidden(file))
        self._names: dict[str, set[str]] = {}
        for file in self.files:
            stem = Path(file).stem
            for key in {file, os.path.basename(file), stem, flickr_number(stem) or stem}:
                self._names.setdefault(key, set()).add(file)

    def digest(self) -> str:
        """Return a hash of all names, sizes and times, which shows whether the folder changed.

        A link counts by the file that is read through it.
        """
        stats = ((file, _stat(self.path / file)) for file in self.files)
        facts = [(file, stat.st_size, stat.st_mtime_ns) for file, stat in stats]
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def unused(self) -> int:
        """Return how many of the pictures no row has asked for.

        Other files next to them (VCR's metadata) do not count.
        """
        return max(0, sum(map(is_picture, self.files)) - len(set(self.used.values())))

    def find(self, image: str) -> str:
        """Return the absolute path of an image's file.

        Raises:
            DataError: none (66) or several match, or its name cannot be written down.
        """
        name = os.path.basename(image)
        for key in (image, name, Path(name).stem):
            files = self._names.get(key, set())
            # VCR has `1_x.json` next to `1_x.jpg`, and img2dataset `6.txt` where it got no `6.jpg`.
            pictures = set(filter(is_picture, files))
            files = pictures or {file for file in files if _may_be_photo(file, name)}
            if len(files) == 1:
                path = os.path.abspath(self.path / min(files))
                if storable(path) != path:
                    why = "has bytes in its name that are not UTF-8, which no image list can hold"
                    raise DataError(why, path)
                return path
            if files:
                both = " and ".join(sorted(files)[:2])
                raise DataError(f"{image!r:.80} is ambiguous: {both} both match", self.path)
        raise DataError(f"holds no photo {image!r:.80}", self.path, code=Exit.NO_INPUT)

    def take(self, image: str, path: str) -> None:
        """Note that a file is the photo of an image.

        Raises:
            DataError: it is the photo of another image, one of which was found by a part of its
                name (65).
        """
        other = self._images.setdefault(path, image)
        if other != image:
            why = f"would be the photo of both {other!r:.80} and {image!r:.80}"
            raise DataError(f"{why}; one of them is missing, remove its rows", path)
        self.used[image] = path


def with_photos(rows: Iterable[Row], photos: Folder, tally: Tally) -> Iterator[Row]:
    """Keep the rows whose photo exists, and scale their boxes to its real size.

    A row's "width" and "height" are the size that its boxes refer to, before and after.
    `photos.used` collects image -> path in order.
    """
    bad: set[str] = set()
    for row in rows:
        image = row["image"]
        if image in bad:
            tally.left_out["row of a bad photo"] += 1
            continue
        try:
            path = photos.used.get(image) or photos.find(image)
            if "width" in row:
                row = _scaled(row, path)
        except DataError as error:
            bad.add(image)
            if not tally.skip:
                why = f"{error.why}; mend it, or leave its rows out with --on-error skip"
                raise DataError(why, error.file, error.line, error.code) from None
            tally.bad(error)
            continue
        photos.take(image, path)
        yield row


@functools.lru_cache(maxsize=16)
def _photo_size(path: str) -> tuple[int, int]:
    from vgtools.images.decoding import size_of
    from vgtools.images.sources import ImageError

    refuse_special(path)
    try:
        return size_of(path)
    except ImageError as error:
        raise DataError(f"cannot be read as a picture: {error}", path) from None


def _scaled(row: Row, path: str) -> Row:
    """Return a row with its boxes in the pixels of the photo at `path`."""
    from vgtools.images.boxes import size_ratio

    size = _photo_size(path)
    try:
        ratio = size_ratio((row["width"], row["height"]), size)
    except ValueError as error:
        raise DataError(str(error), path) from None
    if ratio == (1, 1):
        return row

    def scale(boxes: list[list[float]]) -> list[list[float]]:
        return [[round(v * by, 2) for v, by in zip(b, ratio * 2, strict=True)] for b in boxes]

    changed: Row = {"width": size[0], "height": size[1]}
    if "boxes" in row:
        changed["boxes"] = scale(row["boxes"])
    if "phrases" in row:
        changed["phrases"] = [p | {"boxes": scale(p["boxes"])} for p in row["phrases"]]
    return row | changed


def listing(rows: Iterable[Row], images: dict[str, Row], photos: Folder | None) -> Iterator[Row]:
    """Pass rows on and collect their images on the way.

    Args:
        rows: with "image", and "url" where it is known.
        images: gets image -> row of an image list: {"image", "path" or "url" or both}.
        photos: where the paths come from.
    """
    for row in rows:
        image = row["image"]
        if image not in images:
            entry = {"image": image}
            if photos is not None:
                entry["path"] = photos.used[image]
            if "url" in row:
                entry["url"] = row["url"]
            images[image] = entry
        yield row
