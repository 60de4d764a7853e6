# Tables 3 and 4 of the paper: downstream tasks, and the sizes of their files. Included by the Makefile, whose runs of
# `vg pretrain grounding`, indexes and features it uses.
#
#   make table4 JOCI=… PDTB=… RTE=… SICK=… VUA=…     examples and most frequent labels of every split, next to the paper's
#   make table3 JOCI=… PDTB=… RTE=… SICK=… VUA=…     8 rows, 6 tasks, 8 seeds; a task whose files are not given is left out
#
# JOCI holds A.train.csv, A.dev.csv, A.test.csv; or is joci.csv, whose rows of SNLI are A's, cut in the file's order.
# PDTB is pdtb2.csv. RTE holds GLUE's train.tsv and dev.tsv (or validation.tsv). SICK holds SICK_*.txt. VUA holds
# VUA_formatted_*.csv, and VUA_seq_formatted_*.csv or vuamc_corpus_train.csv. Where the test file is not there, the dev file is
# the test, and every tenth row of train is dev.
JOCI ?=
PDTB ?=
RTE  ?=
SICK ?=
VUA  ?=
D    := $(OUT)/tasks
F    := $(OUT)/table3
GIVEN := $(if $(JOCI),joci) $(if $(PDTB),pdtb) $(if $(RTE),rte) $(if $(SICK),sick) $(if $(VUA),vua vuan)
TASKS ?= $(GIVEN)
.PHONY: table3 table4

# ----------------------------------------------------------------------------------------------------------------- the files
# CUT FILE DEV TRAIN: every tenth row is dev; the first line is the header.
CUT = awk -v dev=$(2) -v train=$(3) 'NR == 1 { print > dev; print > train; next } { print > (NR % 10 ? train : dev) }' $(1)

$(D)/joci: | $(JOCI)
	@mkdir -p $@.new
	if [ -d "$(JOCI)" ]; then cp "$(JOCI)"/A.*.csv $@.new; else \
	  awk -v to=$@.new 'NR == 1 { print > (to "/A.train.csv"); print > (to "/A.dev.csv"); print > (to "/A.test.csv") } \
	    /,SNLI\r?$$/ { i++; print > (to "/A." (i <= 2379 ? "train" : i <= 2678 ? "dev" : "test") ".csv") }' "$(JOCI)"; fi
	mv $@.new $@

$(D)/pdtb: | $(PDTB)
	@mkdir -p $@.new
	for s in train dev test; do $(VG) prepare pdtb "$(PDTB)" --split $$s -o $@.new/$$s.jsonl || exit; done
	mv $@.new $@

$(D)/rte: | $(RTE)
	@mkdir -p $@.new
	$(call CUT,"$(RTE)/train.tsv",$@.new/dev.tsv,$@.new/train.tsv)
	cp $(firstword $(wildcard $(RTE)/dev.tsv $(RTE)/validation.tsv)) $@.new/test.tsv
	mv $@.new $@

$(D)/sick: | $(SICK)
	@mkdir -p $@.new
	if [ -f "$(SICK)/SICK_test_annotated.txt" ]; then cp "$(SICK)"/SICK_*.txt $@.new; else \
	  cp "$(SICK)/SICK_trial.txt" $@.new/SICK_test_annotated.txt && \
	  $(call CUT,"$(SICK)/SICK_train.txt",$@.new/SICK_trial.txt,$@.new/SICK_train.txt); fi
	mv $@.new $@

VUA_TRAIN = $(firstword $(wildcard $(VUA)/VUA_formatted_train.csv $(VUA)/VUA_formatted_train_noVAL.csv))
$(D)/vua: | $(VUA)
	@mkdir -p $@.new
	if [ -f "$(VUA)/VUA_formatted_test.csv" ]; then cp "$(VUA_TRAIN)" $@.new/VUA_formatted_train.csv && \
	  cp "$(VUA)"/VUA_formatted_val.csv "$(VUA)"/VUA_formatted_test.csv $@.new; else \
	  cp "$(VUA)/VUA_formatted_val.csv" $@.new/VUA_formatted_test.csv && \
	  $(call CUT,"$(VUA_TRAIN)",$@.new/VUA_formatted_val.csv,$@.new/VUA_formatted_train.csv); fi
	mv $@.new $@

# The corpus file has one part: its sentences are dealt out, 8 of 10 to train.
$(D)/vuan: | $(VUA)
	@mkdir -p $@.new
	if [ -f "$(VUA)/VUA_seq_formatted_train.csv" ]; then \
	  for s in train:train val:dev test:test; do \
	    $(VG) prepare vua "$(VUA)/VUA_seq_formatted_$${s%:*}.csv" -o $@.new/$${s#*:}.jsonl || exit; done; else \
	  $(VG) prepare vua "$(VUA)/vuamc_corpus_train.csv" -o $@.new/all.jsonl && \
	  awk -v to=$@.new '{ print > (to "/" (NR % 10 == 0 ? "dev" : NR % 10 == 1 ? "test" : "train") ".jsonl") }' $@.new/all.jsonl; fi
	mv $@.new $@

# -------------------------------------------------------------------------------------------------------------------- table 4
PAPER.joci := 2.4k/299/298
PAPER.pdtb := 12.9k/1.2k/1.1k, 16 labels
PAPER.rte  := 2.2k/249/277, 2 labels
PAPER.sick := 4.5k/500/4.9k, 3 labels
PAPER.vua  := 16k/1.7k/5.9k, 2 labels
PAPER.vuan := 5.0k/1.3k/2.2k, 2 labels

table4: $(GIVEN:%=$(D)/%)
	@test -n "$(strip $(GIVEN))" || { echo "this needs one of JOCI=…, PDTB=…, RTE=…, SICK=…, VUA=…" >&2; exit 66; }
	@$(foreach t,$(GIVEN),echo "$(t): the paper has $(PAPER.$(t))" && $(VG) finetune $(t) $(D)/$(t) --list | \
	  jq -r '"  \(.split)\t\(.examples)\t" + ((.labels[0] | "\(.label) \(.share * 1000 | round / 10) %")? // "")' && ) true

# -------------------------------------------------------------------------------------------------------------------- table 3
# Section 3.3: at most 4 epochs, the best on dev counts; 8 runs. A row is a run of the Makefile; `plain` is its encoder alone.
# The paper has ENCODER=albert/albert-base-v2 ROWS="plain none i2t t2i both keyword scene object".
TASK_SEEDS ?= 8
FINETUNE   ?= --epochs 4 --lr 1e-4 --batch-size 32 --max-length 64 --keep best
ROWS       ?= plain none i2t both keyword scene
RUN         = $(if $(filter plain,$(1)),$(ENCODER),$(OUT)/s0/run.$(1))
NEEDS       = $(if $(filter plain,$(1)),,$(OUT)/s0/run.$(1)/run.json)
# Images of a row: those that it was pretrained with.
IMAGES.keyword ?= --index $(OUT)/keyword.jsonl --feats $(OUT)/feats.npy
IMAGES.scene   ?= --index $(OUT)/scene.faiss --feats $(OUT)/feats.npy
IMAGES.object  ?= --index $(OUT)/object.faiss --feats $(OUT)/nouns.npy
# A gain is due to the images only if random ones, or another text's, do not give it: ROWS="… scene scene-random".
CONTROL  = $(word 2,$(subst -, ,$(1)))

define score
$(F)/$(1)/$(2)/run.json: | $(D)/$(2) $(call NEEDS,$(firstword $(subst -, ,$(1))))
	@mkdir -p $$(dir $$(@D))
	$(VG) finetune $(2) $(D)/$(2) -e $(call RUN,$(firstword $(subst -, ,$(1)))) $(FINETUNE) --seeds $(TASK_SEEDS) \
	  $(IMAGES.$(firstword $(subst -, ,$(1)))) $(if $(call CONTROL,$(1)),--images $(call CONTROL,$(1))) -o $$(@D)
endef
$(foreach r,$(ROWS),$(foreach t,$(TASKS),$(eval $(call score,$(r),$(t)))))

table3: $(foreach r,$(ROWS),$(TASKS:%=$(F)/$(r)/%/run.json))
	$(VG) compare $(ROWS:%=$(F)/%) --split test --median --majority --holm --reported grounding:3 --table > $(OUT)/table3.md
	@cat $(OUT)/table3.md
