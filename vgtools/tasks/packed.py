"""Pretraining on texts, which are packed before the first step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vgtools.io.files import digest_of
from vgtools.io.inputs import Inputs
from vgtools.io.written import check_made
from vgtools.models.encoder import Encoder
from vgtools.text.blocks import PackedInputs
from vgtools.text.vokens import has_rows, rows_of
from vgtools.training.session import Pretraining


@dataclass(kw_only=True)
class PackedPretraining(Pretraining):
    """A pretraining on packed inputs."""

    cache: str | None  # folder where they are kept; None: they are removed after the training

    def pack(self, encoder: Encoder, *more: str, also: Sequence[str] = ()) -> None:
        """Hash the inputs and `more` files, and note how to pack the inputs when needed.

        Those of `also` are packed as well.
        """
        # The files are hashed before a text is read: a file that changes while it is read then does
        # not match its hash.
        given = [*self.inputs, *self.valid, *also]
        rows = [rows_of(path) for path in given if has_rows(path)]
        self.files = Inputs([*given, *rows, *more])
        session = self.session
        beside = session.folder.with_name(f"{session.folder.name}.packed")
        self.store = PackedInputs(
            encoder.tokenizer, Path(self.cache or beside), session.quiet, session.note, self.inputs
        )
        self.digests = {
            name: [*map(self.digest_of, paths)]
            for name, paths in (("inputs", self.inputs), ("valid", self.valid))
        }

    def digest_of(self, path: str) -> str:
        """Return the sha256 of an input, and the columns of it that are named."""
        sha256 = self.files.sha256(path) or self.store.digest(path)
        check_made(path, sha256)
        digest = digest_of(path, sha256)
        if has_rows(path):
            digest += f" {self.files.sha256(rows_of(path))}"
        return digest

    def close(self) -> None:
        """Remove the packed inputs, unless they are kept; other files in their folder stay."""
        if self.cache is None:
            self.store.remove()
