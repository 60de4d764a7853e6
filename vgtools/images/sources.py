"""Where images come from: a directory, a list, an image jsonl or a tar as one ordered stream.

Nothing is dropped without being counted, and nothing is ever extracted to disk. An image that
cannot be read raises an `ImageError` of its own when it is loaded, so that the others continue.
"""

from __future__ import annotations

import contextlib
import hashlib
import lzma
import os
import re
import stat
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, partialmethod
from itertools import chain, islice
from typing import Any, cast

from vgtools.io import remote
from vgtools.io.errors import DataError, Exit, file_errors
from vgtools.io.files import files_below
from vgtools.io.names import file_of, is_separated, is_stream, is_table, is_unnamed, is_url
from vgtools.io.streams import (
    Piece,
    holds_rows,
    open_read,
    parse_json,
    read_lines,
    require,
    rows_of_table,
)
from vgtools.io.tables import holds_pictures, paths_without_bytes, pictures, table_rows

_FLICKR8K = re.compile(r"(\d+)_[0-9a-f]{10}")  # the number and the secret of a photo on Flickr

MAX_BYTES = 256 << 20  # size of one encoded image

SUFFIXES = frozenset({
    ".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".gif", ".bmp", ".dib", ".webp",
    ".tif", ".tiff", ".avif", ".jp2", ".j2k", ".ppm", ".pgm", ".pbm", ".pnm", ".ico",
})  # fmt: skip

TAR_SUFFIXES = (
    ".tar", ".tgz", ".tar.gz", ".tar.zst", ".tar.bz2", ".tbz2", ".tar.xz", ".txz",
)  # fmt: skip

HIDDEN = "(hidden)"  # among the suffixes of files left out

_EXPECTED = (
    "expected a directory, a tar, an image jsonl, or a list of paths with image files "
    + " ".join(sorted(SUFFIXES))
)


class ImageError(Exception):
    """One image that cannot be used, and why; the other images are unaffected."""


@dataclass(frozen=True, slots=True)
class Item:
    """One image of a source, not yet read."""

    id: str
    stamp: str  # size and modification time: shows a resumed run that the image is unchanged
    load: Callable[[], bytes]  # raises ImageError
    place: str = ""  # put before messages about it: its tar, or its table and row


@dataclass
class ImageSource:
    """Images in a fixed order, whatever they are stored in."""

    items: Iterator[Item]
    total: int | None  # None for a tar, which is read once
    # sha256 over the stamps of images in files of their own; None where all are in tars or tables.
    listing: str | None
    # Suffix, or HIDDEN -> number of files left out; in a tar, of those read so far.
    left_out: Counter[str] = field(default_factory=Counter)


def read_image(path: str, image: str | None = None) -> bytes:
    """Read one encoded image; messages add its path if that is not its id, `image`.

    Raises:
        ImageError: missing, unreadable, not a regular file, or larger than MAX_BYTES.
    """
    try:
        facts = os.stat(path)
        if not stat.S_ISREG(facts.st_mode):
            raise ImageError("not a regular file")
        if facts.st_size > MAX_BYTES:
            raise ImageError(_too_large(facts.st_size))
        with open(path, "rb") as stream:
            return stream.read()
    except OSError as error:
        tried = "" if image in (None, path) else f" ({path})"
        raise ImageError(f"cannot be read: {error.strerror or error}{tried}") from None
    except ValueError as error:  # a NUL in the name
        raise ImageError(f"cannot be read: {error}") from None


def _read_url(url: str, image: str) -> bytes:
    """Read one encoded image at a URL, as `read_image`.

    Raises:
        DataError: the store does not answer (69): that is not a fault of the image.
    """
    tried = "" if image == url else f" ({url})"
    try:
        size = remote.facts(url).bytes
        if size <= MAX_BYTES:
            return remote.read(url)
    except DataError as error:
        if error.code != Exit.NO_INPUT and not isinstance(error, remote.UnsizedError):
            raise
        raise ImageError(f"cannot be read: {error.why}{tried}") from None
    raise ImageError(_too_large(size))


def _too_large(size: int) -> str:
    return f"{size:,} bytes; the limit is {MAX_BYTES:,}"


def _stamp(path: str) -> str:
    try:
        facts = os.stat(path)
        return f"{facts.st_size} {facts.st_mtime_ns}"
    except (OSError, ValueError):
        return "missing"


def open_source(path: str, limit: int | None = None) -> ImageSource:
    """Open a directory, an image jsonl, a list of paths, a tar, or `-` (list or jsonl on stdin).

    A `limit` takes only the first images; see `Images` for the rest.
    """
    return Images([path], limit).open([Piece(path)])


class Images:
    """The images of one or several places, each listed once.

    Ids are the path below the directory, the `image` of a jsonl row, the line of a list, or the
    member name of a tar. Paths in a list or jsonl are relative to the file that holds them, or are
    URLs. In a directory or tar the suffix decides which files are images; all others are counted in
    `left_out`, as are hidden files, and those in hidden folders. A tar is streamed; nothing of it
    is ever written to disk. For images at URLs the store is asked for sizes and versions, for many
    at a time and once each.

    Args:
        paths: directories, image jsonl, lists of paths, tars, or `-` (list or jsonl on stdin); all
            of them but `-`, and directories, may be at URLs.
        limit: take only the first images.

    Raises:
        DataError: missing (66); no image in it, a duplicate id, a line that is not a path (65); a
            store does not answer (69).
    """

    def __init__(self, paths: Iterable[str], limit: int | None = None) -> None:
        self._limit = limit
        # (id, path) of each image, and the other files; a tar is read when it is opened.
        self._listed: dict[str, tuple[list[tuple[str, str]], Counter[str]] | None] = {}
        self._stamps: dict[str, str] = {}  # URL -> stamp
        for path in paths:
            left_out = Counter[str]()
            if is_url(path) and path.endswith("/"):
                why = "a folder at a URL is not searched for images; name its tars, or a list of"
                raise DataError(f"{why} the images' URLs", path, code=Exit.NO_INPUT)
            if path != "-" and os.path.isdir(path):
                names = _walk(path, left_out)
                entries = [(name, os.path.join(path, name)) for name in names]
            elif path != "-" and (_has_pictures(path) if is_table(path) else is_tar(path)):
                self._listed[path] = None
                continue
            else:
                entries = _listed(path)
            if not entries:
                raise _no_image(path, left_out)
            self._listed[path] = entries, left_out

    def open(self, pieces: Sequence[Piece]) -> ImageSource:
        """Return the images of pieces, counted in images; a tar is always a whole piece."""
        left_out = Counter[str]()
        digest = hashlib.sha256()
        stamped = False
        parts = list[Iterable[Item]]()
        total: int | None = 0
        for piece in pieces:
            listed = self._listed[piece.path]
            if listed is None:
                parts.append(_stored_items(piece.path, left_out))
                total = None
                if (named := named_by(piece.path)) is not None:
                    digest.update(f"{named}\n".encode())
                    stamped = True
                continue
            stamped = True
            entries = listed[0][piece.start : piece.stop]
            if self._limit is not None and total is not None:
                entries = entries[: self._limit - total]
            left_out.update(listed[1])
            self._ask(entries)
            parts.append(self._item(*entry) for entry in entries)
            for entry in entries:
                add_stamp(digest, self._item(*entry))
            total = None if total is None else total + len(entries)
        items = islice(_unique(parts), self._limit)
        return ImageSource(items, total, digest.hexdigest() if stamped else None, left_out)

    def size(self, path: str) -> tuple[int, int, str] | None:
        """Return images, their bytes, and a hash of names, sizes and times; None for a tar."""
        listed = self._listed[path]
        if listed is None:
            return None
        digest = hashlib.sha256()
        count = 0
        self._ask(listed[0])
        for entry in listed[0]:
            item = self._item(*entry)
            add_stamp(digest, item)
            size = item.stamp.partition(" ")[0]
            count += int(size) if size.isdigit() else 0
        return len(listed[0]), count, digest.hexdigest()

    def check_unique(self) -> None:
        """Refuse places that share an id, before shards are made of each of them.

        Names in tars are read for that, which skips over the images where the tar is a plain file.

        Raises:
            DataError: an id is in two places, or a tar is damaged (65).
        """
        if len(self._listed) < 2:
            return
        seen = dict[str, str]()
        for path, listed in self._listed.items():
            names = _tar_names(path) if listed is None else (name for name, _ in listed[0])
            for name in names:
                other = seen.setdefault(name, path)
                if other != path:
                    why = f"duplicate id {name!r:.80}, also in {other}; ids must be unique"
                    raise DataError(why, path)

    def _ask(self, entries: Sequence[tuple[str, str]]) -> None:
        """Learn the sizes and versions of images at URLs."""
        urls = [path for _, path in entries if is_url(path) and path not in self._stamps]
        for url, facts in zip(urls, remote.facts_of(urls), strict=True):
            self._stamps[url] = "missing" if facts is None else f"{facts.bytes} {facts.version}"

    def _item(self, image: str, path: str) -> Item:
        if is_url(path):
            return Item(image, self._stamps[path], partial(_read_url, path, image))
        return Item(image, _stamp(path), partial(read_image, path, image))


def _unique(parts: Sequence[Iterable[Item]]) -> Iterator[Item]:
    """Yield the items of all parts; an id must be unique among all of them."""
    if len(parts) < 2:
        # The ids of a single part were compared when it was listed.
        yield from chain.from_iterable(parts)
        return
    seen = set[str]()
    for item in chain.from_iterable(parts):
        if item.id in seen:
            raise DataError(f"duplicate id {item.id!r:.80} in two sources; ids must be unique")
        seen.add(item.id)
        yield item


def _no_image(path: str, left_out: Mapping[str, int]) -> DataError:
    others = f": {counted(left_out)}" if left_out else ""
    table = next((end for end in left_out if is_table(end) and not is_separated(end)), "")
    expected = f"name its tables: '{path.rstrip('/')}/*{table}'" if table else _EXPECTED
    return DataError(f"holds no image{others}; {expected}", path)


def counted(left_out: Mapping[str, int]) -> str:
    """Return counts by suffix as text, the largest first."""
    order = sorted(left_out.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{number:,} {suffix or 'without suffix'}" for suffix, number in order[:8])


def add_stamp(digest: Any, item: Item) -> None:
    """Feed an image's id and stamp to a hash."""
    digest.update(f"{item.id}\0{item.stamp}\n".encode("utf-8", "surrogatepass"))


def natural_key(name: str) -> tuple[Any, ...]:
    """Return a sort key by which `img2` comes before `img10`, the same in every locale."""
    key: list[Any] = []
    for position, part in enumerate(re.split(r"([0-9]+)", name)):
        if position % 2:  # digits: compared by length, then as text, so that size has no limit
            part = part.lstrip("0")
            key.append((len(part), part))
        else:
            key.append(part)
    return (tuple(key), name)


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def is_picture(name: str) -> bool:
    """Return whether a file of a folder or tar is a picture by its suffix, in any case."""
    return _suffix(name) in SUFFIXES and not is_hidden(name)


def is_hidden(name: str) -> bool:
    """Return whether a file, or a folder on the way to it, has a name that starts with a dot.

    Notebooks keep copies in `.ipynb_checkpoints`, and macOS notes about `a.png` in `._a.png`.
    """
    return any(part.startswith(".") and part not in (".", "..") for part in name.split("/"))


def flickr_number(stem: str) -> str | None:
    """Return the number of a photo of Flickr8k, by its name without the suffix; None for others."""
    found = _FLICKR8K.fullmatch(stem)
    return found[1] if found else None


def _walk(root: str, left_out: Counter[str]) -> list[str]:
    """Return the image files below a directory, links followed, in natural order."""
    images = []
    for file in files_below(root, left_out):
        if is_hidden(file):
            left_out[HIDDEN] += 1
        elif is_picture(file):
            images.append(file)
        else:
            left_out[_suffix(file)] += 1
    return sorted(images, key=lambda name: [natural_key(part) for part in name.split(os.sep)])


def expand_folder(place: str) -> list[str]:
    """Return the tars of a folder that holds no other images, by number; else the place itself."""
    if place == "-" or not os.path.isdir(place):
        return [place]
    with file_errors(place, reading=True):
        names = sorted(os.listdir(place), key=natural_key)
    tars = [
        os.path.join(place, name)
        for name in names
        if name.endswith(TAR_SUFFIXES) and not is_hidden(name)
    ]
    return tars if tars and not _walk(place, Counter()) else [place]


def is_tar(path: str) -> bool:
    """Return whether a file is a tar by its suffix or first block; refuse other binary files."""
    if path.endswith(TAR_SUFFIXES):
        return True
    if is_stream(path):
        return False
    with open_read(path) as stream:
        try:
            head = stream.read(512)
        except (OSError, EOFError, zlib.error):
            return False  # reading it as a list reports the fault
    if head[257:262] == b"ustar":
        return True
    if b"\0" in head or head.startswith((b"\xff\xd8", b"\x89PNG", b"GIF8", b"RIFF")):
        hint = "(one image: echo IMAGE | vg extract-image-feats -)"
        raise DataError(f"is a single binary file; {_EXPECTED} {hint}", path)
    return False


def _has_pictures(path: str) -> bool:
    return not is_separated(path) and holds_pictures(path)


def _listed(path: str) -> list[tuple[str, str]]:
    """Return `(id, path)` of the rows of an image jsonl or a table, or the lines of a list."""
    # A pipe has no folder: its paths are relative to the shell's folder.
    base = "" if is_unnamed(path) else os.path.dirname(file_of(path))
    seen: dict[str, int] = {}
    entries = []
    jsonl = False
    keys = {"image": str, "path": str}
    # Closed here, because an error keeps its generators, and with them an open file.
    lines: Any = rows_of_table(path) if is_table(path) else read_lines(path)
    with contextlib.closing(lines):
        for number, line in enumerate(lines, 1):
            if number == 1 and isinstance(line, str):
                jsonl = holds_rows(path, line, ("image", "path"))
                if not jsonl and re.match(r'\s*\[\s*([\[{"]|$)', line):
                    why = 'starts like a list of JSON, expected lines {"image": ID, "path": FILE}'
                    raise DataError(f"{why}; jq -c '.[]' makes them, in a file X.jsonl", path, 1)
            if jsonl or isinstance(line, dict):
                row = parse_json(line, path, number)
                require(row, keys, path, number)
                image, file = row["image"], row["path"]
            else:
                image = file = line
            if not file:
                empty = "empty line" if isinstance(line, str) and not jsonl else '"path" is empty'
                raise DataError(f"{empty}; expected the path of an image", path, number)
            first = seen.setdefault(image, number)
            if first != number:
                raise DataError(f"duplicate id {image!r:.80} (first on line {first})", path, number)
            entries.append((image, _place(base, file)))
    return entries


_LONG_HEADERS = (*tarfile.GNU_TYPES[:2], tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_LONGEST_HEADER = 1 << 20  # bytes


class _Member(tarfile.TarInfo):
    """A tar header; records that the end mark was met, and a map of holes that cannot be read.

    tarfile keeps the first to itself, and ends with a bare ValueError at the second.
    """

    torn: str | None = None

    def _proc_member(self, tarfile_: tarfile.TarFile) -> Any:
        # tarfile reads these headers whole, whose declared size a small compressed tar can have.
        if self.type in _LONG_HEADERS and self.size > _LONGEST_HEADER:
            raise tarfile.ReadError(f"a header declares {self.size:,} bytes")
        return super()._proc_member(tarfile_)  # type: ignore[misc]

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> _Member:
        try:
            return super().fromtarfile(tarfile_)  # type: ignore[return-value]
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            tarfile_.ended = True  # type: ignore[attr-defined]
            raise

    def _holes(self, name: str, member: _Member, *args: Any) -> None:
        try:
            getattr(super(), name)(member, *args)
        except (ValueError, IndexError) as error:
            member.torn = f"its map of holes cannot be read: {error}"

    _proc_gnusparse_00 = partialmethod(_holes, "_proc_gnusparse_00")
    _proc_gnusparse_01 = partialmethod(_holes, "_proc_gnusparse_01")
    _proc_gnusparse_10 = partialmethod(_holes, "_proc_gnusparse_10")


class _Ending:
    """A stream that reports its end as an error if it is read again and again.

    tarfile skips a member of 2^50 bytes, which a tar of 2 KB can declare, in as many reads as that
    takes, and does not look whether anything is read.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._empty = 0

    def read(self, size: int) -> bytes:
        data: bytes = self._stream.read(size)
        self._empty = 0 if data else self._empty + 1
        if self._empty > 64:
            raise EOFError("it ends before the bytes that its last member declares")
        return data

    def close(self) -> None:
        self._stream.close()


def _place(base: str, file: str) -> str:
    """Return where a file is that a list or table in the folder or URL `base` names."""
    return file if is_url(file) else os.path.join(base, file)


def _stored_items(path: str, left_out: Counter[str]) -> Iterator[Item]:
    """Return the images of a table or a tar, in its order."""
    return _table_items(path) if is_table(path) else _tar_items(path, left_out)


def _table_items(path: str) -> Iterator[Item]:
    """Yield the images of a table; a file that it names instead of bytes is read."""
    seen = dict[str, int]()
    base = os.path.dirname(file_of(path))
    for row, image, data, file in pictures(path):
        if not isinstance(image, str):
            raise DataError(f'"image" must be a string, got {image!r:.60}', path, row)
        first = seen.setdefault(image, row)
        if first != row:
            why = f"duplicate id {image!r:.80} (first in row {first}); ids must be unique, and"
            raise DataError(f"{why} #image=COLUMN names a column of them", path, row)
        if data is None and file is not None:
            place = _place(base, file)
            load = partial(_read_url if is_url(place) else read_image, place, image)
            stamp = "" if is_url(place) else _stamp(place)  # `named_by` asks for many at once
        else:
            load = partial(_stored, data)
            stamp = f"{len(data or b'')} {zlib.crc32(data or b'')}"
        yield Item(image, stamp, load, f"{path}:{row}: ")
    if not seen:
        raise _no_image(path, {})


def named_by(path: str) -> str | None:
    """Return a hash of the sizes and times of the files that a table names instead of bytes.

    None for a tar, and for a table that holds all its images.
    """
    if not is_table(path):
        return None
    base = os.path.dirname(file_of(path))
    files = [*paths_without_bytes(path)]
    places = [_place(base, file) for file in files]
    facts = iter(remote.facts_of([place for place in places if is_url(place)]))
    stamps = [str(next(facts)) if is_url(place) else _stamp(place) for place in places]
    text = "".join(f"{file}\0{stamp}\n" for file, stamp in zip(files, stamps, strict=True))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() if files else None


def _stored(data: bytes | None) -> bytes:
    if data is None:
        raise ImageError("has neither bytes nor a path")
    if len(data) > MAX_BYTES:
        raise ImageError(_too_large(len(data)))
    return data


def _tar_items(path: str, left_out: Counter[str]) -> Iterator[Item]:
    """Yield the images of a tar in its order; a damaged tar is an error after its last member."""
    item = None
    for name, stamp, load in members(path, is_picture, left_out):
        item = Item(name, stamp, load, f"{path}: ")
        yield item
    if item is None and [*left_out] == [HIDDEN]:
        way = "tar -C FOLDER -cf X.tar . has names without the folders on the way there"
        raise DataError(f"holds hidden files alone ({left_out[HIDDEN]:,}); {way}", path)
    if item is None:
        raise _no_image(path, left_out)


def members(
    path: str, counts: Callable[[str], bool], left_out: Counter[str]
) -> Iterator[tuple[str, str, Callable[[], bytes]]]:
    """Yield (name, size and time, function that gives the bytes) of members of a tar, in its order.

    Args:
        path: the tar.
        counts: decides by their names; other files are counted in `left_out`, by suffix.
        left_out: see there.

    Raises:
        DataError: it is damaged, or has a name twice (65).
    """
    seen = set[str]()
    name = ""
    again = "create or download it again"
    try:
        with (
            open_read(path) as stream,
            tarfile.open(fileobj=cast(Any, _Ending(stream)), mode="r|*", tarinfo=_Member) as tar,
        ):
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # tarfile would keep every header
                name = member.name.removeprefix("./")
                if member.isdir():
                    continue
                if is_hidden(name):
                    left_out[HIDDEN] += 1
                    continue
                if not counts(name):
                    left_out[_suffix(name)] += 1
                    continue
                if name in seen:
                    raise DataError(f"duplicate image {name!r:.80}; ids must be unique", path)
                seen.add(name)
                loader = _member_loader(tar, member, name)
                yield name, f"{member.size} {member.mtime}", loader
            if not getattr(tar, "ended", False):
                why = f"is truncated or damaged after {name!r:.80}: it has no end mark; {again}"
                raise DataError(why, path)
            rest = iter(partial(cast(Any, tar.fileobj).read, 1 << 16), b"")
            if any(block.strip(b"\0") for block in rest):
                why = "has bytes after its end mark, like joined tars: they would be left out"
                raise DataError(f"{why}; name each tar, or join them with tar -A", path)
    except (tarfile.TarError, EOFError, OSError, ValueError, zlib.error, lzma.LZMAError) as error:
        location = f" after {name!r:.80}" if name else ""
        why = f"is truncated, damaged or not a tar{location}: {error}; {again}"
        raise DataError(why, path) from None


def _tar_names(path: str) -> Iterator[str]:
    """Yield the ids of a tar; its images are not read where it is a plain file."""
    if is_table(path):
        return (row["image"] for row in table_rows(path))
    names = list[str]()
    if not is_url(path) and _is_plain(path):
        # The reader that makes the shards reports whatever this reader does not understand.
        with contextlib.suppress(tarfile.TarError, OSError), tarfile.open(path, "r:") as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]
                name = member.name.removeprefix("./")
                if not member.isdir() and is_picture(name):
                    names.append(name)
        return iter(names)
    return (item.id for item in _tar_items(path, Counter()))


def placed_members(path: str) -> Iterator[tuple[str, int, int]]:
    """Yield (name, place, size) of the images of a tar that is not compressed, reading none.

    Raises:
        DataError: it is missing (66), compressed or damaged (65).
    """
    try:
        with file_errors(path, reading=True), tarfile.open(path, "r:") as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]
                name = member.name.removeprefix("./")
                if member.isreg() and not member.issparse() and is_picture(name):
                    yield name, member.offset_data, member.size
    except (tarfile.TarError, ValueError) as error:
        why = f"expected a tar that is not compressed, and whole: {error}"
        raise DataError(why, path) from None


def read_member(path: str, start: int, size: int) -> bytes:
    """Return an image of a tar, see `placed_members`.

    Raises:
        ImageError: it is too large, or the tar is not the same any more.
    """
    if size > MAX_BYTES:
        raise ImageError(_too_large(size))
    try:
        with open(path, "rb") as stream:
            stream.seek(start)
            data = stream.read(size)
    except OSError as error:
        raise ImageError(f"cannot be read: {error.strerror} ({path})") from None
    if len(data) < size:
        raise ImageError(f"is cut off ({path})")
    return data


def _is_plain(path: str) -> bool:
    with open(path, "rb") as stream:
        return stream.read(512)[257:262] == b"ustar"


def _member_loader(tar: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> Callable[[], bytes]:
    """Read a member's bytes now, as a stream must, or note why not."""

    def refuse(why: str) -> bytes:
        raise ImageError(why)

    if getattr(member, "torn", None):
        return partial(refuse, str(getattr(member, "torn", "")))
    if not member.isreg():
        return partial(refuse, "a link or device inside a tar; only regular files are read")
    if name.startswith("/") or ".." in name.split("/"):
        return partial(refuse, "its name leads out of the archive")
    if member.size > MAX_BYTES:
        return partial(refuse, _too_large(member.size))
    content = tar.extractfile(member)
    assert content is not None
    data = content.read()
    if len(data) != member.size:
        raise tarfile.ReadError("unexpected end of data")
    return lambda: data
