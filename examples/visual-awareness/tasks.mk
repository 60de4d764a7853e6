# Tables 2 and 3 of the paper: inference and tagging, with retrieved images and with the controls. Included by the Makefile.
#
#   make table2 SNLI=… BANK=coco.faiss FEATS=coco.npy SCALE=paper       SNLI; SNLI holds snli_1.0_{train,dev,test}.jsonl
#   make table3 CONLL=… BANK=… FEATS=… SCALE=paper                      CoNLL-2003; CONLL holds eng.train, eng.testa, eng.testb
#   make table2 table3 SNLI=dev.jsonl SQUAD=… BANK=… FEATS=…            small: 2 cores; silver tags instead of CoNLL-2003's
#   make sick SICK=… BANK=… FEATS=…                                     not in the paper: SICK, as SNLI
#   make conll-counts CONLL=…                                           tokens and entities next to the published counts
#
# BANK is an index of images (vg build-index), FEATS their features. A row of a table is a run with SEEDS seeds, of the
# settings that were best on the dev set with the first of them; the controls take `va`'s:
#
#   base        the encoder alone
#   va          images retrieved for the text
#   random      any images, as many
#   shuffle     the images of another text
#   none        no images, but the same layers
#
# A gain of `va` over `base` may come from the added layers (`none`); a gain of images over none shows little if `random` or
# `shuffle` gain as much. Sentences that are captions of photos in the bank must not find these: --not-own (SNLI names them).
BANK  ?=
FEATS ?=
SNLI  ?=
CONLL ?=
SQUAD ?=
SICK  ?=
K     ?= 8
ARMS  ?= base va random shuffle none
T     := $(OUT)/tasks
.PHONY: table2 table3 sick conll-counts

ifeq ($(SCALE),paper)
TEXT    ?= google-bert/bert-base-uncased
CASED   ?= google-bert/bert-base-cased
RATES   ?= 8e-6 1e-5 2e-5 3e-5
BATCHES ?= 16 24 32
EPOCHS  ?= 2 3 4 5
SEARCH  ?= $(foreach r,$(RATES),$(foreach b,$(BATCHES),$(foreach e,$(EPOCHS),$(r)_$(b)_$(e))))
SEARCH_snli       ?= $(SEARCH)
SEARCH_sick       ?= $(SEARCH)
SEARCH_conll-2003 ?= $(SEARCH)
SEEDS   ?= 5
SPLIT   ?= test
else
TEXT    ?= builtin:minilm
CASED   ?= builtin:minilm
SEARCH_snli       ?= 1e-4_16_2
SEARCH_sick       ?= 1e-4_16_2
SEARCH_conll-2003 ?= 3e-4_16_3
SEEDS   ?= 5
SPLIT   ?= dev
endif
# Examples of SCALE=small: to learn from, and to score.
PAIRS         ?= 1000
DEV_PAIRS     ?= 500
SENTENCES     ?= 700
DEV_SENTENCES ?= 300
# More flags of vg finetune: for the runs with images (--fusion gate, --image-dropout 0.5), and for all.
FUSION         ?=
FINETUNE_FLAGS ?=

# ------------------------------------------------------------------------------------------------------------------ files
# Small: every fifth premise of SNLI's dev set is for scoring; whose premises are captions of the same photo.
$(T)/snli: | $(SNLI)
	@mkdir -p $@.new
	if [ -d "$(SNLI)" ]; then cp "$(SNLI)"/snli_1.0_*.jsonl $@.new; else \
	  awk -F'"' -v to=$@.new '!($$4 in seen) { seen[$$4] = ++n } { print > (to (seen[$$4] % 5 ? "/all" : "/rest")) }' "$(SNLI)" && \
	  head -n $(PAIRS) $@.new/all > $@.new/snli_1.0_train.jsonl && \
	  head -n $(DEV_PAIRS) $@.new/rest > $@.new/snli_1.0_dev.jsonl && rm $@.new/all $@.new/rest; fi
	mv $@.new $@

# Small: sentences of SQuAD, of other articles to score, tagged by a tagger. See silver.py.
$(T)/conll-2003: | $(CONLL) $(SQUAD)
	@mkdir -p $@.new
	if [ -n "$(CONLL)" ]; then cp "$(CONLL)"/eng.train "$(CONLL)"/eng.testa "$(CONLL)"/eng.testb $@.new; else \
	  for s in train dev; do \
	    $(VG) prepare squad "$(SQUAD)/$$s-v1.1.json" -q -o $@.new/$$s.txt && \
	    awk -v every=$$([ $$s = train ] && echo 5 || echo 2) 'NR % every == 1' $@.new/$$s.txt > $@.new/part.txt && \
	    $(VG) prepare sentences $@.new/part.txt -q --restart -o $@.new/$$s.sentences.txt || exit; done && \
	  $(PYTHON) $(HERE)silver.py $@.new/train.sentences.txt $(SENTENCES) > $@.new/eng.train && \
	  $(PYTHON) $(HERE)silver.py $@.new/dev.sentences.txt $(DEV_SENTENCES) > $@.new/eng.testa; fi
	mv $@.new $@

$(T)/sick: | $(SICK)
	@mkdir -p $@.new
	cp "$(SICK)"/SICK_*.txt $@.new
	mv $@.new $@

$(T)/%.images.jsonl: | $(T)/%
	@test -f "$(BANK)" || { echo "this needs BANK=FILE, an index of images, and FEATS=X.npy, their features" >&2; exit 66; }
	$(VG) prepare task $* $(T)/$* -q -o $(T)/$*.texts.jsonl
	$(VG) retrieve $(T)/$*.texts.jsonl --index $(BANK) -k $(K) $(if $(filter snli,$*),--not-own) -o $@

# ------------------------------------------------------------------------------------------------------------------- runs
ENCODER_snli       = $(TEXT)
ENCODER_sick       = $(TEXT)
ENCODER_conll-2003 = $(CASED)
FUSED = --retrieved $(T)/$(1).images.jsonl --feats $(FEATS) $(FUSION)
FLAGS_base    =
FLAGS_va      = $(FUSED)
FLAGS_random  = $(FUSED) --images random
FLAGS_shuffle = $(FUSED) --images shuffle
FLAGS_none    = $(FUSED) --images none
, := ,
# TUNE TASK ARM: the command without settings and output.
TUNE = $(VG) finetune $(1) $(T)/$(1) -e $(ENCODER_$(1)) $(FLAGS_$(2)) $(FINETUNE_FLAGS)
# SETTINGS RATE_BATCH_EPOCHS: as flags.
SETTINGS = --lr $(word 1,$(subst _, ,$(1))) --batch-size $(word 2,$(subst _, ,$(1))) --epochs $(word 3,$(subst _, ,$(1)))

# RULES TASK ARM: a run of each point of the grid, the best of them (a single point needs no run), and the run of the table.
define RULES
$(T)/grid/$(1)/$(2)/%/run.json: | $(if $(filter base,$(2)),$(T)/$(1),$(T)/$(1).images.jsonl)
	@mkdir -p $$(dir $$(@D))
	$$(call TUNE,$(1),$(2)) $$(call SETTINGS,$$*) --no-test -o $$(@D)

$(T)/grid/$(1)/$(2).best: $(if $(word 2,$(SEARCH_$(1))),$(SEARCH_$(1):%=$(T)/grid/$(1)/$(2)/%/run.json))
	@mkdir -p $$(@D)
	$$(if $$^,jq -r '[.summary.headline.mean$$(,) (input_filename | split("/")[-2])] | @tsv' $$^ | sort -g | tail -n 1 | cut -f 2,echo $(SEARCH_$(1))) > $$@

$(OUT)/$(1).runs/$(2)/run.json: $(T)/grid/$(1)/$(if $(filter base,$(2)),base,va).best | $(if $(filter base,$(2)),$(T)/$(1),$(T)/$(1).images.jsonl)
	@mkdir -p $$(dir $$(@D))
	set -- $$$$(tr _ ' ' < $$<) && $$(call TUNE,$(1),$(2)) --lr $$$$1 --batch-size $$$$2 --epochs $$$$3 --seeds $(SEEDS) -o $$(@D)
endef
$(foreach t,snli conll-2003 sick,$(foreach a,base va random shuffle none,$(eval $(call RULES,$(t),$(a)))))

# TABLE TASK [FLAGS]: all rows; a gain is that over the encoder alone, with its p-value.
TABLE = $(VG) compare $(ARMS:%=$(OUT)/$(1).runs/%) --split $(SPLIT) --median --majority --holm --table $(2) > $(OUT)/$(1).md && cat $(OUT)/$(1).md

table2: $(ARMS:%=$(OUT)/snli.runs/%/run.json)
	$(call TABLE,snli,--reported visual-awareness:2)

table3: $(ARMS:%=$(OUT)/conll-2003.runs/%/run.json)
	$(call TABLE,conll-2003,--reported visual-awareness:3)
	@test -n "$(CONLL)" || echo "the tags are silver: a tagger's, not CoNLL-2003's own" | tee -a $(OUT)/conll-2003.md

sick: $(ARMS:%=$(OUT)/sick.runs/%/run.json)
	$(call TABLE,sick)

# Tjong Kim Sang and De Meulder 2003, tables 1 and 2.
conll-counts: | $(T)/conll-2003
	@echo 'published: train 203621 tokens, 23499 entities; dev 51362, 5942; test 46435, 5648'
	$(VG) finetune conll-2003 $(T)/conll-2003 --list | jq -r '"\(.split): \([.labels[].count] | add) tokens, \([.labels[] | select(.label | startswith("B-")).count] | add) entities"'
