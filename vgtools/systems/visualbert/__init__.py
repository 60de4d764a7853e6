"""VisualBERT, as the appendix of What Does BERT with Vision Look At? has it (Li et al. 2020)."""

# Where each section of the paper is implemented: `module.definition` of this package.
SECTIONS = {
    "section 2": ("model.VisualBert",),
    "section A.2": ("model.VisualBert",),
    "section A.3": (
        "captions.read_captions",
        "model.VisualBert",
        "model.sip",
        "pretraining.partner",
    ),
    "appendix B": ("tasks.VisualTuner", "model.VisualBertConfig"),
    "appendix B.3": ("captions.stack_regions", "tasks.collate"),
    "appendix B.4": ("tasks.PhraseAttention",),
    "appendix C": ("pretraining.collate",),
    "table 1": ("reported.scores",),
    "table 2": ("reported.heads",),
    "table 7": ("recipe.SeenRegions", "reported.scores"),
    "figure 3": ("reported.heads",),
    "Gupta et al. 2020, section 3": ("region_start.alignment_loss",),
}
