"""`vg pretrain grounding`: texts, captions and images become a grounded language model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from vgtools.commands.options import (
    Argument,
    Checkpoints,
    Optimizer,
    RunFolder,
    Runtime,
    Seed,
    Value,
    refuse_if,
)
from vgtools.commands.pretrain.flags import (
    TRAINING,
    GradientCheckpointing,
    MaskingFlags,
    PretrainFlags,
    Valid,
    Weight,
    parse_weights,
    settle,
)
from vgtools.commands.signature import flags
from vgtools.commands.topics import Topic
from vgtools.systems.grounding.recipe import (
    ASSOCIATIVE,
    TRANSFERRED,
    CrossModalSettings,
    Sources,
)

_STRATEGIES = ("none", *TRANSFERRED, *ASSOCIATIVE)
IMAGES = Topic("images", "Regions of images, and how the words of a text find images.")


@dataclass(frozen=True)
class ImageFlags(Sources):
    """The images that a text is shown with."""

    def check(self) -> None:
        """Refuse flags that do not go together."""
        strategy = self.strategy
        refuse_if(
            strategy == "synthesis",
            "--strategy",
            "the paper tried images drawn by a network and dropped them (section 2.4.3); "
            f"choose one of {', '.join(_STRATEGIES)}",
        )
        known = strategy in _STRATEGIES
        refuse_if(
            not known,
            "--strategy",
            f"{strategy!r} is not one of {', '.join(_STRATEGIES)}",
        )
        sources = [self.feats, self.regions]
        refuse_if(
            strategy == "none" and any(sources),
            "--feats/--regions",
            "none shows no image; leave it out, or choose another --strategy",
        )
        refuse_if(
            strategy != "none" and sources.count(None) != 1,
            "--feats/--regions",
            f"{strategy} needs exactly one of them",
        )
        found = strategy in ASSOCIATIVE
        refuse_if(found and self.index is None, "--index", f"{strategy} finds images in an index")
        why = f"{strategy} finds no image; leave it out, or choose scene, object or keyword"
        refuse_if(not found and self.index is not None, "--index", why)
        refuse_if(not found and self.images is not None, "--images", why)
        refuse_if(not found and self.query == "whole", "--query", why)
        no_regions = self.regions is None and self.boxes is not None
        refuse_if(no_regions, "--boxes", "belongs to --regions")
        for flag in ("clusters", "tagger"):
            given = getattr(self, flag) is not None
            why = f"{strategy} clusters no nouns; leave it out, or choose object"
            refuse_if(given and strategy != "object", f"--{flag}", why)
        why = f"more clusters ({self.clusters}) than images per text ({self.per_text})"
        refuse_if((self.clusters or 1) > self.per_text, "--clusters", why)


@dataclass(frozen=True, kw_only=True)
class TextMasking(MaskingFlags):
    """The part of a text that is masked.

    Source: Sileo 2021, section 3.3: clipped to 64 tokens.
    """

    block: int = 64


@dataclass(frozen=True, kw_only=True)
class GroundingOptimizer(Optimizer):
    """How the model learns.

    Source: Sileo 2021, section 3.3, "rely on its hyperparameters values": taken from LXMERT's
        published pretraining (batches of 256, 1e-4, a warm-up of 5 %).
    """

    epochs: int | None = 10
    batch_size: int = 256
    lr: float = 1e-4
    warmup: float = 0.05


@flags
def grounding(
    context: typer.Context,
    *,
    inputs: Annotated[list[str], Argument("INPUT")],
    target: RunFolder,
    encoder: Annotated[str, Value("NAME")],
    shown: Annotated[ImageFlags, IMAGES],
    cross: CrossModalSettings,
    weight: Annotated[
        list[str] | None,
        Weight("jmlm, jmrm; repeatable", "jmlm=1, with t2i and both jmrm=1"),
    ] = None,
    valid: Valid = None,
    masking: TextMasking,
    optimizer: Annotated[GroundingOptimizer, TRAINING],
    gradient_checkpointing: GradientCheckpointing = False,
    checkpoints: Annotated[Checkpoints, TRAINING],
    seed: Seed = 0,
    runtime: Runtime,
) -> None:
    """Pretrain a masked language model that sees images next to the text.

    A cross-modal encoder, a copy of the text encoder's layers, reads the states of the frozen text
    encoder and the images of a text: its own (i2t), or those found for the words that are shown
    (scene, object, keyword). A text without images has a trained placeholder. It learns masked
    words (jmlm), with t2i and both also masked images of captions (jmrm). Prints one record per
    --log-every steps: losses, and with --valid those on it and the perplexity.

    The run directory holds encoder/ (the text encoder, unchanged), grounding.safetensors, run.json
    and metrics.jsonl. vg perplexity and vg finetune take it.

    Examples:

        vg pretrain grounding wiki.txt --strategy none -e albert/albert-base-v2 -o run.none

        vg pretrain grounding wiki.txt cc.jsonl --strategy both --feats cc.npy -e builtin:minilm \\
          -o run.both

        vg pretrain grounding wiki.txt --strategy scene --index scene.faiss --feats cc.npy -k 16 \\
          -e builtin:minilm -o run.scene

    Args:
        inputs: Text, or rows {"text": …} and {"image": ID, "text": …}: .txt, .jsonl, .gz, .zst, -.
            A line or row is one example.
        encoder: Text encoder: hub name, directory, vg run, builtin:NAME; it stays as it is.
    """
    shown.check()
    no_image = cross.drop_images > 0 and shown.strategy == "none"
    refuse_if(no_image, "--drop-images", "none shows no image; leave it out")
    optimizer = settle(context, None, optimizer, [*inputs, *(valid or ())], target.output)
    names = ("jmlm", "jmrm") if shown.strategy in ("t2i", "both") else ("jmlm",)
    weights = parse_weights(weight, names) or dict.fromkeys(names, 1.0)
    why = f"{shown.strategy} learns {' and '.join(names)}; none of the weights can be 0"
    refuse_if(len(weights) < len(names), "--weight", why)
    from vgtools.models.encoder import load_masked_lm
    from vgtools.systems.grounding.pretraining import GroundedPretraining

    run = PretrainFlags(target, inputs, valid, masking, optimizer, checkpoints, seed, runtime)
    run.train(
        partial(load_masked_lm, encoder),
        lambda text, **common: GroundedPretraining(text, shown, cross, masking.block, **common),
        weights,
        encoder,
        gradient_checkpointing=gradient_checkpointing,
    )
