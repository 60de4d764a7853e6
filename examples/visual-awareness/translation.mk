# Table 1 of the paper: translation with retrieved images, next to its controls. Included by the Makefile.
#
#   make table1 MULTI30K=… FLICKR8K=… BANK=scene.faiss FEATS=feats.npy                     small: 2 cores
#   make masked MASK=nouns MULTI30K=… FLICKR8K=… BANK=… FEATS=…                            hidden source words
#   make table1 SCALE=paper WMT=ende WMT_TRAIN="train.en train.de" WMT_DEV="…" WMT_TEST="…" BANK=coco.faiss FEATS=coco.npy
#   make text-only PAIRS_OF=FOLDER                                                         src-train.txt, tgt-train.txt …
#
# small is Multi30k en→de, the pairs whose photo is in Flickr8k, split by photo. BANK has no photo of a dev pair, and
# --not-own leaves out a pair's own one. MASK=colours or nouns hides words of the sources, in training and in dev; `own` are
# the photos themselves, which show the hidden words, instead of retrieved ones.
#
#   base        the Transformer alone; base.on: trained longer, as long as the rows below it
#   found       images retrieved for the sentence
#   dropout     the same, hidden from half of the sentences in each step
#   none, random, shuffle      the controls of tasks.mk
#   gate, scalar-gate, sum, weight, attention, bi-attention      fusions of the code for NMT, besides the paper's own; from
#               scratch, the last two always: make table1 TABLE1="base found gate scalar-gate sum weight attention bi-attention" …
#
# NAME is trained from scratch; NAME.on from the finished base, with a fusion that lets the text through at first.
MULTI30K ?=
FLICKR8K ?=
PAIRS_OF ?=
MASK     ?=
WMT      ?= multi30k
WMT_SEED ?= 9595
WEIGHT   ?= 0.5
.PHONY: table1 text-only

ifeq ($(SCALE),paper)
# Zhang et al. 2019, section 4.2: the settings of the task are the paper's. WMT16 en-ro: WMT=enro and its files.
SHAPE      ?= transformer-base
VOCABULARY ?= 40000
SCRATCH    ?=
ONWARD     ?= --steps 20000 --lr 1e-4 --warmup 1000
WMT_SPLITS := train dev test
else
SHAPE      ?= transformer-small
VOCABULARY ?= 4000
_SMALL     := --warmup 20 --batch-size 1024 --max-length 100 --keep last
SCRATCH    ?= $(_SMALL) --epochs 12 --lr 2e-3 --warmup 200
ONWARD     ?= $(_SMALL) --epochs 2 --lr 1e-3
WMT_SPLITS := train dev
endif
W     := $(OUT)/$(WMT)
W_IN  := $(W)/pairs$(if $(MASK),.$(MASK))
W_RUN := $(W)/runs$(if $(MASK),.$(MASK))
W_BASE = $(W)/runs/base

# --------------------------------------------------------------------------------------------------------------------- files
ifeq ($(SCALE),paper)
$(W_IN)/train.jsonl: ; @mkdir -p $(@D) && $(VG) prepare pairs $(WMT_TRAIN) -o $@
$(W_IN)/dev.jsonl:   ; @mkdir -p $(@D) && $(VG) prepare pairs $(WMT_DEV) -o $@
$(W_IN)/test.jsonl:  ; @mkdir -p $(@D) && $(VG) prepare pairs $(WMT_TEST) -o $@
else
$(W_IN)/train.jsonl:
	@test -d "$(MULTI30K)" -a -d "$(FLICKR8K)" || { echo "this needs MULTI30K=FOLDER and FLICKR8K=FOLDER" >&2; exit 66; }
	$(PYTHON) $(HERE)multi30k.py $(MULTI30K) $(FLICKR8K) $(@D) $(if $(MASK),--mask $(MASK))
$(W_IN)/dev.jsonl: $(W_IN)/train.jsonl
endif
W_FILES := $(WMT_SPLITS:%=$(W_IN)/%.jsonl)

$(W)/bpe/tokenizer.json: $(W)/pairs/train.jsonl
	$(VG) prepare tokenizer $< --vocabulary $(VOCABULARY) -o $(@D)

$(W_IN)/%.images.jsonl: $(W_IN)/%.jsonl | $(BANK)
	@test -f "$(BANK)" || { echo "this needs BANK=FILE, an index of images, and FEATS=X.npy, their features" >&2; exit 66; }
	$(VG) retrieve $< --index $(BANK) -k $(K) $(if $(filter paper,$(SCALE)),,--not-own) -o $@

# The photo of each pair, as a row of the features: the best that retrieval could find.
$(W_IN)/%.own.jsonl: $(W_IN)/%.jsonl | $(FEATS)
	$(PYTHON) $(HERE)own.py $< $(FEATS:.npy=.ids) > $@

# ---------------------------------------------------------------------------------------------------------------------- runs
W_FOUND := $(W_FILES:.jsonl=.images.jsonl)
W_OWN   := $(W_FILES:.jsonl=.own.jsonl)
SEE_found   = $(W_FOUND:%=--retrieved %) --feats $(FEATS)
SEE_base    =
SEE_none    = $(SEE_found) --images none
SEE_random  = $(SEE_found) --images random
SEE_shuffle = $(SEE_found) --images shuffle
SEE_gate    = $(SEE_found) --fusion gate
SEE_scalar-gate  = $(SEE_found) --fusion scalar-gate
SEE_sum          = $(SEE_found) --fusion sum
SEE_weight       = $(SEE_found) --fusion sum --image-weight $(WEIGHT)
SEE_attention    = $(SEE_found) --fusion attention
SEE_bi-attention = $(SEE_found) --fusion bi-attention
SEE_dropout = $(SEE_found) --image-dropout 0.5
SEE_own     = $(W_OWN:%=--retrieved %) --feats $(FEATS) --index $(FEATS)
SEE_own-shuffle = $(SEE_own) --images shuffle

known_row = $(if $(filter undefined,$(origin SEE_$*)),$(error there is no row $*))

$(W_RUN)/%.on/run.json: $(W_FILES) $(W_FOUND) $(if $(MASK),$(W_OWN)) | $(W_BASE)/run.json
	@$(known_row)mkdir -p $(dir $(@D))
	$(VG) finetune translation $(W_IN) -e $(W_BASE)/seed-$(WMT_SEED)/model --seed $(WMT_SEED) $(ONWARD) \
	  $(SEE_$*) $(if $(SEE_$*),--fusion-start identity) -o $(@D)

# Runs on hidden words start where the runs on whole sentences ended.
ifneq ($(MASK),)
$(W_BASE)/run.json: ; $(MAKE) -C $(HERE) MASK= OUT=$(abspath $(OUT)) $(abspath $@)
endif

# Named here, so that NAME.on is made by the rule above also where no table asks for base.
.PHONY: translation-base
translation-base: $(W_BASE)/run.json

$(W_RUN)/%/run.json: $(W_FILES) $(W)/bpe/tokenizer.json | $(W_FOUND)
	@$(known_row)mkdir -p $(@D)
	$(VG) finetune translation $(W_IN) --shape $(SHAPE) -t $(W)/bpe --seed $(WMT_SEED) $(SCRATCH) $(SEE_$*) -o $(@D)

TABLE1 ?= base none random shuffle found dropout base.on none.on random.on shuffle.on found.on gate.on
TABLE_HIDDEN ?= none.on found.on own-shuffle.on own.on

table1: $(TABLE1:%=$(W_RUN)/%/run.json)
	$(VG) compare $(TABLE1:%=$(W_RUN)/%) $(if $(filter test,$(WMT_SPLITS)),--split test) --reported visual-awareness:1

# Multi30k alone has a photo for each pair.
ifneq ($(SCALE),paper)
.PHONY: masked
masked: $(TABLE_HIDDEN:%=$(W_RUN)/%/run.json)
	$(VG) compare $(TABLE_HIDDEN:%=$(W_RUN)/%)
endif

# Pairs without pictures: the Transformer alone, on PAIRS_OF/{src,tgt}-{train,val}.txt.
text-only:
	@test -f "$(PAIRS_OF)/src-train.txt" || { echo "this needs PAIRS_OF=FOLDER" >&2; exit 66; }
	@mkdir -p $(OUT)/text/pairs
	$(VG) prepare pairs $(PAIRS_OF)/src-train.txt $(PAIRS_OF)/tgt-train.txt -o $(OUT)/text/pairs/train.jsonl
	$(VG) prepare pairs $(PAIRS_OF)/src-val.txt $(PAIRS_OF)/tgt-val.txt -o $(OUT)/text/pairs/dev.jsonl
	$(VG) prepare tokenizer $(OUT)/text/pairs/train.jsonl --vocabulary $(VOCABULARY) -o $(OUT)/text/bpe
	$(VG) finetune translation $(OUT)/text/pairs --shape $(SHAPE) -t $(OUT)/text/bpe $(SCRATCH) -o $(OUT)/text/base
