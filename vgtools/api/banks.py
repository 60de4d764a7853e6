"""Banks of images, opened once and asked often: the answers of the commands, as Python objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from os import PathLike, fspath
from typing import Any, Literal

import orjson

from vgtools.api.rows import HeatRow, ImageRow, ResultRow, Rows, VokenRow, stream
from vgtools.io.errors import DataError, Exit
from vgtools.io.remote import local, stay_offline
from vgtools.io.streams import Line
from vgtools.io.windows import growing_windows, listed_windows
from vgtools.models import encoder as encoders
from vgtools.models.encoder import Encoder
from vgtools.models.references import pick_device
from vgtools.reports.page import own_images
from vgtools.reports.strips import ShownRows
from vgtools.serving.answers import (
    Answerer,
    HeatAnswer,
    ImageAnswer,
    Opened,
    ServedModels,
    VokenAnswer,
    open_answers,
)
from vgtools.systems import open_maps, placed

Path = str | PathLike[str]
Text = str | Mapping[str, Any]  # a text, or a row with a "text"
_WINDOW = 4096  # texts per step, as the commands take them
_TEXTS = "texts"  # their name in messages
_HALF = re.compile("[\ud800-\udfff]")  # Python has them in strings, files of UTF-8 cannot


class ImageBank:
    """A bank of images with the model that searches it; see `open_index`."""

    def __init__(self, opened: Opened, shown: ShownRows, path: str) -> None:
        self._opened = opened
        self._shown = shown
        self._path = path

    def __len__(self) -> int:
        return len(self._opened.ids)

    @property
    def ids(self) -> Sequence[str]:
        """The ids of the images, in the order of the rows that vokens count."""
        return self._opened.ids

    @property
    def manifest(self) -> Mapping[str, Any]:
        """The manifest of the index: settings, versions, fingerprints and hashes."""
        return self._opened.manifest

    @property
    def calibrated(self) -> bool:
        """Whether the score of a voken is the probability that it is right."""
        return bool(self._opened.facts.get("calibrated"))

    def __repr__(self) -> str:
        return f"<ImageBank of {len(self):,} images, found by {self._opened.facts['keys']}>"

    def _repr_html_(self) -> str:
        rows = [*range(min(len(self), 12))]
        return ImageRow({"text": repr(self)[1:-1], "images": rows}, 1, self._shown)._repr_html_()

    def _answer(self, name: str, kind: type[Answerer]) -> Answerer:
        found = self._opened.answers.get(name)
        if isinstance(found, kind):
            return found
        why = f"its keys are {self._opened.facts['keys']}, which vg.{name} cannot use; it answers "
        raise DataError(why + ", ".join(self._opened.answers), self._path, code=Exit.USAGE)


class ImageGrid:
    """Feature maps of images with the model that finds texts in them; see `open_grid`."""

    def __init__(self, answer: HeatAnswer, ids: Sequence[str], shown: ShownRows) -> None:
        self._answer = answer
        self._shown = shown
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"<ImageGrid of {len(self):,} images>"


def open_index(
    index: Path | Sequence[Path],
    *,
    matcher: Path | None = None,
    images: Path | None = None,
    device: str = "auto",
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    nprobe: int | None = None,
    level: Literal["token", "sentence"] | None = None,
    reading: Literal["state", "word"] | None = None,
    offline: bool = False,
) -> ImageBank:
    """Open an image bank with the model that searches it.

    Args:
        index: index of `vg build-index`, here, at a URL or on a hub (`OWNER/NAME`);
            `builtin:emoji`; or several, as the parts of one bank.
        matcher: the matcher's run, if it is not at the index's path to it.
        images: where the pictures are, for drawing: image jsonl or a folder; `builtin:emoji` has
            its own.
        device: `cpu`, `cuda`, `cuda:1`, `mps`; `auto` takes a GPU if there is one.
        dtype: numbers that the text encoder computes with.
        nprobe: lists of an IVF index to look into; by default those that `vg build-index` measured.
        level: unit that is searched with; refused if the matcher was trained for the other.
        reading: how a CLIP reads a token: its own state, or the word in "a photo of a".
        offline: never connect, in this process from now on.

    Returns:
        The bank, for `vokenize` and `retrieve`.

    Raises:
        DataError: a file is missing (`code` 66), damaged or of another model (65), or must be
            downloaded (69), with the message of the command.
    """
    names = [index] if isinstance(index, str | PathLike) else list(index)
    if not names:
        raise DataError("expected an index, got none", code=Exit.USAGE)
    _connect(offline)
    models = ServedModels(
        [_place(name) for name in names],
        None if matcher is None else _place(matcher, models=True),
        nprobe=nprobe,
        device=_device(device),
        dtype=dtype,
        level=level,
        reading=reading,
        neighbours=False,
    )
    opened = open_answers(models)
    pictures = own_images(opened.manifest) if images is None else fspath(images)
    probable = bool(opened.facts.get("calibrated"))
    path = models.index[0]
    shown = ShownRows(opened.ids, pictures, probable, opened.manifest, path)
    return ImageBank(opened, shown, path)


def open_grid(
    feats: Path,
    matcher: Path,
    *,
    images: Path | None = None,
    heat: Literal["concepts", "relevance", "gradient"] | None = None,
    dims: int | None = None,
    device: str = "auto",
    offline: bool = False,
) -> ImageGrid:
    """Open feature maps of images with the model that finds texts in them.

    Args:
        feats: grid of `vg extract-image-feats --pooling none`.
        matcher: run of `vg train-matcher`, or a CLIP and its kin.
        images: where the pictures are, for drawing: image jsonl or a folder.
        heat: kind of map; by default as the run allows.
        dims: dimensions of the text that count in a map of concepts; 180 by default.
        device: as for `open_index`.
        offline: never connect, in this process from now on.

    Returns:
        The grid, for `locate`.

    Raises:
        DataError: as `open_index`; or maps of another backbone than the matcher's (65).
    """
    _connect(offline)
    run = _place(matcher, models=True)
    place = _place(feats)
    opened, grids = open_maps(run, place, heat=heat, dims=dims, device=_device(device))
    shown = ShownRows(images=None if images is None else fspath(images))
    return ImageGrid(HeatAnswer(opened.locator, grids, _TEXTS), grids.ids, shown)


def vokenize(
    texts: Text | Iterable[Text],
    index: ImageBank,
    *,
    k: int = 1,
    min_score: float | None = None,
    context: float | None = None,
) -> Rows[VokenRow]:
    """Give every token of texts the most relevant image of a bank (its voken).

    Args:
        texts: a text, or any number: a list, a generator, an open file, whose line ends do not
            count. A row with a "text" counts as its text; its "split" is kept.
        index: the bank, from `open_index`.
        k: images per token, best first.
        min_score: score below which a token gets no voken, -1.
        context: weight of the sentence next to the word; by default the index's or the run's.

    Returns:
        A row per text, in order, with the numbers of `vg vokenize`. They are computed while a loop
        asks for them.

    Raises:
        DataError: the index finds no images of tokens, or a setting is wrong (`code` 2); in the
            loop, a text is not as expected (65), with its number.
    """
    answer = _open(index)._answer("vokenize", VokenAnswer)
    settings = _settings(answer, k=k, min_score=min_score, context=context)
    window = max(1, _WINDOW // k)
    return _answers(answer, settings, texts, VokenRow, index._shown, window)


def retrieve(
    texts: Text | Iterable[Text],
    index: ImageBank,
    *,
    k: int = 16,
    not_own: bool = False,
) -> Rows[ImageRow]:
    """Find the images of whole texts.

    Args:
        texts: as for `vokenize`; rows keep "id", "split", "image" and "target".
        index: the bank, from `open_index`, with any kind of keys.
        k: images per text, best first.
        not_own: never the "image" that a row names as its own.

    Returns:
        A row per text, in order, with the numbers of `vg retrieve`.

    Raises:
        DataError: as `vokenize`.
    """
    answer = _open(index)._answer("retrieve", ImageAnswer)
    settings = _settings(answer, k=k, not_own=int(not_own))
    return _answers(answer, settings, texts, ImageRow, index._shown, _WINDOW)


def locate(
    queries: Mapping[str, Any] | Iterable[Mapping[str, Any]], grid: ImageGrid
) -> Rows[HeatRow]:
    """Find where in a picture a text is.

    Args:
        queries: rows with "text" and "image", and "span" where only those characters are meant; or
            any number of them.
        grid: the grid, from `open_grid`.

    Returns:
        A row per query, in order, with the numbers of `vg locate`.

    Raises:
        DataError: in the loop, a query is not as expected (65), with its number.
    """
    return _answers(grid._answer, (), queries, HeatRow, grid._shown, 64)


def load_encoder(
    ref: Path,
    *,
    device: str = "auto",
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    offline: bool = False,
) -> Encoder:
    """Load a text encoder with its tokenizer, frozen and in eval mode.

    Args:
        ref: hub name, folder, run of vg, or `builtin:minilm`.
        device: as for `open_index`.
        dtype: numbers that it computes with.
        offline: never connect, in this process from now on.

    Returns:
        An object with the transformers network as `model`, and its `tokenizer`, `fingerprint`,
        `width`, `layers` and `max_tokens`.

    Raises:
        DataError: as `open_index`.
    """
    _connect(offline)
    place = _place(ref, models=True)
    return encoders.load_encoder(place, device=_device(device), dtype=dtype)


# ---------------------------------------------------------------------------------------- internal


def _place(name: Path, models: bool = False) -> str:
    return local(placed(fspath(name), models))


def _open(index: object) -> ImageBank:
    if isinstance(index, ImageBank):
        return index
    raise TypeError(f"expected an index that vg.open_index opened, got {index!r:.60}")


def _connect(offline: bool) -> None:
    if offline:
        stay_offline(True)


def _device(name: str) -> str:
    return str(pick_device(name))


def _settings(answer: Answerer, **given: Any) -> tuple[Any, ...]:
    """Return the settings of a question, checked, in the order of the answer's."""
    return tuple(
        one.default if given[name] is None else one.read(name, str(given[name]), None)
        for name, one in answer.settings.items()
    )


def _answers(
    answer: Answerer,
    settings: tuple[Any, ...],
    texts: Any,
    kind: type[ResultRow],
    shown: ShownRows,
    window: int,
) -> Rows[Any]:
    """Return the rows of texts, which an answer computes window by window."""
    listed: Iterable[Any] = [texts] if isinstance(texts, str | bytes | Mapping) else texts
    rows: Callable[[], Iterator[Any]] = partial(_rows, answer, settings, listed, window)
    return stream(rows, kind, shown, once=iter(listed) is listed)


def _rows(
    answer: Answerer, settings: tuple[Any, ...], texts: Iterable[Any], window: int
) -> Iterator[dict[str, Any]]:
    """Yield the rows of texts as the command writes them."""
    items = listed_windows(map(_line, texts, count(1)), _TEXTS, min(64, window))
    for each in growing_windows(items, window):
        for row in answer.compute(answer.read(each), settings):
            yield orjson.loads(row)


def _line(item: Any, number: int) -> Line:
    text = item.get("text") if isinstance(item, Mapping) else item
    if isinstance(text, str) and not text.isascii() and _HALF.search(text):
        why = "has half of a pair of surrogates, not a character"
        raise DataError(why, _TEXTS, number)
    if isinstance(item, str):  # a line of an open file has its end
        return item.removesuffix("\n").removesuffix("\r")
    return dict(item) if isinstance(item, Mapping) else {"text": item}
