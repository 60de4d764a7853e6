# Tables 1 to 6 of the paper, figure 4, A.7 (gain against grounding ratio), and scores along a pretraining. Included by the Makefile, whose matchers, banks and
# captions they use.
#
#   make table2 COCO=… VG_DATA=… WIKI=… WIKI103=… GLUE=… SQUAD=… SWAG=…      the paper's sizes; needs the model hub and GPUs
#   make table1 … table6, gain, figure4, curve       each by itself
#   make small  DATA=… GLUE=… SQUAD=… WIKITEXT=…                             all of them, small: 2 CPU cores, no hub
#
# A model is SETTING-OBJECTIVE, for example bert12-vokens: $(T)/lm/bert12-vokens is pretrained, $(T)/ft/bert12-vokens/sst-2
# fine-tuned. A target that was stopped resumes there; nothing that is up to date is redone.
SCALE ?= paper
T     ?= tables-$(SCALE)
GLUE     ?=
SQUAD    ?=
SWAG     ?=
WIKITEXT ?=

# --------------------------------------------------------------------------------------------------------- the two scales
ifeq ($(SCALE),small)
# SQuAD's paragraphs and WikiText-2 as text, Flickr8k as captions and bank, the embedded models.
export OMP_NUM_THREADS ?= 1# `make small` runs JOBS models at once: more threads per model would only wait
CAPTIONS       := $(FLICKR)/captions.jsonl
FEATS          := $(FLICKR)/feats.npy
MATCHER        := $(FLICKR)/default.s0
SENTENCE       := $(FLICKR)/sentence.s0
BANK           ?= 2000
BANK_IMAGES    := $(FLICKR)/images.jsonl
FREQUENCY      := $(T)/token.faiss
FREQUENCIES    := $(CAPTIONS)
TABLE2         := bert2
TABLE56        := bert2
TABLE4         := bert2
BASE           := $(T)/lm/bert2-mlm
ROWS.3         := bert2-mlm bert2-noise bert2-vokens
WEIGHTS        := $(T)/lm/bert2-vokens $(T)/lm/bert2-noise
TASKS          := sst-2 rte mrpc cola
TASKS.2        := $(TASKS)
TASK_SEEDS     ?= 3
CORPORA        := $(T)/captions.txt $(T)/corpus.txt $(T)/squad.txt $(T)/wikitext.txt
REFERENCE      := $(T)/wikitext.txt
STEPS          ?= 200
KEEP           ?= 50
CURVE_STEPS    ?= 50 100 150 200
SENTENCES      ?= 8000# of each text
PRETRAIN       ?= --batch-size 16 --micro-batch 16 --lr 1e-3 --warmup 0.1 --seed 95
FINETUNE       ?= --limit 8000 --max-length 96 --lr 5e-4
SHAPE.bert2    := $(T)/bert2.json
TOKENIZER      := builtin:minilm
TEXT.bert2     := corpus
LENGTH.bert2   := --steps $(STEPS)
LENGTH.bert2.mlm := --steps $(shell expr $(STEPS) \* 11 / 10)
FINETUNE.sst-2 ?= --steps 200
FINETUNE.cola  ?= --steps 60
FINETUNE.mrpc  ?= --steps 40
FINETUNE.rte   ?= --steps 24
STATS          := --grounded-above 20
else
# Sections 4.1, 4.2, appendix A.1: 12 layers on English Wikipedia for 200,000 steps, 6 layers on Wiki103 for 40 epochs;
# models without vokens train 10 % longer. BERT's word-pieces; RoBERTa's by revokenization.
WIKI103          ?=
CONCEPTUAL       ?=# Captions and text of CNN/Daily Mail for table 1; may be missing
CNNDM            ?=
ROBERTA          ?= FacebookAI/roberta-base
VQA              ?=# questions of VQA for table 5, and captions of Conceptual
CAPTIONS         := $(PAPER)/captions.jsonl
FEATS            := $(PAPER)/bank.npy
MATCHER          := $(PAPER)/matcher
SENTENCE         := $(PAPER)/sentence
BANK             := $(VOKENS)
BANK_IMAGES      := $(PAPER)/bank.images.jsonl
FREQUENCY        := $(T)/coco.faiss
FREQUENCIES       = $(CAPTIONS) $(T)/genome.train.jsonl $(T)/genome.val.jsonl $(if $(VQA),$(T)/vqa.train.jsonl $(T)/vqa.val.jsonl)
TABLE2           ?= bert6 bert12 roberta6 roberta12
TABLE56          ?= bert12
TABLE4           ?= bert6# the paper does not name the model
BASE             := $(ENCODER)
VL               ?=# vision-and-language encoders of table 3, safetensors: hub names or folders (NOTES.md)
ROWS.3           := bert bert-noise $(notdir $(VL))
WEIGHTS          := $(VL) $(T)/lm/bert-noise
REF.bert         := $(ENCODER)
$(foreach ref,$(VL),$(eval REF.$(notdir $(ref)) := $(ref)))
TASKS            := sst-2 qnli qqp mnli
TASKS.2          := $(TASKS) squad-1.1 squad-2.0 swag
TASK_SEEDS       ?= 5
CORPORA           = $(T)/captions.txt $(T)/genome.jsonl $(CONCEPTUAL) $(T)/wiki103.txt $(T)/wiki.txt $(CNNDM)
REFERENCE        := $(T)/wiki.txt
PRETRAIN         ?= --seed 95 --cache $(T)/tokens
FINETUNE         ?=
SHAPE.bert6      := bert-small
SHAPE.bert12     := bert-base
SHAPE.roberta6   := roberta-small
SHAPE.roberta12  := roberta-base
TOKENIZER        := $(ENCODER)
TOKENIZER.roberta6  := $(ROBERTA)
TOKENIZER.roberta12 := $(ROBERTA)
PIECES.roberta6  := .roberta
PIECES.roberta12 := .roberta
TEXT.bert6       := wiki103
TEXT.roberta6    := wiki103
TEXT.bert12      := wiki
TEXT.roberta12   := wiki
LENGTH.6         := --epochs 40 --warmup 10000
LENGTH.6.mlm     := --epochs 44 --warmup 10000
LENGTH.12        := --steps 200000 --warmup 5000
LENGTH.12.mlm    := --steps 220000 --warmup 5000
$(foreach s,6 12,$(foreach k,bert roberta,$(eval LENGTH.$(k)$(s) := $(LENGTH.$(s)))$(eval LENGTH.$(k)$(s).mlm := $(LENGTH.$(s).mlm))))
LENGTH.bert6.captions := --epochs 40 --warmup 0.05
LENGTH.bert6.reduced  := --epochs 40 --warmup 0.05
KEEP             ?= 25000
CURVE_STEPS      ?= 25000 50000 75000 100000 125000 150000 175000 200000
STATS            := --tokenizer $(ENCODER) --base 10 --punctuation
# With few captions, for example --grounded-above 10.
GROUNDED         ?=
endif

# ------------------------------------------------------------------------------------------------------------- objectives
# Which vokens an objective learns (none: the plain text), and its flags. Section 5, Tables 5 and 6, appendices A.4 to A.6.
VOKENS.vokens     := vokens
VOKENS.random     := vokens
VOKENS.shuffle    := vokens
VOKENS.reverse    := vokens
VOKENS.tokens     := vokens
VOKENS.only       := vokens
VOKENS.frequency  := frequency
VOKENS.sentence   := sentence
VOKENS.propagated := sentence
FLAGS.random      := --control random
FLAGS.shuffle     := --control shuffle
FLAGS.reverse     := --control reverse
FLAGS.tokens      := --control tokens
FLAGS.only        := --weight mlm=0 --weight voken_cls=1
FLAGS.sentence    := --label first
# Table 4: captions; the same number of tokens of the other text; no pretraining.
INPUT.captions    := $(T)/captions.txt
INPUT.reduced     := $(T)/reduced.txt
INPUT.none        := $(T)/captions.txt
LENGTH.none       := --steps 1 --lr 0 --warmup 0
ROWS.4            := $(addprefix $(TABLE4)-,none captions reduced)
ROWS.5            := $(addprefix $(TABLE56)-,mlm sentence propagated frequency vokens)
ROWS.6            := $(addprefix $(TABLE56)-,mlm random shuffle reverse tokens only vokens)

# Scores along a pretraining: MODEL.N is the encoder of its step N.
CURVE             := $(addprefix $(firstword $(TABLE56))-,mlm vokens)
ROWS.curve        := $(foreach m,$(CURVE),$(addprefix $m.,$(CURVE_STEPS)))
$(foreach m,$(CURVE),$(foreach s,$(CURVE_STEPS),$(eval REF.$m.$s := $(T)/lm/$m/step-$s)))

setting   = $(firstword $(subst -, ,$1))
objective = $(lastword $(subst -, ,$1))
input     = $(or $(INPUT.$(objective)),$(T)/$(TEXT.$(setting))$(if $(VOKENS.$(objective)),.$(VOKENS.$(objective))$(PIECES.$(setting)).jsonl.zst,.txt))
length    = $(or $(LENGTH.$(objective)),$(LENGTH.$(setting).$(objective)),$(if $(VOKENS.$(objective)),$(LENGTH.$(setting)),$(LENGTH.$(setting).mlm)))
json      = $(if $(findstring .json,$1),$1)
row       = $(patsubst %/,%,$(dir $1))
encoder   = $(or $(REF.$(row)),$(T)/lm/$(row))
tuned     = $(foreach r,$1,$(foreach t,$2,$(T)/ft/$r/$t/run.json))

# ---------------------------------------------------------------------------------------------------------------- targets
TABLES := table1 table2 table3 table4 table5 table6 gain curve
.PHONY: $(TABLES) figure4 tables small tables-files
.SECONDEXPANSION:
.PRECIOUS: $(T)/genome.%.jsonl $(T)/vqa.%.jsonl $(T)/lm/%/run.json $(T)/%.vokens.jsonl.zst $(T)/%.sentence.jsonl.zst $(T)/%.frequency.jsonl.zst $(T)/%.roberta.jsonl.zst
$(TABLES): %: $(T)/%.md
	@cat $<

JOBS ?= 2
small:
	@$(MAKE) --no-print-directory -f $(firstword $(MAKEFILE_LIST)) SCALE=small tables-files
	@$(MAKE) --no-print-directory -f $(firstword $(MAKEFILE_LIST)) SCALE=small -j$(JOBS) tables

tables: $(TABLES:%=$(T)/%.md)
	@cat $^

# A folder that is missing is named before any work: $(call needs,VARIABLE,FILE,what it is).
needs = @test -n "$(wildcard $($1)/$2)" || { echo "make SCALE=$(SCALE) needs $1=FOLDER with $2 ($3)$(if $($1),; $($1) has none)" >&2; exit 66; }
ifeq ($(SCALE),small)
tables-files: flickr8k-files
	@test -n "$(wildcard $(WIKITEXT)/*.tokens $(WIKITEXT)/*.txt)" || { echo "make SCALE=small needs WIKITEXT=FOLDER with texts of WikiText-2, for example wiki.valid.tokens" >&2; exit 66; }
else
tables-files: paper-files
	@test -f "$(WIKI103)" || { echo "make SCALE=paper needs WIKI103=FILE, wiki.train.tokens of WikiText-103" >&2; exit 66; }
	$(call needs,VG_DATA,region_descriptions.json,captions of Visual Genome)
	$(call needs,SWAG,train.csv,SWAG)
endif
	$(call needs,SQUAD,train-v1.1.json,SQuAD)
	$(call needs,GLUE,SST-2/train.tsv,GLUE as its official folders)

# ------------------------------------------------------------------------------------------------------------------ texts
$(T)/captions.txt: $(CAPTIONS)
	@mkdir -p $(T)
	$(VG) prepare sentences $(CAPTIONS) -o $@

$(T)/wiki.txt: $(WIKI) | tables-files
	@mkdir -p $(T)
	ln -sf $(abspath $(WIKI)) $@

$(T)/wiki103.txt: $(WIKI103) | tables-files
	@mkdir -p $(T)
	$(VG) prepare wikitext $(WIKI103) --drop-headings --drop-short 5 --trim | $(VG) prepare sentences - -o $@

$(T)/squad.txt: | tables-files
	@mkdir -p $(T)
	$(VG) prepare squad $(SQUAD)/train-v1.1.json | awk 'NR <= $(SENTENCES)' | $(VG) prepare sentences - | awk 'NR <= $(SENTENCES)' > $@

$(T)/wikitext.txt: | tables-files
	@mkdir -p $(T)
	cat $(sort $(wildcard $(WIKITEXT)/*.tokens $(WIKITEXT)/*.txt)) | $(VG) prepare wikitext - --drop-headings --drop-short 5 --trim \
	  | $(VG) prepare sentences - | awk 'NR <= $(SENTENCES)' > $@

$(T)/corpus.txt: $(T)/squad.txt $(T)/wikitext.txt
	cat $^ > $@

$(T)/reduced.txt: $(T)/captions.txt $(T)/$(TEXT.$(TABLE4)).txt
	$(PYTHON) $(HERE)reduced.py $(TOKENIZER) $^ > $@

$(T)/bert2.json:
	@mkdir -p $(T)
	echo '{"model_type": "bert", "num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 512}' > $@

# ----------------------------------------------------------------------------------------------------------------- vokens
$(FLICKR)/sentence.s%/run.json: $(FLICKR)/feats.npy
	$(TRAIN) --level sentence --seed $* -o $(@D)

$(PAPER)/sentence/run.json: $(PAPER)/coco.npy
	$(VG) train-matcher $(PAPER)/train.jsonl $(PAPER)/coco.npy --valid $(PAPER)/val.jsonl --encoder $(ENCODER) --preset paper \
	  --level sentence --cache-gb 64 --seed 9595 -o $(@D)

$(PAPER)/captions.jsonl: $(PAPER)/train.jsonl $(PAPER)/val.jsonl
	cat $^ > $@

$(T)/genome.jsonl: | paper-files
	@mkdir -p $(T)
	$(VG) prepare visual-genome $(VG_DATA)/image_data.json --regions $(VG_DATA)/region_descriptions.json --keep-coco -o $@

# Regions of Visual Genome and questions about photos of MS COCO, under its names.
$(T)/genome.%.jsonl: | paper-files
	@mkdir -p $(T)
	$(VG) prepare visual-genome-boxes $(VG_DATA)/image_data.json $(VG_DATA)/region_descriptions.json \
	  --coco $(COCO)/annotations/captions_$*2014.json -o $@

$(T)/vqa.%.jsonl:
	@mkdir -p $(T)
	$(VG) prepare vqa $(firstword $(wildcard $(VQA)/*OpenEnded_mscoco_$*2014_questions.json) $(VQA)/v2_OpenEnded_mscoco_$*2014_questions.json) -o $@

$(T)/token.faiss: $(FEATS) $(MATCHER)/run.json
	@mkdir -p $(T)
	$(VG) build-index $(FEATS) --matcher $(MATCHER) --limit $(BANK) -o $@

$(T)/sentence.faiss: $(FEATS) $(SENTENCE)/run.json
	@mkdir -p $(T)
	$(VG) build-index $(FEATS) --matcher $(SENTENCE) --limit $(BANK) -o $@

$(T)/%.vokens.jsonl.zst: $(T)/%.txt $(T)/token.faiss
	$(VG) vokenize $< --index $(T)/token.faiss -o $@

$(T)/%.sentence.jsonl.zst: $(T)/%.txt $(T)/sentence.faiss
	$(VG) vokenize $< --index $(T)/sentence.faiss --level sentence -o $@

# Appendix A.5 joins the captions of MS COCO, the questions of VQA and the regions of Visual Genome: only photos of COCO have all
# three, so that these are its images.
$(T)/coco.faiss: $(PAPER)/coco.npy $(MATCHER)/run.json
	@mkdir -p $(T)
	$(VG) build-index $(PAPER)/coco.npy --matcher $(MATCHER) --limit $(BANK) -o $@

$(T)/%.frequency.jsonl.zst: $(T)/%.txt $(FREQUENCY) $(FREQUENCIES)
	$(VG) vokenize $< --index $(FREQUENCY) --control term-frequency $(FREQUENCIES:%=--captions %) -o $@

$(T)/%.roberta.jsonl.zst: $(T)/%.jsonl.zst
	$(VG) revokenize $< --tokenizer $(ROBERTA) -o $@

# ----------------------------------------------------------------------------------------------------------------- models
$(T)/lm/%-noise/run.json: $(addsuffix /run.json,$(filter $(T)/%,$(BASE)))
	@mkdir -p $(T)/lm
	$(VG) compare weights $(BASE) --noise $(@D) --magnitude 6.5e-3 --seed 95 > $(@D).jsonl

$(T)/lm/%/run.json: $$(call input,$$*) $$(call json,$$(SHAPE.$$(call setting,$$*)))
	@mkdir -p $(T)/lm
	$(VG) pretrain $< --shape $(SHAPE.$(call setting,$*)) --tokenizer $(or $(TOKENIZER.$(call setting,$*)),$(TOKENIZER)) \
	  $(PRETRAIN) $(call length,$*) $(FLAGS.$(call objective,$*)) $(if $(filter $*,$(CURVE)),--keep-every $(KEEP)) -o $(@D) > $(@D).log

$(foreach m,$(CURVE),$(foreach r,$(addprefix $m.,$(CURVE_STEPS)),$(eval $(call tuned,$r,$(TASKS)): $(T)/lm/$m/run.json)))

# Official files, and as data hubs name them.
glue = --train $(firstword $(wildcard $(foreach f,$2,$(GLUE)/$1/$f)) $(GLUE)/$1/train.tsv) \
  --dev $(firstword $(wildcard $(foreach f,$3,$(GLUE)/$1/$f)) $(GLUE)/$1/dev.tsv)
DATA.sst-2     = $(call glue,SST-2,train.tsv,dev.tsv)
DATA.rte       = $(call glue,RTE,train.tsv,dev.tsv validation.tsv)
DATA.mrpc      = $(call glue,MRPC,train.tsv msr_paraphrase_train.txt,dev.tsv validation.tsv)
DATA.cola      = $(call glue,CoLA,train.tsv in_domain_train.tsv,dev.tsv in_domain_dev.tsv)
DATA.qnli      = $(GLUE)/QNLI
DATA.qqp       = $(GLUE)/QQP
DATA.mnli      = $(GLUE)/MNLI
DATA.squad-1.1 = $(SQUAD)
DATA.squad-2.0 = $(SQUAD)
DATA.swag      = $(SWAG)

$(T)/ft/%/run.json: $$(if $$(REF.$$(call row,$$*)),,$(T)/lm/$$(call row,$$*)/run.json) | tables-files
	@mkdir -p $(T)/ft/$(call row,$*)
	$(VG) finetune $(notdir $*) $(DATA.$(notdir $*)) --encoder $(call encoder,$*) --seeds $(TASK_SEEDS) --no-test \
	  $(FINETUNE) $(FINETUNE.$(notdir $*)) -o $(@D) > $(@D).log

# ----------------------------------------------------------------------------------------------------------------- tables
compare = $(VG) compare $(addprefix $(T)/ft/,$1) --table

$(T)/table1.md: $(filter $(T)/% $(PAPER)/%,$(CORPORA)) $(REFERENCE) $(CAPTIONS)
	$(VG) stats $(CORPORA) --reference $(REFERENCE) --captions $(CAPTIONS) $(STATS) $(GROUNDED) --reported --table --plot $(T)/table1.svg > $@

$(T)/table2.md: $(call tuned,$(foreach s,$(TABLE2),$s-mlm $s-vokens),$(TASKS.2))
	{ true $(foreach s,$(TABLE2), && $(call compare,$s-mlm $s-vokens) $(if $(filter $s,$(lastword $(TABLE2))),--reported 2)); } > $@

$(T)/table3.md: $(call tuned,$(ROWS.3),$(TASKS)) $(addsuffix /run.json,$(filter $(T)/%,$(WEIGHTS)))
	{ $(VG) compare weights $(BASE) $(WEIGHTS) --table && echo && $(call compare,$(ROWS.3)) --reported 3; } > $@

$(T)/table4.md $(T)/table5.md $(T)/table6.md: $(T)/table%.md: $$(call tuned,$$(ROWS.$$*),$(TASKS))
	$(call compare,$(ROWS.$*)) --reported $* > $@

# Appendix A.7.
$(T)/gain.md: $(call tuned,$(foreach s,$(firstword $(TABLE2)),$s-mlm $s-vokens),$(TASKS.2)) $(CAPTIONS)
	$(call compare,$(foreach s,$(firstword $(TABLE2)),$s-mlm $s-vokens)) --grounding $(CAPTIONS) $(filter-out --base 10 --punctuation,$(STATS)) $(GROUNDED) \
	  --plot $(T)/gain.svg > $@

# The published code's GLUE over checkpoints.
$(T)/curve.md: $(call tuned,$(ROWS.curve),$(TASKS))
	$(call compare,$(ROWS.curve)) > $@

# ---------------------------------------------------------------------------------------------------------------- figure 4
figure4: $(T)/figure4.html
	@echo "$< and $(T)/figure4.png"

$(T)/figure4.jsonl: $(HERE)figure4.txt $(T)/token.faiss
	$(VG) vokenize $< --index $(T)/token.faiss -o $@

$(T)/figure4.html: $(T)/figure4.jsonl
	$(VG) show $< --index $(T)/token.faiss --images $(BANK_IMAGES) --png $(T)/figure4.png -o $@
