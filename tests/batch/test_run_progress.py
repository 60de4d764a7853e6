"""A command shows how much of its input is done, also after it was resumed."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from vgtools.batch import run
from vgtools.io.output import Output
from vgtools.io.process import Progress
from vgtools.io.streams import Piece, read_windows


@dataclass
class Target:
    output: str
    restart: bool = False
    shard: str | None = None
    shard_size: int | None = None
    ray: str | None = None
    dry_run: bool = False


class Count:
    """Writes the lengths of lines, ten lines per step."""

    def __init__(self, limit: int | None = None, steps: int = 100) -> None:
        self.config: dict[str, Any] = {"limit": limit}
        self.left = steps

    @contextlib.contextmanager
    def open(self, path: str, output: Any) -> Iterator[Output]:
        with output([path], self.config) as out:
            yield out

    def steps(self, pieces: Sequence[Piece], out: Output) -> Generator[int, None, None]:
        for window in read_windows(pieces, 10, out.state, self.config["limit"]):
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            out.write(b"".join(b"%d\n" % len(line) for line in window.lines))
            rows = out.state.get("rows", 0) + len(window.lines)
            out.commit({"rows": rows, "digest": window.digest})
            yield len(window.lines)
        out.finish(kind="counts")


@pytest.mark.parametrize(("limit", "last"), [(None, 100), (60, 60)])
def test_the_rest_is_estimated_from_the_bytes_of_the_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None, last: int
) -> None:
    source = tmp_path / "x.txt"
    source.write_text("a line of words\n" * 100)
    seen = list[tuple[int, float | None]]()
    advance = Progress.advance

    def noted(bar: Progress, count: int) -> None:
        advance(bar, count)
        growth = bar.growth()
        seen.append((bar.done, growth and bar.done * growth))

    monkeypatch.setattr(Progress, "advance", noted)

    def call(task: Count) -> None:
        target = Target(str(tmp_path / "y.txt"))
        run.write(
            task, [str(source)], target, name="t", unit="lines", inputs=[],
            make=lambda: task,
        )  # fmt: skip

    with pytest.raises(KeyboardInterrupt):
        call(Count(limit, steps=3))
    # A file of one block is read at once, but not its lines.
    assert [done for done, _ in seen] == [10, 20, 30]
    seen.clear()
    call(Count(limit))
    assert seen[-1] == (last - 30, pytest.approx(last - 30))
    assert all(total is not None and total >= done for done, total in seen)
