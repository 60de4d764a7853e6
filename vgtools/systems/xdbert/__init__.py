"""Hsu et al. 2022: XDBERT: Distilling Visual Information to BERT from Cross-Modal Systems.

Where each section of the paper is implemented, as `module.definition` of this package:

    section 2.1: model.CrossLayer, model.XDBertCrossModal
    section 2.3: model.XDBert, pretraining.XDBertPretraining
    section 2.3.1: model.XDBert, pairs.collate
    section 2.3.2: model.XDBert, pairs.partners
    section 2.3.3: model.XDBert, pairs.collate
    section 3: tasks.TowerTuner
    section 5: maps.CrossProbe
    appendix B: pairs.TeacherText, tasks.FullInputs
    appendix C.1: pretraining.XDBertPretraining
    appendix C.2: tasks.TowerTuner, tasks.FullTuner
    appendix C.3: tasks.FullTuner
    table 2: vocabularies.compare_words
    table 5: tasks.TowerTuner, tasks.FullTuner
    table 6: parameters.cross_layer, parameters.full_model
    table 8: tasks.FullTuner
    table 9: maps.CrossProbe
    figure 2: pretraining.XDBertPretraining
    figure 3: model.CrossLayer

The paper's numbers are in `reported/`. Its scores are medians, READ's an RMSE; table 7 repeats
table 3 of Vokenization in an order of its own. Table 2 names neither its words nor their number.
Table 6 counts BERT's parameters for both models of the base size. The examples of figure 4 are
from section 4: right answers that XDBERT-b has more than BERT-b, in percent of all.
"""
