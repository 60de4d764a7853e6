"""Visual Grounding Strategies for Text-Only Natural Language Processing (Sileo 2021)."""

# Where each section of the paper is implemented: `module.definition` of this package.
SECTIONS = {
    "section 2.1": ("model.CrossModal", "model.GroundedEncoder"),
    "section 2.2": ("model.jmlm", "model.jmrm"),
    "section 2.3": ("model.Grounding",),
    "section 2.4": ("association.open_associator",),
    "section 2.4.1": ("association.Scene", "keys.caption_keys"),
    "section 2.4.2": ("association.Objects", "association.cluster_nouns", "keys.noun_keys"),
    "table 3": ("association.Keywords", "keys.keywords"),
    "tables 1-4": ("reported.regions", "reported.perplexities", "reported.scores"),
}
