"""Run a command and add its cost to a file: python timed.py FILE COMMAND...

A line per run: {"seconds", "cpu", "mib"}, wall and processor time and the most memory of a process.
A command that is stopped and resumed leaves several lines, whose times add up.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path


def main(file: str, *command: str) -> int:
    """Run the command, add its line, and return its exit code."""
    start = time.monotonic()
    code = subprocess.run(command).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    unit = 2**20 if sys.platform == "darwin" else 2**10  # units of ru_maxrss per MiB
    record = {
        "seconds": round(time.monotonic() - start, 1),
        "cpu": round(used.ru_utime + used.ru_stime, 1),
        "mib": round(used.ru_maxrss / unit),
    }
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        stream.write(json.dumps(record) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
