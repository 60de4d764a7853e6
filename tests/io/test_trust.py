"""Hashes that another process computed are taken over for files that look the same."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vgtools.io import trust
from vgtools.io.artifact import open_features
from vgtools.io.errors import DataError
from vgtools.io.files import sha256_file


def test_a_hash_is_computed_once_for_a_file_that_looks_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"one")
    read: list[str] = []
    real: Any = hashlib.file_digest
    monkeypatch.setattr(
        hashlib, "file_digest", lambda stream, name: read.append(stream.name) or real(stream, name)
    )
    with trust.noting() as known:
        first = sha256_file(file)
    assert len(read) == 1
    with trust.trusting(known):
        assert trust.trusted()
        assert sha256_file(file) == first
        assert len(read) == 1
        other = tmp_path / "link"
        other.symlink_to(file)
        assert sha256_file(other) == first
        facts = os.stat(file)
        file.write_bytes(b"two")
        os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
        assert sha256_file(file) == hashlib.sha256(b"two").hexdigest()
        assert len(read) == 2
    assert not trust.trusted()
    assert sha256_file(file) != first
    assert len(read) == 3, "nothing is kept beyond the block"


def test_values_that_were_checked_are_not_scanned_again(tmp_path: Path) -> None:
    from tests.tiny import save_feats

    path = save_feats(tmp_path / "f.npy", np.full((3, 4), np.nan))
    with pytest.raises(DataError, match=r"row 0 \(image000\) is NaN"):
        open_features(path)
    with trust.trusting({}):
        assert len(open_features(path).ids) == 3
