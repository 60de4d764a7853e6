# How many images per sentence (section 4.1: "m is set to 8 according to our preliminary experimental results", without a table).
# A run per m of MS, on the dev set. Included by the Makefile.
#
#   make search-m SNLI=… BANK=… FEATS=… [SEARCHED="snli sick conll-2003"]      tasks: score of dev, settings of the encoder alone
#   make search-m-translation MULTI30K=… FLICKR8K=… BANK=… FEATS=…            translation: BLEU of dev
MS       ?= 1 2 4 8 16
SEARCHED ?= snli
.PHONY: search-m search-m-translation

# AT TASK M: the images, and the run. The settings are not tuned to any m.
define AT
$(T)/$(1).m$(2).jsonl: | $(T)/$(1)
	@test -f "$(BANK)" || { echo "this needs BANK=FILE, an index of images, and FEATS=X.npy, their features" >&2; exit 66; }
	$(VG) prepare task $(1) $(T)/$(1) -q -o $(T)/$(1).m$(2).texts.jsonl
	$(VG) retrieve $(T)/$(1).m$(2).texts.jsonl --index $(BANK) -k $(2) $(if $(filter snli,$(1)),--not-own) -o $$@

$(OUT)/$(1).m/$(2)/run.json: $(T)/grid/$(1)/base.best $(T)/$(1).m$(2).jsonl
	@mkdir -p $$(dir $$(@D))
	set -- $$$$(tr _ ' ' < $$<) && $(VG) finetune $(1) $(T)/$(1) -e $(ENCODER_$(1)) --retrieved $(T)/$(1).m$(2).jsonl \
	  --feats $(FEATS) $(FUSION) $(FINETUNE_FLAGS) --lr $$$$1 --batch-size $$$$2 --epochs $$$$3 --seeds $(SEEDS) --no-test -o $$(@D)
endef
$(foreach t,snli sick conll-2003,$(foreach m,$(MS),$(eval $(call AT,$(t),$(m)))))

# BY_M PREFIX FILE WHAT: a row per m, and the best of them; among equals the fewest images.
BY_M = jq -r '[(input_filename | split("/")[-2] | ltrimstr("m")), (.summary.headline.mean * 100 | round / 100)] | @tsv' \
  $(MS:%=$(1)%/run.json) | awk 'BEGIN { print "m\tdev" } { print } NR == 1 || $$2 > top { m = $$1; top = $$2 } \
  END { print "best m of $(3): " m "; the paper has 8" }' | tee $(2)

search-m: $(foreach t,$(SEARCHED),$(MS:%=$(OUT)/$(t).m/%/run.json))
	@$(foreach t,$(SEARCHED),$(call BY_M,$(OUT)/$(t).m/,$(OUT)/$(t).m/search.tsv,$(t)) && ) true

define W_AT
$(W_IN)/%.m$(1).jsonl: $(W_IN)/%.jsonl | $(BANK)
	@test -f "$(BANK)" || { echo "this needs BANK=FILE, an index of images, and FEATS=X.npy, their features" >&2; exit 66; }
	$(VG) retrieve $$< --index $(BANK) -k $(1) $(if $(filter paper,$(SCALE)),,--not-own) -o $$@
SEE_m$(1) = $(patsubst %,--retrieved %,$(W_FILES:.jsonl=.m$(1).jsonl)) --feats $(FEATS) --no-test
$(W_RUN)/m$(1)/run.json: | $(W_FILES:.jsonl=.m$(1).jsonl)
endef
$(foreach m,$(MS),$(eval $(call W_AT,$(m))))

search-m-translation: $(MS:%=$(W_RUN)/m%/run.json)
	@$(call BY_M,$(W_RUN)/m,$(W_RUN)/search-m.tsv,translation)
