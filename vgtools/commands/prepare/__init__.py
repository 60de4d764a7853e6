"""`vg prepare`: official data sets and texts → the toolkit's files."""

from __future__ import annotations

import typer

from vgtools.commands.prepare import (
    captions,
    clusters,
    pictures,
    published,
    tasks,
    text,
    translation,
    web,
    words,
)

_HELP = """Official data sets and texts → the toolkit's files.

Captions go to stdout or -o; --images-out is the image list for extract-image-feats. Counts go to
stderr."""
prepare = typer.Typer(help=_HELP, no_args_is_help=True, rich_markup_mode=None)

for _name, _command in {
    "flickr8k": captions.flickr8k,
    "flickr30k-entities": captions.flickr30k_entities,
    "coco": captions.coco,
    "karpathy": captions.karpathy,
    "vqa": captions.vqa,
    "vcr": pictures.vcr,
    "visual-genome": web.visual_genome,
    "visual-genome-boxes": web.visual_genome_boxes,
    "conceptual-captions": web.conceptual_captions,
    "sbu": web.sbu,
    "imagenet": words.imagenet,
    "openmoji": pictures.openmoji,
    "regions": pictures.regions,
    "wikitext": text.wikitext,
    "wikipedia": text.wikipedia,
    "squad": text.squad,
    "sentences": text.sentences,
    "pairs": translation.pairs,
    "tokenizer": translation.tokenizer,
    "pdtb": tasks.pdtb,
    "vua": tasks.vua,
    "task": tasks.task,
    "minimal-pairs": tasks.minimal_pairs,
    "prompts": tasks.prompts,
    "norms": words.norms,
    "wordnet": words.wordnet,
    "vectors": words.vectors,
    "clusters": clusters.clusters,
    "vokens": published.vokens,
    "keys": published.keys,
    "hdf5": published.hdf5,
}.items():
    prepare.command(_name)(_command)
