"""Run directories: written last and sealed, checked when read."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from vgtools.io import own
from vgtools.io.errors import DataError, Exit, is_out_of_memory
from vgtools.io.files import dumps, versions
from vgtools.io.names import public
from vgtools.io.own import atomic_write
from vgtools.io.process import command_line
from vgtools.io.written import END, FORMAT, seal
from vgtools.models.encoder import Encoder, save_pretrained
from vgtools.models.references import (
    check_whole,
    fingerprint,
    first_line,
    pick_device,
    unusable,
    write_safetensors,
)
from vgtools.models.sealed import (
    check_written,
    claim_run,
    digests,
    is_run_json,
    own_files_below,
)
from vgtools.models.sealed import read_run as read_run
from vgtools.text.tokens import tokenizer_fingerprint

if TYPE_CHECKING:
    from torch import Tensor


NETWORKS = ("encoder", "teacher")  # folders of a run that hold a network


@dataclass(frozen=True)
class Run:
    """A finished run directory: its `run.json` and the system's own weights."""

    path: Path
    info: dict[str, Any]  # run.json
    weights: dict[str, Tensor]
    fingerprint: str


def start_facts(*encoders: Encoder) -> dict[str, Any]:
    """Return the facts by which a run names the networks that its training starts from."""
    return {"start": [{"ref": public(e.ref), "fingerprint": e.fingerprint} for e in encoders]}


def save_run(
    path: str | Path,
    kind: str,
    weights: Mapping[str, Tensor],
    info: Mapping[str, Any],
    encoder: Encoder | None = None,
    files: Mapping[str, str] = MappingProxyType({}),
    more: Mapping[str, Encoder] = MappingProxyType({}),
) -> None:
    """Write a run: the encoder as `save_pretrained` does, weights as safetensors, `run.json` last.

    Args:
        path: the run directory; created if needed. An old run.json is removed first: with a
            run.json, a run is complete.
        kind: kind of the run, for example `matcher`; the weights are `<kind>.safetensors`.
        weights: the system's own tensors; without any there is no such file.
        info: JSON values: configuration, seed, inputs, metrics.
        encoder: copied into the run, so that the run moves to another machine by `cp -r`.
        files: other files that the run needs, name in it -> sha256. The hashes of its own weights,
            of `metrics.jsonl` and of everything below `encoder/` are computed here.
        more: further networks, by the folder in the run: names of `NETWORKS`.
    """
    path = Path(path)
    claim_run(path, "run.json", is_run_json)
    path.mkdir(parents=True, exist_ok=True)
    # First, so that a kill while the rest is replaced leaves an incomplete run, not a mixture.
    own.remove(path / "run.json", is_run_json)
    digest = fingerprint(weights)
    facts: dict[str, Any] = {}
    networks = dict(more) if encoder is None else {"encoder": encoder, **more}
    for name, network in networks.items():
        save_pretrained(path / name, network)
        facts[name] = {
            "ref": public(network.ref),
            "fingerprint": network.fingerprint,
            "tokenizer": tokenizer_fingerprint(network.tokenizer),
        }
        parts = digest + network.fingerprint + facts[name]["tokenizer"]
        digest = hashlib.sha256(parts.encode()).hexdigest()
    file = path / f"{kind}.safetensors"
    own.remove(file)
    if weights:
        write_safetensors(file, weights)
    metrics = path / "metrics.jsonl"
    written = [f for name in networks for f in own_files_below(path / name)]
    written += [f for f in (file, metrics) if f.exists()]
    body = {
        "format": FORMAT,
        "kind": kind,
        **info,
        **facts,
        "fingerprint": digest,
        "argv": command_line(),
        "versions": versions(),
        "files": digests(path, written) | {n: {"sha256": d} for n, d in sorted(files.items())},
    }
    atomic_write(path / "run.json", dumps(body | {"sha256": seal(body, END)}))


def open_run(path: str | Path, kind: str) -> Run:
    """Open a finished run and check its weights against `run.json`.

    Raises:
        DataError: not there or not finished (66), of another kind, or damaged (65).
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = Path(path)
    info = read_run(path, kind)
    file = path / f"{kind}.safetensors"
    if file.name not in info["files"]:
        return Run(path, info, {}, info["fingerprint"])
    check_written(file, info["files"][file.name]["sha256"])
    try:
        weights = load(file.read_bytes())
    except SafetensorError as error:  # its hash is right: so it was written
        raise DataError(f"is not a readable safetensors file: {error}", file) from None
    return Run(path, info, weights, info["fingerprint"])


def load_network(
    path: str | Path, kind: str, shape: type[Any], network: Callable[[Any], Any], device: str
) -> tuple[Any, Run]:
    """Open a finished run of one network: the network in eval mode, without gradients, and the run.

    Args:
        path: folder of the run.
        kind: kind of the run; its `run.json` has the network's configuration under that name.
        shape: dataclass of the configuration.
        network: configuration -> module.
        device: where the network goes.

    Raises:
        DataError: no finished run (66), of another kind or damaged (65), from a later version (78),
            or too large for the memory (70).
    """
    from vgtools.models.products import quicken

    run = open_run(path, kind)
    file = run.path / "run.json"
    config = as_config(shape, run.info.get(kind), kind, file)
    try:
        module = network(config)
        module.load_state_dict(run.weights)
    except (RuntimeError, ValueError, ArithmeticError, MemoryError) as error:
        if is_out_of_memory(error):
            raise unusable(kind, error, run.path) from None
        why = f'"{kind}": its settings do not fit {kind}.safetensors: {first_line(error)}'
        raise DataError(why, file) from None
    check_whole(module, [], run.path / f"{kind}.safetensors")
    return quicken(module).eval().requires_grad_(False).to(pick_device(device)), run


def as_config(cls: type[Any], values: Any, key: str, file: str | Path) -> Any:
    """Return a config dataclass with the values of an entry of a `run.json`.

    Its fields are int, float, str or bool, one of these or None, or one of several words; the entry
    of the file is called `key`.

    Raises:
        DataError: this version does not know one of the settings (78); a setting is missing or has
            another type (65).
    """
    if not isinstance(values, Mapping):
        raise DataError(f'"{key}": expected an object, got {values!r:.60}', file)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    unknown = sorted(set(values) - set(fields))
    if unknown:
        why = f"has the setting {unknown[0]!r}, which this version of vg does not know"
        raise DataError(f"{why}; use the version that run.json names", file, code=Exit.CONFIG)
    types = get_type_hints(cls)
    for name, field in fields.items():
        if name not in values and field.default is dataclasses.MISSING:
            raise DataError(f'"{key}": lacks the setting {name!r}', file)
        kinds = get_args(types[name]) or (types[name],)
        allowed = (*kinds, int) if float in kinds else kinds
        words = get_origin(types[name]) is Literal
        if name in values and (values[name] if words else type(values[name])) not in allowed:
            expected = " or ".join(kind if words else kind.__name__ for kind in kinds)
            why = f'"{key}": expected {name} {expected}, got {values[name]!r:.60}'
            raise DataError(why, file)
    return cls(**values)
