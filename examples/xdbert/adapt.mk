# Adaptation: the student next to its teacher, the fair baseline, and their differences: tables 3, 8 and 9.
#
#   make adapt FLICKR=… [TEXT=… VALID=…]     runs OUT/run.NAME of ADAPTED: losses on VALID after each epoch
#   make adapt WIKITEXT=FOLDER TEACHER=…     the same on WikiText, the paper's kind of text
#   make table3 table8 GLUE=… …              fine-tuned rows next to the paper's; medians
#   make table9 GLUE=… …                     the tokens that student and teacher look at in one another; clip_token or not
#
# TEXT is the text, VALID a part of it that is not trained on: at the paper's scale wiki103 (TEXT=wiki103.txt) and, for the row
# `wiki`, WIKI, the larger text; in small the captions of teacher.mk, a block each. A row is trained with FLAGS.NAME. `bert` is
# the same schedule with masked words alone, and no teacher. WIKITEXT holds WikiText as it is distributed: train.txt (else
# valid.txt) is learned, in small the first HELD lines of test.txt are VALID; blocks are a stream of the text, as the paper's.
# STUDENT.NAME is the student of a row, by default STUDENT; an ELECTRA gets a new head of masked words.
VALID    ?=
WIKI     ?=
WIKITEXT ?=
ifneq ($(WIKITEXT),)
TEXT     ?= $(OUT)/wiki.train.txt
VALID    := $(or $(VALID),$(OUT)/wiki.test.txt)
CLEAN    ?= --drop-headings --drop-empty --trim
ROW      ?=
endif

ifeq ($(SCALE),paper)
TEXT     ?= wiki103.txt
STUDENT  ?= google-bert/bert-base-uncased
STUDENT_RUN :=
STUDENT.electra-b   ?= google/electra-base-discriminator
STUDENT.electra-l   ?= google/electra-large-discriminator
STUDENT.xdelectra-b ?= $(STUDENT.electra-b)
STUDENT.xdelectra-l ?= $(STUDENT.electra-l)
# The published schedule: 40 epochs, ended after 1, still in the warm-up.
SCHEDULE ?= --block 512 --batch-size 256 --micro-batch 8 --lr 1e-4 --warmup 0.05 --dtype bfloat16
STOP     ?= --epochs 40 --stop-epoch 1
TWO      ?= --epochs 40 --stop-epoch 2
TWENTY   ?= --epochs 40 --stop-epoch 20
# 16k steps, as many as 20 epochs of wiki103, and their warm-up; the rate then falls to 0 instead of half.
LARGER   ?= --steps 16000 --warmup 1600
ADAPTED  ?= bert xdbert
ABLATED  ?= xdbert no-clip-token mlm one-layer two-epochs twenty-epochs wiki
FULL     ?= xdbert xdelectra-b xdelectra-l
MAPPED   ?= xdbert no-clip-token
ROW      ?=
FASTER   ?=
MATCH    ?= 1
else
TEXT     ?= $(OUT)/flickr.train.jsonl
VALID    := $(or $(VALID),$(OUT)/flickr.valid.jsonl)
HELD     ?= 60
# MiniLM has no head of masked words: it gets one first, alone.
BARE     ?= builtin:minilm
STUDENT  ?= $(OUT)/run.student
STUDENT_RUN := $(if $(filter $(OUT)/run.student,$(STUDENT)),$(STUDENT)/run.json)
HEAD     ?= --block 32 --batch-size 64 --lr 5e-4 --steps 100
STEPS    ?= 120
SCHEDULE ?= --block 32 --batch-size 64 --lr 1e-4 --warmup 0.1 --steps $(STEPS) --log-every 20 --eval-every 40
# New layers learn faster than the layers that they join, and match weighs more: it needs that within so few rows (LOG.md).
FASTER   ?= --cross-lr 1e-3
MATCH    ?= 20
STOP     ?=
TWO      ?=
TWENTY   ?=
LARGER   ?=
ADAPTED  ?= bert xdbert
ABLATED  ?= xdbert no-clip-token mlm one-layer
FULL     ?= xdbert
MAPPED   ?= xdbert no-clip-token
ROW      ?= --pack row
endif

ALL := --weight mlm=1 --weight match=$(MATCH) --weight clip_token=1
FLAGS.xdbert        := $(STOP) $(ALL)
FLAGS.xdelectra-b   := $(FLAGS.xdbert)
FLAGS.xdelectra-l   := $(FLAGS.xdbert)
FLAGS.no-clip-token := $(STOP) --weight mlm=1 --weight match=$(MATCH)
FLAGS.mlm           := $(STOP) --weight mlm=1
FLAGS.one-layer     := $(STOP) $(ALL) --cross-layers 1
FLAGS.two-epochs    := $(TWO) $(ALL)
FLAGS.twenty-epochs := $(TWENTY) $(ALL)
FLAGS.wiki          := $(LARGER) $(ALL)
INPUT.wiki          := $(WIKI)
ALONE  := bert electra-b electra-l
BESIDE := xdbert xdelectra-b xdelectra-l no-clip-token mlm one-layer two-epochs twenty-epochs wiki

$(OUT)/wiki.train.txt: $(firstword $(wildcard $(WIKITEXT)/train.txt $(WIKITEXT)/valid.txt))
	@mkdir -p $(OUT)
	$(VG) prepare wikitext $< $(CLEAN) -o $@

$(OUT)/wiki.test.txt: $(WIKITEXT)/test.txt
	@mkdir -p $(OUT)
	$(VG) prepare wikitext $< $(CLEAN) $(if $(HELD),| awk 'NR <= $(HELD)') > $@

.PHONY: adapt table3 table8 table9
adapt: $(ADAPTED:%=$(OUT)/run.%/run.json)

$(OUT)/flickr.valid.jsonl: $(OUT)/flickr.dev.jsonl
	awk -F'"' '!seen[$$4]++ && ++n <= 200' $< > $@

$(OUT)/run.student/run.json: $(TEXT)
	@mkdir -p $(OUT)
	$(VG) pretrain lm $(TEXT) -e $(BARE) $(HEAD) -o $(@D)

student = $(or $(STUDENT.$(1)),$(STUDENT))
define alone
$(OUT)/run.$(1)/run.json: $(TEXT) $(VALID) $(STUDENT_RUN)
	@mkdir -p $(OUT)
	$(VG) pretrain lm $(TEXT) $(VALID:%=--valid %) -e $(call student,$(1)) $(SCHEDULE) $(ROW) $(STOP) -o $$(@D)
endef
$(foreach r,$(ALONE),$(eval $(call alone,$(r))))

define adapt
$(OUT)/run.$(1)/run.json: $(or $(INPUT.$(1)),$(TEXT)) $(VALID) $(STUDENT_RUN) $(TAUGHT)
	@mkdir -p $(OUT)
	$(VG) pretrain xdbert $(or $(INPUT.$(1)),$(TEXT)) $(VALID:%=--valid %) -e $(call student,$(1)) --teacher $(TEACHER) $(SCHEDULE) $(ROW) \
	  $(FASTER) $(FLAGS.$(1)) -o $$(@D)
endef
$(foreach r,$(BESIDE),$(eval $(call adapt,$(r))))

# ----------------------------------------------------------------------------------------------------------- tables 3 and 8
# FOLDER, row, task, flags, seeds: fine-tuned as explain.mk does. All of table 3 has the rate of RTE, and SEEDS seeds.
TASKS3 ?= $(filter rte mrpc sts-b cola,$(TASKS))
define tune
$(OUT)/$(1)/$(2)/$(3)/run.json: | $(OUT)/run.$(2)/run.json
	@mkdir -p $$(dir $$(@D))
	$(VG) finetune $(3) $(call data_of,$(3)) -e $(OUT)/run.$(2) $(4) --seeds $(or $(5),$(SEEDS)) --epochs $(EPOCHS) \
	  --max-length $(or $(LENGTH.$(3)),$(LENGTH)) $(BATCH:%=--batch-size %) $(LIMIT:%=--limit %) $(MORE) -o $$(@D)
endef
$(foreach r,$(ABLATED),$(foreach t,$(TASKS3),$(eval $(call tune,ft3,$(r),$(t),--lr $(LR.rte)))))
$(foreach r,$(FULL),$(foreach t,$(TASKS),$(eval $(call tune,ft8,$(r),$(t),--full --lr $(call RATE,$(r),$(t)),$(SEEDS.$(t))))))

table3: given-tasks $(foreach r,$(ABLATED),$(TASKS3:%=$(OUT)/ft3/$(r)/%/run.json))
	$(VG) compare $(ABLATED:%=$(OUT)/ft3/%) --median --reported xdbert:3 --table > $(OUT)/table3.md
	@cat $(OUT)/table3.md

# The students of table 1, then each with everything.
table8: given-tasks $(foreach r,$(FULL),$(TASKS:%=$(OUT)/ft8/$(r)/%/run.json) $(call runs_of,$(r)))
	$(VG) compare $(FULL:%=$(OUT)/ft/%) $(FULL:%=$(OUT)/ft8/%) --median --reported xdbert:8 --table > $(OUT)/table8.md
	@cat $(OUT)/table8.md

# ----------------------------------------------------------------------------------------------------------------- table 9
MAPS_OF ?= $(if $(GLUE),rte=$(call dev_of,$(GLUE)/RTE),$(VALID))
table9: $(MAPPED:%=$(OUT)/run.%/run.json)
	@$(foreach r,$(MAPPED),$(VG) probe-attention cross $(MAPS_OF) -e $(OUT)/run.$(r) --limit 200 --examples 1 \
	  -o $(OUT)/maps.$(r) > $(OUT)/maps.$(r).jsonl && echo "$(r):" && cat $(OUT)/maps.$(r)/tables.md &&) true
