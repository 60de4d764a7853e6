"""A row of the table of commands, `cases.CASES`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One command line that writes.

    Args:
        name: in ids and tables.
        argv: after `vg`.
        reads: `NAME FORMAT` of its input files.
        restart: whether it takes --restart.
        folder: the output, if it is a folder; a race through a link to it is tried.
        reader: a command that reads the output, and refuses damage that the writer, run again,
            does not look for: hashes of shards are compared where they are read.
        quick: a share of its trials runs in `make test`.
    """

    name: str
    argv: str
    reads: tuple[str, ...] = ()
    restart: bool = True
    folder: str = ""
    reader: str = ""
    quick: bool = False

    @property
    def words(self) -> list[str]:
        return self.argv.split()
