"""Zhang et al. 2020: Neural machine translation, inference and tagging with visual awareness."""

# Where each section of the paper is implemented: `module.definition` of this package.
SECTIONS = {
    "section 2.3": ("slots.TextImages", "fusion.Fusion"),
    "section 2.4": ("fusion.Fusion",),
    "section 2.5": ("tasks.FusedTuner",),
    "section 3.1": ("translation.learner", "translation.StreamTranslator"),
    "section 4.3": ("reported.scores",),
}
