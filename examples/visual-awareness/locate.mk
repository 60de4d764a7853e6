# Figures 3 and 4, the pointing game and segmentation. Included by the Makefile.
#
#   make pointing segmentation figure4 SCALE=small RETRIEVER=RUN FLICKR=… ENTITIES=… COCO=…
#   make figure3 TEXTS=task.jsonl INDEX=coco.faiss SHOWN=images.jsonl
#   make pointing segmentation RETRIEVER=RUN GRID=grid.npy IMAGES=images.jsonl COCO=… GENOME=…
#
# SCALE=small: phrases of Flickr30k Entities on the dev photos of Flickr8k, which the retriever must not have seen; masks of
# val2017 photos of COCO. Otherwise the sizes of the published code: regions of Visual Genome on photos of COCO's val2014, and
# its masks. FLICKR holds Flickr_8k.devImages.txt and the photos, ENTITIES Sentences/ and Annotations/, COCO
# instances_val2014.json, GENOME image_data.json and region_descriptions.json. GRID is the features of all these photos (vg
# extract-image-feats --pooling none --picture N, of the run's own backbone/ where it has one), IMAGES their list. TEXTS is rows
# of vg retrieve's input.
GRID       ?= $(if $(TUNED),$(RETRIEVER).grid.npy,$(OUT)/grid.npy)
IMAGES     ?= $(OUT)/images.jsonl
INDEX      ?= $(RETRIEVER).faiss
SHOWN      ?= $(IMAGES)
TEXTS      ?= $(OUT)/tested.jsonl
ENTITIES   ?=
GENOME     ?=
# Of maps: dimensions of the text that count (the paper's 180 and 10; 99999 is all of them), the plain inner product, GradCAM.
POINT_DIMS ?= 10 60 180 99999
CUT_DIMS   ?= 10 60 180 99999
MOST       ?= 12# maps of figure 4, and texts of figure 3
L          := $(OUT)/locate
LOCATE      = $(VG) locate --matcher $(RETRIEVER)
# The network that sees the photos: the backbone of the run, where it also learned.
EYES        = $(if $(TUNED),$(RETRIEVER)/backbone,$(BACKBONE))
# Made first, unless a run is given. The other .mk files have the rules, and are read after this one: $$ waits for them.
MADE        = $(if $(filter command,$(origin RETRIEVER)),,$(RETRIEVER)/run.json)
needs       = $(if $($(1)),,@echo "this needs $(1)=…, see locate.mk" >&2; exit 66)

.SECONDEXPANSION:
.PHONY: figure3 figure4 pointing segmentation
figure3: $(L)/figure3.png $(L)/figure3.html
figure4: $(L)/figure4.png $(L)/figure4.html

# ---------------------------------------------------------------------------------------------------------------- queries
ifeq ($(SCALE),small)
INSTANCES ?= $(wildcard $(COCO)/annotations*/instances_val2017.json)
MASKED    ?= $(L)/coco.grid.npy
SEEN      ?= $(L)/fine.npy
# Pixels per side of the pictures that are searched: more cells than the retriever was trained with (LOG.md).
FINE      ?= 416

$(OUT)/images.jsonl: | $(OUT)/captions.jsonl ;

$(L)/photos.jsonl: $$(IMAGES)
	@mkdir -p $(L)
	grep -F -f $(FLICKR)/Flickr_8k.devImages.txt $< > $@

$(L)/fine.npy: $(L)/photos.jsonl | $$(MADE)
	$(VG) extract-image-feats $< --backbone $(EYES) --pooling none --picture $(FINE) --dtype float16 -o $@

# Flickr30k Entities calls a photo by its number alone. The first caption of each photo.
$(L)/phrases.jsonl:
	$(call needs,FLICKR)
	$(call needs,ENTITIES)
	@mkdir -p $(L)/lists
	sed 's/_.*/.jpg/' $(FLICKR)/Flickr_8k.devImages.txt > $(L)/lists/val.txt
	$(VG) prepare flickr30k-entities $(ENTITIES) --splits $(L)/lists --split val | awk -F'"' '!seen[$$4]++' > $@

$(L)/coco.jsonl:
	$(call needs,COCO)
	@mkdir -p $(L)
	$(VG) prepare coco $(INSTANCES) --images $(wildcard $(COCO)/images*/val2017) --images-out $@ -o $(L)/coco.boxes.jsonl

$(L)/coco.grid.npy: $(L)/coco.jsonl | $$(MADE)
	$(VG) extract-image-feats $< --backbone $(EYES) --pooling none --picture $(PICTURE) --dtype float16 -o $@
else
INSTANCES ?= $(COCO)/instances_val2014.json
MASKED    ?= $(GRID)
SEEN      ?= $(GRID)

$(L)/phrases.jsonl:
	$(call needs,COCO)
	$(call needs,GENOME)
	@mkdir -p $(L)
	$(VG) prepare visual-genome-boxes $(GENOME)/image_data.json $(GENOME)/region_descriptions.json --coco $(INSTANCES) -o $@
endif

# --------------------------------------------------------------------------------------------------------------- measures
POINTS := $(POINT_DIMS:%=$(L)/pointing.%.jsonl) $(L)/pointing.relevance.jsonl $(L)/pointing.gradient.jsonl
CUTS   := $(CUT_DIMS:%=$(L)/masks.%.jsonl) $(L)/masks.relevance.jsonl $(L)/masks.gradient.jsonl
flags   = $(if $(filter relevance gradient,$*),--heat $*,--dims $*)

$(L)/pointing.%.jsonl: $(L)/phrases.jsonl $$(SEEN) | $$(MADE)
	$(LOCATE) $< --feats $(SEEN) $(flags) --score -o $@

$(L)/masks.%.jsonl: $$(MASKED) | $$(MADE)
	$(LOCATE) $(INSTANCES) --feats $(MASKED) $(flags) --score -o $@

pointing: $(POINTS)
	@echo '| map | hits | above the centre |'
	@echo '|---|---|---|'
	@jq -r '"| \(.dims // .heat) | \(.hit) (\(.hit_low) to \(.hit_high)) | \(.above_centre) (\(.above_centre_low) to \(.above_centre_high)) |"' $^
	@jq -r '"centre \(.centre), random cell \(.random_cell), area of a box \(.box_area); \(.queries) phrases, \(.images) photos"' $<

segmentation: $(CUTS)
	@echo '| share of pictures with the class whose IoU exceeds | 0.3 | 0.4 | 0.5 |'
	@echo '|---|---|---|---|'
	@jq -r '"| \(.dims // .heat) | \(.map["over_0.3"]) | \(.map["over_0.4"]) | \(.map["over_0.5"]) |"' $^
	@jq -r '("centre", "whole_picture") as $$c | "| \($$c) | \(.[$$c]["over_0.3"]) | \(.[$$c]["over_0.4"]) | \(.[$$c]["over_0.5"]) |"' $<

# ---------------------------------------------------------------------------------------------------------------- figures
# Figure 3: the texts with the highest and the lowest score of their best image, a text once.
$(L)/texts.jsonl: $$(TEXTS) $$(INDEX)
	@mkdir -p $(L)
	$(VG) retrieve $< --index $(INDEX) --not-own -k 8 -o $@

$(L)/figure3.jsonl: $(L)/texts.jsonl
	jq -c 'select(.scores[0]) | [.scores[0], .text, .]' $< | LC_ALL=C sort -t, -u -k1.2,1g -k2,2 > $@.sorted
	{ tail -n $(MOST) $@.sorted | tac; head -n $(MOST) $@.sorted; } | jq -c '.[2]' > $@
	rm $@.sorted

$(L)/figure3.png $(L)/figure3.html &: $(L)/figure3.jsonl
	$(VG) show $< --index $(INDEX) --images $(SHOWN) --png $(L)/figure3.png -o $(L)/figure3.html

# Figure 4: several texts in one photo.
$(L)/heat.jsonl: $(L)/phrases.jsonl $$(SEEN) | $$(MADE)
	$(LOCATE) $< --feats $(SEEN) -o $@

$(L)/figure4.png $(L)/figure4.html &: $(L)/heat.jsonl
	$(VG) show $< --images $(IMAGES) --limit $(MOST) --png $(L)/figure4.png -o $(L)/figure4.html
