"""The topics of `vg finetune --help TOPIC`."""

from __future__ import annotations

from vgtools.commands.topics import Topic

TRAINING = Topic(
    "training",
    """
    How a task is learned: most values are from the task's paper, unless given.

    Batches hold neighbours in length, so that little is padding. If memory runs out they are cut
    into halves, whose gradients add up to the same step.

    torchrun and accelerate launch start it on several GPUs or machines: a step is the same however
    many processes share it, and after one is lost any number of them resumes the run.

    Examples:

        torchrun --nproc-per-node 4 -m vgtools finetune mnli glue/MNLI -e run.vokens -o run.mnli
    """,
)
FILES = Topic(
    "files",
    """
    Files of the task beyond the folder DATA.

    READ (commonlit) is scored by its RMSE: lower is better, --keep best keeps the lowest. Its files
    have no dev set: --hold-out 0.1.

    Examples:

        vg finetune commonlit --train clear.csv --hold-out 0.1 -e builtin:minilm --seeds 5 -o read
    """,
)
PICTURES = Topic(
    "pictures",
    """
    Tasks with pictures: nlvr2, vqa, vcr-qa, vcr-qar, flickr30k-grounding.

    They learn on a VisualBERT of vg pretrain visualbert, or on a BERT that never saw a picture, and
    on region features of the same backbone as its own: --regions. Regions name pictures as their
    files are called. VCR's start with the boxes of vg prepare vcr.

    Examples:

        vg finetune vqa vqa/ -e run.visualbert --regions coco.npy --boxes 36 -o vqa.visualbert

        vg finetune nlvr2 nlvr2/data -e run.visualbert --regions nlvr2.npy --boxes 36 -o run.nlvr2
    """,
)
RETRIEVAL = Topic(
    "retrieval",
    """
    Images that are found for texts, and fused into an encoder of text.

    --retrieved fuses images into the states of any text encoder, before the head reads them: rows
    of vg retrieve, found by a text's own words (a pair's joined by a blank), so that their order
    does not matter. vg prepare task writes the texts. The model is saved as transformers opens it,
    without images, and its fusion next to it; as --encoder with --retrieved it learns on with both.

    An encoder of vg pretrain grounding learns whole: text encoder, cross-modal encoder, images. One
    that finds images (--strategy scene, object, keyword) needs --index and --feats, and finds a
    text's images by all of its words; others see the placeholder.

    --images random, shuffle and none are the controls: a gain over an encoder without images may
    come from more parameters, and a gain over none shows little if random images gain as much.

    Examples:

        vg finetune rte RTE -e run.scene --index scene.faiss --feats cc.npy --seeds 8 -o rte.scene

        vg finetune snli snli_1.0 -e google-bert/bert-base-uncased --retrieved snli.images.jsonl \\
          --feats coco.npy -o snli.va
    """,
)
TRANSLATION = Topic(
    "translation",
    """
    Translation of sentences, with retrieved images or without.

    translation learns rows of vg prepare pairs, in a --shape from scratch or from a model, with
    retrieved images (--help retrieval) or without. A batch is a number of source tokens. Records
    have the perplexity per token and greedy BLEU; the kept epoch is translated with beams, as vg
    translate does.

    Examples:

        vg finetune translation wmt --shape transformer-base -t bpe --retrieved wmt.images.jsonl \\
          --feats coco.npy -o ende.va
    """,
)
CLIP = Topic(
    "clip",
    """
    CLIPs, and encoders that were adapted to one (XDBERT).

    A run of vg pretrain xdbert is an encoder; with --full it learns whole: encoder, CLIP's text
    tower and the layers over both (XBERT). Its seed-N/model is also such a run: an encoder, and
    with --full it learns on, its linear layer drawn again.

    A CLIP, or a tower of vg pretrain clip, learns by its text tower alone, which reads both texts
    of a pair as one sequence: --max-length 77 or less.

    Examples:

        vg finetune rte glue/RTE -e openai/clip-vit-base-patch32 --max-length 77 -o rte.clip

        vg finetune rte glue/RTE -e run.xdbert --full --lr 1e-4 -o rte.xbert

        vg finetune mrpc glue/MRPC -e rte.xbert/seed-9595/model --full --lr 1e-4 -o mrpc.xbert
    """,
)
CLUSTER = Topic(
    "cluster",
    """
    Seeds that are learned on a Ray cluster.

    --ray learns each seed on a worker of a Ray cluster, on its GPU or on one core; all nodes need
    one file system with the run. The run equals one of a single process with as many threads, but
    for the argv and versions in run.json. The same command resumes it, with --ray or without, and
    learns no seed twice; a worker that is lost costs its seed the steps since its checkpoint.

    Examples:

        vg finetune rte glue/RTE -e run.vokens --seeds 5 --ray local --workers 2 -o rte
    """,
)
