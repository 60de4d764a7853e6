"""Visual awareness (Zhang et al. 2019).

"Probing Contextualized Sentence Representations with Visual Awareness".
"""

# Where each section of the paper is implemented: `module.definition` of this package.
SECTIONS = {
    "section 2.1": (
        "pixels.PixelRetriever",
        "recipe.RetrieverConfig",
        "retriever.Retriever",
        "retriever.triplet_loss",
        "retrieve.RetrieverSearch",
        "training.fit",
        "words.WordReader",
    ),
    "section 5.1": ("localisation.pointing", "localisation.segmentation"),
    "figure 2": ("retriever.ImagePath",),
    "section 2.3": ("slots.SlotImages", "fusion.Fusion"),
    "section 2.4": ("fusion.Fusion",),
    "section 2.5": ("tasks.FusedTuner",),
    "section 3.1": ("translation.FusedTranslationLearner", "translation.StreamTranslator"),
    "section 4.1": ("reported.retrieval",),
    "section 4.3": ("reported.scores",),
    "figure 4": ("concepts.concept_weights",),
}
