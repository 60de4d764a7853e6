"""URLs in the place of inputs and outputs, with --offline: nothing is connected to.

An id is `offline CASE NUMBER SCHEME`: the NUMBER-th word of the case that is an artefact, or its
output, becomes a URL of SCHEME. A server of this machine, to which all of these URLs lead, notes
who connects. The command must end with a code of its own and one line.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Iterator

from tests.faults.case import Case
from tests.faults.trials import Outcome, Workspace, fault_of, litter
from vgtools.io.errors import Exit

SCHEMES = ("http", "https", "s3", "hf", "gs")
REFUSALS = (Exit.USAGE, Exit.DATA, Exit.NO_INPUT, Exit.UNAVAILABLE, Exit.CANNOT_CREATE)


def _places(case: Case) -> list[int]:
    """Return the numbers of words that are paths."""
    inputs = [n for n, word in enumerate(case.words) if word.startswith("in/")]
    flags = ("-o", "--output", "--images-out", "--plot", "--png", "--noise", "--emb", "--tokens")
    return inputs + [n for n in range(1, len(case.words)) if case.words[n - 1] in flags]


def plan(space: Workspace, case: Case, count: int, seed: int) -> list[str]:
    """Return ids: each path of a case in turn, schemes by chance; none if it has no --offline."""
    done = space.run(case, argv=[*case.words, "--offline", "--no-such-flag"])
    if "--offline" in done.err:  # it is the first flag that is not known
        return []
    rng = random.Random(f"offline {case.name} {seed}")
    places = _places(case)
    rng.shuffle(places)
    return [
        f"offline {case.name} {places[n % len(places)]} {rng.choice(SCHEMES)}" for n in range(count)
    ]


def attempt(space: Workspace, case: Case, detail: str) -> Outcome:
    """Run one trial."""
    trial = f"offline {case.name} {detail}"
    number, scheme = detail.split()
    space.clear()
    words = case.words
    name = words[int(number)].rpartition("in/")[2]
    with listener() as (port, seen):
        here = f"127.0.0.1:{port}"
        place = here if scheme in ("http", "https") else "bucket"
        words[int(number)] = f"{scheme}://{place}/{name}"
        env = {
            "AWS_ENDPOINT_URL": f"http://{here}",
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "HF_ENDPOINT": f"http://{here}",
            "HF_HUB_OFFLINE": "0",
            "STORAGE_EMULATOR_HOST": f"http://{here}",
            "http_proxy": f"http://{here}",
            "https_proxy": f"http://{here}",
        }
        done = space.run(case, argv=[*words, "--offline"], limit=True, seconds=60, env=env)
    if seen:
        return Outcome(trial, "exit", f"it connects; exit {done.code}: {done.err[-200:]}")
    verdict, said = fault_of(done, REFUSALS, (name, scheme))
    if not verdict and (left := litter(space.tree())):
        verdict, said = "leftover", left
    return Outcome(trial, verdict, said)


@contextlib.contextmanager
def listener() -> Iterator[tuple[int, list[str]]]:
    """Yield the port of a server that closes every connection, and who has connected."""
    seen = list[str]()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with contextlib.suppress(OSError):  # it is closed
                while True:
                    connection, address = server.accept()
                    seen.append(str(address))
                    connection.close()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1], seen
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)
