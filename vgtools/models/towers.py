"""Text towers of BERT, RoBERTa and CLIP from `config.json` and safetensors alone.

A command that embeds a line of text would spend most of its time on importing transformers. A
frozen tower has to give states only, and these shapes are simple: modules and weights have the
names of transformers' networks, and the states are equal to the bit. Whatever is unusual (a
decoder, old names of weights, numbers of another type, a value out of range) is left to
transformers, which knows it or refuses it.

Axes: B texts of one length t, H width of the tower, E width of the projection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vgtools.models.references import unread_weights

BERT_SHAPED = ("bert", "roberta", "xlm-roberta", "camembert")
CLIP_TEXT = "clip_text_model"

_TYPES = (torch.float32, torch.float16, torch.bfloat16)  # all are exact in float32
# The values of transformers where a configuration has none.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "bert": {
        "vocab_size": 30522,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    },
    CLIP_TEXT: {
        "vocab_size": 49408,
        "hidden_size": 512,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "intermediate_size": 2048,
        "hidden_act": "quick_gelu",
        "max_position_embeddings": 77,
        "layer_norm_eps": 1e-5,
        "projection_dim": 512,
        "pad_token_id": 1,
        "eos_token_id": 49407,
    },
}
# Settings under which a network computes something else, or its files hold something else.
_UNUSUAL = (
    "add_cross_attention",
    "auto_map",
    "is_decoder",
    "pruned_heads",
    "quantization_config",
    "text_config_dict",
)


class _UnusualError(Exception):
    """A tower that transformers has to read."""


class TowerStates(NamedTuple):
    """The states of texts, as transformers names them."""

    last_hidden_state: Tensor  # (B, t, H), after the last norm
    pooler_output: Tensor  # (B, H), at each text's end
    hidden_states: tuple[
        Tensor, ...
    ]  # embeddings, and each layer's states before that norm, (B, t, H)


class Tower(nn.Module):
    """A frozen text tower in eval mode, float32, on the CPU; in the face of transformers' own."""

    embeddings: Any
    encoder: Any

    def __init__(self, config: SimpleNamespace, parts: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.config = config
        for name, part in parts.items():
            self.add_module(name, part)

    @property
    def base_model(self) -> Tower:
        """The tower: it has no head."""
        return self

    @property
    def device(self) -> torch.device:
        """Where texts are read."""
        device: torch.device = self.get_input_embeddings().weight.device
        return device

    def get_input_embeddings(self) -> Any:
        """Return the table of tokens."""
        return self.embeddings.word_embeddings


class ClipTower(Tower):
    """A CLIP's text tower: layers whose tokens see no later ones.

    Source: Radford et al. 2021 (CLIP), section 2.4.
    """

    final_layer_norm: Any

    def get_input_embeddings(self) -> Any:
        """Return the table of tokens."""
        return self.embeddings.token_embedding

    def forward(self, input_ids: Tensor, **_: Any) -> TowerStates:
        """Return the states of texts of one length, without padding: (B, t) ids."""
        table = self.embeddings
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = table.token_embedding(input_ids) + table.position_embedding(positions)
        states = [x]
        for layer in self.encoder.layers:
            x = x + self._attend(layer.self_attn, layer.layer_norm1(x))
            x = x + layer.mlp(layer.layer_norm2(x))
            states.append(x)
        last = self.final_layer_norm(x)
        end = self.config.eos_token_id
        # The configurations of the first CLIPs name the wrong end; it is their greatest id.
        is_end = input_ids.int() if end == 2 else (input_ids == end).int()
        pooled = last[torch.arange(len(last), device=last.device), is_end.argmax(-1)]
        return TowerStates(last, pooled, tuple(states))

    def _attend(self, layer: Any, x: Tensor) -> Tensor:
        parts = (layer.q_proj, layer.k_proj, layer.v_proj)
        heads = self.config.num_attention_heads
        q, k, v = (part(x).unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=x.shape[1] > 1)
        out: Tensor = layer.out_proj(mixed.transpose(1, 2).flatten(-2))
        return out


class Projected(NamedTuple):
    """The last states of texts, and their embeddings, as transformers names them."""

    text_embeds: Tensor  # (B, E)
    last_hidden_state: Tensor  # (B, t, H)


class ClipTexts(nn.Module):
    """A CLIP's text tower with its projection; in the face of CLIPTextModelWithProjection."""

    def __init__(self, tower: Tower, projection: nn.Linear) -> None:
        super().__init__()
        self.config = tower.config
        self.text_model = tower
        self.text_projection = projection

    @property
    def device(self) -> torch.device:
        """Where texts are read."""
        return self.text_model.device

    def get_input_embeddings(self) -> Any:
        """Return the table of tokens."""
        return self.text_model.get_input_embeddings()

    def forward(self, input_ids: Tensor) -> Projected:
        """Return the states of texts of one length, without padding: (B, t) ids."""
        found: TowerStates = self.text_model(input_ids)
        return Projected(self.text_projection(found.pooler_output), found.last_hidden_state)


def read_tower(config: Mapping[str, Any], files: Iterable[Path]) -> Tower | None:
    """Return the text tower of a model, or None where transformers has to read it.

    Args:
        config: the configuration of a model, perhaps with a head, or of a whole CLIP.
        files: its safetensors files.
    """
    with _left_to_transformers(), _Weights(files) as weights:
        tower = _tower(_shape_of(config), weights)
        _refuse_if(weights.has_more(tower))
        return tower
    return None


def read_texts(config: Mapping[str, Any], files: Iterable[Path]) -> ClipTexts | None:
    """Return the text tower of a CLIP with its projection; as `read_tower` otherwise."""
    with _left_to_transformers(), _Weights(files) as weights:
        texts = _texts(_shape_of(config), weights)
        _refuse_if(weights.has_more(texts))
        return texts
    return None


def read_clip(
    config: Mapping[str, Any], files: Iterable[Path]
) -> tuple[ClipTexts, dict[str, Tensor]] | None:
    """Return the text side of a whole CLIP and all its weights by name; else as `read_tower`."""
    with _left_to_transformers(), _Weights(files) as weights:
        _refuse_if(config.get("model_type") != "clip")
        texts = _texts(_shape_of(config), weights)
        names = {name for name in weights.names if not name.endswith(".position_ids")}
        pictures = _picture_names(config, texts.text_model)
        whole = {"logit_scale", "visual_projection.weight", *texts.state_dict(), *pictures}
        _refuse_if(names != whole)
        return texts, {name: weights.tensor(name) for name in names}
    return None


def _texts(shape: SimpleNamespace, weights: _Weights) -> ClipTexts:
    tower = _tower(shape, weights)
    _refuse_if(shape.model_type != CLIP_TEXT)
    projection = _bare_linear(shape.hidden_size, shape.projection_dim)
    read = weights.below("", name="text_projection.weight")
    size = (shape.projection_dim, shape.hidden_size)
    projection.weight = nn.Parameter(read("text_projection.weight", *size))
    projection.register_parameter("bias", None)
    return ClipTexts(tower, projection).eval().requires_grad_(False)


def _picture_names(config: Mapping[str, Any], tower: Tower) -> set[str]:
    """Return the names of the image tower's weights; its layers are like the text tower's."""
    given = config.get("vision_config") or {}
    layers = given.get("num_hidden_layers", 12) if isinstance(given, Mapping) else 0
    _refuse_if(type(layers) is not int)
    inside = tower.encoder.layers[0].state_dict()
    tables = ("class_embedding", "patch_embedding.weight", "position_embedding.weight")
    names = [f"embeddings.{table}" for table in tables]
    names += [f"{norm}.{x}" for norm in ("pre_layrnorm", "post_layernorm") for x in _NORM]
    names += [f"encoder.layers.{layer}.{name}" for layer in range(layers) for name in inside]
    return {f"vision_model.{name}" for name in names}


_NORM = ("weight", "bias")


@contextmanager
def _left_to_transformers() -> Iterator[None]:
    """Leave the block where a tower is unusual or damaged."""
    from safetensors import SafetensorError

    with suppress(_UnusualError, SafetensorError, OSError):
        yield


def _shape_of(config: Mapping[str, Any]) -> SimpleNamespace:
    """Return the values of a configuration that decide a tower."""
    kind = config.get("model_type")
    values = config
    if kind == "clip":
        _refuse_if(any(map(config.get, _UNUSUAL)))
        width = {} if config.get("projection_dim") is None else {"projection_dim"}
        given = config.get("text_config") or {}
        _refuse_if(not isinstance(given, Mapping))
        values = dict(given) | {key: config[key] for key in width}
        kind = CLIP_TEXT
    known = _DEFAULTS.get(str(kind), _DEFAULTS["bert"])
    _refuse_if(kind not in (*BERT_SHAPED, CLIP_TEXT) or not isinstance(values, Mapping))
    _refuse_if(any(map(values.get, _UNUSUAL)))
    _refuse_if(values.get("position_embedding_type", "absolute") not in (None, "absolute"))
    # RoBERTa's kin has the same settings with other defaults, and always names them.
    _refuse_if(kind not in _DEFAULTS and not known.keys() <= values.keys())
    shape = {name: values.get(name, default) for name, default in known.items()}
    for name, value in shape.items():
        least = 0 if name.endswith("_id") else 1
        whole = type(value) is int and value >= least
        fits = {"hidden_act": value in [*_ACTIVATIONS], "layer_norm_eps": type(value) is float}
        _refuse_if(not fits.get(name, whole))
    _refuse_if(shape["hidden_size"] % shape["num_attention_heads"] != 0)
    return SimpleNamespace(model_type=kind, **shape)


def _refuse_if(unusual: bool) -> None:
    if unusual:
        raise _UnusualError


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
}


class _Weights(ExitStack):
    """The tensors of a folder's safetensors files, read one by one."""

    def __init__(self, files: Iterable[Path]) -> None:
        from safetensors import safe_open

        super().__init__()
        self._file_of = dict[str, Any]()
        self._read = set[str]()
        for path in files:
            file = self.enter_context(safe_open(path, "pt"))
            self._file_of |= dict.fromkeys(file.keys(), file)

    @property
    def names(self) -> Collection[str]:
        return self._file_of.keys()

    def has_more(self, network: nn.Module) -> bool:
        """Return whether there are weights for layers of a network that were not read."""
        return bool(unread_weights(self._file_of.keys() - self._read, network.state_dict()))

    def tensor(self, name: str) -> Tensor:
        """Return a tensor in float32."""
        _refuse_if(name not in self._file_of)
        self._read.add(name)
        tensor: Tensor = self._file_of[name].get_tensor(name)
        _refuse_if(tensor.dtype not in _TYPES)
        return tensor.float()

    def below(self, *prefixes: str, name: str) -> Callable[..., Tensor]:
        """Return how weights are read by their names after the prefix that leads to `name`."""
        found = [prefix for prefix in prefixes if prefix + name in self._file_of]
        _refuse_if(len(found) != 1)

        def read(name: str, *size: int) -> Tensor:
            tensor = self.tensor(found[0] + name)
            _refuse_if(tensor.shape != size)
            return tensor

        return read


def _tower(shape: SimpleNamespace, weights: _Weights) -> Tower:
    return _clip(shape, weights) if shape.model_type == CLIP_TEXT else _bert(shape, weights)


def _bert(shape: SimpleNamespace, weights: _Weights) -> Tower:
    width = shape.hidden_size
    inner = shape.intermediate_size
    prefixes = ("", "bert.", "roberta.")
    build = _Builder(weights.below(*prefixes, name="embeddings.word_embeddings.weight"), shape)

    def layer(at: str) -> nn.Module:
        own = f"{at}.attention.self"
        inside = _group(dense=build.linear(f"{at}.intermediate.dense", width, inner))
        # A function, where transformers has a module without weights.
        inside.intermediate_act_fn = _ACTIVATIONS[shape.hidden_act]  # type: ignore[assignment]
        parts = ("query", "key", "value")
        return _group(
            attention=_group(
                self=_group(
                    **{part: build.linear(f"{own}.{part}", width, width) for part in parts}
                ),
                output=build.residual(f"{at}.attention.output", width),
            ),
            intermediate=inside,
            output=build.residual(f"{at}.output", inner),
        )

    sizes = {
        "word": shape.vocab_size,
        "position": shape.max_position_embeddings,
        "token_type": shape.type_vocab_size,
    }
    names = {f"{name}_embeddings": size for name, size in sizes.items()}
    tables = {name: build.table(f"embeddings.{name}", size) for name, size in names.items()}
    layers = [layer(f"encoder.layer.{i}") for i in range(shape.num_hidden_layers)]
    norm = build.norm("embeddings.LayerNorm")
    parts = {
        "embeddings": _group(**tables, LayerNorm=norm),
        "encoder": _group(layer=nn.ModuleList(layers)),
    }
    return Tower(shape, parts).eval().requires_grad_(False)


def _clip(shape: SimpleNamespace, weights: _Weights) -> Tower:
    width = shape.hidden_size
    inner = shape.intermediate_size
    first = "embeddings.token_embedding.weight"
    build = _Builder(weights.below("", "text_model.", name=first), shape)

    def layer(at: str) -> nn.Module:
        own = f"{at}.self_attn"
        parts = ("k_proj", "v_proj", "q_proj", "out_proj")
        attention: Any = _group(**{x: build.linear(f"{own}.{x}", width, width) for x in parts})
        # `vgtools.models.clip` reads them, as transformers' layers have them.
        attention.num_heads = shape.num_attention_heads
        attention.head_dim = width // shape.num_attention_heads
        return _group(
            self_attn=attention,
            layer_norm1=build.norm(f"{at}.layer_norm1"),
            mlp=_ClipMlp(
                build.linear(f"{at}.mlp.fc1", width, inner),
                build.linear(f"{at}.mlp.fc2", inner, width),
                _ACTIVATIONS[shape.hidden_act],
            ),
            layer_norm2=build.norm(f"{at}.layer_norm2"),
        )

    layers = [layer(f"encoder.layers.{i}") for i in range(shape.num_hidden_layers)]
    tables = _group(
        token_embedding=build.table("embeddings.token_embedding", shape.vocab_size),
        position_embedding=build.table(
            "embeddings.position_embedding", shape.max_position_embeddings
        ),
    )
    parts = {
        "embeddings": tables,
        "encoder": _group(layers=nn.ModuleList(layers)),
        "final_layer_norm": build.norm("final_layer_norm"),
    }
    return ClipTower(shape, parts).eval().requires_grad_(False)


class _ClipMlp(nn.Module):
    def __init__(
        self, fc1: nn.Linear, fc2: nn.Linear, activation: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.fc1 = fc1
        self.fc2 = fc2
        self._activation = activation

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self.fc2(self._activation(self.fc1(rows)))
        return found


def _group(**parts: nn.Module) -> nn.Module:
    group = nn.Module()
    for name, part in parts.items():
        group.add_module(name, part)
    return group


def _bare_linear(inner: int, outer: int) -> nn.Linear:
    """Return a layer without weights: its own way to start would draw some."""
    layer = nn.Linear.__new__(nn.Linear)
    nn.Module.__init__(layer)
    layer.in_features = inner
    layer.out_features = outer
    return layer


class _Builder(NamedTuple):
    """Makes layers of weights that are read by name."""

    read: Callable[..., Tensor]
    shape: SimpleNamespace

    def linear(self, name: str, inner: int, outer: int) -> nn.Linear:
        layer = _bare_linear(inner, outer)
        layer.weight = nn.Parameter(self.read(f"{name}.weight", outer, inner))
        layer.bias = nn.Parameter(self.read(f"{name}.bias", outer))
        return layer

    def norm(self, name: str) -> nn.LayerNorm:
        layer = nn.LayerNorm(self.shape.hidden_size, eps=self.shape.layer_norm_eps)
        layer.weight = nn.Parameter(self.read(f"{name}.weight", self.shape.hidden_size))
        layer.bias = nn.Parameter(self.read(f"{name}.bias", self.shape.hidden_size))
        return layer

    def table(self, name: str, size: int) -> nn.Embedding:
        rows = self.read(f"{name}.weight", size, self.shape.hidden_size)
        return nn.Embedding(size, self.shape.hidden_size, _weight=rows)

    def residual(self, name: str, inner: int) -> nn.Module:
        dense = self.linear(f"{name}.dense", inner, self.shape.hidden_size)
        return _group(dense=dense, LayerNorm=self.norm(f"{name}.LayerNorm"))
