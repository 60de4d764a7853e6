"""Hsu et al. 2022: XDBERT, Distilling Visual Information to BERT from Cross-Modal Systems."""

# Where each section of the paper is implemented: `module.definition` of this package.
SECTIONS = {
    "table 1": ("reported.scores",),
    "table 2": ("vocabularies.compare_words", "reported.pwcca"),
    "table 4": ("reported.sizes",),
    "table 6": ("parameters.cross_layer", "parameters.full_model"),
    "table 8": ("reported.scores",),
    "figure 4": ("reported.examples",),
}
