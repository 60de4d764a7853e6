"""VisualBERT, as the appendix of What Does BERT with Vision Look At? has it (Li et al. 2020).

Where each section of the paper is implemented, as `module.definition` of this package:

    section 2: model.VisualBert
    section A.2: model.VisualBert
    section A.3: captions.read_captions, model.VisualBert, model.sip, pretraining.partner
    appendix B: tasks.VisualTuner, model.VisualBertConfig
    appendix B.3: captions.stack_regions, tasks.VisualLearner
    appendix B.4: tasks.PhraseAttention
    appendix C: pretraining.collate
    table 7: recipe.SeenRegions
    Gupta et al. 2020, section 3: region_start.alignment_loss

The paper's numbers are in `reported/`. Table 1 repeats the tests of tables 3 to 6, VQA's of
test-dev; its caption says Test-P for NLVR2, but the numbers are table 5's of Test-U. In table 5
the rows of numbers of regions are footnote 4, in table 4 the row of a fixed ResNet-50 is footnote
3. The heads are the best active head of each relation (table 2), and the best head of entities,
which the paper does not name (section 3.1, next to figure 3).
"""
