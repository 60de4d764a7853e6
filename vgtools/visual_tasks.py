"""The downstream tasks with pictures: their official files, one `VisualExample` a row.

A picture is named as its data set does, without folder and suffix; `Pictures` finds it among the images of region features.
Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vgtools.io import DataError, read_jsonl
from vgtools.regions import Regions
from vgtools.tasks import Example, ReadStats, Task, label_value


@dataclass(frozen=True, slots=True)
class VisualExample(Example):
    """One item of a task with pictures."""

    images: tuple[str, ...] = ()
    line: int | None = None  # of the file, for messages


def visual_rows(task: Task, path: str | Path, unlabelled: bool, stats: ReadStats) -> Iterator[tuple[int | None, VisualExample]]:
    """Yield (line, example) of an official file.

    Raises:
        DataError: as `vgtools.tasks.read_examples`.
    """
    return _nlvr2(task, path, unlabelled)


class Pictures:
    """Finds pictures among region features, which may name them with a folder and a suffix.

    Args:
        regions: where they are.
    """

    def __init__(self, regions: Regions) -> None:
        self._regions = regions
        self._by_stem = dict[str, list[str]]()
        for image in regions.images:
            self._by_stem.setdefault(Path(image).stem, []).append(image)

    def find(self, name: str, file: str | Path, line: int | None) -> str:
        """Return a picture's name in the region features.

        Raises:
            DataError: there is none, or several; file and line of the example are named.
        """
        if name in self._regions:
            return name
        found = self._by_stem.get(Path(name).stem, [])
        if len(found) == 1:
            return found[0]
        have = f"{len(found)} images of that name: {', '.join(found[:3])}" if found else "no regions of it; extract them"
        raise DataError(f"the picture {name!r:.80}: {self._regions.path} holds {have}", file, line)


# ------------------------------------------------------------------------------------------------------------------- NLVR2


def _nlvr2(task: Task, path: str | Path, unlabelled: bool) -> Iterator[tuple[int, VisualExample]]:
    """Yield the rows of NLVR2; `dev-850-0-1` is sentence 1 of the pictures dev-850-0-img0 and dev-850-0-img1.

    Source: the data set's README.
    """
    for line, row in read_jsonl(path, {"identifier": str, "sentence": str}):
        name, label = row["identifier"], row.get("label")
        if len(name.split("-")) != 4:
            raise DataError(
                f'"identifier" is {name!r:.80}; wanted split-set-pair-sentence, for example dev-850-0-1', path, line
            )
        if label is None and not unlabelled:
            raise DataError(f'the key "label" is missing; the row has {", ".join(row)}', path, line)
        value = None if label is None else label_value(task, "label", str(label), path, line)
        pair = name.rsplit("-", 1)[0]
        yield line, VisualExample(name, row["sentence"], None, value, images=(f"{pair}-img0", f"{pair}-img1"), line=line)
