"""Run directories: written last and sealed, checked when read."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgtools.io import (
    FORMAT,
    DataError,
    Exit,
    atomic_write,
    check_format,
    dumps,
    read_json,
    sha256_file,
    versions,
)
from vgtools.models.encoder import Encoder, save_pretrained
from vgtools.models.references import fingerprint
from vgtools.text.tokens import tokenizer_fingerprint

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Run:
    """A finished run directory: its `run.json` and the system's own weights."""

    path: Path
    info: dict[str, Any]  # run.json
    weights: dict[str, Tensor]
    fingerprint: str


def save_run(
    path: str | Path,
    kind: str,
    weights: Mapping[str, Tensor],
    info: Mapping[str, Any],
    encoder: Encoder | None = None,
) -> None:
    """Write a run: the encoder as `save_pretrained` does, weights as safetensors, `run.json` last.

    Args:
        path: the run directory; created if needed. An old run.json is removed first: with a
            run.json, a run is complete.
        kind: what loads it, for example `matcher`; the weights are `<kind>.safetensors`.
        weights: the system's own tensors; without any there is no such file.
        info: JSON values: configuration, seed, inputs, metrics.
        encoder: copied into the run, so that the run moves to another machine by `cp -r`.
    """
    from safetensors.torch import save

    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    (path / "run.json").unlink(missing_ok=True)
    tensors = {name: t.detach().cpu().contiguous() for name, t in weights.items()}
    digest = fingerprint(tensors)
    facts: dict[str, Any] = {}
    if encoder is not None:
        save_pretrained(path / "encoder", encoder)
        facts["encoder"] = {
            "ref": encoder.ref,
            "fingerprint": encoder.fingerprint,
            "tokenizer": tokenizer_fingerprint(encoder.tokenizer),
        }
        parts = digest + encoder.fingerprint + facts["encoder"]["tokenizer"]
        digest = hashlib.sha256(parts.encode()).hexdigest()
    file = path / f"{kind}.safetensors"
    if tensors:
        atomic_write(file, save(tensors))
    body = {
        "format": FORMAT,
        "kind": kind,
        **info,
        **facts,
        "fingerprint": digest,
        "argv": sys.argv,
        "versions": versions(),
        "files": {file.name: {"sha256": sha256_file(file)}} if tensors else {},
    }
    atomic_write(path / "run.json", dumps(body | {"sha256": _seal(body)}))


def _seal(body: Mapping[str, Any]) -> str:
    """Return the sha256 of the rest of run.json, so that an edited setting is noticed."""
    return hashlib.sha256(dumps(body)).hexdigest()


def read_run(path: str | Path, kind: str) -> dict[str, Any]:
    """Return the run.json of a finished run, without importing torch.

    Raises:
        DataError: not there or not finished (66), of another kind or a newer format, or edited
            (65).
    """
    path = Path(path)
    file = path / "run.json"
    if not path.is_dir():
        raise DataError("does not exist; expected a vg run", path, code=Exit.NO_INPUT)
    if not file.exists():
        why = (
            "is not a finished vg run (no run.json); run the command that writes it again to resume"
        )
        raise DataError(why, path, code=Exit.NO_INPUT)
    info = read_json(file, "the run.json of a vg run")
    check_format(info, file)
    if info.get("kind") != kind:
        raise DataError(f"expected a run of kind {kind!r}, got {info.get('kind')!r}", path)
    if info.pop("sha256", None) != _seal(info):
        why = "was edited or damaged: its sha256 is that of other contents"
        raise DataError(f"{why}; train again, or restore it", file)
    return info


def open_run(path: str | Path, kind: str) -> Run:
    """Open a finished run and check its weights against `run.json`.

    Raises:
        DataError: not there or not finished (66), of another kind, or damaged (65).
    """
    from safetensors.torch import load

    path = Path(path)
    info = read_run(path, kind)
    file = path / f"{kind}.safetensors"
    if not info["files"]:
        return Run(path, info, {}, str(info["fingerprint"]))
    if not file.exists():
        raise DataError("is missing; copy the whole run directory", file, code=Exit.NO_INPUT)
    expected = info["files"][file.name]["sha256"]
    sha256 = sha256_file(file)
    if sha256 != expected:
        why = f"is damaged or from another run: sha256 {sha256}, run.json says {expected}"
        raise DataError(why, file)
    return Run(path, info, load(file.read_bytes()), str(info["fingerprint"]))


def as_config(cls: type[Any], values: Mapping[str, Any], file: str | Path) -> Any:
    """Return a config dataclass with the values of a `run.json`.

    Raises:
        DataError: this version does not know one of the settings (78).
    """
    unknown = sorted(set(values) - {field.name for field in dataclasses.fields(cls)})
    if unknown:
        why = f"has the setting {unknown[0]!r}, which this version of vg does not know"
        raise DataError(f"{why}; use the version that run.json names", file, code=Exit.CONFIG)
    return cls(**values)
