"""`vg push`: a run, an index or rows become a repository of a model hub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vgtools.commands.options import Argument, Flag, Offline, Quiet, Value
from vgtools.commands.signature import flags
from vgtools.io.errors import DataError, amount
from vgtools.io.process import note

if TYPE_CHECKING:
    from collections.abc import Iterator

_MODELS = ("index",)  # kinds of files that go into a repository of models; others are data


@flags
def push(
    path: Annotated[str, Argument("PATH", "A run, or a file or folder of shards with a manifest.")],
    repository: Annotated[str, Argument("OWNER/NAME", "Repository; @BRANCH for another branch.")],
    private: Annotated[bool, Flag("--private", help="Make a new repository private.")] = False,
    license: Annotated[
        str | None, Value("ID", "Its licence on the card: mit, cc-by-sa-4.0 …")
    ] = None,
    dry_run: Annotated[
        bool, Flag("--dry-run", help="Print the card, and connect to nothing.")
    ] = False,
    offline: Offline = False,
    quiet: Quiet = False,
) -> None:
    """Push a run, an index or rows to a model hub, with a card that states how it was made.

    PATH is a run folder, an X.faiss of vg build-index, or any other file or folder of shards that
    vg wrote with a manifest: vokens, retrieved rows, heat, features. All its files are compared
    with their hashes first. An index takes the run of its matcher with it. Runs and indexes become
    a repository of models, other files one of data, made if needed. README.md, the card, has the
    command, the inputs with their hashes, the licences that the manifest names, the numbers that
    were measured, a command to use it with, and the paper to cite.

    A repository of vg push can be named as OWNER/NAME or OWNER/NAME@REVISION wherever a command
    takes a run, an index or rows; a file or folder here of that name is taken first. It is fetched
    once, into the cache of huggingface_hub, and compared with its hashes when it is read.
    HF_ENDPOINT names another hub, HF_TOKEN or `hf auth login` the account.

    Examples:

        vg push vg.faiss me/flickr8k-bank --license cc-by-4.0

        vg vokenize wiki.txt --index me/flickr8k-bank -o vokens.parquet

        vg push vokens.parquet me/wiki-vokens --private

        vg push bert.sst-2 me/bert-sst-2 --dry-run
    """
    from vgtools.io import hub
    from vgtools.reports.card import card

    name, _ = hub.split_name(repository)
    source = Path(os.path.realpath(path))
    body, files = _contents(source)
    size = sum(os.path.getsize(file) for file in files.values())
    text = card(name, source.name, body, size, license)
    if dry_run:
        print(text, end="")
        note("push", f"{amount(len(files), 'file')}, {size:,} bytes: {', '.join(files)}")
        return
    is_model = "vg" not in body or body.get("kind") in _MODELS
    kind = "model" if is_model else "dataset"
    contents: dict[str, Any] = {**files, "README.md": text.encode()}
    message = f"vg push {source.name}"
    print(hub.push(repository, kind, contents, message, private))
    note("push", f"{amount(len(files), 'file')}, {size:,} bytes")


def _contents(source: Path) -> tuple[dict[str, Any], dict[str, Path]]:
    """Return the run.json or manifest, and the files by their names in the repository; checked."""
    from vgtools.io.artifact import read_manifest
    from vgtools.io.names import is_public, is_shards, manifest_path
    from vgtools.io.records import mark_of
    from vgtools.models.references import check_same
    from vgtools.models.sealed import check_files, read_run
    from vgtools.retrieval.index import pushed_name

    if (source / "run.json").is_file():
        info = read_run(source)
        check_files(source, info)
        return info, dict(_files_of_run(source, info))
    body = read_manifest(source)
    manifest = manifest_path(source)
    names = [] if is_shards(source) else list(body["files"])
    # A file that no reader opens may be missing.
    found = (manifest.with_name(name) for name in (*names, manifest.name))
    files = {file.name: file for file in found if file.exists()}
    if is_shards(source):
        files |= {f"{source.name}/{file.name}": file for file in sorted(_shards_of(source))}
    matcher = body.get("matcher")
    named = str(matcher.get("run", "")) if isinstance(matcher, dict) else ""
    if body.get("kind") == "index" and named and not is_public(named):
        run = Path(os.path.normpath(source.parent / named))
        if run.is_dir() and not (run / "run.json").exists():
            why = f"its matcher {run} is another program's; build the index with that model's name"
            why += " on a hub (--matcher OWNER/NAME), where its readers get it"
            raise DataError(why, source)
        info = read_run(run)
        mark = mark_of(info)
        if mark is not None and "clusters" not in body:
            check_same(str(info["kind"]), matcher, {"run": run, "fingerprint": mark}, source)
        check_files(run, info)
        folder = pushed_name(named)
        files |= {f"{folder}/{name}": file for name, file in _files_of_run(run, info)}
    return body, files


def _files_of_run(run: Path, info: dict[str, Any]) -> Iterator[tuple[str, Path]]:
    for name in (*info["files"], "run.json"):
        yield name, run / name


def _shards_of(folder: Path) -> Iterator[Path]:
    """Yield the plan, the list and the files of a complete folder of shards, and no others.

    Hashes are compared: the list's with the manifest, a shard's with the list.
    """
    from vgtools.io.files import sha256_file
    from vgtools.io.folders import LIST, Shards
    from vgtools.io.names import PLAN

    shards = Shards(folder)
    yield folder / PLAN
    yield folder / LIST
    for record in shards.records():
        for name, facts in record["files"].items():
            file = folder / name
            if sha256_file(file) != facts["sha256"]:
                why = "is damaged; run the command that writes the folder again"
                raise DataError(why, file)
            yield file
