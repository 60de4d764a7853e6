"""`vg man`: the manual page of a command, wherever and however vg is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

import vgtools
from vgtools.commands.options import Argument
from vgtools.commands.signature import flags
from vgtools.io.errors import DataError, Exit

# The macros of man/build.py that only lay a page out.
_LAYOUT = re.compile(r"\.(TH|PP|TP|nf|fi|RS|RE)\b.*")


@flags
def man(
    command: Annotated[str | None, Argument("COMMAND")] = None,
) -> None:
    """Show the manual page of a command: all of its help, with the pages of every topic.

    It needs no MANPATH, and works in an editable install, where `man vg-vokenize` finds the page
    only after `make install`, in the activated environment. Without the program man, the page is
    printed as plain text.

    Examples:

        vg man

        vg man vokenize

        vg man pretrain | grep -A 3 -e --ray

    Args:
        command: Name of the command; without one, the page of vg lists them.
    """
    page = _page("vg" if command is None else f"vg-{command}")
    program = shutil.which("man")
    if program is None:
        print(plain(page.read_text("utf-8")), end="")
        return
    sys.stdout.flush()
    # A name with a slash is a file for every man.
    code = subprocess.run([program, str(page.absolute())], check=False).returncode
    if code:
        raise typer.Exit(code)


def _page(name: str) -> Path:
    """Return the file of a page: in the clone that is used, or where the package put it.

    Raises:
        DataError: there is no such command (usage), or vg was installed without pages (66).
    """
    file = f"{name}.1"
    found = [Path(vgtools.__file__).parents[1] / "man" / file]
    try:
        listed = metadata.files("vgtools") or []
    except metadata.PackageNotFoundError:
        listed = []
    found += [Path(str(one.locate())).resolve() for one in listed if one.name in (file, "vg.1")]
    pages = [page for page in found if page.name == file and page.is_file()]
    if pages:
        return pages[0]
    if any(page.with_name("vg.1").is_file() for page in found):
        why = f"there is no command {name.removeprefix('vg-')!r}; vg man lists all of them"
        raise DataError(why, code=Exit.USAGE)
    why = f"the manual pages are not installed here; {name.replace('-', ' ', 1)} --help has most"
    raise DataError(why, code=Exit.NO_INPUT)


def plain(page: str) -> str:
    """Return a page of `man/build.py` as text, for machines without the program man."""
    lines = list[str]()
    margin = 4
    for line in page.splitlines():
        if line.startswith((".SH ", ".SS ")):
            lines += ["", line[4:]]
        elif line.startswith(".B "):  # a tag, and below it its text
            lines.append(f"    {line[3:]}")
            margin = 8
            continue
        elif not _LAYOUT.fullmatch(line):
            lines.append(" " * margin + line.removeprefix("\\&"))
            continue
        elif line == ".PP" and lines[-1]:
            lines.append("")
        margin = 4
    text = "\n".join(lines).strip("\n") + "\n"
    text = re.sub(r"\\\[u([0-9A-F]{4,6})\]", lambda match: chr(int(match[1], 16)), text)
    for escape, character in ((r"\-", "-"), (r"\(aq", "'"), (r"\(ga", "`"), (r"\fB", "")):
        text = text.replace(escape, character)
    return text.replace(r"\fR", "").replace(r"\e", "\\")
