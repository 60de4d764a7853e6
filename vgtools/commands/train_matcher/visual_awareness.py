"""`vg train-matcher visual-awareness`: captions and images become a retriever."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vgtools.commands.options import (
    Argument,
    Captions,
    Flag,
    RunFolder,
    Runtime,
    Seed,
    Value,
    is_given,
    refuse_if,
    run_folder,
)
from vgtools.commands.signature import flags
from vgtools.commands.topics import Topic, page
from vgtools.commands.train_matcher.flags import (
    Presets,
    Validation,
    read_captions,
    refuse_processes,
)
from vgtools.io.settings import count, value
from vgtools.systems.visual_awareness import recipe

if TYPE_CHECKING:
    from vgtools.systems.visual_awareness.training import RetrieverPictures

_PAPER_FROM = 8  # epochs before the backbone learns; published code of Engilberge et al. 2018
_SECONDS = 60.0  # between checkpoints inside an epoch


RECIPE = Topic(
    "recipe",
    "The retriever and its training: by default the recipe that measured best.",
)
BACKBONE = Topic("backbone", page("train-matcher.backbone"))


@dataclass(frozen=True, kw_only=True)
class RetrieverRecipe(recipe.RetrieverTraining, Presets):
    """The form of a retriever and its training: by default the recipe that measured best."""


@dataclass(frozen=True, kw_only=True)
class BackboneFlags:
    """How the backbone learns with the retriever. Entries of `run.json` if it does.

    Attributes:
        backbone: Train this image network with the retriever, from pixels: timm name, directory as
            timm's save_for_hf writes it, or builtin:NAME. Its early stages (of a ResNet the stem,
            layer1 and layer2) stay as they are.
        backbone_from: With --backbone: it learns after N epochs only.
        crop: With --backbone: pixels per side of the random crop of a step.
        picture: With --backbone: pixels per side of the squashed picture in validation.
    """

    backbone: str | None = value(None, "--backbone", "-b", metavar="REF")
    backbone_from: int | None = count(
        None, least=0, show_default="half of them; 8 with --preset paper"
    )
    crop: int = count(256, least=32)
    picture: int = count(350, least=32)

    def first_epoch(self, context: typer.Context, preset: str, epochs: int) -> int:
        """Return the epoch from which the backbone learns; refuse flags without effect.

        Raises:
            typer.BadParameter: there are such.
        """
        for name in ("backbone_from", "crop", "picture"):
            odd = self.backbone is None and is_given(context, name)
            refuse_if(odd, f"--{name.replace('_', '-')}", "needs --backbone")
        first = self.backbone_from
        if first is None:
            first = _PAPER_FROM if preset == "paper" else epochs // 2
        late = self.backbone is not None and first >= epochs
        why = f"the backbone would never learn in {epochs} epochs; expected fewer than that"
        refuse_if(late, "--backbone-from", why)
        return first


@flags
def visual_awareness(
    context: typer.Context,
    captions: Captions,
    feats: Annotated[str, Argument("GRID")],
    *,
    target: RunFolder,
    words: Annotated[str, Value("REF", "--words", "-w")] = "builtin:minilm",
    preset: Annotated[Literal["default", "paper"], Flag()] = "default",
    validation: Validation,
    learning: Annotated[RetrieverRecipe, RECIPE],
    pixels: Annotated[BackboneFlags, BACKBONE],
    seed: Seed = 0,
    runtime: Runtime,
) -> None:
    """Train the retriever of sentences and images on captions and feature maps or photos.

    Text path: simple recurrent units over frozen word vectors, the last state. Image path: a 1x1
    convolution of the backbone's last feature map, Weldon pooling, a projection. Prints one record
    per epoch: the loss and, with --valid, --valid-split or --hold-out, R@1, 5, 10 in percent and
    the median rank among all validation images and captions, both ways. The epoch with the largest
    sum of the six recalls is kept; without validation it is the last.

    The run directory holds retriever.safetensors, the word vectors or the encoder, run.json and
    metrics.jsonl. vg build-index, vg retrieve and vg locate read it.

    With --backbone the image network also learns: see --help backbone.

    Examples:

        vg train-matcher visual-awareness captions.jsonl grid.npy --valid-split dev -o retriever

        vg train-matcher visual-awareness captions.jsonl grid.npy --preset paper -o retriever.paper

    Args:
        feats: X.npy of vg extract-image-feats --pooling none, with X.ids. With --backbone the
            images themselves: a directory, an image jsonl, or a list of paths.
        words: Word vectors: the folder of skip-thoughts (dictionary.txt, utable.npy), X.vec, X.txt,
            X.npy of vg prepare vectors, or an encoder, for its word pieces or states.
        preset: The recipe that measured best, or the paper's.
    """
    settings = learning.settings(context, preset)
    first = pixels.first_epoch(context, preset, settings["epochs"])
    piped = "-" in (feats, target.output) or validation.valid == "-" == captions
    refuse_if(piped, "-", "only CAPTIONS or --valid can come from a pipe")
    from vgtools.io.inputs import Inputs
    from vgtools.models.encoder import load_encoder
    from vgtools.systems.visual_awareness import training as system
    from vgtools.systems.visual_awareness.pixels import BACKBONE
    from vgtools.systems.visual_awareness.words import TABLE
    from vgtools.text.vector_files import vector_files
    from vgtools.training.session import Session, process_device

    refuse_processes()
    files = vector_files(words)
    unfit = files is not None and settings["text"] == "encoder"
    refuse_if(unfit, "--text", f"encoder reads the states of an encoder, --words {words} has none")
    folder = run_folder(target.output, target.restart, words, pixels.backbone)
    device = process_device(runtime.device)
    ids, pictures, seen = _open_pictures(feats, pixels, first, settings["regions"], str(device))
    named = (captions, validation.valid, feats, *(files or []))
    inputs = Inputs(name for name in named if name)
    splits = read_captions(captions, ids, validation)
    with Session(
        "train-matcher", folder, device, quiet=runtime.quiet, save_seconds=_SECONDS
    ) as session:
        encoder = None
        if files is None:
            encoder = load_encoder(words, device=str(device))
        config = {
            "preset": preset,
            **settings,
            "seed": seed,
            "hold_out": validation.hold_out,
            "captions": splits.digest(),
            **seen,
            "words": words if encoder is None else encoder.identity,
            "device": device.type,
        }
        parts = (TABLE.split("/")[0], BACKBONE)
        run = session.open("retriever", config, target.restart, parts=parts, inputs=inputs)
        if not run.complete:
            source = system.WordSource(encoder, words if encoder is None else None)
            system.fit(session, source, pictures, splits)
        session.print(*run.records)


def _open_pictures(
    path: str, pixels: BackboneFlags, first: int, regions: int, device: str
) -> tuple[list[str], RetrieverPictures, dict[str, Any]]:
    """Return the ids of the images, their pictures for the retriever, and both for `run.json`."""
    from vgtools.io.artifact import open_features
    from vgtools.systems.visual_awareness.training import FeatureMaps

    if pixels.backbone is None:
        bank = open_features(path, positions=regions)
        return bank.ids, FeatureMaps(bank), {"feats": bank.manifest["files"]}
    from vgtools.images.sources import open_source
    from vgtools.models.backbone import load_backbone
    from vgtools.systems.visual_awareness.pixels import BackboneSettings
    from vgtools.systems.visual_awareness.pixels import RetrieverPixels as Photographed

    source = open_source(path)
    tar = source.listing is None
    refuse_if(tar, "GRID", f"{path} is read only from its start to its end; unpack it")
    items = list(source.items)
    backbone = load_backbone(pixels.backbone, device=device)
    how = BackboneSettings(first, pixels.crop, pixels.picture)
    seen = {"images": source.listing, "backbone": backbone.fingerprint, **how._asdict()}
    pictures = Photographed(items, backbone, how, regions)
    return [item.id for item in items], pictures, seen
