"""Sileo 2021: Visual Grounding Strategies for Text-Only Natural Language Processing."""

# Where each section of the paper is implemented: `module.definition` of this package.
SECTIONS = {
    "section 2.4": ("association.open_associator", "retrieve.AssociativeRetriever"),
    "section 2.4.1": ("association.Scene", "keys.caption_keys"),
    "section 2.4.2": ("association.Objects", "association.cluster_nouns", "keys.noun_keys"),
    "table 3": ("association.Keywords", "keys.keywords"),
}
