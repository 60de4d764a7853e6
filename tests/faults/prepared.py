"""The rows of `vg prepare` in the table of commands, `cases.CASES`."""

from __future__ import annotations

from tests.faults.case import Case

PREPARED = (
    Case(
        "prepare-flickr8k",
        "prepare flickr8k in/sets/tokens.txt --splits in/sets/lists --images in/sets/photos"
        " --images-out i.jsonl -o c.jsonl",
        (
            "sets/tokens.txt text",
            "sets/lists/Flickr_8k.devImages.txt text",
            "sets/photos/2_693b08cb0e.jpg image",
        ),
    ),
    Case(
        "prepare-entities",
        "prepare flickr30k-entities in/sets/entities --images in/sets/photos --images-out"
        " i.jsonl -o c.jsonl",
        ("sets/entities/Sentences/2.txt text", "sets/entities/Annotations/2.xml xml"),
    ),
    Case(
        "prepare-coco",
        "prepare coco in/sets/captions.json --images in/sets/photos --images-out i.jsonl -o"
        " c.jsonl",
        ("sets/captions.json json",),
        quick=True,
    ),
    Case(
        "prepare-karpathy",
        "prepare karpathy in/sets/karpathy.json --images in/sets/photos --images-out i.jsonl -o"
        " c.jsonl",
        ("sets/karpathy.json json",),
    ),
    Case(
        "prepare-vqa",
        "prepare vqa in/vqa/v2_OpenEnded_mscoco_train2014_questions.json -o c.jsonl",
        ("vqa/v2_OpenEnded_mscoco_train2014_questions.json json",),
    ),
    Case(
        "prepare-instances",
        "prepare coco in/sets/instances.json --images in/sets/photos -o c.jsonl",
        ("sets/instances.json json",),
    ),
    Case(
        "prepare-vcr",
        "prepare vcr in/sets/vcr1images in/sets/vcr.jsonl --images-out i.jsonl -o boxes.jsonl",
        ("sets/vcr.jsonl jsonl", "sets/vcr1images/1.json json", "sets/vcr1images/1.jpg image"),
    ),
    Case(
        "prepare-genome",
        "prepare visual-genome in/sets/image_data.json --regions in/sets/region_descriptions.json"
        " --images-out i.jsonl -o c.jsonl.gz",
        ("sets/image_data.json json", "sets/region_descriptions.json json"),
    ),
    Case(
        "prepare-boxes",
        "prepare visual-genome-boxes in/sets/image_data.json in/sets/region_descriptions.json"
        " -o b.jsonl",
        ("sets/image_data.json json", "sets/region_descriptions.json json"),
    ),
    Case(
        "prepare-web",
        "prepare conceptual-captions in/sets/web.tsv --images-out i.jsonl -o c.jsonl",
        ("sets/web.tsv table",),
    ),
    Case(
        "prepare-sbu",
        "prepare sbu in/sets/urls.txt in/sets/texts.txt --images-out i.jsonl -o c.jsonl",
        ("sets/urls.txt text", "sets/texts.txt text"),
    ),
    Case(
        "prepare-openmoji",
        "prepare openmoji png --limit 3 --size 16 --carriers 1 --images-out i.jsonl -o c.jsonl",
    ),
    Case(
        "prepare-imagenet",
        "prepare imagenet in/sets/net --most 2 --glosses in/sets/glosses.tsv --images-out i.jsonl"
        " -o n.jsonl",
        ("sets/glosses.tsv text",),
    ),
    Case(
        "prepare-norms",
        "prepare norms in/norms.csv --value mean -o n.jsonl",
        ("norms.csv text",),
    ),
    Case(
        "prepare-minimal",
        "prepare minimal-pairs in/blimp.jsonl -o m.jsonl",
        ("blimp.jsonl jsonl",),
    ),
    Case(
        "prepare-prompts",
        "prepare prompts in/sizes.jsonl --templates in/templates.jsonl -o p.jsonl",
        ("sizes.jsonl jsonl", "templates.jsonl jsonl"),
    ),
    Case(
        "prepare-wordnet",
        "prepare wordnet in/index.sense --least 1 -o n.jsonl",
        ("index.sense text",),
    ),
    Case(
        "prepare-vectors",
        "prepare vectors in/words.vec -o w.npy",
        ("words.vec text",),
        quick=True,
    ),
    Case(
        "prepare-regions",
        "prepare regions in/sets/lxmert.tsv --labels in/sets/names.txt -o r.npy",
        ("sets/lxmert.tsv table", "sets/names.txt text"),
    ),
    Case(
        "prepare-arrays",
        "prepare regions in/sets/others.npy in/sets/others.jsonl -o r.npy",
        ("sets/others.npy npy", "sets/others.jsonl jsonl"),
    ),
    Case(
        "prepare-vokens",
        "prepare vokens in/published/c.t.hdf5 in/published/c.vg.hdf5 -t in/tokenizer -o v.npy",
        (
            "published/c.t.hdf5 bytes",
            "published/c.t.sent text",
            "published/c.vg.hdf5 bytes",
            "published/c.vg.ids ids",
        ),
        quick=True,
    ),
    Case(
        "prepare-keys",
        "prepare keys in/published/vg.hdf5 -o f.npy",
        ("published/vg.hdf5 bytes", "published/vg.ids ids"),
    ),
    Case(
        "prepare-hdf5",
        "prepare hdf5 in/packed.npy --ids in/published/c.vg.ids --tokens c.t.hdf5 -o c.vg.hdf5",
        (
            "packed.npy npy!",
            "packed.rows.npy npy!",
            "packed.json manifest",
            "published/c.vg.ids ids",
        ),
        quick=True,
    ),
    Case(
        "prepare-hdf5-keys",
        "prepare hdf5 in/feats.npy -o vg.hdf5",
        ("feats.npy npy!", "feats.ids ids!", "feats.json manifest"),
    ),
    Case("prepare-wikitext", "prepare wikitext in/sets/wiki.txt -o w.txt", ("sets/wiki.txt text",)),
    Case(
        "prepare-wikipedia",
        "prepare wikipedia in/sets/dump.xml --page-views in/sets/views.txt -o w.txt",
        ("sets/dump.xml xml", "sets/views.txt text"),
        quick=True,
    ),
    Case("prepare-squad", "prepare squad in/sets/squad.json -o s.txt", ("sets/squad.json json",)),
    Case("prepare-pdtb", "prepare pdtb in/sets/pdtb2.csv -o p.jsonl", ("sets/pdtb2.csv table",)),
    Case("prepare-vua", "prepare vua in/sets/vua.csv -o v.jsonl", ("sets/vua.csv table",)),
    Case(
        "prepare-task",
        "prepare task sst-2 in/sst-2 -o t.jsonl",
        ("sst-2/train.tsv table", "sst-2/dev.tsv table"),
    ),
    Case(
        "prepare-pairs",
        "prepare pairs in/sets/train.en in/sets/train.de --longest 20 -o p.jsonl",
        ("sets/train.en text", "sets/train.de text"),
    ),
    Case(
        "prepare-tokenizer",
        "prepare tokenizer in/pairs/train.jsonl --vocabulary 60 -o bpe",
        ("pairs/train.jsonl jsonl",),
        restart=False,
        folder="bpe",
        quick=True,
    ),
    Case(
        "prepare-sentences",
        "prepare sentences in/sets/wiki.txt -o s.jsonl.zst",
        ("sets/wiki.txt text",),
    ),
)
