# Table 1 of the paper: translation with retrieved images, beside its controls. Included by the Makefile,
# whose index and features it uses; it also runs by itself.
#
#   make -f translation.mk table1 SCALE=small MULTI30K=… FLICKR8K=… INDEX=… FEATS=…
#   make -f translation.mk table1 WMT=ende TRAIN="train.en train.de" DEV="…" TEST="…" INDEX=coco.faiss FEATS=coco.npy
#
# small is Multi30k en→de, the pairs whose photo is in Flickr8k, split by photo. INDEX has no photo of a dev pair, and
# --not-own leaves out a pair's own one. MASK=colours or nouns hides words of the sources, in training and in dev; `own` are
# the photos themselves, which show what is hidden, in place of retrieved ones.
VG     ?= vg
PYTHON ?= python
SCALE  ?= small
OUT    ?= translation
K      ?= 8
HERE   := $(dir $(abspath $(lastword $(MAKEFILE_LIST))))
.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: table1 masked
INDEX  ?= $(OUT)/index.faiss
FEATS  ?= $(OUT)/feats.npy

ifeq ($(SCALE),small)
MULTI30K ?=
FLICKR8K ?=
MASK     ?=
SHAPE    ?= transformer-small
VOCABULARY ?= 4000
LEARN    ?= --epochs 12 --lr 2e-3 --warmup 200 --batch-size 1024 --max-length 100 --keep last --device cpu
# Fine-tuning from the finished baseline: a sixth of the epochs, half of the rate.
ON       ?= --epochs 2 --lr 1e-3 --warmup 20 --batch-size 1024 --max-length 100 --keep last --device cpu
DROPOUT  ?= .5
NOT_OWN  := --not-own
else
# Zhang et al. 2020, section 4: the values of the task are the paper's. WMT16 en-ro: WMT=enro and its files.
WMT      ?= ende
TRAIN    ?=
DEV      ?=
TEST     ?=
SHAPE    ?= transformer-base
VOCABULARY ?= 40000
LEARN    ?=
ON       ?= --steps 20000 --lr 1e-4 --warmup 1000
DROPOUT  ?= 0
NOT_OWN  :=
endif
SEED ?= 9595
D    := $(OUT)/data$(if $(MASK),.$(MASK))
R    := $(OUT)/runs$(if $(MASK),.$(MASK))

# --------------------------------------------------------------------------------------------------------------------- files
ifeq ($(SCALE),small)
$(D)/train.jsonl:
	@test -d "$(MULTI30K)" -a -d "$(FLICKR8K)" || { echo "this needs MULTI30K=FOLDER and FLICKR8K=FOLDER" >&2; exit 66; }
	$(PYTHON) $(HERE)multi30k.py $(MULTI30K) $(FLICKR8K) $(D) $(if $(MASK),--mask $(MASK))
$(D)/dev.jsonl: $(D)/train.jsonl
else
$(D)/train.jsonl: ; @mkdir -p $(D) && $(VG) prepare pairs $(TRAIN) -o $@
$(D)/dev.jsonl:   ; @mkdir -p $(D) && $(VG) prepare pairs $(DEV) -o $@
$(D)/test.jsonl:  ; @mkdir -p $(D) && $(VG) prepare pairs $(TEST) -o $@
endif
FILES := $(D)/train.jsonl $(D)/dev.jsonl $(if $(filter small,$(SCALE)),,$(D)/test.jsonl)

$(D)/bpe/tokenizer.json: $(D)/train.jsonl
	$(VG) prepare tokenizer $< --vocabulary $(VOCABULARY) -o $(D)/bpe

$(D)/%.images.jsonl: $(D)/%.jsonl $(INDEX)
	$(VG) retrieve $< --index $(INDEX) -k $(K) $(NOT_OWN) -o $@

# The photo of each pair, as a row of the features: what retrieval would find at best.
$(D)/%.own.jsonl: $(D)/%.jsonl
	$(PYTHON) $(HERE)own.py $< $(FEATS:.npy=.ids) > $@

RETRIEVED := $(FILES:.jsonl=.images.jsonl)
OWN       := $(FILES:.jsonl=.own.jsonl)

# ---------------------------------------------------------------------------------------------------------------------- runs
# R/NAME: trained from scratch. R/NAME.on: from the finished baseline on whole sentences, with a fusion that lets the text
# through at first; the control base.on learns as long without images.
SEE := $(addprefix --retrieved ,$(RETRIEVED)) --feats $(FEATS)
see.base     :=
see.none     := $(SEE) --images none
see.random   := $(SEE) --images random
see.shuffle  := $(SEE) --images shuffle
see.found    := $(SEE)
see.gate     := $(SEE) --fusion gate
see.dropout  := $(SEE) --image-dropout $(or $(filter-out 0,$(DROPOUT)),.5)
see.own      := $(addprefix --retrieved ,$(OWN)) --feats $(FEATS)
see.own-shuffle := $(see.own) --images shuffle

B := $(OUT)/runs/base
$(R)/%.on/run.json: $(FILES) $(RETRIEVED) $(if $(MASK),$(OWN)) | $(B)/run.json
	$(VG) finetune translation $(D) -e $(B)/seed-$(SEED)/model --seed $(SEED) $(ON) \
	  $(see.$*) $(if $(see.$*),--fusion-start identity) -o $(R)/$*.on

$(R)/%/run.json: $(FILES) $(D)/bpe/tokenizer.json $(RETRIEVED) $(if $(MASK),$(OWN))
	@mkdir -p $(R)
	$(VG) finetune translation $(D) --shape $(SHAPE) -t $(D)/bpe --seed $(SEED) $(LEARN) $(see.$*) -o $(R)/$*

SCRATCH ?= base none random shuffle found dropout
BASED   ?= base none random shuffle found gate
MASKED  ?= none found own own-shuffle
ROWS    ?= $(SCRATCH) $(addsuffix .on,$(BASED))

table1: $(ROWS:%=$(R)/%/run.json)
	$(VG) compare $(ROWS:%=$(R)/%) --baseline $(R)/base --reported visual-awareness:1

# Hidden source words: MASK=colours or nouns.
masked: $(MASKED:%=$(R)/%.on/run.json)
	$(VG) compare $(MASKED:%=$(R)/%.on) --baseline $(R)/none.on
