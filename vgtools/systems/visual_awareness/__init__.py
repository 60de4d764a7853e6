"""Visual awareness (Zhang et al. 2019).

"Probing Contextualized Sentence Representations with Visual Awareness".
"""

# Where each section of the paper is implemented: `module.definition` of this package.
SECTIONS = {
    "section 2.1": (
        "recipe.RetrieverConfig",
        "retriever.Retriever",
        "retriever.triplet_loss",
        "retrieve.RetrieverSearch",
        "training.fit",
        "words.WordReader",
    ),
    "section 5.1": ("localisation.pointing", "localisation.segmentation"),
    "figure 2": ("retriever.ImagePath",),
    "figure 4": ("concepts.concept_weights",),
    "section 4.1": ("reported.retrieval",),
}
