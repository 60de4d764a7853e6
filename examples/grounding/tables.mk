# Tables 1 and 2 and figure 4 of the paper, and table 3 at its sizes. Included by the Makefile.
#
#   make table1 COCO=… LXMERT=…                              regions per image: perplexity, seconds and MiB per step
#   make table2 COCO=… CC=… SBU=… WIKI_BC=… IMAGENET=… FASTTEXT=…      9 strategies on Wiki-BC, 7 on COCO
#   make table3-paper … JOCI=… PDTB=… RTE=… SICK=… VUA=…     table 3 of tasks.mk with these runs
#   make fig4 CC=… SBU=… IMAGENET=… FASTTEXT=…               the images of four texts: PNG and page
#   make fig4 FLICKR=… IMAGENET=… SYNSETS=                   the same in a small bank
#
# COCO holds captions_train2014.json, captions_val2014.json, train2014/, val2014/. CC holds Train_GCC-training.tsv and, in
# training/, the photos by line. SBU holds SBU_captioned_photo_dataset_{urls,captions}.txt and images/. WIKI_BC is a text, one
# page of Wikipedia or passage of BookCorpus per line; or it is made of WIKI_DUMP, PAGE_VIEWS (Wikimedia's files) and BOOKS (texts,
# one sentence per line). IMAGENET holds folders named by synset. FASTTEXT is crawl-300d-2M.vec.
# LXMERT holds train2014_obj36.tsv and val2014_obj36.tsv. All this needs the model hub and GPUs.
COCO         ?=
CC           ?=
SBU          ?=
WIKI_BC      ?=
WIKI_DUMP    ?=
PAGE_VIEWS   ?=
BOOKS        ?=
IMAGENET     ?=
FASTTEXT     ?=
LXMERT       ?=
PAPER        ?= paper
ALBERT       ?= albert/albert-base-v2
EFFICIENTNET ?= tf_efficientnet_b1.ns_jft_in1k
SYNSETS      ?= --least 10 --most 10
# Footnote 6: NLTK's, which are got once by `python -m nltk.downloader stopwords`; a file of words, or none for vg's own list.
STOP_WORDS   ?= nltk
KAPPA        ?= 8
# The rest of section 3.3 is the default of `vg pretrain grounding`.
PRETRAIN     ?=
TESTED       ?= 5000# photos of val2014 whose captions are the test
ASKED        ?=
PP           := $(PAPER)
ifneq ($(WIKI_DUMP),)
WIKI_BC      := $(PP)/wiki-bc.txt
endif
given         = $(if $($(1)),,@echo "this needs $(1)=…, see tables.mk" >&2; exit 66)

# ---------------------------------------------------------------------------------------------------------- the files
$(PP)/coco.train.jsonl $(PP)/coco.val.jsonl: $(PP)/coco.%.jsonl:
	$(call given,COCO)
	@mkdir -p $(PP)
	$(VG) prepare coco $(COCO)/captions_$*2014.json --as-split $* --images $(COCO)/$*2014 --images-out $(PP)/coco.$*.images.jsonl -o $@

$(PP)/coco.test.jsonl: $(PP)/coco.val.jsonl
	awk -F'"' '!seen[$$4]++ { n++ } n <= $(TESTED)' $< > $@

$(PP)/coco.npy: $(PP)/coco.train.jsonl $(PP)/coco.val.jsonl
	cat $(PP)/coco.train.images.jsonl $(PP)/coco.val.images.jsonl > $(PP)/coco.images.jsonl
	$(call extract,$(PP)/coco.images.jsonl)

$(PP)/regions.%.npy:
	$(call given,LXMERT)
	@mkdir -p $(PP)
	$(VG) prepare regions $(LXMERT)/$*2014_obj36.tsv --suffix .jpg --dtype float16 -o $@

# CC and SBU: the bank of scenes, and the captions of the transferred strategies. Every twentieth row of SBU is dev, the next test.
$(PP)/cc.jsonl:
	$(call given,CC)
	@mkdir -p $(PP)
	$(VG) prepare conceptual-captions $(CC)/Train_GCC-training.tsv --as-split train --images $(CC)/training \
	  --images-out $(PP)/cc.images.jsonl --on-error skip -o $@

$(PP)/sbu.jsonl:
	$(call given,SBU)
	@mkdir -p $(PP)
	$(VG) prepare sbu $(SBU)/SBU_captioned_photo_dataset_urls.txt $(SBU)/SBU_captioned_photo_dataset_captions.txt \
	  --images $(SBU)/images --images-out $(PP)/sbu.images.jsonl --on-error skip -o $@

$(PP)/bank.jsonl: $(PP)/cc.jsonl $(PP)/sbu.jsonl
	{ cat $(PP)/cc.jsonl && awk 'NR % 20 > 1' $(PP)/sbu.jsonl; } > $@
	cat $(PP)/cc.images.jsonl $(PP)/sbu.images.jsonl > $(PP)/bank.images.jsonl

# SYNSETS: those with at least 10 images, 10 of each drawn.
$(PP)/synsets.jsonl:
	$(call given,IMAGENET)
	@mkdir -p $(PP)
	$(VG) prepare imagenet $(IMAGENET) $(SYNSETS) --images-out $(PP)/synsets.images.jsonl -o $@

extract = $(VG) extract-image-feats $(1) --backbone $(EFFICIENTNET) --pooling max --dtype float16 -o $@
$(PP)/bank.npy: $(PP)/bank.jsonl
	$(call extract,$(PP)/bank.images.jsonl)

$(PP)/nouns.npy: $(PP)/synsets.jsonl
	$(call extract,$(PP)/synsets.images.jsonl)

$(PP)/words.npy:
	$(call given,FASTTEXT)
	@mkdir -p $(PP)
	$(VG) prepare vectors $(FASTTEXT) -o $@

$(PP)/scene.faiss: $(PP)/bank.jsonl $(PP)/words.npy
	$(VG) build-index $< --vectors $(PP)/words.npy $(STOP_WORDS:%=--stop-words %) -o $@

$(PP)/object.faiss: $(PP)/synsets.jsonl $(PP)/words.npy
	$(VG) build-index $< --vectors $(PP)/words.npy $(STOP_WORDS:%=--stop-words %) -o $@

$(PP)/keyword.jsonl: $(PP)/bank.jsonl
	$(VG) build-index $< --keywords 8 $(STOP_WORDS:%=--stop-words %) -o $@

# Section 3.1: pages with at least 20 views, and as many passages of BookCorpus: 64 words or more, of which 64 tokens are read.
$(PP)/pages.txt:
	$(call given,WIKI_DUMP)
	@mkdir -p $(PP)
	$(VG) prepare wikipedia $(WIKI_DUMP) --pages $(PAGE_VIEWS:%=--page-views %) -o $@

$(PP)/wiki-bc.txt: $(PP)/pages.txt $(BOOKS)
	$(call given,BOOKS)
	awk '{ p = p (p ? " " : "") $$0; n += NF } n >= 64 { print p; p = ""; n = 0 }' $(BOOKS) > $(PP)/passages.txt
	{ cat $(PP)/pages.txt && shuf -n "$$(wc -l < $(PP)/pages.txt)" --random-source=<(yes) $(PP)/passages.txt; } > $@

# 90, 5 and 5 of 100.
$(PP)/wiki.train.txt: $(filter $(PP)/%,$(WIKI_BC))
	$(call given,WIKI_BC)
	@mkdir -p $(PP)
	awk -v to=$(PP)/wiki 'NF { i++; print > (to (i % 20 > 1 ? ".train.txt.new" : i % 20 ? ".test.txt" : ".dev.txt")) }' $(WIKI_BC)
	mv $@.new $@

$(PP)/wiki.test.txt $(PP)/wiki.dev.txt: $(PP)/wiki.train.txt ;

# Section 3.2: as many captions as passages.
$(PP)/captions.jsonl: $(PP)/bank.jsonl $(PP)/wiki.train.txt
	shuf -n "$$(wc -l < $(PP)/wiki.train.txt)" --random-source=<(yes) $(PP)/bank.jsonl > $@

# ----------------------------------------------------------------------------------------------------------- the runs
# PAPER/s0/run.NAME learns from Wiki-BC, PAPER/coco/run.NAME from COCO. The associative ones find images in CC, SBU and ImageNet.
STRATEGIES   := none i2t t2i both keyword scene scene1 object1 object
ON_COCO      := $(filter-out t2i both,$(STRATEGIES))
REGIONS      := 8 16 36
TRANSFERRED  := i2t t2i both
BANK         := --feats $(PP)/bank.npy
OBJECTS      := --feats $(PP)/nouns.npy --index $(PP)/object.faiss
# Footnote 8: clusters are capped, as short texts name few objects; more than K cannot be shown.
at_most       = $(shell printf '%s\n' $(1) $(2) | sort -n | head -n 1)
P.none       := --strategy none
P.i2t        := --strategy i2t
P.t2i        := --strategy t2i
P.both       := --strategy both
P.keyword    := --strategy keyword $(BANK) --index $(PP)/keyword.jsonl -k $(K)
P.scene      := --strategy scene $(BANK) --index $(PP)/scene.faiss -k $(K)
P.scene1     := --strategy scene $(BANK) --index $(PP)/scene.faiss -k 1
P.object     := --strategy object $(OBJECTS) -k $(K) --clusters $(call at_most,$(K),$(KAPPA))
P.object1    := --strategy object $(OBJECTS) -k 1 --clusters 1
files.none   :=
files.keyword := $(PP)/bank.npy $(PP)/keyword.jsonl
files.scene  := $(PP)/bank.npy $(PP)/scene.faiss
files.scene1 := $(files.scene)
files.object := $(PP)/nouns.npy $(PP)/object.faiss
files.object1 := $(files.object)
learn         = $(VG) pretrain grounding $(1) $(2) -e $(ALBERT) $(PRETRAIN) --seed 0 -o $(@D)

define on-text
$(PP)/s0/run.$(1)/run.json: $(PP)/wiki.train.txt $(if $(filter $(1),$(TRANSFERRED)),$(PP)/captions.jsonl $(PP)/bank.npy,$(files.$(1)))
	@mkdir -p $(PP)/s0
	$$(call learn,$(PP)/wiki.train.txt $(if $(filter $(1),$(TRANSFERRED)),$(PP)/captions.jsonl),$(P.$(1)) $(if $(filter $(1),$(TRANSFERRED)),$(BANK)))
endef
$(foreach s,$(STRATEGIES),$(eval $(call on-text,$(s))))

define on-coco
$(PP)/coco/run.$(1)/run.json: $(PP)/coco.train.jsonl $(if $(filter i2t,$(1)),$(PP)/coco.npy,$(files.$(1)))
	@mkdir -p $(PP)/coco
	$$(call learn,$(PP)/coco.train.jsonl,$(P.$(1)) $(if $(filter i2t,$(1)),--feats $(PP)/coco.npy))
endef
$(foreach s,$(ON_COCO),$(eval $(call on-coco,$(s))))

define by-region
$(PP)/coco/run.n$(1)/run.json: $(PP)/coco.train.jsonl $(PP)/regions.train.npy
	@mkdir -p $(PP)/coco
	$$(call learn,$(PP)/coco.train.jsonl,--strategy i2t --regions $(PP)/regions.train.npy --boxes $(1))
endef
$(foreach n,$(REGIONS),$(eval $(call by-region,$(n))))

# --------------------------------------------------------------------------------------------------------- the tables
.PHONY: table1 table2 table3-paper fig4 figure4
ask = $(VG) perplexity $(1) $(2:%=-e %) $(ASKED) --table

# Seconds and memory are of one step of 32 texts of 64 tokens, by cost.py on this machine.
TABLE1 := $(addprefix $(PP)/coco/run.,none i2t $(REGIONS:%=n%))
$(PP)/table1.md: $(TABLE1:%=%/run.json) $(PP)/coco.test.jsonl $(PP)/coco.npy $(PP)/regions.val.npy
	{ $(call ask,$(PP)/coco.test.jsonl,$(TABLE1)) --feats $(PP)/coco.npy --regions $(PP)/regions.val.npy --reported grounding:1 && \
	  echo && $(PYTHON) $(HERE)cost.py $(TABLE1); } > $@

table1: $(PP)/table1.md
	@cat $<

FOUND := $(BANK) --feats $(PP)/nouns.npy $(addprefix --index $(PP)/,scene.faiss object.faiss keyword.jsonl)
$(PP)/table2.wiki.md: $(STRATEGIES:%=$(PP)/s0/run.%/run.json) $(PP)/wiki.test.txt
	$(call ask,$(PP)/wiki.test.txt,$(STRATEGIES:%=$(PP)/s0/run.%)) $(FOUND) --reported grounding:2 > $@

$(PP)/table2.coco.md: $(ON_COCO:%=$(PP)/coco/run.%/run.json) $(PP)/coco.test.jsonl
	$(call ask,$(PP)/coco.test.jsonl,$(ON_COCO:%=$(PP)/coco/run.%)) --feats $(PP)/coco.npy $(FOUND) --reported grounding:2 > $@

table2: $(PP)/table2.wiki.md $(PP)/table2.coco.md
	@echo "Wiki-BC" && echo && cat $(PP)/table2.wiki.md && echo && echo "COCO" && echo && cat $(PP)/table2.coco.md

# tasks.mk alone, with the runs of Wiki-BC instead of the Makefile's.
TABLE3 := none i2t t2i both keyword scene object
table3-paper: $(TABLE3:%=$(PP)/s0/run.%/run.json)
	$(MAKE) --no-print-directory -f $(HERE)tasks.mk table3 VG="$(VG)" OUT=$(PP) ENCODER=$(ALBERT) ROWS="plain $(TABLE3)" \
	  IMAGES.scene="--index $(PP)/scene.faiss $(BANK)" IMAGES.keyword="--index $(PP)/keyword.jsonl $(BANK)" IMAGES.object="$(OBJECTS)"

# ---------------------------------------------------------------------------------------------------------- figure 4
# The paper's sentence and three more; K 4, 2 clusters. With FLICKR the bank of photos is the one of `small`.
FIG4      ?= $(HERE)fig4.txt
G         := $(if $(FLICKR),$(OUT)/fig4,$(PP))
G_PHOTOS  := $(if $(FLICKR),$(OUT)/images.jsonl,$(PP)/bank.images.jsonl)
ifneq ($(FLICKR),)
$(G)/scene.faiss: $(OUT)/captions.jsonl
	@mkdir -p $(G)
	$(VG) build-index $< --vectors $(VECTORS) -o $@

$(G)/object.faiss: $(PP)/synsets.jsonl
	@mkdir -p $(G)
	$(VG) build-index $< --vectors $(VECTORS) -o $@
endif

$(G)/fig4.scene.jsonl: $(FIG4) $(G)/scene.faiss
	$(VG) retrieve $(FIG4) --index $(G)/scene.faiss -k 4 -o $@

$(G)/fig4.object.jsonl: $(FIG4) $(G)/object.faiss
	$(VG) retrieve $(FIG4) --index $(G)/object.faiss -k 4 --clusters 2 -o $@

$(G)/fig4.html: $(G)/fig4.scene.jsonl $(G)/fig4.object.jsonl
	$(VG) show $^ --index $(G)/scene.faiss --index $(G)/object.faiss --images $(G_PHOTOS) --images $(PP)/synsets.images.jsonl \
	  --png $(G)/fig4.png -o $@

fig4 figure4: $(G)/fig4.html
	@echo "$(G)/fig4.png and $(G)/fig4.html"
