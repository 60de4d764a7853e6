"""The one check of values that are read from disk: size, types, keys, names of the same folder.

A seal shows that nothing was damaged, not that vg wrote it: whoever edits a plan, a commit or a
manifest can seal it again. So each is compared with a form before anything in it is used:

- a type, or a tuple of types: a value of it; a `bool` is not an `int`, an `int` may be a `float`;
- `NAME`: a string that names a file of the same folder;
- `[form]`: a list, each of whose values has the form;
- `{"key": form, "key?": form}`: an object with the key, the second of them optional; others may be
  there;
- `{str: form}`, `{NAME: form}`: an object, each of whose keys is any string, or a `NAME`, and each
  of whose values has the form.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from vgtools.io.errors import DataError

NAME: Final = "NAME"
SIZE: Final = "SIZE"  # an integer that is not negative, and below `_MOST`
_MOST = 1 << 53  # 9 PB, more than any file has; sums of such sizes fit 64 bits
FILES = {NAME: {"bytes": SIZE, "sha256": str}}  # the files of a manifest, a journal, a commit
LARGEST = 1 << 26  # bytes of a manifest or of settings; the largest of vg's have some MB
TYPE_NAMES: Final = {
    str: "a string",
    int: "an integer",
    float: "a number",
    list: "a list",
    dict: "an object",
    bool: "a boolean",
    type(None): "null",
}


def read_small(stream: BinaryIO, path: str | Path) -> bytes:
    """Return the rest of a manifest, of settings, or of another file that is read whole.

    Raises:
        DataError: it has more than `LARGEST` bytes, or no end, as a device (65).
    """
    data = bytearray()
    while block := stream.read(1 << 20):
        data += block
        if len(data) > LARGEST:
            raise DataError(f"has more than {LARGEST >> 20} MB, expected a small file", path)
    return bytes(data)


def is_name(value: object) -> bool:
    """Return whether a value names a file of the same folder, and nothing outside it."""
    whole = isinstance(value, str) and value not in ("", ".", "..")
    return whole and not set("/\\\0") & set(str(value))


def fault_in(value: Any, form: Any, at: str = "") -> str:
    """Return where a value does not have a form, with the expectation, or an empty string."""
    if form == NAME:
        return "" if is_name(value) else _wrong(at, "the name of a file of this folder", value)
    if form == SIZE:
        whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST
        return "" if whole else _wrong(at, "a number of bytes or items", value)
    if isinstance(form, list):
        if not isinstance(value, list):
            return _wrong(at, "a list", value)
        faults = (fault_in(one, form[0], f"{at}[{i}]") for i, one in enumerate(value))
        return next(filter(None, faults), "")
    if isinstance(form, dict):
        return _fault_in_object(value, form, at)
    types = form if isinstance(form, tuple) else (form,)
    allowed = (*types, int) if float in types else types
    right = isinstance(value, allowed) and (bool in types or not isinstance(value, bool))
    return "" if right else _wrong(at, " or ".join(TYPE_NAMES[one] for one in types), value)


def _fault_in_object(value: Any, form: Mapping[Any, Any], at: str) -> str:
    if not isinstance(value, dict):
        return _wrong(at, "an object", value)
    for key, inner in form.items():
        if key in (str, NAME):
            for name, one in value.items():
                if key == NAME and (fault := fault_in(name, NAME, f"{at} key")):
                    return fault
                if fault := fault_in(one, inner, f"{at}.{name:.80}"):
                    return fault
            continue
        name = key.removesuffix("?")
        if name in value:
            if fault := fault_in(value[name], inner, f"{at}.{name}"):
                return fault
        elif name == key:
            return f'the key "{f"{at}.{name}".strip(".")}" is missing'
    return ""


def _wrong(at: str, expected: str, value: Any) -> str:
    return f'"{at.strip(".")}": expected {expected}, got {value!r:.60}'


def check_form(value: Any, form: Any, path: str | Path, way_out: str) -> None:
    """Refuse a value from a file that does not have its form.

    Raises:
        DataError: it does not (65); key, expected type and value are named.
    """
    if fault := fault_in(value, form):
        raise DataError(f"{fault}; {way_out}", path)
