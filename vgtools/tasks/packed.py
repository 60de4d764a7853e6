"""Pretraining on texts, which are packed before the first step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vgtools.io.files import digest_of, sha256_file
from vgtools.io.inputs import Inputs
from vgtools.io.names import is_shards
from vgtools.io.written import check_made
from vgtools.models.encoder import Encoder
from vgtools.text.blocks import PackedInputs
from vgtools.text.vokens import is_packed
from vgtools.training.session import Pretraining


@dataclass(kw_only=True)
class PackedPretraining(Pretraining):
    """A pretraining on packed inputs."""

    cache: str | None  # folder where they are kept; None: they are removed after the training

    def pack(self, encoder: Encoder, *more: str) -> None:
        """Hash the inputs and `more` files, and note how to pack the inputs when needed."""
        # The files are hashed before a text is read: a file that changes while it is read then does
        # not match its hash.
        self.files = Inputs([*self.inputs, *self.valid, *more])
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
        if is_packed(path) and not is_shards(path):
            digest += f" {sha256_file(Path(path).with_suffix('.rows.npy'))}"
        return digest

    def close(self) -> None:
        """Remove the packed inputs, unless they are kept; other files in their folder stay."""
        if self.cache is None:
            self.store.remove()
