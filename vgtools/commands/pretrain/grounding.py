"""`vg pretrain grounding`: texts, captions and images become a grounded language model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vgtools.commands.options import (
    Checkpoints,
    Flag,
    Optimizer,
    RunFolder,
    Runtime,
    Seed,
    refuse_if,
)
from vgtools.commands.pretrain.flags import (
    TRAINING,
    GradientCheckpointing,
    MaskingFlags,
    PretrainFlags,
    Valid,
    parse_weights,
    settle,
)
from vgtools.commands.signature import flags
from vgtools.commands.topics import Topic
from vgtools.io.settings import count, file, value

if TYPE_CHECKING:
    from vgtools.systems.grounding.inputs import Sources

_TRANSFERRED = ("i2t", "t2i", "both")
_ASSOCIATIVE = ("scene", "object", "keyword")
_CLUSTERS = 8
_STRATEGIES = ("none", *_TRANSFERRED, *_ASSOCIATIVE)
IMAGES = Topic("images", "Regions of images, and how the words of a text find images.")


@dataclass(frozen=True, kw_only=True)
class ImageFlags:
    """The images that a text is shown with."""

    strategy: str = value(
        ...,
        "none; i2t, t2i, both (captions with their image); scene, object, keyword "
        "(images found by words).",
        metavar="NAME",
    )
    feats: str | None = value(
        None, "Features of images, of vg extract-image-feats.", metavar="X.npy"
    )
    regions: str | None = value(
        None, "Regions of images, instead of --feats (table 1).", metavar="X.npy", topic=IMAGES
    )
    boxes: int | None = count(
        None, "With --regions: the N most confident of each image.", show_default="36", topic=IMAGES
    )
    index: str | None = file(
        None,
        "Index by captions, nouns or keywords, of vg build-index, for scene, object or keyword.",
    )
    images: int | None = value(
        None,
        "Images per text, for scene, object and keyword.",
        "--images",
        "-k",
        metavar="N",
        min=1,
        show_default="16",
    )
    clusters: int | None = count(
        None, "Clusters of a text's nouns, for object.", show_default="8, at most -k", topic=IMAGES
    )
    query: Literal["masked", "whole"] = value(
        "masked",
        "Words that images are found by: those shown, or all (a control: images then "
        "give masked words away).",
        topic=IMAGES,
    )
    tagger: str | None = value(
        None,
        "Finds nouns, for object: builtin:spacy-sm or a package.",
        metavar="NAME",
        show_default="builtin:spacy-sm",
        topic=IMAGES,
    )

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
        found = strategy in _ASSOCIATIVE
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
        why = f"more clusters ({self.clusters}) than images per text ({self.count()})"
        refuse_if((self.clusters or 1) > self.count(), "--clusters", why)

    def count(self) -> int:
        """Return K, images per text."""
        return (self.images or 16) if self.strategy in _ASSOCIATIVE else 1

    def sources(self) -> Sources:
        """Return where the images come from."""
        from vgtools.systems.grounding.inputs import Sources

        return Sources(
            self.strategy,
            self.feats,
            self.regions,
            self.boxes or 36,
            self.index,
            self.count(),
            self.clusters or min(_CLUSTERS, self.count()),
            self.query == "whole",
            self.tagger or "builtin:spacy-sm",
        )


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
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT",
            help='Text, or rows {"text": …} and {"image": ID, "text": …}: .txt, .jsonl, .gz, .zst, '
            "-. A line or row is one example.",
        ),
    ],
    target: RunFolder,
    encoder: Annotated[
        str,
        Flag(
            "--encoder",
            "-e",
            metavar="NAME",
            help="Text encoder: hub name, directory, vg run, builtin:NAME; it stays as it is.",
        ),
    ],
    shown: ImageFlags,
    cross_layers: Annotated[
        int | None,
        Flag(
            metavar="N",
            min=1,
            show_default="all",
            help="The cross-modal encoder starts as the last N layers of the text encoder.",
        ),
    ] = None,
    drop_images: Annotated[
        float,
        Flag(
            metavar="P",
            min=0,
            max=1,
            help="Show a text with the placeholder instead of its images, with probability P.",
        ),
    ] = 0.0,
    dropout: Annotated[
        float | None,
        Flag(
            metavar="P",
            min=0,
            max=0.9,
            show_default="the text encoder's",
            help="Dropout of the cross-modal encoder; 0 suits a few hundred steps.",
        ),
    ] = None,
    weight: Annotated[
        list[str] | None,
        Flag(
            "--weight",
            metavar="NAME=N",
            show_default="jmlm=1, with t2i and both jmrm=1",
            help="Weight of a loss: jmlm, jmrm; repeatable.",
        ),
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
    """
    shown.check()
    no_image = drop_images > 0 and shown.strategy == "none"
    refuse_if(no_image, "--drop-images", "none shows no image; leave it out")
    optimizer = settle(context, None, optimizer, [*inputs, *(valid or ())], target.output)
    names = ("jmlm", "jmrm") if shown.strategy in ("t2i", "both") else ("jmlm",)
    weights = parse_weights(weight, names) or dict.fromkeys(names, 1.0)
    why = f"{shown.strategy} learns {' and '.join(names)}; none of the weights can be 0"
    refuse_if(len(weights) < len(names), "--weight", why)
    from vgtools.models.encoder import load_masked_lm
    from vgtools.systems.grounding.pretraining import GroundedPretraining

    run = PretrainFlags(target, masking, optimizer, checkpoints, seed, runtime)
    run.train(
        partial(load_masked_lm, encoder, offline=runtime.offline),
        lambda text, session, folder: GroundedPretraining(
            text,
            inputs,
            valid or [],
            shown.sources(),
            weights=weights,
            cross_layers=cross_layers,
            drop_images=drop_images,
            dropout=dropout,
            block=masking.block,
            dtype=optimizer.dtype,
            gradient_checkpointing=gradient_checkpointing,
            folder=folder.parent,
            quiet=session.quiet,
            say=session.note,
        ),
        encoder,
    )
