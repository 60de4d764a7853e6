"""Headers that declare more than the file holds: arrays, indexes, weights, tars, HDF5.

An id is `sizes CASE FILE WAY.N`: FILE is an input; WAY the format, with `+` after it if the
manifest or run.json is made to fit. The command must end soon with 65 and one line that names the
file: it neither waits for, nor allocates, the declared size.
"""

from __future__ import annotations

import ast
import io
import json
import random
import struct
from collections.abc import Sequence

from tests.faults.case import Case
from tests.faults.inputs import FORGED, manifest_of
from tests.faults.mutations import Mutation, reseal, reseal_run
from tests.faults.trials import Outcome, Workspace, fault_of, litter, overwrite
from vgtools.io.errors import Exit

MORE = (1, 1000, 2**31, 2**40, 2**56)  # items beyond those that are there
SECONDS = 40  # that a whole command has; the libraries are loaded before


def npy(data: bytes, rng: random.Random) -> bytes | None:
    """Declare more rows, or longer ones."""
    size = struct.unpack("<H", data[8:10])[0]
    head = ast.literal_eval(data[10 : 10 + size].decode().strip())
    shape = list(head["shape"])
    if not shape:
        return None
    shape[rng.randrange(len(shape))] += rng.choice(MORE)
    text = repr(head | {"shape": tuple(shape)}).encode()
    text = text.ljust(max(size - 1, len(text))) + b"\n"
    return data[:8] + struct.pack("<H", len(text)) + text + data[10 + size :]


def faiss(data: bytes, rng: random.Random) -> bytes | None:
    """Declare more vectors: in the head, in the length of the codes, or in both."""
    width, count = struct.unpack("<iq", data[4:16])
    more = count + rng.choice(MORE)
    way = rng.randrange(3)
    bad = bytearray(data)
    if way != 1:
        bad[8:16] = struct.pack("<q", more)
    if way != 0:
        length = struct.unpack("<Q", data[37:45])[0]
        if count and length in (count * width, 4 * count * width):
            bad[37:45] = struct.pack("<Q", length // count * more % 2**64)
        else:
            bad[37:45] = struct.pack("<Q", more)
    return bytes(bad)


def weights(data: bytes, rng: random.Random) -> bytes | None:
    """Declare a longer header, or a tensor beyond the end of the file."""
    size = struct.unpack("<Q", data[:8])[0]
    if rng.random() < 0.2:
        return struct.pack("<Q", size + rng.choice(MORE)) + data[8:]
    head = json.loads(data[8 : 8 + size])
    last = max((e for n, e in head.items() if n != "__metadata__"), key=_end)
    shape = last["shape"] or [1]
    width = (_end(last) - last["data_offsets"][0]) // max(1, shape[0])
    more = rng.choice(MORE)
    last["shape"] = [shape[0] + more, *shape[1:]]
    if rng.random() < 0.7:
        last["data_offsets"][1] += more * width
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + size :]


def _end(entry: dict[str, list[int]]) -> int:
    return entry["data_offsets"][1]


def tar(data: bytes, rng: random.Random) -> bytes | None:
    """Declare a longer member, in octal or, as GNU does, in binary."""
    blocks = [i for i in range(0, len(data), 512) if data[i + 257 : i + 262] == b"ustar"]
    at = rng.choice(blocks)
    head = bytearray(data[at : at + 512])
    more = rng.choice((2**31, 2**33 - 1, 2**40, 2**50, 2**60))
    octal = f"{more:011o}\0".encode()
    head[124:136] = octal if len(octal) == 12 else b"\x80" + more.to_bytes(11, "big")
    head[148:156] = b" " * 8
    head[148:156] = f"{sum(head):06o}\0 ".encode()
    return data[:at] + bytes(head) + data[at + 512 :]


def hdf5(data: bytes, rng: random.Random) -> bytes | None:
    """Declare more of a dataset: in its shape, or in the bytes that are stored."""
    shapes = _shapes(data)
    numbers = sorted({n for shape in shapes for n in shape if n > 1})
    places = [(at, n) for n in numbers for at in _all(data, struct.pack("<Q", n))]
    rng.shuffle(places)
    for at, number in places:
        bad = data[:at] + struct.pack("<Q", number + rng.choice(MORE)) + data[at + 8 :]
        if _shapes(bad) != shapes:  # the others are values, and greatest sizes
            return bad
    return None


def _shapes(data: bytes) -> list[tuple[int, ...]]:
    """Return the declared shape and size of every dataset of an HDF5 file, as far as it opens."""
    import h5py

    try:
        with h5py.File(io.BytesIO(data)) as file:
            sets = [file[name] for name in file]
            return [(*one.shape, int(one.nbytes)) for one in sets if isinstance(one, h5py.Dataset)]
    except (KeyError, OSError, RuntimeError, ValueError):
        return []


def _all(data: bytes, part: bytes) -> list[int]:
    found = [data.find(part)]
    while found[-1] >= 0:
        found.append(data.find(part, found[-1] + 1))
    return found[:-1]


WAYS: dict[str, Mutation] = {
    "npy": npy,
    "faiss": faiss,
    "weights": weights,
    "tensors": weights,
    "tar": tar,
    "hdf5": hdf5,
}


def _way(place: str) -> str | None:
    file, form = place.split()
    form = "hdf5" if file.endswith(".hdf5") else form.rstrip("!")
    return form if form in WAYS else None


def share(case: Case, cases: Sequence[Case], total: int) -> int:
    """Return how many of all trials are of a case: by the number of its files."""

    def count(one: Case) -> int:
        return sum(_way(place) is not None for place in one.reads)

    return -(-total * count(case) // sum(map(count, cases)))


def plan(space: Workspace, case: Case, count: int, seed: int) -> list[str]:
    """Return ids: each file in turn, sealed again where a hash protects it."""
    found = []
    places = [place for place in case.reads if _way(place)]
    for number in range(count if places else 0):
        place = places[number % len(places)]
        file, form = place.split()
        plus = "+" if form.endswith("!") and form.rstrip("!") in FORGED else ""
        found.append(f"sizes {case.name} {file} {_way(place)}{plus}.{seed + number}")
    return found


def attempt(space: Workspace, case: Case, detail: str) -> Outcome:
    """Run one trial."""
    trial = f"sizes {case.name} {detail}"
    file, way = detail.split()
    space.reference(case)
    space.clear()
    path = space.folder / "in" / file
    name, _, number = way.partition(".")
    good = path.read_bytes()
    bad = WAYS[name.rstrip("+")](good, random.Random(f"{detail} {number}"))
    if bad is None or bad == good:
        return Outcome(trial)
    manifest = manifest_of(path, space)
    try:
        if name.endswith("+") and manifest is not None:
            text = reseal(path.name, bad, manifest.read_bytes())
            if name == "faiss+":  # the manifest counts the vectors, too
                count = struct.unpack("<q", bad[8:16])[0]
                text = json.dumps(json.loads(text) | {"count": count}).encode()
            manifest.write_bytes(reseal_run(text) or text if manifest.name == "run.json" else text)
        overwrite(path, bad)
        done = space.run(case, limit=True, seconds=SECONDS)
    finally:
        space.restore(file)
        if manifest is not None:
            space.restore(str(manifest.relative_to(space.folder / "in")))
    names = {path.name, f"{path.parent.name}:", f"{path.name.split('.')[0]}."}
    verdict, said = fault_of(done, (Exit.DATA,), names)
    if not verdict and (left := litter(space.tree(data_only=True))):
        verdict, said = "leftover", left
    return Outcome(trial, verdict, said)
