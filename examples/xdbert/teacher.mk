# A teacher where no CLIP is at hand: a text tower of CLIP's form learns from captions and frozen image features (LOG.md).
#
#   make teacher FLICKR=…       small: Flickr8k, 4 minutes of one core after 3 for the features; recall on 1,000 other photos
#
# FLICKR holds Flickr8k.token.txt, the lists Flickr_8k.*Images.txt and the photos (images/ or Flicker8k_Dataset/). All other
# targets with a teacher need $(TEACHER): OUT/teacher here, openai/clip-vit-base-patch32 at the paper's scale, where there is nothing to make.
FLICKR    ?=
PHOTOS    ?= $(firstword $(wildcard $(FLICKR)/Flicker8k_Dataset $(FLICKR)/Flickr8k_Dataset $(FLICKR)/images))
BACKBONE  ?= builtin:efficientnet-lite0
TEACHING  ?= --shape clip-text-small --tokenizer builtin:clip-bpe

ifeq ($(SCALE),paper)
TEACHER   ?= openai/clip-vit-base-patch32
TAUGHT    :=
else
TEACHER   ?= $(OUT)/teacher
TAUGHT    := $(if $(filter $(OUT)/teacher,$(TEACHER)),$(OUT)/teacher/run.json)
endif

.PHONY: teacher
teacher: $(TAUGHT)

$(OUT)/flickr.jsonl:
	@test -f "$(FLICKR)/Flickr8k.token.txt" || { echo "this needs FLICKR=FOLDER with Flickr8k.token.txt, Flickr_8k.*Images.txt and the photos" >&2; exit 66; }
	@mkdir -p $(OUT)
	$(VG) prepare flickr8k $(FLICKR)/Flickr8k.token.txt --splits $(FLICKR) --images $(PHOTOS) --images-out $(OUT)/images.jsonl \
	  --on-error skip -o $@

$(OUT)/flickr.%.jsonl: $(OUT)/flickr.jsonl
	grep '"split":"$*"' $< > $@

$(OUT)/feats.npy: $(OUT)/flickr.jsonl
	$(VG) extract-image-feats $(OUT)/images.jsonl --backbone $(BACKBONE) -o $@

$(OUT)/teacher/run.json: $(OUT)/flickr.train.jsonl $(OUT)/flickr.dev.jsonl $(OUT)/feats.npy
	$(VG) pretrain clip $< --feats $(OUT)/feats.npy --valid $(OUT)/flickr.dev.jsonl $(TEACHING) -o $(@D)
