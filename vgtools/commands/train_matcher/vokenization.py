"""`vg train-matcher vokenization`: captions and image features become a token-image matcher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from vgtools.commands.options import (
    Argument,
    Captions,
    Count,
    File,
    Flag,
    Language,
    RunFolder,
    Runtime,
    Seed,
    Value,
    refuse_if,
    run_folder,
)
from vgtools.commands.signature import flags
from vgtools.commands.topics import Topic
from vgtools.commands.train_matcher.flags import (
    Presets,
    Validation,
    read_captions,
    refuse_processes,
)
from vgtools.systems.vokenization import recipe

_SECONDS = 60.0  # between checkpoints inside an epoch


RECIPE = Topic(
    "recipe",
    "The matcher and its training: by default the recipe that measured best.",
)


@dataclass(frozen=True, kw_only=True)
class MatcherRecipe(recipe.MatcherTraining, Presets):
    """The form of a matcher and its training: by default the recipe that measured best."""


@flags
def vokenization(
    context: typer.Context,
    captions: Captions,
    feats: Annotated[str, Argument("FEATS")],
    *,
    target: RunFolder,
    encoder: Annotated[str, Value("NAME")] = "builtin:minilm",
    preset: Annotated[Literal["default", "text", "paper"], Flag()] = "default",
    level: Annotated[Literal["token", "sentence"], Flag()] = "token",
    validation: Validation,
    learning: Annotated[MatcherRecipe, RECIPE],
    layers: Annotated[int, Count()] = recipe.MatcherConfig.layers,
    stop_words: Annotated[str | None, File()] = None,
    language: Annotated[Language, RECIPE] = "en",
    cache_gb: Annotated[float, Value("GB", min=0)] = 4.0,
    cache: Annotated[str | None, Value("DIR"), RECIPE] = None,
    dtype: Annotated[Literal["float32", "bfloat16"], Flag(), RECIPE] = "float32",
    permute_images: Annotated[int | None, Count(least=0)] = None,
    seed: Seed = 0,
    runtime: Runtime,
) -> None:
    """Train the contextual token-image matching model on captions and image features.

    Text encoder and image backbone stay as they are; small networks project the hidden states of
    tokens and the features of images into one space. Prints one record per epoch: losses and, with
    --valid, --valid-split or --hold-out, the true recall over all validation images in percent
    (R@1, 5, 10 of words, content words and captions), chance next to it, and `concept`, how often a
    content word's best image has a caption with that word's stem. The best epoch is kept; without
    validation it is the last.

    With validation the run is also calibrated: the scores of its vokens are then probabilities that
    a caption of the photo holds the word, from relevance and from how many training captions do.

    With --permute-images the last epoch is kept, and each record also has `learned`: the recall of
    the pairs that it learns from, and how many photos the tokens of these captions use. A warning
    at the end names a matcher that has learned too little for a control.

    The run directory holds matcher.safetensors, the encoder, run.json and metrics.jsonl.

    Examples:

        vg train-matcher captions.jsonl feats.npy --hold-out 400 -o matcher

        vg train-matcher captions.jsonl feats.npy --preset text --hold-out 400 -o matcher.text

        vg train-matcher captions.jsonl feats.npy --preset paper --valid dev.jsonl -o matcher.paper

    Args:
        feats: X.npy of vg extract-image-feats, with X.ids and X.json.
        encoder: Hub name, directory or builtin:NAME. A CLIP or its kin gives its text side.
        preset: The recipe that measured best on captions; on running text, for a bank of the photos
            it learns from; or the paper's.
        level: sentence: [CLS] against the image (appendix A.4).
        layers: Last layers of the encoder, concatenated (paper: 4).
        stop_words: Words that are not content words, one per line; nltk: NLTK's list.
        cache_gb: Memory for hidden states: computed once if they fit, else in every epoch; affects
            rounding only.
        cache: Keep hidden states in DIR, for other matchers of this encoder and these captions.
        dtype: bfloat16: matrix products of the training only, weights stay float32.
        permute_images: A control: give every photo the captions of another, by this seed. Nothing
            of a photo is left in its vokens but that it is one of many.
    """
    settings = learning.settings(context, preset)
    valid = validation.valid
    piped = "-" in (feats, target.output) or valid == "-" == captions
    refuse_if(piped, "-", "only CAPTIONS or --valid can come from a pipe")
    from vgtools.io.artifact import open_features
    from vgtools.io.inputs import Inputs
    from vgtools.models.encoder import load_encoder, reads_before
    from vgtools.systems.vokenization import matcher_training as system
    from vgtools.text.tokens import NLTK, load_stop_words
    from vgtools.training.session import Session, process_device
    from vgtools.training.splits import digest

    refuse_processes()
    folder = run_folder(target.output, target.restart, encoder)
    bank = open_features(feats)
    inputs = Inputs(x for x in (captions, valid, feats, stop_words) if x not in (None, NLTK))
    splits = read_captions(captions, bank.ids, validation)
    device = process_device(runtime.device)
    with Session(
        "train-matcher", folder, device, quiet=runtime.quiet, save_seconds=_SECONDS
    ) as session:
        text = load_encoder(encoder, device=str(device))
        why = f"{encoder} has no token before a text that reads it, as [CLS] does"
        refuse_if(level == "sentence" and not reads_before(text), "--level", why)
        words = load_stop_words(stop_words, language)
        config = {
            "preset": preset,
            "level": level,
            "layers": layers,
            **settings,
            "seed": seed,
            "hold_out": validation.hold_out,
            **({} if dtype == "float32" else {"dtype": dtype}),
            **({} if language == "en" else {"language": language}),
            **({} if permute_images is None else {"permute_images": permute_images}),
            "captions": splits.digest(),
            "feats": bank.manifest["files"],
            "encoder": text.identity,
            "stop_words": digest(sorted(words)),
            "device": device.type,
        }
        run = session.open("matcher", config, target.restart, inputs=inputs)
        if not run.complete:
            system.fit(session, text, bank, splits, words, int(cache_gb * 2**30), cache)
        session.print(*run.records)
