"""The record of a finished run's files: `run.json`, written last, sealed, checked when read."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from vgtools.io import own
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import read_json, sha256_file
from vgtools.io.forms import check_form
from vgtools.io.written import END, check_file, check_format, unseal

TOKENIZER = "tokenizer"  # kind of the run of vg prepare tokenizer
TOKENIZER_CONFIG = "tokenizer_config.json"
KEPT = "step-"  # the names of a run's folders that hold the encoder of a step start with this
# The files that vg writes into a run, by their place in it or in one of its folders; all others are
# the user's, also in these folders.
RUN_FILE = re.compile(
    r"(?:(?:seed-\d+|step-\d+|model|encoder|teacher|words|backbone)/)*(?:"
    r"(?:model(?:-\d{5}-of-\d{5})?|head|fusion|phrase_attention|grounding|xdbert)\.safetensors"
    r"|(?:best|checkpoint)\.safetensors|model\.safetensors\.index\.json"
    r"|(?:config|generation_config|tokenizer|fusion|grounding|run)\.json|complete"
    r"|predictions(?:\.[\w-]+)?\.jsonl|metrics\.jsonl|table\.(?:npy|ids|json))"
)
_WAY_OUT = "restore it from a copy of the run, or make the run again with --restart"
# A file that has changed may be the user's: no flag makes vg replace it.
_CHANGED = _WAY_OUT.replace("make", "remove it and make")


def _without_restart(way_out: str, kind: str) -> str:
    """Return a way out for a kind of runs: the command that makes a tokenizer has no --restart."""
    return way_out.removesuffix(" with --restart") if kind == TOKENIZER else way_out


_FORM = {
    "kind?": str,
    "fingerprint": str,
    "files": {str: {"sha256": str}},
    "config?": dict,
    "encoder?": {"ref?": str, "fingerprint?": str},
    "inputs?": [{"path": str, "sha256?": str}],
    "metrics?": {"sha256?": str},
    "learned_photos?": [str],
    # The entries that vg finetune adds.
    "task?": str,
    "seeds?": {str: {str: (float, type(None))}},  # null: a score that is not defined
    "data?": {str: {"file?": (str, type(None)), "sha256?": (str, type(None))}},
    "predictions?": {str: str},
}


is_run_json = own.begins(b'{"format":')


def is_checkpoint(path: Path) -> bool:
    """Return whether a file has weights that vg wrote while it trained, whole or damaged."""
    with open(path, "rb") as stream:
        return stream.read(64)[8:].startswith(b'{"__metadata__":{"vg":')


def kind_of(file: Path) -> str:
    """Return the kind at the start of a run.json, even if the rest is damaged; "" for none."""
    found = re.match(rb'\{"format":\d+,"kind":"([\w-]+)"', file.read_bytes()[:200])
    return found[1].decode() if found else ""


def claim_run(path: Path, mark: str, ours: own.Proof) -> None:
    """Declare a folder to be vg's if it is new or empty, or has a file `mark` that vg wrote."""
    file = path / mark
    if not path.exists() or not any(path.iterdir()) or (file.is_file() and ours(file)):
        own.claim(path)


def read_run(path: str | Path, kind: str | None = None) -> dict[str, Any]:
    """Return the run.json of a finished run, of any kind by default, without importing torch.

    Raises:
        DataError: not there or not finished (66), of another kind or a newer format, edited, or
            with values of another type than vg writes (65).
    """
    path = Path(path)
    file = path / "run.json"
    if not path.is_dir():
        raise DataError("does not exist; expected a vg run", path, code=Exit.NO_INPUT)
    if not file.exists():
        why = "is not a finished vg run (no run.json); run the command that writes it again to"
        raise DataError(f"{why} resume", path, code=Exit.NO_INPUT)
    way_out = _WAY_OUT
    if file.is_file() and kind_of(file) == TOKENIZER:
        way_out = _without_restart(_CHANGED, TOKENIZER)
    info = read_json(file, f"the run.json of a vg run; {way_out}")
    check_format(info, file)
    if kind is not None and info.get("kind") != kind:
        raise DataError(f"expected a run of kind {kind!r}, got {info.get('kind')!r}", path)
    unseal(info, file, way_out, END)
    check_form(info, _FORM, file, way_out)
    _check_names(info, file)
    return info


def _check_names(info: Mapping[str, Any], file: Path) -> None:
    # An edited run.json, sealed again, must not lead its readers out of the run.
    for name in info["files"]:
        place = PurePosixPath(name)
        if not name or place.is_absolute() or ".." in place.parts:
            raise DataError(f'"files": {name!r:.80} is not a file of the run; {_WAY_OUT}', file)


def digests(run: Path, files: Iterable[Path]) -> dict[str, dict[str, str]]:
    """Return the "files" of a run.json: name in the run -> sha256, sorted by name."""
    names = sorted(file.relative_to(run).as_posix() for file in files)
    return {name: {"sha256": sha256_file(run / name)} for name in names}


def has_hash(sha256: str | None, data: bytes, file: Path) -> bool:
    """Return whether a file has a hash, or holds some data: vg wrote it, if it wrote either."""
    return sha256_file(file) in (sha256, hashlib.sha256(data).hexdigest())


def files_below(folder: Path) -> list[Path]:
    """Return the regular files in a folder and its sub-folders; none where there is no folder."""
    return [path for path in folder.rglob("*") if path.is_file()]


def own_files_below(folder: Path) -> list[Path]:
    """Return the files of a run, or of a folder in it, that are vg's; see `is_own_file`."""
    return [file for file in files_below(folder) if is_own_file(file, folder)]


def is_own_file(file: Path, folder: Path) -> bool:
    """Return whether a file below a run, or below a folder in it, is vg's by its place.

    All others are the user's, also settings of a tokenizer that do not start as vg's do.
    """
    if file.name != TOKENIZER_CONFIG:
        return own.placed(RUN_FILE)(file, folder)
    is_settings = own.begins(b'{"tokenizer_class":')
    in_network = is_own_file(file.with_name("config.json"), folder)
    return in_network and file.is_file() and not file.is_symlink() and is_settings(file)


def check_written(file: Path, sha256: str, kind: str = "") -> None:
    """Refuse a file of a run, perhaps of this kind, that has changed since it was written.

    Raises:
        DataError: missing (66), or another sha256 (65); both are printed.
    """
    way_out = _without_restart(_CHANGED if file.exists() else _WAY_OUT, kind)
    check_file(file, {"sha256": sha256}, "the run", way_out)


def check_records(run: str | Path, info: Mapping[str, Any]) -> Path:
    """Return the file of a finished run's records, which may be missing if run.json names none.

    Raises:
        DataError: as `check_written`.
    """
    file = Path(run, "metrics.jsonl")
    if sha256 := info.get("metrics", {}).get("sha256"):
        check_written(file, sha256)
    return file


def check_files(run: Path, info: Mapping[str, Any], below: str = "") -> None:
    """Check the files of a run that its run.json names: those whose names start with `below`.

    Raises:
        DataError: as `check_written`.
    """
    for name, facts in info["files"].items():
        if name.startswith(below):
            check_written(run / name, facts["sha256"], info.get("kind", ""))


def run_of(folder: Path) -> tuple[Path, str] | None:
    """Return the finished run that a model's folder belongs to, and how names in it start there.

    The folder is `RUN/encoder`, `RUN/teacher`, `RUN/backbone`, `RUN/step-N`,
    `RUN/seed-N/model`, the folder of a tokenizer that vg learned, or any other.
    """
    real = Path(os.path.realpath(folder))
    if real.name in ("encoder", "teacher", "backbone") or real.name.startswith(KEPT):
        run = real.parent
        below = f"{real.name}/"
    elif real.name == "model" and real.parent.name.startswith("seed-"):
        run = real.parent.parent
        below = f"{real.parent.name}/model/"
    elif (file := real / "run.json").is_file() and kind_of(file) == TOKENIZER:
        run = real
        below = ""
    else:
        return None
    return (run, below) if _is_run(run) else None


def run_with(ref: str) -> dict[str, Any]:
    """Return the run.json of the run that a model is, or is in; {} where it is in none.

    Raises:
        DataError: as `read_run`.
    """
    folder = Path(ref)
    if _is_run(folder):
        return read_run(folder)
    found = run_of(folder)
    return read_run(found[0]) if found else {}


def _is_run(folder: Path) -> bool:
    """Return whether a folder has the run.json of vg, and not one of another program."""
    file = folder / "run.json"
    if not file.exists():
        return False
    body = read_json(file, "the run.json of a vg run")  # a pipe is refused, not taken for none
    return "kind" in body or isinstance(body.get("format"), int)


def check_model(folder: Path) -> None:
    """Check the model of a finished run against its run.json; other folders are left alone.

    Raises:
        DataError: as `read_run` and `check_files`.
    """
    found = run_of(folder)
    if found is not None:
        check_files(found[0], read_run(found[0]), found[1])


def check_predictions(file: str | Path) -> None:
    """Check predictions, if they are in a finished run, against its run.json.

    The predictions of a run are `RUN/seed-N/NAME`.

    Raises:
        DataError: as `read_run` and `check_written`.
    """
    real = Path(os.path.realpath(file))
    run = real.parent.parent
    if real.parent.name.startswith("seed-") and _is_run(run):
        facts = read_run(run)["files"].get(real.relative_to(run).as_posix())
        if facts is not None:
            check_written(real, facts["sha256"])


def check_fingerprint(folder: Path, fingerprint: str) -> None:
    """Compare an encoder with the run.json of its run; runs without hashes need it.

    Raises:
        DataError: it is another encoder (65); both fingerprints are printed.
    """
    found = run_of(folder)
    if found is None or found[1] != "encoder/":
        return
    expected = read_run(found[0]).get("encoder", {}).get("fingerprint")
    if expected is not None and expected != fingerprint:
        why = f"is damaged or from another run: its weights have the fingerprint {fingerprint}"
        raise DataError(f"{why}, run.json states {expected}; {_WAY_OUT}", folder)
