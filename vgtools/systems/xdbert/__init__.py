"""Hsu et al. 2022: XDBERT: Distilling Visual Information to BERT from Cross-Modal Systems."""

# Where each section of the paper is implemented: `module.definition` of this package.
SECTIONS = {
    "section 2.1": ("model.CrossLayer", "model.XDBertCrossModal"),
    "section 2.3": ("model.XDBert", "pretraining.XDBertPretraining"),
    "section 2.3.1": ("model.XDBert", "pairs.collate"),
    "section 2.3.2": ("model.XDBert", "pairs.partners"),
    "section 2.3.3": ("model.XDBert", "pairs.collate"),
    "section 3": ("tasks.TowerTuner",),
    "section 5": ("maps.CrossProbe",),
    "appendix B": ("pairs.TeacherText", "tasks.FullInputs"),
    "appendix C.1": ("pretraining.XDBertPretraining",),
    "appendix C.2": ("tasks.TowerTuner", "tasks.FullTuner"),
    "appendix C.3": ("tasks.FullTuner",),
    "table 1": ("reported.scores",),
    "table 2": ("vocabularies.compare_words", "reported.pwcca"),
    "table 3": ("reported.scores",),
    "table 4": ("reported.sizes",),
    "table 5": ("tasks.TowerTuner", "tasks.FullTuner"),
    "table 6": ("parameters.cross_layer", "parameters.full_model"),
    "table 7": ("reported.scores",),
    "table 8": ("tasks.FullTuner", "reported.scores"),
    "table 9": ("maps.CrossProbe",),
    "figure 2": ("pretraining.XDBertPretraining",),
    "figure 3": ("model.CrossLayer",),
    "figure 4": ("reported.examples",),
}
