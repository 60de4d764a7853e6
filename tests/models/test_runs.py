"""Runs: what does not fit into memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tiny import save_encoder, save_run_of
from vgtools.io.errors import DataError, Exit
from vgtools.models.runs import load_network
from vgtools.systems.vokenization.matcher import MatcherConfig


def test_a_run_that_does_not_fit_into_memory_is_not_called_damaged(tmp_path: Path) -> None:
    save_encoder(tmp_path / "encoder")
    save_run_of(tmp_path / "run", tmp_path / "encoder")
    for error, code, why in (
        (MemoryError(), Exit.CANNOT_CONTINUE, "out of memory while it is loaded"),
        (RuntimeError("can't allocate memory: 9 bytes"), Exit.CANNOT_CONTINUE, "out of memory"),
        (RuntimeError("size mismatch"), Exit.DATA, "its settings do not fit matcher.safetensors"),
    ):

        def network(config: Any, error: Exception = error) -> None:
            raise error

        with pytest.raises(DataError, match=why) as caught:
            load_network(tmp_path / "run", "matcher", MatcherConfig, network, "cpu")
        assert caught.value.code == code
