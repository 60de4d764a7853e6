"""What is run: each target of each example once, with its files, its sizes and what it prints."""

from __future__ import annotations

from dataclasses import dataclass

# Files of an example, at both scales and at one: NAME=VALUE, as on the command line of make.
FILES = {
    "cluster": "",
    "compare": "FLICKR={flickr8k} GLUE={glue} SICK={sick} VUA={vua} SNLI={snli} "
    "SIMILARITY={similarity}",
    "german": "MULTI30K={multi30k} FLICKR8K={flickr8k}",
    "grounding": "FLICKR={flickr8k} TEXT={text} NOUNS={nouns} NOUN_PHOTOS={imagenet} COCO={coco} "
    "CC={cc} SBU={sbu} WIKI_DUMP={dump} PAGE_VIEWS={views} BOOKS={text} IMAGENET={imagenet} "
    "FASTTEXT={fasttext} LXMERT={lxmert} "
    "JOCI={joci} PDTB={pdtb} RTE={glue}/RTE SICK={sick} VUA={vua} NLTK_DATA={nltk_data}",
    "visual-awareness": "FLICKR={flickr8k} FLICKR8K={flickr8k} ENTITIES={entities} COCO={coco} "
    "GENOME={genome} KARPATHY={coco}/dataset_coco.json CONLL={conll} SNLI={snli} SICK={sick} "
    "MULTI30K={multi30k} PAIRS_OF={pairs} BANK={bank}/scene.faiss FEATS={bank}/feats.npy",
    "visual-awareness:paper": "WORDS={skip_thoughts} WMT=ende "
    "WMT_TRAIN='{pairs}/src-train.txt {pairs}/tgt-train.txt' "
    "WMT_DEV='{pairs}/src-val.txt {pairs}/tgt-val.txt' "
    "WMT_TEST='{pairs}/src-test.txt {pairs}/tgt-test.txt'",
    "visualbert": "DATA={flickr8k} ENTITIES={entities} COCO={coco} FLICKR30K={flickr8k}/images "
    "COCO_REGIONS='{lxmert}/train2014_obj36.tsv {lxmert}/val2014_obj36.tsv' "
    "FLICKR30K_REGIONS={lxmert}/flickr30k.tsv "
    "VQA={vqa} VQA_REGIONS={vqa}/regions.npy VCR={vcr} VCR_REGIONS={vcr}/regions.npy "
    "NLVR2={nlvr2} NLVR2_REGIONS={nlvr2}/regions.npy",
    "vokenization": "DATA={flickr8k} ENTITIES={entities} TEXT={wikitext}/wiki.valid.tokens "
    "COCO={coco} VG_DATA={genome} WIKI={text} WIKI103={wikitext}/wiki.train.tokens GLUE={glue} "
    "SQUAD={squad} SWAG={swag} WIKITEXT={wikitext} VQA={vqa}",
    "worth": "PAIRS={similarity} CONCRETENESS={norms}",
    "worth:small": "DATA={flickr8k} WIKITEXT={wikitext} SQUAD={squad}",
    "worth:paper": "TEXT={text} CAPTIONS={nouns} FEATS={bank}/feats.npy",
    "xdbert": "FLICKR={flickr8k} GLUE={glue} SWAG={swag} READ={read} CAPTIONS={text}",
    "xdbert:paper": "TEXT={text} VALID={wikitext}/test.txt WIKI={text}",
}

_STEPS = "--block 32 --batch-size 8"
# Sizes: networks of a few thousand weights, one or two steps. At both scales, then at one.
TOY = {
    "cluster": "",
    "compare": "ENCODER={bert} BACKBONE={resnet} STEPS=2 SEEDS=2 LIMIT=8 LIMIT.mrpc=8 LIMIT.rte=8 "
    "HOLD_OUT='--hold-out 4' FINETUNE='--epochs 1 --batch-size 8 --max-length 32' "
    "GROUNDED='--grounded-above 3'",
    "compare:small": "TASKS='sick mrpc snli'",
    "compare:paper": "TASKS=rte TEACHER={clip}",
    "german": "BACKBONE={resnet} ENGLISH={bert} SHAPE={shape} VOCABULARY=200 "
    "PRETRAIN='--block 32 --batch-size 8 --steps 2' MATCHING='--epochs 1'",
    "grounding": "ENCODER={bert} BACKBONE={resnet} STEPS=2 SEEDS='0 1' K=2 TASK_SEEDS=2 TESTED=8 "
    "ALBERT={albert} EFFICIENTNET={resnet} PRETRAIN='--epochs 1 --batch-size 32' "
    "FINETUNE='--epochs 1 --batch-size 8 --max-length 32 --keep best' "
    "RUNS='none drop i2t both' ONCE='scene whole keyword object text mixture'",
    "visual-awareness": "BACKBONE={resnet} PICTURE=128 TEXT={bert} CASED={bert} SEEDS=2 FINE=160 "
    "SHAPE=transformer-small VOCABULARY=300 SCRATCH='--steps 2' ONWARD='--steps 1' POINT_DIMS=4 "
    "CUT_DIMS=4 PAIRS=24 DEV_PAIRS=16",
    "visual-awareness:small": "WORDS={bert} SIZE='--dim 8 --layers 1 --epochs 1'",
    "visual-awareness:paper": "RATES=1e-4 BATCHES='8 16' EPOCHS=1 "
    "SIZE='--dim 8 --layers 1 --epochs 2 --backbone-from 1'",
    "visualbert": "small_ENCODER={bert} small_BACKBONE={resnet} small_LM='--epochs 1 "
    "--batch-size 16 --block 32' small_TRAIN='--steps 2 --batch-size 4 --lr 3e-5' "
    "paper_ENCODER={bert} paper_SHAPE={shape} paper_EPOCHS=1 paper_BATCH=32 paper_LENGTH=48 "
    "BEFORE.vqa='--steps 1' BEFORE.vcr='--steps 1' FINETUNE='--max-length 48' COUNTS='1 2' "
    "FINE.vqa='--answers 1 --epochs 1 --batch-size 8' "
    + " ".join(
        f"FINE.{task}='--epochs 1 --batch-size 8'"
        for task in ("vcr-qa", "vcr-qar", "nlvr2", "flickr30k-grounding")
    ),
    "vokenization": "DEMO_EPOCHS=1 DEMO_SEEDS=1 MATCHING='--encoder {bert} --epochs 1' HOLD_OUT=4 "
    "LINES=8 SEEDS='0 1' TASK_SEEDS=2 BACKBONE={resnet} ENCODER={bert} ROBERTA={roberta}",
    "vokenization:small": "SENTENCES=100 STEPS=2 KEEP=1 CURVE_STEPS='1 2' "
    "FINETUNE='--limit 8 --max-length 32' "
    "FINETUNE.sst-2='--steps 2' FINETUNE.rte='--steps 2' FINETUNE.mrpc='--steps 2' "
    "FINETUNE.cola='--steps 2'",
    "vokenization:paper": "SHAPE.bert6={shape} "
    "SHAPE.bert12={shape} SHAPE.roberta6={roberta_shape} SHAPE.roberta12={roberta_shape} "
    "PRETRAIN='--seed 95 --batch-size 16' KEEP=1 CURVE_STEPS='1 2' GROUNDED='--grounded-above 3' "
    "LENGTH.bert6='--steps 2' LENGTH.bert12='--steps 2' LENGTH.roberta6='--steps 2' "
    "LENGTH.roberta12='--steps 2' LENGTH.bert6.mlm='--steps 2' LENGTH.bert12.mlm='--steps 2' "
    "LENGTH.roberta6.mlm='--steps 2' LENGTH.roberta12.mlm='--steps 2' "
    "LENGTH.bert6.captions='--steps 2' LENGTH.bert6.reduced='--steps 2' "
    "FINETUNE='--epochs 1 --batch-size 8 --max-length 48'",
    "worth": "ENCODER={bert} BACKBONE={resnet} SHAPE={shape} BANK=8 HOLD_OUT=4 STEPS=2 KEEP=1 "
    "BANK_SIZES=6 TEXT_SIZES=50 PROBES=rte={glue}/RTE LIMIT=20 "
    "SENTENCES=50 SEEDS='0 1' MATCHING='--epochs 1 --hidden 8 --dim 8' RECIPE='--epochs 1' "
    "PRETRAIN='--block 32 --batch-size 8' "
    "TEACHING='--shape {tower_shape} --tokenizer builtin:clip-bpe --epochs 1 --batch-size 8'",
    "worth:small": "HELD=small/train.jsonl",
    "worth:paper": "CAPTIONS={bank}/captions.jsonl",
    "xdbert": f"BACKBONE={{resnet}} HEAD='{_STEPS} --steps 1' SEEDS=2 SEEDS.rte=2 EPOCHS=1 BATCH=8 "
    "GROUNDED='--grounded-above 3' LIMIT=16 LENGTH=32 LENGTH.commonlit=48 "
    "TOKENS={bert} ENCODERS='{bert} {electra} {clip}' "
    "TEACHING='--shape {tower_shape} --tokenizer builtin:clip-bpe --epochs 1 --batch-size 8'",
    "xdbert:small": f"BARE={{bert}} SCHEDULE='{_STEPS} --steps 2 --lr 1e-4 --eval-every 1'",
    "xdbert:paper": "STUDENT={bert} STUDENT.electra-b={electra} STUDENT.electra-l={electra} "
    "TEACHER={clip} LARGER='--steps 3' "
    "SCHEDULE='--block 48 --batch-size 16 --micro-batch 8 --lr 1e-4 --dtype bfloat16' "
    "TWO='--epochs 4 --stop-epoch 2' TWENTY='--epochs 4 --stop-epoch 3'",
}


@dataclass(frozen=True)
class Row:
    """One call of make.

    Args:
        example: the folder.
        scale: SCALE; empty: the targets are the same at both.
        targets: between spaces, made in this order.
        shows: between bars, what the call prints, as regular expressions; `^$`: nothing.
        makes: between spaces, files that are there afterwards, as globs, each perhaps with `:` and
            a regular expression that one of them holds; none is empty.
        files: further variables, that name files or choose a variant.
        toy: further variables, that make it small.
        folder: where it runs, instead of EXAMPLE-SCALE; what earlier rows made there is there.
        needs: a program or package without which it is left out.
    """

    example: str
    scale: str
    targets: str
    shows: str = ""
    makes: str = ""
    files: str = ""
    toy: str = ""
    folder: str = ""
    needs: str = ""

    @property
    def name(self) -> str:
        """What the command line calls it."""
        parts = (self.example, self.scale or "any", self.targets, self.files)
        return ":".join(part.replace(" ", ",") for part in parts if part)

    @property
    def place(self) -> str:
        """The folder where it runs."""
        return self.folder or f"{self.example}-{self.scale or 'any'}"


_BANK = (
    "small/train.jsonl small/dev.jsonl small/feats.npy small/scene.faiss "
    'small/keyword.jsonl:^{"word":'
)
_FIGURES = " ".join(
    f"small/locate/figure{n}.png small/locate/figure{n}.html:data:image" for n in (3, 4)
)

ROWS = (
    Row("cluster", "", "help", "make cost"),
    Row("cluster", "", "cost", "GPU"),
    Row("cluster", "", "gnu-parallel", makes='v.npy/000000-*.npy v.json:"kind":."vokens"',
        files="TEXT={text} INDEX={voken_bank} OUT=v.npy/",
        needs="parallel"),
    # ----------------------------------------------------------------------------------- compare
    Row("compare", "small", "files", makes=_BANK),
    Row("compare", "small", "table", "nothing|visualbert|xdbert-words"),
    Row("compare", "small", "similarity", "mlm"),
    Row("compare", "small", "all", "Against mlm|scene-random"),
    Row("compare", "paper", "files", makes=_BANK.replace("small/", "paper/")),
    Row("compare", "paper", "table", "nothing|visualbert"),
    Row("compare", "paper", "similarity", "mlm"),
    Row("compare", "paper", "all", "Against mlm|scene-random"),
    # ------------------------------------------------------------------------------------ german
    Row("german", "", "all", "de own .2.|en permuted .1.|one photo for all|compounds",
        makes="german/page.html:data:image german/bpe.de/tokenizer.json:<mask>"),
    # --------------------------------------------------------------------------------- grounding
    Row("grounding", "", "files", makes=_BANK),
    Row("grounding", "", "small", "captions.0.15.jsonl|drop"),
    Row("grounding", "", "table4", "joci: the paper has|sick: .*|NEUTRAL 33.3 %|vuan: "),
    Row("grounding", "", "table3", "plain|keyword|SICK"),
    Row("grounding", "", "search-k", "lowest with scene", toy="KS='1 2'"),
    Row("grounding", "", "search-k", "lowest with object", files="FLICKR=", toy="KS='1 2'"),
    Row("grounding", "", "table1", "n36|MiB"),
    Row("grounding", "", "table2", "Wiki-BC|object1|COCO"),
    Row("grounding", "", "table3-paper", "object|VUAN"),
    Row("grounding", "", "fig4 figure4", "small/fig4/fig4.png"),
    Row("grounding", "", "fig4", "paper/fig4.png", files="FLICKR="),
    # -------------------------------------------------------------------------- visual-awareness
    Row("visual-awareness", "small", "retrieval", "text_to_image"),
    Row("visual-awareness", "small", "retrieval", "text_to_image", files="TUNED=1"),
    Row("visual-awareness", "small", "retrieval", "text_to_image", files="LOSS=triplet WARM=1"),
    Row("visual-awareness", "small", "pointing segmentation", "centre|whole_picture"),
    Row("visual-awareness", "small", "figure3 figure4", makes=_FIGURES),
    Row("visual-awareness", "small", "table2 table3 sick", "va|shuffle"),
    Row("visual-awareness", "small", "conll-counts", "published|train: "),
    Row("visual-awareness", "small", "table2 table3", "silver",
        files="CONLL= SQUAD={squad} SNLI={snli_dev}", toy="SENTENCES=20 DEV_SENTENCES=10",
        folder="visual-awareness-silver"),
    Row("visual-awareness", "small", "table1", "gate.on|found"),
    Row("visual-awareness", "small", "table1", "scalar-gate|weight|bi-attention",
        files="TABLE1='base scalar-gate sum weight.on attention bi-attention'"),
    Row("visual-awareness", "small", "masked", "own-shuffle.on", files="MASK=colours"),
    Row("visual-awareness", "small", "masked", "own-shuffle.on", files="MASK=nouns"),
    Row("visual-awareness", "small", "translation-base text-only",
        makes='small/multi30k/runs/base/run.json:"bleu" small/text/base/run.json:"bleu"'),
    Row("visual-awareness", "small", "search-m search-m-translation", "best m of snli",
        toy="MS='1 2'"),
    Row("visual-awareness", "paper", "retrieval", "text_to_image|94.0"),
    Row("visual-awareness", "paper", "pointing segmentation", "centre|whole_picture"),
    Row("visual-awareness", "paper", "figure3 figure4",
        makes=_FIGURES.replace("small/", "paper/")),
    Row("visual-awareness", "paper", "table2 table3 sick", "va|shuffle"),
    Row("visual-awareness", "paper", "conll-counts", "published"),
    Row("visual-awareness", "paper", "table1", "gate.on|found"),
    Row("visual-awareness", "paper", "translation-base text-only",
        makes='paper/ende/runs/base/run.json:"bleu" paper/text/base/run.json:"bleu"'),
    Row("visual-awareness", "paper", "search-m search-m-translation", "best m of snli",
        toy="MS='1 2'"),
    # -------------------------------------------------------------------------------- visualbert
    Row("visualbert", "", "probe-files all probe", "figures, tables and page"),
    Row("visualbert", "", "shuffled", makes="small/probe.shuffled/page.html "
        "small/probe.shuffled/tables.md:another.photo"),
    Row("visualbert", "", "all", "figures", files="PROPOSALS={proposals}"),
    Row("visualbert", "", "paper-files paper",
        makes='paper/probe/page.html paper/probe.jsonl:"kind":"reported"'),
    Row("visualbert", "", "vqa", "VQA 2.0|visualbert .*|70.8"),
    Row("visualbert", "", "vcr", "Q→AR|52.2"),
    Row("visualbert", "", "nlvr2", "consistency|26.9"),
    Row("visualbert", "", "grounding", "R@10|71.33"),
    Row("visualbert", "", "table1", "Q→AR|Baseline, test"),
    Row("visualbert", "", "table3 table4 table5 table6",
        "without-early-fusion|without-coco|68.18|51.4|64.6|70.33"),
    Row("visualbert", "", "table7", "without-objective-2|without-grounded|64.9"),
    Row("visualbert", "", "boxes", "regions-1/|regions-2/|9 regions"),
    Row("visualbert", "", "servers", makes='paper/servers/vqa.json:"question_id" '
        "paper/servers/nlvr2.csv:,True|,False paper/servers/vcr-qar.csv:^annot_id,"),
    # ------------------------------------------------------------------------------ vokenization
    Row("vokenization", "", "demo nouns builtin", "vokens.html|of all|emoji.safetensors",
        folder="vokenization-demo"),
    Row("vokenization", "", "flickr8k-files entities-files flickr8k",
        "flickr8k/paper|flickr8k/text"),
    Row("vokenization", "", "wiki", makes="paper/wiki.train.txt paper/wiki.valid.txt "
        "paper/wiki.test.txt", files="WIKI= WIKI_DUMP={dump}",
        toy="HELD=5", folder="vokenization-wiki"),
    Row("vokenization", "", "paper-files paper", "vokens.npy"),
    Row("vokenization", "", "small", "bert2-vokens", toy=TOY["vokenization:small"],
        folder="vokenization-small"),
    *(
        Row("vokenization", scale, target, shows)
        for scale in ("small", "paper")
        for target, shows in (
            ("tables-files", "^$"),
            ("table1", "captions"),
            ("table2", "vokens"),
            ("table3", "noise"),
            ("table4", "reduced"),
            ("table5", "frequency|propagated"),
            ("table6", "reverse|only"),
            ("gain", "rounding"),
            ("curve", "vokens.1|vokens.2"),
            ("figure4", "figure4.png"),
            ("tables", "reduced"),
        )
    ),
    # ------------------------------------------------------------------------------------- worth
    *(
        Row("worth", scale, target, shows, makes=f"{scale}/{made}")
        for scale in ("small", "paper")
        for target, shows, made in (
            ("files all", "simlex999.txt|concreteness.jsonl|centroid-permuted", "table.md"),
            ("labels", "clusters.npy|centroid.npy", "labels.md"),
            ("curve", "## 1 steps|centroid-permuted", "curve.1.md"),
            ("models bank-sizes text-sizes", "bank-6/run/vokens|text-50/run/mlm", "text-sizes.md"),
        )
    ),
    Row("worth", "small", "files all", "mlm|vokens.npy", files="ROWS='mlm vokens'",
        toy="SEEDS=0", folder="worth-part"),
    # ------------------------------------------------------------------------------------ xdbert
    Row("xdbert", "", "help", "make teacher"),
    Row("xdbert", "", "given-tasks given-captions", "^$"),
    Row("xdbert", "", "table4 table6 table7", "109,?482,?240"),
    Row("xdbert", "small", "teacher", makes='small/teacher/metrics.jsonl:"r10"'),
    Row("xdbert", "small", "adapt", makes='small/run.bert/run.json '
        'small/run.xdbert/metrics.jsonl:"match_low"'),
    Row("xdbert", "small", "table1", "clip-t|xdbert"),
    Row("xdbert", "small", "table2", "bert-tiny"),
    Row("xdbert", "small", "figure4 appendix-d", "On par|Visually-grounded ratio"),
    Row("xdbert", "small", "table3", "one-layer"),
    Row("xdbert", "small", "table8 table9", "xdbert"),
    Row("xdbert", "small", "adapt", makes="small/wiki.train.txt small/wiki.test.txt "
        'small/run.xdbert/metrics.jsonl:"match_low"',
        files="WIKITEXT={wikitext}", folder="xdbert-wikitext"),
    Row("xdbert", "paper", "teacher", "^$"),  # CLIP itself is there
    Row("xdbert", "paper", "adapt", makes='paper/run.bert/run.json '
        'paper/run.xdbert/metrics.jsonl:"match_low"'),
    Row("xdbert", "paper", "table1", "clip-t|xdelectra-l"),
    Row("xdbert", "paper", "table2", "bert-tiny"),
    Row("xdbert", "paper", "figure4 appendix-d", "On par|Visually-grounded ratio"),
    Row("xdbert", "paper", "table3", "one-layer|twenty-epochs|wiki"),
    Row("xdbert", "paper", "table8 table9", "xdelectra-b"),
)  # fmt: skip
