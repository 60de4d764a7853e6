"""A tiny run of `vg pretrain xdbert`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from tests.tiny import save_encoder
from tests.tiny.clip import save_tower
from vgtools.models.clip import load_teacher
from vgtools.models.encoder import load_encoder
from vgtools.models.runs import save_run
from vgtools.systems.xdbert.model import Shape, XDBertConfig, XDBertCrossModal


def save_xdbert(folder: Path, layers: int = 2, **changes: Any) -> Path:
    """Write a run with random weights, large enough to matter; changes are of the teacher."""
    student = load_encoder(str(save_encoder(folder / "student", positions=64)))
    student.model.pooler = None
    teacher = load_teacher(str(save_tower(folder / "clip", **changes)))
    torch.manual_seed(1)
    shape = Shape.of(student.model.config, teacher.model.config)
    cross = XDBertCrossModal(shape, layers)
    with torch.no_grad():
        for weight in cross.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    weights = {f"cross.{name}": weight for name, weight in cross.state_dict().items()}
    info = {"xdbert": dataclasses.asdict(XDBertConfig(layers))}
    save_run(folder / "run", "xdbert", weights, info, student, more={"teacher": teacher})
    return folder / "run"
