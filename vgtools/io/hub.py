"""Runs, indexes and rows of vg on a model hub, as OWNER/NAME or OWNER/NAME@REVISION.

huggingface_hub connects, caches and resumes. A repository that `vg push` wrote holds the run.json
or the manifest of its files, and whoever reads them compares their hashes, as of files here.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vgtools.io.errors import DataError, Exit
from vgtools.io.files import is_manifest, read_json
from vgtools.io.forms import is_name
from vgtools.io.remote import is_missing, is_offline

SECONDS = 5  # time in which the hub must answer
# No revision has two points in a row: `@../x` would lead out of the folder of the cache.
_NAME = re.compile(
    r"([a-z0-9][\w.-]*/[a-z0-9][\w.-]*)(?:@(?!.*\.\.)([\w.][\w./-]*))?", re.ASCII | re.I
)
# The endings of files, here or missing.
_FILES = (
    "arrow|csv|faiss|feather|hdf5|html|ids|jsonl?|np[yz]|parquet|png|safetensors|tar|tsv|txt|vec"
)
_FILE = re.compile(rf"\.({_FILES}|gz|zst)$")
_RUN = "run.json"
_reasons = list[str]()  # why the hub did not answer
_OTHERS = (".gitattributes", "README.md")  # every repository may have them


def is_hub_name(ref: str) -> bool:
    """Return whether a name can only be a repository's: neither taken here nor a file's."""
    return bool(_NAME.fullmatch(ref)) and not _FILE.search(ref) and not os.path.lexists(ref)


def split_name(ref: str) -> tuple[str, str | None]:
    """Return OWNER/NAME and the revision, if any.

    Raises:
        DataError: it has another form (usage).
    """
    found = _NAME.fullmatch(ref)
    if found is None:
        why = f"expected OWNER/NAME or OWNER/NAME@REVISION, got {ref!r:.80}"
        raise DataError(why, code=Exit.USAGE)
    return found[1], found[2]


def go_offline() -> None:
    """Keep every library from connecting from now on (`--offline`)."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is not None:  # it reads the variable only when first imported
        constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


def ask_hub() -> str:
    """Return why the hub does not answer, asked for a few seconds.

    The reason is empty if the hub answers, or if vg is offline and may not ask. Once there was no
    answer, vg is offline, and the reason stays.

    Without a network, the libraries would retry again and again and report each attempt; a resolver
    that hangs cannot even be stopped, so a thread asks.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if constants.is_offline_mode():
        return _reasons[0] if _reasons else ""
    answers: list[str] = []

    def ask() -> None:
        try:
            get_session().head(constants.ENDPOINT, timeout=SECONDS)
        except Exception as error:  # raised by the HTTP library, or by the system
            answers.append(_first_line(error))
        else:
            answers.append("")

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(SECONDS)
    reason = answers[0] if answers else f"{constants.ENDPOINT} did not answer within {SECONDS} s"
    if reason:
        _reasons.append(reason)
    return reason


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"


@contextlib.contextmanager
def hub_errors(what: str, way_out: str) -> Iterator[None]:
    """Turn any error of a download into exit 69 with the missing files and how to get them."""
    if is_offline():
        go_offline()
    unreachable = ask_hub()
    if unreachable:
        go_offline()  # files that are already on this machine may be enough
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # the hub client and its HTTP library raise their own types
        # For these two, the message of huggingface_hub is long, or the number of an HTTP status.
        said = "vg is offline" if is_offline() else str(error).strip().split("\n")[0][:200]
        if is_missing(error):
            said = "the hub has none of this name, or it is private (`hf auth login`)"
        reason = (unreachable or said).rstrip(".")
        why = f"{what} is neither on this machine nor could it be fetched: {reason}. {way_out}"
        raise DataError(why, code=Exit.UNAVAILABLE) from None


def placed(ref: str, models: bool) -> str:
    """Return where a run, index or file of a repository is on this machine, fetched if needed.

    Args:
        ref: a repository; any other name, of a file here for example, stays as it is.
        models: a repository of another program may be meant as well; it keeps its name.

    Raises:
        DataError: there is no such repository (66), vg did not write it (65), or it cannot be
            fetched (69).
    """
    if not is_hub_name(ref) or (models and not _holds_run(ref)):
        return ref
    folder = _fetch(ref)
    return str(folder if (folder / _RUN).exists() else _main_file(folder, ref))


def _holds_run(ref: str) -> bool:
    from huggingface_hub import hf_hub_download

    name, revision = split_name(ref)
    # Whoever loads another model reports its errors.
    with contextlib.suppress(Exception), hub_errors(ref, ""):
        hf_hub_download(name, _RUN, revision=revision)
        return True
    return False


def _fetch(ref: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

    name, revision = split_name(ref)
    missing = list[Exception]()
    with hub_errors(repr(ref), "Download it once, or name a file here"):
        for kind in ("model", "dataset"):
            try:
                return Path(snapshot_download(name, repo_type=kind, revision=revision))
            except (RepositoryNotFoundError, LocalEntryNotFoundError) as error:
                missing.append(error)
        for fault in missing:
            if not isinstance(fault, RepositoryNotFoundError):
                raise fault
        why = "does not exist, here or on the hub; if it is private, `hf auth login` opens it"
        raise DataError(why, ref, code=Exit.NO_INPUT)


def _main_file(folder: Path, ref: str) -> Path:
    """Return the file that the manifest of a repository is about, or the folder of its shards."""
    found = [file for file in sorted(folder.glob("*.json")) if is_manifest(file)]
    names: list[str] = [name for file in found for name in read_json(file)["files"]][:1]
    if len(found) != 1 or not names or not is_name(names[0]):
        why = (
            f"holds {len(found)} manifests of vg, expected one; it must be a repository of vg push"
        )
        raise DataError(why, ref)
    return folder / names[0]


def push(
    name: str, kind: str, files: Mapping[str, Path | bytes], message: str, private: bool
) -> str:
    """Write files into a repository, made if needed, in one commit; return the commit's address.

    Args:
        name: OWNER/NAME, perhaps with a branch after an @.
        kind: model or dataset.
        files: name in the repository -> a file here, or the contents.
        message: the commit's.
        private: only the owner sees a new repository.

    Raises:
        DataError: it holds other files (73), or cannot be written (69).
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    name, branch = split_name(name)
    if is_offline() or (unreachable := ask_hub()):
        why = "--offline never connects" if is_offline() else unreachable
        raise DataError(f"cannot be pushed: {why}", name, code=Exit.UNAVAILABLE)
    api = HfApi()
    where: dict[str, Any] = {"repo_type": kind, "revision": branch}
    try:
        api.create_repo(name, repo_type=kind, private=private or None, exist_ok=True)
        others = {*api.list_repo_files(name, **where)} - {*files, *_OTHERS}
        if others:
            why = f"holds {min(others)}, which vg would not write; push to a repository of its own"
            raise DataError(why, name, code=Exit.CANNOT_CREATE)
        adds = [CommitOperationAdd(path, _content(data)) for path, data in files.items()]
        return str(api.create_commit(name, adds, commit_message=message, **where).commit_url)
    except DataError:
        raise
    except Exception as error:  # as in `hub_errors`
        why = f"cannot be pushed: {_first_line(error)}; `hf auth login` with a token that may write"
        raise DataError(why, name, code=Exit.UNAVAILABLE) from None


def _content(data: Path | bytes) -> str | bytes:
    return str(data) if isinstance(data, Path) else data
