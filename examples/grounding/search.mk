# How many images per text: footnote 7. A run per K of KS, its perplexity on the validation part, the lowest named. Included by
# the Makefile.
#
#   make search-k CC=… SBU=… WIKI_BC=… IMAGENET=… FASTTEXT=…     on Wiki-BC; the runs of table 2 are taken as they are
#   make search-k FLICKR=… [NOUNS=… NOUN_PHOTOS=…]               small: on dev captions of Flickr8k
#
# The paper: 16 is best of 1, 4, 8, 16 and 24 for scene and for object. K of an object run is also its number of clusters, up to 8.
KS ?= 1 4 8 16 24
ifeq ($(FLICKR),)
K_ARMS  ?= scene object
K_OUT   := $(PP)
K_OF    := $(PP)/s0
K_TRAIN := $(PP)/wiki.train.txt
K_DEV   := $(PP)/wiki.dev.txt
K_LEARN  = -e $(ALBERT) $(PRETRAIN) --seed 0
K_BANK.scene  := $(BANK) --index $(PP)/scene.faiss
K_BANK.object := $(OBJECTS)
K_FILES  = $(files.$(1))
K_ASK   := $(ASKED)
else
K_ARMS  ?= scene $(if $(NOUNS),object)
K_OUT   := $(OUT)
K_OF    := $(OUT)/s$(FIRST)
K_TRAIN := $(OUT)/train.jsonl
K_DEV   := $(OUT)/dev.jsonl
K_LEARN  = -e $(ENCODER) $(LEARN) --seed $(FIRST)
K_BANK.scene  := $(SCENE)
K_BANK.object := --feats $(OUT)/nouns.npy --index $(OUT)/object.faiss
K_FILES  = $(BANK.$(1)) | files
K_ASK   := $(ASK)
endif

# The run of another table, where K is its own.
define search-k
ifeq ($(2),$(K))
$(K_OUT)/k/$(1).$(2)/run.json: $(K_OF)/run.$(1)/run.json
	@mkdir -p $(K_OUT)/k
	ln -sfn $$(abspath $$(<D)) $$(@D)
else
$(K_OUT)/k/$(1).$(2)/run.json: $(K_TRAIN) $(call K_FILES,$(1))
	@mkdir -p $(K_OUT)/k
	$(VG) pretrain grounding $(K_TRAIN) --strategy $(1) $(K_BANK.$(1)) -k $(2) \
	  $(if $(filter object,$(1)),--clusters $(call at_most,$(2),$(KAPPA))) $(K_LEARN) -o $$(@D)
endif
endef
$(foreach a,$(K_ARMS),$(foreach k,$(KS),$(eval $(call search-k,$(a),$(k)))))

K_RUNS := $(foreach a,$(K_ARMS),$(KS:%=$(K_OUT)/k/$(a).%))
$(K_OUT)/search-k.jsonl: $(K_RUNS:%=%/run.json) $(K_DEV)
	$(VG) perplexity $(K_DEV) $(K_RUNS:%=-e %) $(foreach a,$(K_ARMS),$(K_BANK.$(a))) $(K_ASK) > $@

.PHONY: search-k
search-k: $(K_OUT)/search-k.jsonl
	@jq -r '[(.encoder | split("/k/")[-1] | split(".") | .[]), (.perplexity, .low, .high | . * 1000 | round / 1000)] | @tsv' $< | \
	  { printf 'strategy\tK\tperplexity\tlow\thigh\n'; cat; }
	@jq -rs 'map(. + (.encoder | split("/k/")[-1] | split(".") | {arm: .[0], k: .[1]})) | group_by(.arm)[] | min_by(.perplexity) | "lowest with " + .arm + ": K = " + .k + "; the paper has 16"' $<
