"""Bad files made from good ones: one named function per kind of damage, each with its own seed.

A mutation takes the good bytes and a `random.Random` and returns bad bytes, or None where it
does not apply.
"""

from __future__ import annotations

import copy
import gzip
import hashlib
import io
import json
import random
import re
import struct
import tarfile
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import orjson

Mutation = Callable[[bytes, random.Random], bytes | None]

# -------------------------------------------------------------------------------------- any bytes


def flip(data: bytes, rng: random.Random) -> bytes | None:
    """Change one bit."""
    if not data:
        return None
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def flips(data: bytes, rng: random.Random) -> bytes | None:
    """Replace several bytes by random ones."""
    bad = bytearray(data)
    for _ in range(min(8, len(bad))):
        bad[rng.randrange(len(bad))] = rng.randrange(256)
    return bytes(bad)


def truncate(data: bytes, rng: random.Random) -> bytes | None:
    return data[: rng.randrange(len(data))] if data else None


def empty(data: bytes, rng: random.Random) -> bytes | None:
    return b""


def cut_out(data: bytes, rng: random.Random) -> bytes | None:
    low, high = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    return data[:low] + data[high:]


def append(data: bytes, rng: random.Random) -> bytes | None:
    return data + rng.choice((b"\0", b"\n", b"x", b"{}\n", data, rng.randbytes(40)))


def insert(data: bytes, rng: random.Random) -> bytes | None:
    """Insert bytes that parsers dislike."""
    at = rng.randrange(len(data) + 1)
    odd = (
        b"\0",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"\x1b[31m",
        b"\xe2\x80\xa8",
        b"\r",
        b"\xf4\x90\x80\x80",
    )
    return data[:at] + rng.choice(odd) + data[at:]


def noise(data: bytes, rng: random.Random) -> bytes | None:
    return rng.randbytes(max(len(data), 64))


def other_kind(data: bytes, rng: random.Random) -> bytes | None:
    """Give another kind of file under this name."""
    return rng.choice(
        (
            b"<!DOCTYPE html><html><body>404 Not Found</body></html>\n",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
            gzip.compress(data, mtime=0),
            b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07os\x94.",
            b"PK\x03\x04" + data,
            b"\x93NUMPY\x01\x00",
            b"\0" * max(len(data), 16),
        )
    )


# ------------------------------------------------------------------------------------------ texts


def marks(data: bytes, rng: random.Random) -> bytes | None:
    """Byte-order marks and other encodings."""
    text = data.decode("utf-8", "replace")
    return rng.choice((b"\xef\xbb\xbf" + data, text.encode("utf-16"), text.encode("utf-32")))


def line_ends(data: bytes, rng: random.Random) -> bytes | None:
    end = rng.choice((b"\r\n", b"\r", b"\n\n", "\u2028".encode(), b"\x0b", b"\0\n", b" \n"))
    return data.replace(b"\n", end)


def lines(data: bytes, rng: random.Random) -> bytes | None:
    """Drop, double, swap or blank lines."""
    rows = data.splitlines(keepends=True)
    if not rows:
        return None
    at = rng.randrange(len(rows))
    way = rng.randrange(5)
    if way == 0:
        del rows[at]
    elif way == 1:
        rows.insert(rng.randrange(len(rows) + 1), rows[at])
    elif way == 2:
        rng.shuffle(rows)
    elif way == 3:
        rows[at] = rng.choice((b"\n", b" \n", b"\t\n", b"\0\n"))
    else:
        rows = rows[:at]
    return b"".join(rows)


def odd_line(data: bytes, rng: random.Random) -> bytes | None:
    """Replace a line by one that is too long, too deep or of another kind."""
    rows = data.splitlines(keepends=True) or [b""]
    rows[rng.randrange(len(rows))] = rng.choice(
        (
            b"a" * 300_000 + b"\n",
            b"[" * 100_000 + b"\n",
            b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"\n",
            b"null\n",
            b"NaN\n",
            b"\xff\xfe\xfd\n",
            "\u202e\u0301\U0001f469\u200d\U0001f4bb\n".encode() * 3,
            b"\\ud800\n",
            b'"\n',
        )
    )
    return b"".join(rows)


NUMBERS = (
    "-1",
    "0",
    "1e400",
    "nan",
    "-inf",
    "99999999999999999999999",
    "0x10",
    "1_0",
    "",
    "\u0663",
    "3.7",
    "-0.0",
)


def numbers(data: bytes, rng: random.Random) -> bytes | None:
    """Replace one number of a text."""
    text = data.decode("utf-8", "replace")
    hits = list(re.finditer(r"\d+(\.\d+)?", text))
    if not hits:
        return None
    hit = rng.choice(hits)
    return (text[: hit.start()] + rng.choice(NUMBERS) + text[hit.end() :]).encode()


CELLS = (
    "",
    " ",
    "NA",
    "nan",
    '"',
    "\\",
    "\0",
    "x" * 70_000,
    "-1",
    "1e999",
    "\ufeff",
    "\u2028",
    "<b>",
    "=1+1",
    "../../x",
)


def cells(data: bytes, rng: random.Random) -> bytes | None:
    """Change one cell of a table, drop it, or add one."""
    rows = data.decode("utf-8", "replace").split("\n")
    at = rng.randrange(len(rows))
    row = rows[at].split("\t")
    cell = rng.randrange(len(row))
    way = rng.randrange(4)
    if way == 0:
        del row[cell]
    elif way == 1:
        row.insert(cell, rng.choice(CELLS))
    else:
        row[cell] = rng.choice(CELLS)
    rows[at] = "\t".join(row)
    return "\n".join(rows).encode("utf-8", "surrogatepass")


def tags(data: bytes, rng: random.Random) -> bytes | None:
    """Drop or double an XML tag, or define entities that multiply."""
    text = data.decode("utf-8", "replace")
    bomb = '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa">' + "".join(
        f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 10}">' for i in range(9)
    )
    if rng.random() < 0.15:
        return (bomb + "]>" + text.replace(">5<", ">&j;<")).encode()
    if rng.random() < 0.1:
        return (
            '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/hostname">]>'
            + text.replace(">5<", ">&x;<")
        ).encode()
    hit = rng.choice(list(re.finditer(r"<[^>]+>", text)))
    return (text[: hit.start()] + rng.choice(("", hit[0] * 2, "<x>")) + text[hit.end() :]).encode()


# ------------------------------------------------------------------------------------------- JSON

LONE = "\ud800"
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 3.5, -0.0, 1e308, 10**18, 2**63, 2**64, -(2**63), 10**30, "",
    " ", "x", "1", LONE, "a\nb", "a\0b", "\u2028", "../../x", "/etc/passwd", "\x1b[31m", "a" *
    100_000, [], {}, [[]], [None], [0, 0], [[-1, -1]], {"a": 1}, [1e300] * 3, float("nan"),
    float("inf"), float("-inf"), "\U0001f469\u200d\U0001f4bb" * 3, [LONE], -5, 5,
)  # fmt: skip


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        for key in value:
            found += _paths(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(min(len(value), 40)):
            found += _paths(value[index], (*path, index))
    return found


def _holder(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        value = value[key]
    return value


def _encode(value: Any) -> bytes:
    return json.dumps(value).encode()


def _documents(data: bytes) -> tuple[list[Any], bool]:
    """Return the JSON values of a file, and whether there is one to a line."""
    try:
        return [json.loads(data)], False
    except ValueError:
        return [json.loads(line) for line in data.splitlines()], True


def _edit(
    data: bytes, rng: random.Random, change: Callable[[Any, tuple[Any, ...]], Any]
) -> bytes | None:
    """Apply a change to one place of one value of a JSON or jsonl file."""
    try:
        values, rows = _documents(data)
    except ValueError:
        return None
    at = rng.randrange(len(values)) if values else 0
    if not values:
        return None
    value = copy.deepcopy(values[at])
    paths = _paths(value)
    if not paths:
        return None
    value = change(value, rng.choice(paths))
    parts = [_encode(v) for v in values]
    parts[at] = value if isinstance(value, bytes) else _encode(value)
    return b"\n".join(parts) + (b"\n" if rows else b"")


def json_value(data: bytes, rng: random.Random) -> bytes | None:
    """Replace a value by one of another type or size."""

    def change(value: Any, path: tuple[Any, ...]) -> Any:
        _holder(value, path)[path[-1]] = rng.choice(VALUES)
        return value

    return _edit(data, rng, change)


def json_settings(data: bytes, rng: random.Random) -> bytes | None:
    """Change a model in a way that nothing can refuse: another activation, ids exchanged …"""
    try:
        value = json.loads(data)
    except ValueError:
        return None
    found = list[Callable[[], None]]()

    def put(holder: Any, key: Any, new: Any) -> None:
        holder[key] = new

    for path in _paths(value):
        holder, key, old = _holder(value, path), path[-1], _holder(value, path)[path[-1]]
        if key in ("hidden_act", "activation_function"):
            found.append(partial(put, holder, key, "relu" if old != "relu" else "gelu"))
        elif key in ("layer_norm_eps", "crop_pct") and isinstance(old, float):
            found.append(partial(put, holder, key, 0.5))
        elif key in ("mean", "image_mean") and isinstance(old, list):
            found.append(partial(put, holder, key, [0.1, 0.2, 0.3]))
        elif key == "vocab" and isinstance(old, dict) and len(old) > 20:
            one, other = rng.sample(sorted(old)[10:], 2)
            found.append(partial(old.update, {one: old[other], other: old[one]}))
    if not found:
        return None
    rng.choice(found)()
    return _encode(value)


def json_drop(data: bytes, rng: random.Random) -> bytes | None:
    """Remove a key or an entry."""

    def change(value: Any, path: tuple[Any, ...]) -> Any:
        del _holder(value, path)[path[-1]]
        return value

    return _edit(data, rng, change)


def json_move(data: bytes, rng: random.Random) -> bytes | None:
    """Wrap a value, double an entry, or empty its holder."""

    def change(value: Any, path: tuple[Any, ...]) -> Any:
        holder = _holder(value, path)
        way = rng.randrange(4)
        if way == 0:
            holder[path[-1]] = [holder[path[-1]]]
        elif way == 1:
            holder[path[-1]] = {"x": holder[path[-1]]}
        elif way == 2 and isinstance(holder, list):
            holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(holder[path[-1]]))
        else:
            holder.clear()
        return value

    return _edit(data, rng, change)


def json_text(data: bytes, rng: random.Random) -> bytes | None:
    """Write what other JSON writers write: NaN, deep nesting, huge numbers, comments."""

    def change(value: Any, path: tuple[Any, ...]) -> bytes:
        _holder(value, path)[path[-1]] = "@@@"
        odd = rng.choice(
            (
                b"NaN",
                b"-Infinity",
                b"1e999",
                b"[" * 50_000 + b"]" * 50_000,
                b"1" * 5_000,
                b"01",
                b"'x'",
                b'"\\ud800"',
                b'"\\udc00\\ud800"',
                b'"\xff"',
                b'"\t"',
                b"// no\n1",
                b"1,",
                b'{"a":1,"a":2}',
                b"True",
            )
        )
        return _encode(value).replace(b'"@@@"', odd)

    return _edit(data, rng, change)


def json_twice(data: bytes, rng: random.Random) -> bytes | None:
    """Repeat a key with another value."""

    def change(value: Any, path: tuple[Any, ...]) -> Any:
        if not isinstance(value, dict):
            return value
        key = rng.choice(list(value))
        return (
            _encode(value)[:-1]
            + b", "
            + _encode(key)
            + b": "
            + _encode(rng.choice((1, "x", None)))
            + b"}"
        )

    return _edit(data, rng, change)


def json_row(data: bytes, rng: random.Random) -> bytes | None:
    """Replace a whole file or row by another value."""
    rows = data.splitlines(keepends=True) or [b""]
    at = rng.randrange(len(rows))
    odd = (
        b"[]",
        b"null",
        b"1",
        b'"x"',
        b"{}",
        b"[[]]",
        b"{}{}",
        b"",
        b"{",
        b'{"a":}',
        b"true",
        b"[1,2",
    )
    if len(rows) > 1 and rng.random() < 0.7:
        rows[at] = rng.choice(odd) + b"\n"
        return b"".join(rows)
    return rng.choice(odd)


# -------------------------------------------------------------------------------------------- npy


def _npy(data: bytes) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = np.load(io.BytesIO(data))
    return array


def _save(array: Any, **how: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **how)
    return stream.getvalue()


def npy_header(data: bytes, rng: random.Random) -> bytes | None:
    """Claim another type, order or shape than the bytes have."""
    array = _npy(data)
    shape, descr = array.shape, array.dtype.str
    shapes = (
        (0, *shape[1:]),
        (-1, *shape[1:]),
        (2**63, *shape[1:]),
        (2**40, *shape[1:]),
        (2**64, 2**64),
        (),
        (shape[0],),
        (*shape, 1),
        (shape[0] + 1, *shape[1:]),
        (shape[0], 0),
        (*shape[::-1],),
        (1,) * 40,
    )
    types = (
        "'|O'",
        "'<U4'",
        "'|S4'",
        "'|V4'",
        "'<f8'",
        "'>f4'",
        "'<c8'",
        "'<M8[s]'",
        "'|b1'",
        "'x'",
        "5",
        "[('a','<f4')]",
        "'<f2'",
        "'<i8'",
    )
    kind, order, size = repr(descr), "False", repr(shape)
    way = rng.randrange(4)
    if way == 0:
        kind = rng.choice(types)
    elif way == 1:
        size = repr(rng.choice(shapes))
    elif way == 2:
        order = rng.choice(("True", "None", "2", "'x'"))
    else:
        size = rng.choice(
            ("'x'", "None", "(1.5, 2)", "[3, 4]", "__import__('os')", "(True, 2)", "(1e9,)")
        )
    head = f"{{'descr': {kind}, 'fortran_order': {order}, 'shape': {size}, }}".encode()
    head = head.ljust(max(128 - 11, len(head))) + b"\n"
    body = data[10 + struct.unpack("<H", data[8:10])[0] :]
    version = rng.choice((b"\x01\x00", b"\x01\x00", b"\x01\x00", b"\x09\x00"))
    return b"\x93NUMPY" + version + struct.pack("<H", len(head)) + head + body


def npy_values(data: bytes, rng: random.Random) -> bytes | None:
    """Put numbers there that are none, too large or zero."""
    array = np.array(_npy(data))
    if not array.size:
        return None
    row = rng.randrange(len(array))
    if array.dtype.kind == "f":
        array[row] = rng.choice((np.nan, np.inf, -np.inf, 0, 6e4))
    else:
        array[row] = rng.choice((-1, -2, 2**31 - 1, -(2**31), 10**6))
    return _save(array)


def npy_other(data: bytes, rng: random.Random) -> bytes | None:
    """Save the numbers in another type or shape."""
    array = _npy(data)
    ways: tuple[Callable[[], Any], ...] = (
        lambda: array.astype(np.float64) * 1e300,
        lambda: array.astype(np.int64),
        lambda: array.astype(np.complex64),
        lambda: array.astype(str),
        lambda: array.astype(bool),
        lambda: array[:0],
        lambda: array[:-1],
        lambda: array.ravel(),
        lambda: array[None],
        lambda: np.asfortranarray(array),
        lambda: array.astype(array.dtype.newbyteorder()),
        lambda: np.concatenate([array, array]),
        lambda: np.float32(3),
        lambda: array.astype(np.uint64),
        lambda: np.zeros(array.shape, [("a", "<f4"), ("b", "<i4")]),
    )
    with np.errstate(all="ignore"):
        return _save(rng.choice(ways)())


# ------------------------------------------------------------------------------------ safetensors


def _tensors(data: bytes) -> tuple[dict[str, Any], bytes]:
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def _weights(head: Any, body: bytes) -> bytes:
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + body


def weights_header(data: bytes, rng: random.Random) -> bytes | None:
    """Damage the header: sizes, offsets, types, names."""
    head, body = _tensors(data)
    name = rng.choice([n for n in head if n != "__metadata__"])
    entry = head[name]
    way = rng.randrange(8)
    if way == 0:
        entry["dtype"] = rng.choice(("F64", "I64", "BF16", "F8_E4M3", "BOOL", "X", 5, "F16"))
    elif way == 1:
        entry["shape"] = rng.choice(
            ([2**40], [-1], [], [0], None, [1.5], [*entry["shape"][::-1], 1])
        )
    elif way == 2:
        entry["data_offsets"] = rng.choice(([0, 0], [0, 2**60], [5, 1], [-4, 0], None, [0]))
    elif way == 3:
        head["__metadata__"] = rng.choice(({"format": "tf"}, {"format": "x"}, {}, 5, {"a": 1}))
    elif way == 4:
        return struct.pack("<Q", rng.choice((0, 2**63, 2**40, 7))) + data[8:]
    elif way == 5:
        return _weights([head], body)
    elif way == 6:
        return data[: 8 + rng.randrange(60)]
    else:
        head[rng.choice(("", LONE, "a\nb", "x" * 10_000))] = head.pop(name)
    return _weights(head, body)


def weights_values(data: bytes, rng: random.Random) -> bytes | None:
    """Put NaN or infinity into one tensor."""
    head, body = _tensors(data)
    entry = head[
        rng.choice([n for n, e in head.items() if n != "__metadata__" and e["dtype"] == "F32"])
    ]
    low, high = entry["data_offsets"]
    odd = np.full((high - low) // 4, rng.choice((np.nan, np.inf, -np.inf, 1e38)), "<f4").tobytes()
    return _weights(head, body[:low] + odd + body[high:])


def weights_lost(data: bytes, rng: random.Random) -> bytes | None:
    """Leave tensors out, or rename them, so that nothing fits: it must be refused."""
    head, body = _tensors(data)
    names = [
        n
        for n in head
        if n != "__metadata__" and not re.search("pooler|cls|predictions|position_ids", n)
    ]
    parts, place, kept = [], 0, dict[str, Any]()
    lost = set(rng.sample(names, rng.choice((1, len(names) // 2, len(names)))))
    rename = rng.random() < 0.4
    for name, entry in head.items():
        if name == "__metadata__":
            kept[name] = entry
            continue
        if name in lost and not rename:
            continue
        low, high = entry["data_offsets"]
        parts.append(body[low:high])
        new = f"nothing.{name}" if name in lost else name
        kept[new] = entry | {"data_offsets": [place, place + high - low]}
        place += high - low
    return _weights(kept, b"".join(parts))


# ----------------------------------------------------------------------------------------- images


def pictures(data: bytes, rng: random.Random) -> bytes | None:
    """Give a picture of an odd form, or one that is too large."""
    from PIL import Image

    def saved(image: Image.Image, kind: str, **how: Any) -> bytes:
        stream = io.BytesIO()
        image.save(stream, kind, **how)
        return stream.getvalue()

    def bomb() -> bytes:
        whole = bytearray(saved(Image.new("1", (8, 8)), "PNG"))
        whole[16:24] = struct.pack(">II", 2**31 - 1, 2**31 - 1)
        import zlib

        whole[29:33] = struct.pack(">I", zlib.crc32(whole[12:29]))
        return bytes(whole)

    noise_ = rng.randbytes(40 * 30 * 4)
    ways: tuple[Callable[[], bytes], ...] = (
        bomb,
        lambda: saved(Image.new("1", (20_000, 20_000)), "PNG"),
        lambda: saved(Image.new("L", (1, 60_000)), "PNG"),
        lambda: saved(Image.new("L", (1, 1)), "PNG"),
        lambda: saved(Image.frombytes("CMYK", (40, 30), noise_), "JPEG"),
        lambda: saved(Image.frombytes("RGBA", (40, 30), noise_), "PNG"),
        lambda: saved(Image.frombytes("I;16", (40, 30), noise_[:2400]), "PNG"),
        lambda: saved(Image.frombytes("F", (40, 30), noise_), "TIFF"),
        lambda: saved(
            Image.new("P", (40, 30)),
            "GIF",
            save_all=True,
            append_images=[Image.new("P", (40, 30), 3)],
        ),
        lambda: saved(Image.new("RGB", (40, 30)), "BMP"),
        lambda: saved(Image.new("RGB", (40, 30)), "ICO"),
        lambda: saved(Image.new("RGB", (40, 30)), "PDF"),
        lambda: saved(Image.new("RGB", (40, 30)), "EPS"),
        lambda: b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
        lambda: data[: len(data) // 2],
        lambda: data[:-12],
    )
    return rng.choice(ways)()


# ------------------------------------------------------------------------------------ tar and faiss


def tars(data: bytes, rng: random.Random) -> bytes | None:
    """Give an archive of odd members."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        body = archive.extractfile(next(m for m in archive if m.isfile()))
        content = body.read() if body else b""
    form = rng.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT))
    with tarfile.open(fileobj=stream, mode="w", format=form, errors="surrogateescape") as archive:
        for name, kind in (
            ("../evil.png", tarfile.REGTYPE),
            ("/tmp/evil.png", tarfile.REGTYPE),
            ("link.png", tarfile.SYMTYPE),
            ("hard.png", tarfile.LNKTYPE),
            ("null.png", tarfile.CHRTYPE),
            ("fifo.png", tarfile.FIFOTYPE),
            ("twice.png", tarfile.REGTYPE),
            ("twice.png", tarfile.REGTYPE),
            ("a\nb.png", tarfile.REGTYPE),
            ("\udcff.png", tarfile.REGTYPE),
            ("x" * 90 + ".png", tarfile.REGTYPE),
        ):
            if rng.random() < 0.6:
                continue
            facts = tarfile.TarInfo(name)
            facts.type = kind
            facts.linkname = rng.choice(("../../etc/passwd", "twice.png", name))
            facts.size = len(content) if kind == tarfile.REGTYPE else 0
            if rng.random() < 0.2 and archive.format == tarfile.PAX_FORMAT:
                facts.pax_headers = {
                    "GNU.sparse.major": "1",
                    "GNU.sparse.minor": "0",
                    "GNU.sparse.name": "s.png",
                }
            archive.addfile(facts, io.BytesIO(content))
    made = stream.getvalue()
    return made + data if rng.random() < 0.3 else made


def tar_header(data: bytes, rng: random.Random) -> bytes | None:
    """Change fields of one header and make its sum right again."""
    blocks = [i for i in range(0, len(data), 512) if data[i + 257 : i + 262] == b"ustar"]
    at = rng.choice(blocks)
    head = bytearray(data[at : at + 512])
    field = rng.choice(((0, 100), (124, 12), (136, 12), (156, 1), (257, 8), (345, 155), (100, 8)))
    size = field[1]
    head[field[0] : field[0] + size] = rng.choice(
        (rng.randbytes(size), b"\xff" * size, b"7" * size, b"\0" * size)
    )
    head[148:156] = b" " * 8
    head[148:156] = f"{sum(head):06o}\0 ".encode()
    return data[:at] + bytes(head) + data[at + 512 :]


def faiss_header(data: bytes, rng: random.Random) -> bytes | None:
    """Change a number of the head of an index."""
    at = rng.randrange(0, min(48, len(data) - 8))
    number = rng.choice((0, 1, 2**31, 2**63, 2**40, 2**64 - 1, 7))
    return data[:at] + struct.pack("<Q", number) + data[at + 8 :]


def id_lines(data: bytes, rng: random.Random) -> bytes | None:
    """Give ids that are blank, double, too few, or names of other places."""
    rows = data.split(b"\n")[:-1]
    at = rng.randrange(len(rows))
    way = rng.randrange(5)
    if way == 0:
        rows[at] = rng.choice(
            (b"", b" ", b"\t", b"\0", b"\xff", b"../x", b"a\rb", b"\xe2\x80\xa8", b"x" * 10_000)
        )
    elif way == 1:
        rows[at] = rows[at - 1]
    elif way == 2:
        del rows[at]
    elif way == 3:
        rows.append(b"more")
    else:
        rows = rows[::-1]
    return b"\n".join(rows) + b"\n"


# ---------------------------------------------------------------------------------------- formats

_BYTES: tuple[Mutation, ...] = (
    flip,
    flips,
    truncate,
    empty,
    cut_out,
    append,
    insert,
    noise,
    other_kind,
)
_TEXT: tuple[Mutation, ...] = (*_BYTES, marks, line_ends, lines, odd_line)
_JSON: tuple[Mutation, ...] = (
    json_value,
    json_value,
    json_drop,
    json_move,
    json_text,
    json_twice,
    json_row,
)
FORMATS: dict[str, tuple[Mutation, ...]] = {
    "text": (*_TEXT, numbers),
    "beside": _TEXT,  # a text in a folder, which is no stream
    "table": (*_TEXT, numbers, cells, cells),
    "json": (*_JSON, *_JSON, flip, truncate, empty, append, insert, other_kind, marks),
    "jsonl": (*_JSON, *_JSON, *_TEXT),
    "manifest": (*_JSON, flip, truncate, empty, insert, other_kind),
    "run": (*_JSON, flip, truncate, empty, other_kind),
    "xml": (*_BYTES, numbers, tags, tags, tags),
    "npy": (*_BYTES, npy_header, npy_header, npy_values, npy_other, npy_other),
    "ids": (*_TEXT, id_lines, id_lines),
    "weights": (*_BYTES, weights_header, weights_header, weights_values, weights_lost),
    "tensors": (*_BYTES, weights_header, weights_header, weights_values),  # all need not fit
    "faiss": (*_BYTES, faiss_header, faiss_header),
    "image": (*_BYTES, pictures, pictures, pictures),
    "tar": (*_BYTES, tars, tars, tar_header, tar_header),
    "gz": tuple(m for m in _BYTES if m is not append),  # members may follow one another
    "bytes": _BYTES,
}


def mutated(data: bytes, name: str, number: int, salt: str) -> bytes | None:
    """Return bad bytes of a mutation by its name; the same words give the same bytes."""
    mutation: Mutation = globals()[name]
    return mutation(data, random.Random(f"{salt} {name} {number}"))


# --------------------------------------------------------------------- makers that mean harm


def reseal(file: str, bad: bytes, manifest: bytes) -> bytes:
    """Return a manifest that fits the bad bytes of one of its files, as a hostile maker does."""
    body = json.loads(manifest)
    if file in body.get("files", {}):
        body["files"][file] = {"bytes": len(bad), "sha256": hashlib.sha256(bad).hexdigest()}
    return json.dumps(body, indent=2).encode() + b"\n"


def sealed_again(body: dict[str, Any]) -> bytes:
    """Return a plan, commit or journal with the seal of what it says."""
    body = {key: value for key, value in body.items() if key != "sha256"}
    return orjson.dumps(body | {"sha256": hashlib.sha256(orjson.dumps(body)).hexdigest()}) + b"\n"


def reseal_run(bad: bytes) -> bytes | None:
    """Return run.json with the seal of what it says, or None where it is no object."""
    try:
        body = json.loads(bad)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict):
        return None
    body.pop("sha256", None)
    try:
        text = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return None
    return json.dumps(body | {"sha256": hashlib.sha256(text).hexdigest()}).encode()
