"""From image files to feature rows: the backbone's own preprocessing, pooling, and the stream.

The pixels that an image file stands for are defined in `vgtools/images/decoding.py`.

Axes: B batch, N images, P positions of the last feature map, D channels.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vgtools.images.decoding import decode
from vgtools.images.featurizer import Featurizer
from vgtools.images.sources import ImageError, Images, ImageSource, Item, add_stamp
from vgtools.io.arrays import Array
from vgtools.io.artifact import read_manifest
from vgtools.io.errors import DataError, Exit, amount
from vgtools.io.files import dumps, read_json
from vgtools.io.names import id_fault, is_shards, manifest_path
from vgtools.io.output import Output
from vgtools.io.process import cores
from vgtools.io.streams import Piece


@dataclass(frozen=True)
class FeatureBatch:
    """The result of a run of consecutive images, and the state that resumes after it."""

    ids: list[str]  # ids of the rows, in source order
    features: Any  # (len(ids), D) or (len(ids), P, D); for regions a RegionSet per id
    errors: list[tuple[str, str]]  # (id, reason), in source order
    items: int  # images of the source up to here
    digest: str  # sha256 over the ids and stamps of all of them


# A thread's result for a group of images: (ids, their features, (id, reason) of those that cannot
# be used), in their order.
Worked = tuple[list[str], Any, list[tuple[str, str]]]
# (group, featurizer, semaphore to hold while computing) -> the above
Work = Callable[[list[Item], Featurizer, threading.Semaphore], Worked]


def extract(
    source: ImageSource,
    featurizer: Featurizer,
    *,
    items: int = 0,
    digest: str | None = None,
    workers: int = 0,
    work: Work | None = None,
) -> Iterator[FeatureBatch]:
    """Yield features in source order, batch by batch, resuming after images that are done.

    Each worker thread takes a whole batch: it reads and decodes it and, on a CPU, computes it in
    that one thread, so that decoding and computing fill every core and a row does not depend on
    the number of cores. On other devices one thread at a time computes while the others decode.
    (Decoding releases the interpreter lock. Threads cannot die unnoticed as worker processes can:
    their errors are raised here.)

    Args:
        source: from `open_source`.
        featurizer: makes the rows.
        items: images that an earlier run finished; they are checked and skipped.
        digest: the `digest` of that run's last batch.
        workers: threads; 0 is one per core.
        work: computes a group of images in a thread; by default one feature row per image.

    Raises:
        DataError: the finished images changed (78); the source breaks (65); out of memory (70).
    """
    workers = workers or cores()
    # On a CPU every thread computes; elsewhere one at a time.
    computing = threading.Semaphore(workers if featurizer.device.type == "cpu" else 1)
    threads = torch.get_num_threads()
    stamps = hashlib.sha256()
    count = 0
    for item in islice(source.items, items):
        add_stamp(stamps, item)
        count += 1
    if items and (count < items or stamps.hexdigest() != digest):
        why = f"names, sizes or times of the first {items:,} differ"
        why = f"the images changed since the run that is being resumed ({why}); --restart starts"
        raise DataError(f"{why} over", code=Exit.CONFIG)
    pending = deque[tuple[int, str, Future[Worked]]]()

    def next_batch() -> FeatureBatch:
        up_to, digest_so_far, future = pending.popleft()
        return FeatureBatch(*future.result(), up_to, digest_so_far)

    # A row must not depend on the run: cuDNN may neither choose kernels by measuring them nor round
    # to TF32, and each product runs in one thread.
    with (
        warnings.catch_warnings(),
        torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=False
        ),
        ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool,
    ):
        # Pillow warns about single files; a warning that matters becomes an error row.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        try:
            while group := list(islice(source.items, featurizer.batch_size)):
                for item in group:
                    add_stamp(stamps, item)
                count += len(group)
                future = pool.submit(work or _work, group, featurizer, computing)
                pending.append((count, stamps.hexdigest(), future))
                # Two groups more than threads keep every thread busy while a batch is written, and
                # bound the memory of decoded images.
                if len(pending) > workers + 1:
                    yield next_batch()
            while pending:
                yield next_batch()
        # Whoever reads the batches may stop early: groups that wait must not be computed then.
        finally:
            for _, _, future in pending:
                future.cancel()
            torch.set_num_threads(threads)


def read_group(
    group: list[Item], handle: Callable[[int, str, Image.Image], None]
) -> dict[int, str]:
    """Read and decode images; return index -> reason of those that cannot be used.

    `handle` is given the index, id and picture of each, and may raise an ImageError.
    """
    faults: dict[int, str] = {}
    for index, item in enumerate(group):
        try:
            fault = id_fault(item.id)
            if fault:
                raise ImageError(fault)
            handle(index, item.id, decode(item.load()))
        except ImageError as error:
            faults[index] = f"{item.place}{error}"
    return faults


def _work(group: list[Item], featurizer: Featurizer, computing: threading.Semaphore) -> Worked:
    """Read, decode and compute one batch; an image keeps its index in the group."""
    pixels = np.zeros((len(group), *featurizer.input_shape), np.uint8)  # black where unreadable

    def handle(index: int, image: str, picture: Image.Image) -> None:
        pixels[index] = featurizer.pixels(picture)

    faults = read_group(group, handle)
    with computing:
        rows = featurizer.features(pixels)
    flat = rows.reshape(len(rows), -1)
    for index in np.flatnonzero(~np.isfinite(flat).all(1) | ~flat.any(1)).tolist():
        faults.setdefault(index, _row_fault(flat[index]))
    good = [index for index in range(len(group)) if index not in faults]
    errors = [(printable(group[index].id), faults[index]) for index in sorted(faults)]
    return [group[index].id for index in good], rows[good], errors


def _row_fault(row: Array) -> str:
    if not row.any():
        return "its features are all zero"
    if row.dtype == np.float16 and not np.isnan(row).any():
        return "its features are infinite in float16; --dtype float32 may hold them"
    return "its features are NaN or infinite"


def printable(image: str) -> str:
    """Return an id as it can be printed and stored in JSON."""
    return image.encode("utf-8", "backslashreplace").decode()


class FeatureOutput:
    """`X.npy`, `X.ids` and `X.errors.jsonl` while they grow: resumable, with an error budget.

    Other results of images (regions) use a subclass with another table and another `_put`.

    The shape of a row is the featurizer's; the listing of the source shows whether a finished
    output is up to date. `output` opens the files to write. Rows are made safe every
    `commit_seconds`. The source of a shard is not all of the input, and may have no usable image.
    """

    _table, things = ".ids", ("image", "images")

    def __init__(
        self,
        path: str,
        config: Mapping[str, Any],
        featurizer: Featurizer,
        source: ImageSource | None,
        output: Callable[..., Any] = Output,
        *,
        on_error: str = "fail",
        max_errors: int | None = None,
        commit_seconds: float = 1.0,
    ) -> None:
        self.path = Path(path)
        self.featurizer = featurizer
        self._source = source
        self._skip = on_error == "skip"
        self._max_errors = max_errors
        self._commit_seconds = commit_seconds
        files = [self.path.with_suffix(end) for end in (".npy", self._table, ".errors.jsonl")]
        npy = {0: (featurizer.dtype, self.row_shape(featurizer))}
        again = {"restart": True} if self._outdated() else {}
        self._output = output(files, config, npy=npy, **again)

    def _outdated(self) -> bool:
        """Return whether a finished output was made of other images than the source now lists."""
        # A journal means an unfinished output, which resumes or refuses by itself.
        final = Path(os.path.realpath(self.path))
        manifest = manifest_path(final)
        if (
            self._source is None
            or not manifest.is_file()
            or final.with_name(final.name + ".journal").exists()
        ):
            return False
        try:
            made = read_json(manifest).get("source")
        except DataError:
            return False  # `Output` refuses such a manifest with the better message
        return isinstance(made, dict) and made.get("listing") != self._source.listing

    def __enter__(self) -> FeatureOutput:
        self._output.__enter__()
        state = self.state
        self.complete = self._output.complete
        self.items, self.rows, self.images, self.errors = (
            int(state.get(key, 0)) for key in ("items", "rows", "images", "errors")
        )
        self.digest: str | None = state.get("digest")
        self._reason = str(state.get("reason", ""))
        self.featurizer.size = int(state.get("size", 0)) or self.featurizer.size
        self._saved = time.monotonic()
        return self

    @property
    def state(self) -> dict[str, Any]:
        """The last commit."""
        return self._output.state  # type: ignore[no-any-return]

    def write(self, batch: FeatureBatch) -> None:
        """Append a batch; now and then make everything safe.

        Raises:
            DataError: an image cannot be used and may not be skipped, or too many cannot (65);
                the images before it are kept.
        """
        if batch.errors and not self._skip:
            image, reason = batch.errors[0]
            # The images before the fault are made safe: after its repair the run resumes there.
            if self.items:
                self._commit()
            way_out = f"note and skip such {self.things[1]} with --on-error skip"
            raise DataError(f"{reason}; fix or remove it, or {way_out}", image)
        self._put(batch)
        for image, reason in batch.errors:
            self._output.write(dumps({"image": image, "reason": reason}), 2)
            self._reason = f"{image}: {reason}"
        self.items = batch.items
        self.digest = batch.digest
        self.images += len(batch.ids)
        self.errors += len(batch.errors)
        over = self._max_errors is not None and self.errors > self._max_errors
        if over or time.monotonic() - self._saved >= self._commit_seconds:
            self._commit()
        if over:
            why = f"{amount(self.errors, *self.things)} could not be used, more than --max-errors"
            raise DataError(f"{why} {self._max_errors}; the last: {self._reason}", self.path)

    @staticmethod
    def row_shape(featurizer: Featurizer) -> tuple[int, ...]:
        """Return the shape of a row of X.npy."""
        return featurizer.row_shape

    def _put(self, batch: FeatureBatch) -> None:
        """Write a batch's rows and their table, and count the rows."""
        self._output.write(np.ascontiguousarray(batch.features).data)
        self._output.write("".join(f"{image}\n" for image in batch.ids).encode(), 1)
        self.rows += len(batch.ids)

    def _commit(self) -> None:
        state = {key: getattr(self, key) for key in ("items", "digest", "rows", "images", "errors")}
        counts = {"rows": self.rows, "images": self.images, "errors": self.errors}
        more = {"reason": self._reason, "size": self.featurizer.size, "counts": counts}
        self._output.commit(state | more)
        self._saved = time.monotonic()

    def finish(self, backbone: Mapping[str, Any]) -> None:
        """Publish the files with their manifest.

        Raises:
            DataError: not one image could be used.
        """
        source = self._source
        if source is not None and not self.rows:
            last = f"; the last: {self._reason}" if self._reason else ": no region was found"
            why = f"not one image of {self.items:,} could be used{last}"
            raise DataError(why, self.path)
        self._commit()
        featurizer = self.featurizer
        listed: dict[str, Any] = {}
        if source is not None:
            left_out = dict(source.left_out)
            images = {"listing": source.listing, "images": self.items, "left_out": left_out}
            listed = {"source": images}
        self._output.finish(
            **self._facts(),
            rows=self.rows,
            dim=featurizer.row_shape[-1],
            backbone=backbone,
            # [height, width] of the last feature map; position p = y * width + x.
            grid=featurizer.grid,
            **listed,
            errors=self.errors,
            batch={"asked": featurizer.batch_size, "used": featurizer.size},
        )

    def _facts(self) -> dict[str, Any]:
        pooling = self.featurizer.pooling
        kind = "image-grid" if pooling == "none" else "image-features"
        return {"kind": kind, "pooling": pooling}

    def __exit__(self, *error: Any) -> None:
        self._output.__exit__(*error)


def check_errors(path: str, on_error: str, max_errors: int | None) -> None:
    """Hold a finished output to the error flags of this call: a failure never counts as done.

    Raises:
        DataError: more images could not be used than the flags allow.
    """
    count = read_manifest(path, verify=False).get("errors", 0)
    most = max_errors if on_error == "skip" else 0
    if most is None or count <= most:
        return
    skip = on_error == "skip"
    flag = f"--max-errors {most}" if skip else "--on-error fail"
    way_out = f"--max-errors {count}" if skip else "--on-error skip"
    listed = f"{path}*.errors.jsonl" if is_shards(path) else Path(path).with_suffix(".errors.jsonl")
    raise DataError(
        f"is finished, but {amount(count, 'image')} could not be used "
        f"(see {listed}), more than {flag} allows; "
        f"fix them, or allow them with {way_out}",
        path,
    )


@dataclass
class Extraction:
    """How images become rows: the images of whole sources, or of a shard.

    Args:
        config: the settings that decide the rows.
        images: the images of all sources.
        featurizer: makes the rows.
        backbone: the manifest's entry about the network.
        writer: class that writes the rows.
        how: further arguments of the writer.
        work: computes images in a thread, as for `extract`.
        workers: threads.
        whole: the source, if the output is not a shard.
    """

    config: dict[str, Any]
    images: Images
    featurizer: Featurizer
    backbone: Mapping[str, Any]
    writer: type[FeatureOutput] = field(default=FeatureOutput, kw_only=True)
    how: Mapping[str, Any] = field(kw_only=True)
    work: Work | None = field(default=None, kw_only=True)
    workers: int = field(default=0, kw_only=True)
    whole: ImageSource | None = field(default=None, kw_only=True)

    def open(self, path: str, output: Callable[..., Any]) -> FeatureOutput:
        """Return the writer of rows; `output` opens its files."""
        return self.writer(path, self.config, self.featurizer, self.whole, output, **self.how)

    def steps(self, pieces: Sequence[Piece], out: FeatureOutput) -> Generator[int, None, None]:
        """Write the rows of pieces of the sources and finish; yield the images of each step."""
        source = self.images.open(pieces) if self.whole is None else self.whole
        how: dict[str, Any] = {"work": self.work, "workers": self.workers}
        yield out.items
        for batch in extract(source, self.featurizer, items=out.items, digest=out.digest, **how):
            before = out.items
            out.write(batch)
            yield batch.items - before
        out.finish(self.backbone)
