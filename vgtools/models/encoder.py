"""The one loading layer: a model reference becomes a tokenizer, an encoder, a backbone or a run.

A reference is a hub name, a directory, a vg run, or `builtin:NAME` (weights that an installed
package carries). Weights are safetensors, never pickle; only the packages of `builtin:` may carry a
`.pth`, read with `weights_only=True`. Tokenizers load without torch, so that `vg revokenize` starts
at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import copymode
from typing import TYPE_CHECKING, Any, Literal

from vgtools.io import own
from vgtools.io.errors import DataError, Exit, file_error, file_errors
from vgtools.io.files import dumps, read_json
from vgtools.io.own import atomic_write, sync_dir
from vgtools.models.references import (
    BUILTIN,
    ENCODER_FILES,
    check_read,
    check_whole,
    fingerprint,
    from_pretrained,
    identity_of,
    load_tokenizer,
    pick_device,
    pick_dtype,
    quiet_transformers,
    resolve,
    safetensors_files,
    settings_of,
    tokenizer_settings,
    types_in,
    unusable,
    weight_files,
)
from vgtools.models.sealed import (
    TOKENIZER_CONFIG,
    check_fingerprint,
    claim_run,
    files_below,
    is_own_file,
    own_files_below,
)
from vgtools.text.tokens import settings_for_transformers, special_ids, tokenizer_fingerprint

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# transformers' classes of the text sides of dual encoders, by the type of the whole model.
TEXT_SIDES = {
    "clip": "CLIPTextModel",
    "siglip": "SiglipTextModel",
    "siglip2": "Siglip2TextModel",
    "altclip": "AltCLIPTextModel",
    "chinese_clip": "ChineseCLIPTextModel",
    "metaclip_2": "MetaClip2TextModel",
}
# A model's head: drawn, whole as the checkpoint has it, or, where it has none, drawn.
Head = Literal["new", "whole", "or new"]

MOST_LAYERS = 1000  # far beyond any encoder


@dataclass(frozen=True)
class Encoder:
    """A frozen text encoder with its tokenizer."""

    # Both are pages long in a notebook.
    model: Any = field(repr=False)  # a transformers PreTrainedModel in eval mode
    tokenizer: Tokenizer = field(repr=False)
    ref: str
    fingerprint: str  # the weights' alone
    settings: str  # those in its config.json: see `settings_of`
    width: int  # H
    layers: int  # L, without the embedding layer
    max_tokens: int  # maximum tokens of a sentence, special tokens not counted
    prefix: list[int]  # special ids before a sentence
    suffix: list[int]  # special ids after it

    @property
    def identity(self) -> str:
        """A sha256 of all that decides what it makes of a text: weights, settings, tokenizer."""
        tokenizer = tokenizer_fingerprint(self.tokenizer)
        return identity_of(self.fingerprint, f"{self.settings} {tokenizer}")


def load_encoder(
    ref: str,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    attention: str | None = None,
    regions: bool = False,
    states: bool = False,
) -> Encoder:
    """Load a text encoder with its tokenizer, frozen and in eval mode.

    `attention` is transformers' implementation; `eager` returns attention weights; None is torch's
    fused one if the architecture has it, else eager. With `regions` a VisualBERT remains one;
    without, it is the BERT in it, here and in the functions below, as a LXMERT always is. A dual
    encoder gives its text side, without the projection. With `states` only a `PackedEncoder` will
    run the model: where `read_tower` can read it, transformers is not imported.

    Raises:
        DataError: as `_pretrained`.
    """
    chosen_device = pick_device(device)
    chosen_dtype = pick_dtype(dtype)
    if states and (read := _tower(ref)) is not None:
        model, tokenizer, folder = read
        sha256 = fingerprint(model)
        return as_encoder(model.to(chosen_device, chosen_dtype), tokenizer, ref, sha256, folder)
    import torch
    from transformers import AutoModel

    settings: dict[str, Any] = {"dtype": chosen_dtype, "attention": attention}
    with torch.random.fork_rng(devices=[]):
        # Runs save a pooler that the checkpoint lacks and that is drawn here: always the same.
        torch.manual_seed(0)
        model, tokenizer, folder = _pretrained(
            AutoModel, "text encoder", ref, regions=regions, **settings
        )
    if chosen_dtype == pick_dtype("float32"):
        sha256 = fingerprint(model)
    else:
        # The fingerprint is computed from the float32 weights, so that an encoder has the same
        # fingerprint whatever dtype it is loaded as.
        with quiet_transformers():
            config = _config_in(folder)
            settings = _of_text(config, {"dtype": "float32"}, regions)
            network = _text_side(config) or AutoModel
            sha256 = fingerprint(_text_of(from_pretrained(network, folder, **settings)))
    model = model.eval().requires_grad_(False).to(chosen_device)
    return as_encoder(model, tokenizer, ref, sha256, folder)


def _tower(ref: str) -> tuple[Any, Tokenizer, Path] | None:
    """Return the result of `_pretrained` without transformers; None where that cannot be."""
    from vgtools.models.products import quicken
    from vgtools.models.towers import read_tower

    folder, config, files = _opened(ref)
    tokenizer = load_tokenizer(str(folder))
    tower = read_tower(config, files)
    if tower is None:
        return None
    check_whole(tower, [], folder)
    return quicken(tower), tokenizer, folder


def reads_before(encoder: Encoder) -> bool:
    """Return whether there is a token before a text whose state has read the text, as [CLS] has.

    SigLIP has no such token, and the one of CLIP and MetaCLIP sees no later ones.
    """
    causal = ("clip_text_model", "metaclip_2_text_model")
    return bool(encoder.prefix) and encoder.model.config.model_type not in causal


def read_config(ref: str) -> dict[str, Any]:
    """Return the transformers configuration of a text encoder's reference.

    Raises:
        DataError: missing (66, 69), or not a JSON object (65).
    """
    return _config_in(resolve(ref, ENCODER_FILES))


def is_visualbert(ref: str) -> bool:
    """Return whether a reference is a checkpoint of transformers' VisualBERT.

    Raises:
        DataError: as `read_config`.
    """
    return _has_regions(read_config(ref))


def _config_in(folder: Path) -> dict[str, Any]:
    return read_json(folder / "config.json", "a transformers configuration")


def check_layers(config: Mapping[str, Any], folder: Path) -> None:
    """Refuse a model with numbers of layers or heads that no encoder has, or its weights have not.

    transformers builds the layers before it reads a weight: a damaged number would take hours, or
    all memory. It also draws new heads and layers, which give NaN if their spread is too large.

    Raises:
        DataError: there are more layers than `MOST_LAYERS`, no heads, or too large a spread (65).
    """
    for part in (config, config.get("text_config"), config.get("vision_config")):
        values = part if isinstance(part, dict) else {}
        layers, heads = map(values.get, ("num_hidden_layers", "num_attention_heads"))
        why = ""
        if isinstance(layers, int | float) and layers > MOST_LAYERS:  # 2**64 is read as a float
            why = f'"num_hidden_layers": expected at most {MOST_LAYERS}, got {layers}'
        elif isinstance(heads, int | float) and heads < 1:
            why = f'"num_attention_heads": expected at least 1, got {heads}'
        spread = values.get("initializer_range")
        if isinstance(spread, int | float) and not 0 <= spread <= _MOST_SPREAD:
            why = f'"initializer_range": expected 0 to {_MOST_SPREAD}, got {spread}'
        if why:
            raise DataError(f"{why}; save the model again", folder / "config.json")
    _check_depth(config, folder)


_MOST_SPREAD = 10  # standard deviation of weights that are drawn; 0.02 is usual

# The number of a layer; a whole dual encoder has two sides.
_OF_LAYER = re.compile(
    r"(?:(text|vision)_model\.)?(?:\w+\.)?(?:encoder|transformer)\.layers?\.(\d+)\."
)


def _check_depth(config: Mapping[str, Any], folder: Path) -> None:
    """Refuse weights of more layers than a model's configuration reads.

    Raises:
        DataError: the others would be left out without a word (65).
    """
    depths = dict[str, int]()
    for file in weight_files(folder):
        for name in types_in(file):
            if found := _OF_LAYER.match(name):
                side = found[1] or ""
                depths[side] = max(depths.get(side, 0), int(found[2]) + 1)
    for side, depth in depths.items():
        values = config.get(f"{side}_config") if side else config
        values = values if isinstance(values, dict) else config
        names = ("num_hidden_layers", "n_layers", "encoder_layers")
        key = next((name for name in names if type(values.get(name)) is int), "")
        if key and values[key] < depth:
            why = f'"{key}": is {values[key]}, and the weights have {depth} layers'
            way_out = "save the model again, without the layers that are not to be used"
            raise DataError(f"{why}; {way_out}", folder / "config.json")


def _has_regions(config: Mapping[str, Any]) -> bool:
    return bool(config.get("model_type") == "visual_bert")


_LIKE_ROBERTA = frozenset({
    "altclip_text_model", "bridgetower_text_model", "camembert", "clap_text_model",
    "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm",
    "mluke", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
})  # fmt: skip


def max_positions(config: Any) -> int:
    """Return the maximum tokens of an encoder's input, special tokens counted."""
    # RoBERTa and its kin count positions from after the padding id, which for MPNet is always 1.
    padding = 1 if config.model_type == "mpnet" else config.pad_token_id or 0
    reserved = padding + 1 if config.model_type in _LIKE_ROBERTA else 0
    return int(config.max_position_embeddings) - reserved


def load_masked_lm(ref: str, *, new_head: bool = True) -> Encoder:
    """Load a masked language model and its tokenizer, on the CPU, in float32.

    Args:
        ref: hub name, directory, vg run or builtin.
        new_head: a checkpoint without the masked language model's head gets a head to be trained,
            drawn from torch's random state.

    Returns:
        An `Encoder` whose model is the transformers model with its head; `fingerprint` is the
        fingerprint of the encoder in it.

    Raises:
        DataError: as `_pretrained`; the head is missing, and there must be one (78).
    """
    from transformers import AutoModelForMaskedLM

    head: Head = "or new" if new_head else "whole"
    model, tokenizer, folder = _pretrained(
        AutoModelForMaskedLM, "masked language model", ref, head, dtype="float32"
    )
    return as_encoder(model, tokenizer, ref, folder=folder)


# A generation_config.json must not change the form of the output or the search that vg's flags
# describe, and the time that it takes decides nothing.
_PLAIN_SEARCH = {
    "return_dict_in_generate": False,
    "num_return_sequences": 1,
    "num_beam_groups": 1,
    "stop_strings": None,
    "max_time": None,
    "penalty_alpha": None,
    "prompt_lookup_num_tokens": None,
    "constraints": None,
    "force_words_ids": None,
    "dola_layers": None,
    "watermarking_config": None,
    "guidance_scale": None,
    "token_healing": False,
    "low_memory": None,
}


def load_seq2seq(ref: str) -> Encoder:
    """Load a translation model and its tokenizer, on the CPU, in float32.

    Returns:
        An `Encoder` whose model is the transformers encoder-decoder.

    Raises:
        DataError: as `_pretrained`; it has no decoder, or ends no translation (78).
    """
    from transformers import AutoModelForSeq2SeqLM

    model, tokenizer, folder = _pretrained(
        AutoModelForSeq2SeqLM, "translation model", ref, "whole", dtype="float32"
    )
    ends = ("eos_token_id", "decoder_start_token_id", "pad_token_id")
    lacking = [name for name in ends if not isinstance(getattr(model.config, name, None), int)]
    if lacking:
        raise DataError(f'config.json: lacks "{lacking[0]}", a number', ref, code=Exit.CONFIG)
    _check_ids(model, folder)
    for name, value in _PLAIN_SEARCH.items():
        setattr(model.generation_config, name, value)
    encoder = as_encoder(model, tokenizer, ref, folder=folder)
    # How it decodes is in a file of its own, and decided by weights after the decoder.
    name = "generation_config.json"
    more = settings_of(folder, name) if (folder / name).exists() else ""
    inside = f"{model.base_model_prefix}."
    tied = _tied(model)
    state = model.state_dict().items()
    head = {name: x for name, x in state if name not in tied and not name.startswith(inside)}
    return replace(encoder, settings=f"{encoder.settings} {more} {fingerprint(head)}")


def _check_ids(model: Any, folder: Path) -> None:
    """Refuse settings of a translation model that name tokens outside its vocabulary."""
    most = max(model.config.vocab_size, getattr(model.config, "decoder_vocab_size", None) or 0)
    for settings, name in (
        (model.config, "config.json"),
        (model.generation_config, "generation_config.json"),
    ):
        for key, value in settings.to_dict().items():
            named = key.endswith(("_token_id", "_words_ids", "suppress_tokens"))
            odd = [x for x in _flat(value) if not (type(x) is int and 0 <= x < most)]
            if named and value is not None and odd:
                why = f'"{key}": expected tokens from 0 to {most - 1}, got {odd[0]!r:.40}'
                raise DataError(why, folder / name)


def _flat(value: Any) -> list[Any]:
    """Return the values in a list or a list of lists; a single value as a list of one."""
    return [x for one in value for x in _flat(one)] if isinstance(value, list) else [value]


# transformers scores a choice by the last state of its row, which here is padding's.
_SCORED_BY_LAST = ("convbert", "roformer")


def load_with_head(ref: str, network: str, seed: int, settings: Mapping[str, Any]) -> Encoder:
    """Load a text encoder under a new head for a task, to fine-tune it, on the CPU, in float32.

    The head is always drawn from the seed, even where the checkpoint has one; so is a pooler that
    the checkpoint lacks.

    `network` is transformers' class after `AutoModelFor`, for example `SequenceClassification`; the
    settings, of the head, are kept in the configuration.

    Raises:
        DataError: as `_pretrained`.
    """
    import torch
    import transformers

    torch.manual_seed(seed)
    model, tokenizer, folder = _pretrained(
        getattr(transformers, f"AutoModelFor{network}"),
        "text encoder",
        ref,
        dtype="float32",
        ignore_mismatched_sizes=True,
        **settings,
    )

    if model.config.model_type in _SCORED_BY_LAST and hasattr(model, "sequence_summary"):
        # In the configuration as well, for whoever opens the saved network.
        model.sequence_summary.summary_type = model.config.summary_type = "first"
    has_end = network == "SequenceClassification" and hasattr(model, "score")
    if has_end and model.config.pad_token_id is None:
        why = "has a head that reads the last token before the padding, and names no padding token"
        raise DataError(f'{why}; set "pad_token_id" in its config.json', ref, code=Exit.CONFIG)

    def draw(module: Any) -> None:
        for parameter in module.parameters(recurse=False):
            # transformers does not draw parameters that it has marked as loaded.
            parameter._is_hf_initialized = False
        model._init_weights(module)

    with torch.no_grad():
        for module in model.children():
            if module is not model.base_model:
                module.apply(draw)
    return as_encoder(model, tokenizer, ref, folder=folder)


def check_network(folder: Path) -> None:
    """Refuse a folder of files with the names of a network's that `save_pretrained` did not write.

    Raises:
        DataError: there is one (73).
    """
    complete = folder / "complete"
    if not (complete.is_file() or own.temporary(complete).is_file()):
        for file in own_files_below(folder):
            raise own.not_ours(file)


def save_pretrained(folder: str | Path, encoder: Encoder) -> None:
    """Write a network and its tokenizer as transformers does, replacing an older network.

    Everything is on the disk when `complete` is written, last, with the fingerprint; until then its
    temporary file shows that the folder is vg's.

    Raises:
        DataError: a file is not known for vg's (73), or one cannot be written.
    """
    folder = Path(folder)
    complete = folder / "complete"
    sign = own.temporary(complete)
    check_network(folder)
    claim_run(folder, complete.name, own.begins(b""))
    own.remove_tree(folder, is_own_file)
    with file_errors(folder, reading=False):
        own.make_folder(folder, parents=True)
        mark = own.create(sign)
    with mark:
        try:
            _write_pretrained(folder, encoder)
            with file_errors(complete, reading=False):
                text = encoder.fingerprint.encode()
                while text:  # a system may write a part
                    text = text[os.write(mark.fileno(), text) :]
                os.fsync(mark.fileno())
                own.replace(sign, complete)
        except BaseException:  # without `complete` nothing would show that vg wrote it
            own.remove_tree(folder, is_own_file)
            raise
    sync_dir(folder)
    sync_dir(folder.parent)


def _write_pretrained(folder: Path, encoder: Encoder) -> None:
    from safetensors import SafetensorError

    # In a folder of their own: safetensors writes under names that only it knows, which a kill
    # leaves, and the user may have files next to the network.
    work = own.temporary(folder / "network")
    own.make_folder(work)
    with quiet_transformers():
        try:
            encoder.model.save_pretrained(work)
        except OSError as error:
            raise file_error(error, folder, reading=False) from None
        except SafetensorError as error:
            raise file_error(_system_error(error), folder, reading=False) from None
    tokenizer = work / "tokenizer.json"
    atomic_write(tokenizer, encoder.tokenizer.to_str(pretty=True).encode())
    longest = encoder.max_tokens + len(encoder.prefix) + len(encoder.suffix)
    config = encoder.model.config
    settings = settings_for_transformers(
        encoder.tokenizer,
        longest,
        padding=getattr(config, "pad_token_id", None),
        segments=int(getattr(config, "type_vocab_size", 0) or 0) > 1,
    )
    if not os.path.lexists(folder / TOKENIZER_CONFIG):  # the user's stay
        atomic_write(work / TOKENIZER_CONFIG, dumps(settings))
    with file_errors(folder, reading=False):
        files = files_below(work)
        for file in files:
            # safetensors gives its files permissions for the owner alone; the tokenizer's file has
            # the user's usual ones.
            copymode(tokenizer, file)
            with open(file, "rb") as stream:
                os.fsync(stream.fileno())
        for file in files:
            own.replace(file, folder / file.name)
    own.remove_folder(work)


def _system_error(error: Exception) -> OSError:
    """Return the error of the operating system that safetensors reports as text."""
    number = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(number[1]), "") if number else OSError(str(error))


def as_trained(tokenizer: Tokenizer, folder: Path) -> Tokenizer:
    """Return the tokenizer of a SigLIP with the form of texts that it was trained with.

    transformers does this in code next to the tokenizer's file: lower case, and for SigLIP no
    punctuation. Other tokenizers are returned as they are. In a run, a SigLIP's tokenizer has this
    form in its file.
    """
    from tokenizers import Regex, normalizers

    if read_json(folder / "config.json").get("model_type") not in ("siglip", "siglip2"):
        return tokenizer
    steps: list[Any] = [normalizers.Lowercase()]
    if str(tokenizer_settings(folder).get("tokenizer_class")).startswith("SiglipTokenizer"):
        marks = normalizers.Replace(Regex(r"[!-/:-@\[-`{-~]"), "")
        steps += [marks, normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    own = tokenizer.normalizer
    tokenizer.normalizer = normalizers.Sequence([*steps, *([] if own is None else [own])])
    return tokenizer


def _of_text(config: Mapping[str, Any], settings: dict[str, Any], regions: bool) -> dict[str, Any]:
    """Return settings of `from_pretrained` that read the text encoder in a larger model.

    A VisualBERT without regions computes the same as a BERT, and so do LXMERT's language layers,
    which come before the layers that see the regions; transformers has no text tasks for either.
    LXMERT's pooler, which reads other layers, is left out.
    """
    kind = config.get("model_type")
    if regions or kind not in ("visual_bert", "lxmert"):
        return settings
    from transformers import BertConfig

    loading = {"dtype", "attention", "ignore_mismatched_sizes"} & settings.keys()
    fields = {name: config[name] for name in config.keys() - {"model_type", "architectures"}}
    names = {"^visual_bert": "bert"}
    if kind == "lxmert":
        fields["num_hidden_layers"] = fields.get("l_layers", 9)  # transformers' default
        fields = {name: value for name, value in fields.items() if value is not None}
        names = {"^lxmert.pooler": "other", "^pooler": "other", "^lxmert": "bert"}
    fields |= {name: settings[name] for name in settings.keys() - loading}
    return {name: settings[name] for name in loading} | {
        "config": BertConfig(**fields),
        "key_mapping": names,
    }


def _text_side(config: Mapping[str, Any]) -> Any:
    """Return transformers' class for the text side of a dual encoder alone; None for others."""
    import transformers

    kind, mark, _ = str(config.get("model_type")).partition("_text_model")
    return getattr(transformers, TEXT_SIDES[kind]) if mark and kind in TEXT_SIDES else None


def _text_of(model: Any) -> Any:
    """Return the text side of a dual encoder, and any other model as it is."""
    return model.text_model if model.config.model_type in TEXT_SIDES else model


def _opened(ref: str) -> tuple[Path, dict[str, Any], list[Path]]:
    """Return the folder of a text model, its configuration and the files of its weights.

    Raises:
        DataError: missing (66, 69), pickled, no configuration (65), an image backbone (usage).
    """
    builtin = BUILTIN.get(ref.removeprefix("builtin:")) if ref.startswith("builtin:") else None
    if builtin is not None and builtin[3] is not None:
        why = f"expected a text encoder, for example builtin:minilm, got the image backbone {ref}"
        raise DataError(why, code=Exit.USAGE)
    folder = resolve(ref, ENCODER_FILES)
    files = safetensors_files(folder)
    config = _config_in(folder)
    check_layers(config, folder)
    return folder, config, files


def _pretrained(
    network: Any, name: str, ref: str, head: Head = "new", regions: bool = False, **settings: Any
) -> tuple[Any, Tokenizer, Path]:
    """Return the transformers model of a reference, its tokenizer and its folder.

    `network` is transformers' Auto class, `name` the kind of model in messages. The `head` is new,
    or the checkpoint's, whose weights must be whole. The settings are for `from_pretrained`.

    Raises:
        DataError: missing (66, 69), damaged, pickled, remote code, or weights of the encoder are
            missing or would not be used (65); there is no head where it may not be new (78).
    """
    from transformers import AutoModel

    from vgtools.models.products import quicken

    folder, config, _ = _opened(ref)
    if head != "new" and config.get("model_type") == "lxmert":
        why = (
            f"is a LXMERT, whose {name}'s head reads the layers that see regions; its text encoder"
        )
        raise DataError(f"{why} can be fine-tuned", ref, code=Exit.CONFIG)
    tokenizer = load_tokenizer(str(folder))
    if network is AutoModel:
        if config.get("is_encoder_decoder"):
            why = f"is a {config.get('model_type')}, an encoder with a decoder; expected an encoder"
            raise DataError(f"{why} of texts like BERT or RoBERTa", ref, code=Exit.CONFIG)
        network = _text_side(config) or network
        tokenizer = as_trained(tokenizer, folder)
    with quiet_transformers():
        try:
            settings = _of_text(config, settings, regions) | {"output_loading_info": True}
            model, report = from_pretrained(network, folder, **settings)
        except Exception as error:  # raised by the configuration, safetensors or torch
            raise unusable(name, error, folder) from None
    if "key_mapping" in settings:
        model._weight_conversions = None  # else it would be saved with the names that it had
    check_read(report["unexpected_keys"], model.state_dict(), folder)
    if config.get("model_type") == "xmod" and not config.get("default_language"):
        languages = ", ".join(model.config.languages)
        why = f'"default_language": expected one of {languages}'
        raise DataError(why, folder / "config.json", code=Exit.CONFIG)
    # A bare encoder's names have no prefix; in a model with a head, the head may be new. No system
    # here uses the pooler.
    prefix = "" if model is model.base_model else f"{model.base_model_prefix}."
    text = _text_of(model)
    prefix = prefix if text is model else "text_model."

    def in_encoder(key: str) -> bool:
        return key.startswith(prefix) and not key.removeprefix(prefix).startswith("pooler.")

    new = {str(key) for key in report["missing_keys"]}
    heads = {key for key in model.state_dict() if not key.startswith(prefix)}
    # A file has tied weights only once, so that they count neither as a head that is there nor as
    # missing weights of it.
    tied = _tied(model)
    drawn = head == "new" or not heads - tied - new
    if drawn and head == "whole":
        why = f"has no {name}'s head, only an encoder; choose a model that was trained with one"
        raise DataError(why, ref, code=Exit.CONFIG)
    needed = set[str]() if drawn else heads - tied
    missing = sorted(key for key in new if in_encoder(key) or key in needed)
    missing += [str(key) for key, *_ in report["mismatched_keys"] if in_encoder(str(key))]
    check_whole(text, missing, folder)
    return quicken(text), tokenizer, folder


def _tied(model: Any) -> set[str]:
    """Return the names of weights that are others', under a further name."""
    return set(getattr(model, "all_tied_weights_keys", None) or ())


def as_encoder(
    model: Any,
    tokenizer: Tokenizer,
    ref: str,
    sha256: str | None = None,
    folder: str | Path | None = None,
) -> Encoder:
    """Return a model and its tokenizer as an `Encoder`; a model in training stays in training.

    The model is a transformers encoder, or a masked language model with one in it; its fingerprint
    `sha256` is computed if it is not known. Errors name the `folder` instead of `ref`; in the
    folder of a run the model must be the run's own.

    Raises:
        DataError: the tokenizer has ids that the model has no embedding of, the model is not an
            encoder of texts, or its run made another model (65).
    """
    file = folder or ref
    config = model.config
    try:
        width = int(config.hidden_size)
        layers = int(config.num_hidden_layers)
        positions = max_positions(config)
        rows = model.get_input_embeddings().num_embeddings
    except (AttributeError, NotImplementedError, TypeError) as error:
        why = f"is a {config.model_type}, not an encoder of texts like BERT or RoBERTa: {error}"
        raise DataError(why, file) from None
    if tokenizer.get_vocab_size() > rows:
        why = f"the tokenizer has {tokenizer.get_vocab_size()} entries, the embedding table {rows}"
        raise DataError(f"{why}: they do not belong together", file)
    prefix, suffix = special_ids(tokenizer)
    greatest = max([*tokenizer.get_vocab().values(), *prefix, *suffix], default=0)
    if greatest >= rows:
        why = f"the tokenizer has the id {greatest}, the embedding table {rows} rows"
        raise DataError(f"{why}: they do not belong together", file)
    padding = getattr(config, "pad_token_id", None)
    if padding is not None and not 0 <= padding < rows:
        why = f'config.json: "pad_token_id": expected a row of the {rows} embeddings, got {padding}'
        raise DataError(why, file)
    max_tokens = positions - len(prefix) - len(suffix)
    if max_tokens < 1:
        why = f'config.json: "max_position_embeddings": no token fits, {max_tokens} are left'
        raise DataError(f"{why} next to the special tokens", file)
    sha256 = sha256 or fingerprint(model.base_model)
    if folder is not None:
        # No run.json records the fingerprint of a part of its network: the BERT in a VisualBERT or
        # a LXMERT, or a CLIP's text tower without the projection.
        bare = config.model_type == "clip_text_model" and not hasattr(model, "text_projection")
        part = config.model_type == "bert" and _config_in(Path(folder)).get("model_type") != "bert"
        if not bare and not part:
            check_fingerprint(Path(folder), sha256)
    # The file itself counts: the defaults that transformers adds depend on its version.
    settings = settings_of(config if folder is None else Path(folder))
    sizes = (width, layers, max_tokens)
    return Encoder(model, tokenizer, ref, sha256, settings, *sizes, prefix, suffix)
