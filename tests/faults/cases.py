"""Every writing command, one row each: how it is called and what it reads.

A row is enough for a command to be killed, stopped, starved of disk space, raced, and fed bad
inputs. Words of `argv` are separated by blanks; artefacts are `in/NAME`; outputs go into the
working directory. `reads` lists `NAME FORMAT` for each file that is worth damaging; FORMAT is a
key of `mutations.FORMATS`, and a `!` after it means that a hash protects the file: a result
with exit 0 must then be the undamaged one. The rows of `vg prepare` are in `prepared.py`.
"""

from __future__ import annotations

from tests.faults.case import Case
from tests.faults.prepared import PREPARED

_ENCODER = (
    "encoder/config.json json",
    "encoder/tokenizer.json json",
    "encoder/model.safetensors weights",
)
_DUAL = (
    "dual/config.json json",
    "dual/tokenizer.json json",
    "dual/tokenizer_config.json json",
    "dual/model.safetensors weights",
)
_MATCHER = (
    "matcher/run.json run!",
    "matcher/matcher.safetensors weights!",
    "matcher/encoder/config.json json!",
    "matcher/encoder/tokenizer.json json!",
    "matcher/encoder/model.safetensors weights!",
)
_INDEX = ("vg.faiss faiss!", "vg.ids ids!", "vg.json manifest", *_MATCHER)
_GRID = ("grid.npy npy!", "grid.ids ids!", "grid.json manifest")
_RETRIEVER = (
    "retriever/run.json run!",
    "retriever/retriever.safetensors weights!",
    "retriever/encoder/tokenizer.json json!",
    "retriever/encoder/model.safetensors weights!",
)
_FEATS = ("feats.npy npy!", "feats.ids ids!", "feats.json manifest")
_PHOTOS = ("photos.npy npy!", "photos.ids ids!", "photos.json manifest")
_JOINT = (
    "joint/config.json json",
    "joint/tokenizer.json json",
    "joint/model.safetensors weights",
)
_TOWER = (
    "clip/tower/config.json json",
    "clip/tower/tokenizer.json json",
    "clip/tower/model.safetensors weights",
)
_XDBERT = (
    "xdbert/run.json run!",
    "xdbert/xdbert.safetensors weights!",
    "xdbert/encoder/model.safetensors weights!",
    "xdbert/encoder/tokenizer.json json!",
    "xdbert/teacher/config.json json!",
    "xdbert/teacher/model.safetensors weights!",
)
_WORDS = ("words.npy npy!", "words.ids ids!", "words.json manifest")
_LM = (
    "lm/run.json run!",
    "lm/encoder/config.json json!",
    "lm/encoder/tokenizer.json json!",
    "lm/encoder/model.safetensors weights!",
)


def _regions(name: str) -> tuple[str, ...]:
    return f"{name}.npy npy!", f"{name}.regions.jsonl jsonl!", f"{name}.json manifest"


CASES = (
    *PREPARED,
    # ----------------------------------------------------------------------------------- settings
    Case("config", "vokenize --config in/vokenize.toml -o v.jsonl", ("vokenize.toml beside",)),
    Case(
        "config-record",
        "retrieve --config in/found.json -o found.jsonl",
        ("found.json json",),
    ),
    # ------------------------------------------------------------------------------------- images
    Case(
        "extract",
        "extract-image-feats in/photos -b in/net --device cpu --batch-size 2 --workers 1"
        " --captions c.jsonl -o f.npy",
        (
            "photos/p3.png image",
            "photos/p7.jpg image",
            "photos/p8.gif image",
            "photos/p2.txt beside",
            "net/config.json json",
            "net/model.safetensors weights",
        ),
    ),
    Case(
        "extract-own",
        "extract-image-feats in/images.jsonl -b in/dual --device cpu --batch-size 2 --workers 1"
        " --on-error skip -o f.npy",
        (
            "dual/config.json json",
            "dual/preprocessor_config.json json",
            "dual/model.safetensors weights",
        ),
    ),
    Case(
        "extract-skip",
        "extract-image-feats in/images.jsonl -b in/net --device cpu --batch-size 2 --workers 1"
        " --on-error skip --dtype float16 -o f.npy",
        ("images.jsonl jsonl", "photos/p3.png image", "photos/p7.jpg image"),
    ),
    Case(
        "extract-list",
        "extract-image-feats in/list.txt -b in/net --device cpu --workers 1 -o f.npy",
        ("list.txt text",),
    ),
    Case(
        "extract-tar",
        "extract-image-feats in/photos.tar -b in/net --device cpu --batch-size 4 --workers 1"
        " -o f.npy",
        ("photos.tar tar",),
    ),
    Case(
        "extract-captions",
        "extract-image-feats in/samples.tar -b in/net --device cpu --workers 1 --on-error skip"
        " --captions c.jsonl -o f.npy",
        ("samples.tar tar",),
    ),
    Case(
        "extract-table",
        "extract-image-feats in/photos.parquet -b in/net --device cpu --batch-size 4 --workers 1"
        " --on-error skip -o f.npy",
        ("photos.parquet bytes",),
    ),
    Case(
        "extract-shards",
        "extract-image-feats in/images.jsonl -b in/net --device cpu --batch-size 2"
        " --workers 1 --on-error skip --shard-size 4000 -o f.npy/",
        ("images.jsonl jsonl", "photos/p3.png image"),
        reader="prepare hdf5 f.npy -q -o g.hdf5",
    ),
    Case(
        "extract-regions",
        "extract-image-feats in/photos -b in/net --device cpu --batch-size 2 --workers 1"
        " --regions in/boxes.jsonl --regions grid --grid-scales 1 --on-error skip --picture"
        " 64 -o r.npy",
        ("boxes.jsonl jsonl", "photos/p3.png image", "photos/p7.jpg image", "net/config.json json"),
        quick=True,
    ),
    # --------------------------------------------------------------------- matcher, bank, vokens
    Case(
        "train-matcher",
        "train-matcher in/captions.jsonl in/feats.npy -e in/encoder --epochs 2 --batch-size 8"
        " --hidden 8 --dim 4 --layers 2 --hold-out 3 --device cpu -q -o run",
        ("captions.jsonl jsonl", *_FEATS, *_ENCODER),
        folder="run",
        quick=True,
    ),
    Case(
        "train-matcher-dual",
        "train-matcher in/asked.jsonl in/own.npy -e in/dual --epochs 2 --batch-size 8"
        " --hidden 8 --dim 4 --layers 1 --hold-out 3 --device cpu -q -o run",
        ("asked.jsonl jsonl", "own.npy npy!", "own.ids ids!", "own.json manifest", *_DUAL),
        folder="run",
    ),
    Case(
        "train-matcher-cache",
        "train-matcher in/captions.jsonl in/feats.npy -e in/encoder --epochs 2 --batch-size 8"
        " --hidden 8 --dim 4 --layers 2 --permute-images 1 --cache cache --device cpu -q -o run",
        ("captions.jsonl jsonl",),
        folder="run",
        reader="train-matcher in/captions.jsonl in/feats.npy -e in/encoder --epochs 2 --layers 2"
        " --batch-size 8 --hidden 8 --dim 4 --seed 1 --cache cache --device cpu -q -o other",
    ),
    Case(
        "train-retriever",
        "train-matcher visual-awareness in/shown.jsonl in/grid.npy --words in/skip --epochs 2"
        " --batch-size 6 --dim 6 --layers 1 --regions 3 --valid-split dev --device cpu -q -o run",
        ("shown.jsonl jsonl", *_GRID, "skip/dictionary.txt text", "skip/utable.npy npy"),
        folder="run",
    ),
    Case(
        "train-retriever-pixels",
        "train-matcher visual-awareness in/photographed.jsonl in/photos -b in/net --words in/skip"
        " --epochs 2 --backbone-from 1 --batch-size 4 --dim 6 --layers 1 --regions 2 --crop 64"
        " --picture 64 --device cpu -q -o run",
        ("photographed.jsonl jsonl", "photos/p3.png image", "net/config.json json"),
        folder="run",
    ),
    Case(
        "build-index-retriever",
        "build-index in/grid.npy -m in/retriever --device cpu --emb e.npy -o b.faiss",
        (*_GRID, *_RETRIEVER),
    ),
    Case(
        "build-index",
        "build-index in/feats.npy -m in/matcher --device cpu -o b.faiss",
        (*_FEATS, *_MATCHER),
        quick=True,
    ),
    Case(
        "build-index-dual",
        "build-index in/own.npy -m in/dual --device cpu -o b.faiss",
        ("own.npy npy!", "own.ids ids!", "own.json manifest", *_DUAL),
    ),
    Case(
        "build-index-foreign",
        "build-index --emb in/clip.npy --ids in/clip.txt -m in/dual --device cpu -o b.faiss",
        ("clip.npy npy", "clip.txt ids"),
    ),
    Case(
        "build-index-folder",
        "build-index --emb in/embedded -m in/dual --device cpu -o b.faiss",
        ("embedded/img_emb_1.npy npy", "embedded/metadata_1.parquet bytes"),
    ),
    Case(
        "build-index-faiss",
        "build-index --emb in/lists.index --ids in/clip.txt -m in/dual --device cpu -o b.faiss",
        ("lists.index faiss",),
    ),
    Case(
        "vokenize-dual",
        "vokenize in/text.txt --index in/own.vg.faiss --device cpu --window 8 -o v.jsonl",
        _DUAL,
    ),
    Case(
        "build-index-lists",
        "build-index in/feats.npy -m in/matcher --factory IVF4,SQ8 --device cpu -o b.faiss",
    ),
    Case(
        "build-index-chosen",
        "build-index in/feats.npy -m in/matcher --factory auto --memory 1kB --drop-duplicates 0.9"
        " --images in/rights.jsonl --device cpu -o b.faiss",
        ("rights.jsonl jsonl",),
    ),
    Case(
        "build-index-hnsw",
        "build-index in/feats.npy -m in/matcher --factory HNSW8 --limit 40 --device cpu -o b.faiss",
    ),
    Case(
        "build-index-scene",
        "build-index in/scenes.jsonl --vectors in/words.npy -o s.faiss",
        ("scenes.jsonl jsonl", *_WORDS),
        quick=True,
    ),
    Case(
        "build-index-nouns",
        "build-index in/nouns.jsonl --vectors in/words.npy -o o.faiss",
        ("nouns.jsonl jsonl",),
    ),
    Case(
        "build-index-keywords",
        "build-index in/scenes.jsonl --keywords 2 -o k.jsonl",
        ("scenes.jsonl jsonl",),
        quick=True,
    ),
    Case(
        "vokenize",
        "vokenize in/text.txt --index in/vg.faiss --device cpu --window 8 -o v.jsonl",
        ("text.txt text", *_INDEX),
        quick=True,
    ),
    Case(
        "vokenize-jsonl",
        "vokenize in/text.jsonl --index in/vg.faiss --device cpu --window 8 -k 2 -o v.jsonl.gz",
        ("text.jsonl jsonl",),
    ),
    Case(
        "vokenize-parquet",
        "vokenize in/text.parquet#say --index in/vg.faiss --device cpu --window 8 -o v.jsonl",
        ("text.parquet bytes!",),
    ),
    Case(
        "vokenize-to-parquet",
        "vokenize in/text.jsonl --index in/vg.faiss --device cpu --window 8 -o v.parquet",
    ),
    Case(
        "retrieve-to-parquet-shards",
        "retrieve in/text.txt --index in/vg.faiss --device cpu --shard-size 900 -o r.parquet/",
        reader="stats r.parquet",
    ),
    Case(
        "vokenize-arrow",
        "vokenize in/text.arrow#say --index in/vg.faiss --device cpu --window 8 -o v.jsonl",
        ("text.arrow bytes",),
    ),
    Case(
        "vokenize-csv",
        "vokenize in/text.csv#say --index in/vg.faiss --device cpu --window 8 -o v.jsonl",
        ("text.csv beside",),
    ),
    Case(
        "vokenize-npy",
        "vokenize in/text.txt.gz --index in/vg.faiss --device cpu --window 8 -o v.npy",
        ("text.txt.gz gz!",),
    ),
    Case(
        "vokenize-shards",
        "vokenize in/text.txt in/text.jsonl --index in/vg.faiss --device cpu --window 8"
        " --shard-size 900 -o v.jsonl/",
        ("text.txt text", "text.jsonl jsonl", *_INDEX),
        reader="stats v.jsonl",
        quick=True,
    ),
    Case(
        "prepare-clusters",
        "prepare clusters in/text.txt -e in/encoder -k 5 --layers 1 --device cpu -o c.faiss",
        ("text.txt text", *_ENCODER),
    ),
    Case(
        "vokenize-clusters",
        "vokenize in/text.txt --index in/clusters.faiss --device cpu --window 8 -o v.jsonl",
        (
            "clusters.faiss faiss!",
            "clusters.ids ids!",
            "clusters.states.npy npy!",
            "clusters.json manifest",
        ),
    ),
    Case(
        "vokenize-control",
        "vokenize in/text.txt --index in/vg.faiss --device cpu --control term-frequency"
        " --captions in/captions.jsonl -o v.jsonl",
        ("text.txt text", "captions.jsonl jsonl"),
    ),
    Case(
        "vokenize-centroid",
        "vokenize in/text.txt --index in/vg.faiss --device cpu --control centroid"
        " --captions in/captions.jsonl --feats in/feats.npy --permute-images 1 -o v.npy",
        ("captions.jsonl jsonl", *_FEATS),
    ),
    Case(
        "revokenize",
        "revokenize in/rows.jsonl -t in/encoder -o r.jsonl",
        ("rows.jsonl jsonl", "encoder/tokenizer.json json"),
    ),
    Case(
        "revokenize-npy",
        "revokenize in/v.jsonl -t in/tokenizer -o r.npy",
        ("v.jsonl jsonl!", "v.json manifest"),
        quick=True,
    ),
    Case(
        "revokenize-shards",
        "revokenize in/v.jsonl -t in/tokenizer --shard-size 9000 -o r.npy/",
        ("v.jsonl jsonl", "v.json manifest"),
        reader="stats --vokens r.npy",
    ),
    Case(
        "retrieve-shards",
        "retrieve in/text.txt --index in/vg.faiss -k 4 --device cpu --shard-size 900"
        " -o f.jsonl.zst/",
        ("text.txt text", *_INDEX),
        reader="stats f.jsonl.zst",
    ),
    Case(
        "retrieve",
        "retrieve in/text.txt --index in/vg.faiss --device cpu -k 3 -o r.jsonl",
        ("text.txt text", *_INDEX),
        quick=True,
    ),
    Case(
        "retrieve-jsonl",
        "retrieve in/captions.jsonl --index in/vg.faiss --device cpu -k 2 --not-own -o r.jsonl.gz",
        ("captions.jsonl jsonl",),
    ),
    Case(
        "retrieve-retriever",
        "retrieve in/text.txt --index in/maps.faiss --device cpu -k 3 --emb e.npy -o r.jsonl",
        ("text.txt text", "maps.faiss faiss!", "maps.ids ids!", "maps.json manifest", *_RETRIEVER),
    ),
    Case(
        "retrieve-score",
        "retrieve in/captions.jsonl --index in/vg.faiss --device cpu --score -o s.jsonl",
        ("captions.jsonl jsonl", "vg.ids ids!"),
    ),
    Case(
        "locate",
        "locate in/queries.jsonl --matcher in/retriever --feats in/cells.npy --device cpu"
        " -o h.jsonl",
        (
            "queries.jsonl jsonl",
            "cells.npy npy!",
            "cells.ids ids!",
            "cells.json manifest",
            "retriever/run.json run!",
            "retriever/retriever.safetensors weights!",
        ),
        quick=True,
    ),
    Case(
        "locate-dual",
        "locate in/asked.jsonl --matcher in/dual --feats in/patches.npy --device cpu -o h.jsonl",
        ("asked.jsonl jsonl", "patches.npy npy!", "patches.ids ids!", "patches.json manifest"),
    ),
    Case(
        "locate-classes",
        "locate in/instances.json --matcher in/matcher --feats in/cells.npy --device cpu"
        " -o h.jsonl.gz",
        ("instances.json json",),
    ),
    Case(
        "locate-score",
        "locate in/queries.jsonl --matcher in/retriever --feats in/cells.npy --device cpu --score"
        " -o s.jsonl",
        ("queries.jsonl jsonl", "cells.ids ids!"),
    ),
    # ------------------------------------------------------------------------------------ training
    Case(
        "pretrain",
        "pretrain in/rows.jsonl --valid in/valid.jsonl --shape in/shape.json -t in/tokenizer"
        " --block 16"
        " --batch-size 8 --steps 5 --checkpoint-steps 2 --log-every 2 --device cpu -q -o run",
        (
            "rows.jsonl jsonl",
            "valid.jsonl jsonl",
            "shape.json json",
            "tokenizer/tokenizer.json json",
        ),
        folder="run",
        quick=True,
    ),
    Case(
        "pretrain-further",
        "pretrain in/packed.npy --encoder in/lm --cache cache --block 16 --batch-size 8"
        " --steps 3 --keep-every 2 --device cpu -q -o run",
        ("packed.npy npy!", "packed.rows.npy npy!", "packed.json manifest", *_LM),
        folder="run",
    ),
    Case(
        "pretrain-also",
        "pretrain in/rows.jsonl --also in/packed.npy --shape in/shape.json -t in/tokenizer"
        " --block 16 --batch-size 8 --steps 3 --device cpu -q -o run",
        ("packed.npy npy!", "packed.rows.npy npy!", "packed.json manifest"),
        folder="run",
    ),
    Case(
        "pretrain-visualbert",
        "pretrain visualbert in/pairs.jsonl --regions in/regions.npy --encoder in/joint"
        " --batch-size 8 --block 24 --steps 4 --checkpoint-steps 2 --device cpu -q -o run",
        (
            "pairs.jsonl jsonl",
            *_regions("regions"),
            "joint/config.json json",
            "joint/tokenizer.json json",
            "joint/model.safetensors weights",
        ),
        folder="run",
    ),
    Case(
        "pretrain-grounding",
        "pretrain grounding in/mixed.jsonl --strategy both --feats in/photos.npy -e in/joint"
        " --batch-size 8 --block 24 --steps 4 --checkpoint-steps 2 --device cpu -q -o run",
        ("mixed.jsonl jsonl", *_PHOTOS, *_JOINT),
        folder="run",
        quick=True,
    ),
    Case(
        "pretrain-grounding-scene",
        "pretrain grounding in/mixed.jsonl --strategy scene --feats in/photos.npy -k 3"
        " --index in/places.faiss -e in/joint"
        " --batch-size 8 --block 24 --steps 4 --checkpoint-steps 2 --device cpu -q -o run",
        (
            "mixed.jsonl jsonl",
            "places.faiss faiss!",
            "places.ids ids!",
            "places.json manifest",
            *_PHOTOS,
        ),
        folder="run",
    ),
    Case(
        "pretrain-clip",
        "pretrain clip in/clip/train.jsonl --feats in/clip/feats.npy --valid in/clip/dev.jsonl"
        " --shape in/clip/shape.json -t in/clip/tower --batch-size 8 --steps 4"
        " --checkpoint-steps 2 --device cpu -q -o run",
        (
            "clip/train.jsonl jsonl",
            "clip/dev.jsonl jsonl",
            "clip/shape.json json",
            "clip/tower/tokenizer.json json",
            "clip/feats.npy npy!",
            "clip/feats.ids ids!",
            "clip/feats.json manifest",
        ),
        folder="run",
        quick=True,
    ),
    Case(
        "pretrain-xdbert",
        "pretrain xdbert in/plain.txt -e in/joint --teacher in/clip/tower --batch-size 4 --block 16"
        " --steps 4 --checkpoint-steps 2 --device cpu -q -o run",
        ("plain.txt text", *_JOINT, *_TOWER),
        folder="run",
        quick=True,
    ),
    Case(
        "perplexity",
        "perplexity in/mixed.jsonl -e in/grounded -e in/joint --feats in/photos.npy"
        " --pictures own --pictures other --samples 20 --block 24 --device cpu -q -o nll.jsonl",
        (
            "mixed.jsonl jsonl",
            "grounded/run.json run!",
            "grounded/grounding.safetensors weights!",
            "grounded/encoder/model.safetensors weights!",
            *_PHOTOS,
        ),
        restart=False,
    ),
    Case(
        "measure",
        "measure in/pieces.npy in/lm --on in/judged.pieces.tsv --on in/pieces.norms.jsonl"
        " --contexts in/plain.txt --masked in/plain.txt --thirds in/pieces.norms.jsonl"
        " --samples 100 --device cpu -q -o items.jsonl",
        (
            "judged.pieces.tsv table",
            "pieces.norms.jsonl jsonl",
            "plain.txt text",
            "pieces.npy npy!",
            "pieces.ids ids!",
            "pieces.json manifest",
            *_LM,
        ),
        restart=False,
        reader="measure items.jsonl --samples 100",
    ),
    Case(
        "finetune",
        "finetune sst-2 in/sst-2 -e in/lm --epochs 2 --seeds 2 --batch-size 8 --max-length 40"
        " --device cpu -q -o run",
        ("sst-2/train.tsv table", "sst-2/dev.tsv table", "sst-2/test.tsv table", *_LM),
        folder="run",
        quick=True,
    ),
    Case(
        "finetune-squad",
        "finetune squad-2.0 in/squad-2.0 -e in/encoder --epochs 1 --batch-size 8 --max-length 40"
        " --stride 8 --device cpu -q -o run",
        ("squad-2.0/train-v2.0.json json", "squad-2.0/dev-v2.0.json json", *_ENCODER),
        folder="run",
    ),
    Case(
        "finetune-codah",
        "finetune codah in/codah -e in/encoder --epochs 1 --batch-size 8 --max-length 40"
        " --keep best --device cpu -q -o run",
        ("codah/train.tsv table",),
        folder="run",
    ),
    Case(
        "finetune-read",
        "finetune commonlit in/read --hold-out 0.3 -e in/encoder --epochs 1 --batch-size 8"
        " --max-length 40 --keep best --device cpu -q -o run",
        ("read/train.csv table",),
        folder="run",
    ),
    Case(
        "finetune-tag",
        "finetune vuan in/vuan -e in/encoder --epochs 1 --batch-size 8 --max-length 40"
        " --device cpu -q -o run",
        ("vuan/train.jsonl jsonl", "vuan/dev.jsonl jsonl"),
        folder="run",
    ),
    Case(
        "finetune-grounded",
        "finetune sst-2 in/sst-2 -e in/associated/run --index in/associated/scene.faiss"
        " --feats in/associated/feats.npy --epochs 2 --batch-size 8 --max-length 40"
        " --device cpu -q -o run",
        (
            "associated/run/run.json run!",
            "associated/run/grounding.safetensors weights!",
            "associated/run/encoder/model.safetensors weights!",
            "associated/feats.npy npy!",
            "associated/feats.ids ids!",
            "associated/feats.json manifest",
            "associated/scene.faiss faiss!",
            "associated/scene.ids ids!",
            "associated/scene.json manifest",
            "associated/words.npy npy!",
        ),
        folder="run",
    ),
    Case(
        "finetune-translation",
        "finetune translation in/pairs --shape transformer-small -t in/bpe --epochs 1 --lr 3e-3"
        " --warmup 2 --batch-size 60 --max-length 40 --device cpu -q -o run",
        ("pairs/train.jsonl jsonl", "pairs/dev.jsonl jsonl", "bpe/tokenizer.json json"),
        folder="run",
    ),
    Case(
        "translate",
        "translate in/translator in/pairs/dev.jsonl --longer 2 --beams 2 --device cpu -q -o t.txt",
        (
            "pairs/dev.jsonl jsonl",
            "translator/config.json json",
            "translator/tokenizer.json json",
            "translator/model.safetensors weights",
        ),
        quick=True,
    ),
    Case(
        "finetune-fused",
        "finetune sst-2 in/sst-2 -e in/encoder --retrieved in/sst-2.images.jsonl"
        " --feats in/feats.npy --index in/feats.npy --image-dropout 0.5 --epochs 2 --batch-size 8"
        " --max-length 40 --device cpu -q -o run",
        ("sst-2.images.jsonl jsonl", *_FEATS, "encoder/model.safetensors weights"),
        folder="run",
    ),
    Case(
        "finetune-tower",
        "finetune sst-2 in/sst-2 -e in/clip/tower --epochs 2 --batch-size 8 --max-length 40"
        " --device cpu -q -o run",
        (
            "clip/tower/config.json json",
            "clip/tower/tokenizer.json json",
            "clip/tower/model.safetensors weights",
        ),
        folder="run",
    ),
    Case(
        "finetune-full",
        "finetune sst-2 in/sst-2 -e in/xdbert --full --epochs 2 --batch-size 8 --max-length 40"
        " --device cpu -q -o run",
        ("sst-2/train.tsv table", *_XDBERT),
        folder="run",
    ),
    Case(
        "finetune-own",
        "finetune classify in/own.csv --text a,b --dev in/own.dev.jsonl -e in/encoder --epochs 1"
        " --batch-size 8 --max-length 40 --device cpu -q -o run",
        ("own.csv beside", "own.dev.jsonl jsonl"),
        folder="run",
        reader="compare run",
    ),
    Case(
        "finetune-own-regress",
        "finetune regress in/own.csv --text a --label n --hold-out 0.4 -e in/encoder --epochs 1"
        " --batch-size 8 --max-length 40 --device cpu -q -o run",
        ("own.csv beside",),
        folder="run",
    ),
    Case(
        "finetune-own-tag",
        "finetune tag in/own.conll --dev in/own.tags.jsonl -e in/encoder --epochs 1 --batch-size 8"
        " --max-length 40 --device cpu -q -o run",
        ("own.conll table", "own.tags.jsonl jsonl"),
        folder="run",
    ),
    Case(
        "finetune-own-choice",
        "finetune choice in/own.choices.jsonl --hold-out 0.4 -e in/encoder --epochs 1"
        " --batch-size 8 --max-length 40 --device cpu -q -o run",
        ("own.choices.jsonl jsonl",),
        folder="run",
    ),
    Case(
        "finetune-own-answer",
        "finetune answer in/own.answers.parquet --hold-out 0.4 -e in/encoder --epochs 1"
        " --batch-size 8 --max-length 40 --device cpu -q -o run",
        ("own.answers.parquet bytes!",),
        folder="run",
    ),
    Case(
        "finetune-vqa",
        "finetune vqa in/vqa -e in/visualbert --regions in/vqa.npy --answers 2 --epochs 1"
        " --max-length 40"
        " --batch-size 8 --device cpu -q -o run",
        (
            "vqa/v2_OpenEnded_mscoco_train2014_questions.json json",
            "vqa/v2_mscoco_train2014_annotations.json json",
            "visualbert/run.json run!",
            *_regions("vqa"),
        ),
        folder="run",
    ),
    Case(
        "finetune-nlvr2",
        "finetune nlvr2 in/nlvr2 -e in/encoder --regions in/nlvr2.npy --epochs 1 --max-length 40"
        " --batch-size 8 --device cpu -q -o run",
        ("nlvr2/train.json jsonl", "nlvr2/dev.json jsonl"),
        folder="run",
    ),
    Case(
        "finetune-vcr",
        "finetune vcr-qa in/vcr -e in/encoder --regions in/vcr.npy --epochs 1 --max-length 40"
        " --batch-size 8 --device cpu -q -o run",
        ("vcr/train.jsonl jsonl", "vcr/val.jsonl jsonl"),
        folder="run",
    ),
    Case(
        "score-table",
        "score rte in/answers/bert/seed-1/predictions.jsonl -o p.parquet",
        ("answers/bert/seed-1/predictions.jsonl jsonl",),
        restart=False,
    ),
    # -------------------------------------------------------------------------- pages and figures
    Case(
        "submission",
        "score vcr-qar in/vcr-qar/seed-9595/predictions.test.jsonl"
        " --joint in/vcr-qa/seed-9595/predictions.test.jsonl --submission s.csv",
        (
            "vcr-qar/seed-9595/predictions.test.jsonl jsonl",
            "vcr-qa/seed-9595/predictions.test.jsonl jsonl",
        ),
        restart=False,
        quick=True,
    ),
    Case(
        "demo",
        "demo in/text.txt --limit 5 --no-open --device cpu -o page.html",
        ("text.txt text",),
        restart=False,
    ),
    Case(
        "show-page",
        "show in/v.jsonl --index in/vg.faiss --images in/bank.jsonl -o page.html",
        (
            "v.jsonl jsonl!",
            "v.json manifest",
            "vg.json manifest",
            "vg.ids ids!",
            "bank.jsonl jsonl",
        ),
        restart=False,
        quick=True,
    ),
    Case(
        "show-sheet",
        "show in/v.jsonl --ids in/vg.ids --images in/bank.jsonl -o page.html --png sheet.png",
        ("vg.ids ids", "bank/image004.png image"),
        restart=False,
    ),
    Case(
        "show-retrieved",
        "show in/found.jsonl in/found.jsonl --index in/vg.faiss --images in/bank.jsonl"
        " -o page.html --png sheet.png",
        (
            "found.jsonl jsonl!",
            "found.json manifest",
            "vg.ids ids!",
            "bank.jsonl jsonl",
        ),
        restart=False,
    ),
    Case(
        "show-heat",
        "show in/heat.jsonl --images in/bank.jsonl -o page.html --png sheet.png",
        ("heat.jsonl jsonl!", "heat.json manifest", "bank.jsonl jsonl"),
        restart=False,
    ),
    Case(
        "show-runs",
        "show in/lm in/xdbert -o curves.html",
        ("lm/metrics.jsonl jsonl!", "lm/run.json run!", "xdbert/metrics.jsonl jsonl!"),
        restart=False,
    ),
    Case(
        "stats",
        "stats in/plain.txt in/captions.jsonl --reference in/plain.txt --captions in/captions.jsonl"
        " --grounded-above 1 --plot t.svg",
        ("plain.txt text", "captions.jsonl jsonl"),
        restart=False,
        quick=True,
    ),
    Case(
        "stats-jsonl",
        "stats in/captions.jsonl --reference in/plain.txt --plot t.svg",
        ("captions.jsonl jsonl", "plain.txt text"),
        restart=False,
    ),
    Case(
        "stats-vectors",
        "stats --vokens in/v.jsonl --vectors w.npy",
        ("v.jsonl jsonl!", "v.json manifest"),
        restart=False,
    ),
    Case(
        "stats-vokens",
        "stats in/plain.txt -t in/tokenizer --vokens in/rows.jsonl --vokens in/packed.npy"
        " --memory 1 --plot t.svg",
        (
            "rows.jsonl jsonl",
            "packed.npy npy!",
            "packed.rows.npy npy!",
            "packed.json manifest",
            "tokenizer/tokenizer.json json",
        ),
        restart=False,
    ),
    Case(
        "compare",
        "compare in/compare/mlm in/compare/vokens --grounding in/grounded.jsonl --grounded-above 1"
        " --samples 100 --plot gain.svg",
        (
            "compare/mlm/rte/run.json run!",
            "compare/mlm/sst-2/seed-1/predictions.jsonl jsonl",
            "grounded.jsonl jsonl",
            "tables/rte.tsv table",
        ),
        restart=False,
        quick=True,
    ),
    Case(
        "compare-png",
        "compare in/compare/mlm in/compare/vokens --grounding in/grounded.jsonl --grounded-above 1"
        " --samples 100 --plot gain.png",
        restart=False,
    ),
    Case(
        "compare-examples",
        "compare examples in/answers/bert in/answers/xdbert --grounding in/grounded.jsonl"
        " --grounded-above 1 --samples 100 --examples 2 --plot figure4.svg",
        (
            "answers/bert/run.json run!",
            "answers/xdbert/seed-1/predictions.jsonl jsonl",
            "tables/answers.tsv table",
            "grounded.jsonl jsonl",
        ),
        restart=False,
        quick=True,
    ),
    Case(
        "compare-noise",
        "compare weights in/lm in/encoder --seed 4 --offline --magnitude 0.01 --noise noisy",
        (*_LM, "encoder/config.json json", "encoder/model.safetensors tensors"),
        restart=False,
        folder="noisy",
        quick=True,
    ),
    Case(
        "probe",
        "probe-attention in/entities.jsonl --encoder in/vb --regions in/scenes.npy --parser"
        " in/entities.conllu --images in/scenes --samples 20 --examples 1 --device cpu -o probe",
        (
            "entities.jsonl jsonl",
            "entities.conllu table",
            *_regions("scenes"),
            "scenes/photo1.jpg image",
            "vb/config.json json",
            "vb/model.safetensors weights",
            "vb/tokenizer.json json",
        ),
        restart=False,
        folder="probe",
        quick=True,
    ),
    Case(
        "probe-text",
        "probe-attention text in/plain.txt --encoder in/lm --limit 8 --samples 20 --distances 8"
        " --device cpu -o probe",
        ("plain.txt text", *_LM),
        restart=False,
        folder="probe",
    ),
    Case(
        "probe-cross",
        "probe-attention cross in/plain.txt --encoder in/xdbert --limit 8 --samples 20"
        " --examples 1 --device cpu -q -o probe",
        ("plain.txt text", *_XDBERT),
        restart=False,
        folder="probe",
    ),
)

BY_NAME = {case.name: case for case in CASES}
