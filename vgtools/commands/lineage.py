"""`vg lineage`: how an artifact was made, and changes since."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from vgtools.commands.lines import take_apart
from vgtools.commands.options import Argument, Flag, Quiet, refuse_if
from vgtools.commands.signature import flags
from vgtools.io.errors import amount
from vgtools.io.process import note


@flags
def lineage(
    context: typer.Context,
    path: Annotated[str, Argument("X")],
    as_json: Annotated[bool, Flag("--json")] = False,
    as_makefile: Annotated[bool, Flag("--makefile")] = False,
    quiet: Quiet = False,
) -> None:
    """Print how an artifact was made, back to the files that vg did not make.

    X is a run, or any file or folder that a command wrote with -o. Each line is a file or folder
    and the command that made it; below it are the files that the command read. Lines with ! are
    changes since: a file is missing, has another sha256 or has been made again, or vg has another
    version. Manifests name files as the commands did: from the folder where they ran, which the
    name of the output leads to. A file that is given has no manifest: vg did not make it. A folder
    of pictures has no sha256, so that changes in it are not seen.

    The Makefile makes X again in an empty folder. It links the files that vg did not make from
    FROM and compares them with their sha256; `make check` compares all that was made. On the same
    machine, with the same versions, bytes are the same. The contents of a pipe cannot be made
    again: write them to a file.

    Examples:

        vg lineage vokens.jsonl

        vg lineage runs/bert --json | jq '.steps[].changes[]'

        vg lineage vokens.jsonl --makefile > again/Makefile && make -C again check

    Args:
        path: A run, or a file that vg wrote.
        as_json: Print one JSON object.
        as_makefile: Print a Makefile.
    """
    from vgtools.io.files import dumps
    from vgtools.reports.lineage import Lineage, makefile

    refuse_if(as_json and as_makefile, "--json", "excludes --makefile")
    found = Lineage(path, lambda words: take_apart(context.obj("".join(words[:1])), words))
    if as_makefile:
        print(makefile(found), end="")
    elif as_json:
        sys.stdout.buffer.write(dumps(found.facts()))
    else:
        print(*found.text(), sep="\n")
    changed = len(found.changes())
    known = all(node.record or node.sha256 for node in found.nodes.values())
    same = "nothing has changed" if known else "nothing that has a sha256 has changed"
    note("lineage", f"{amount(changed, 'change') if changed else same} since")
