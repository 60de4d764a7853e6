"""Sileo 2021: Visual Grounding Strategies for Text-Only Natural Language Processing.

Where each section of the paper is implemented, as `module.definition` of this package:

    section 2.1: model.CrossModal, model.GroundedEncoder
    section 2.2: model.jmlm, model.jmrm, inputs.GroundedExamples
    section 2.3: model.CrossModal, pretraining.GroundedPretraining
    section 2.4: association.open_associator, inputs.WordBank, recipe.Sources,
            retrieve.AssociativeRetriever
    section 2.4.1: association.Scene, keys.caption_keys
    section 2.4.2: association.Objects, association.cluster_nouns, keys.noun_keys
    section 3.3: texts.read_texts
    section 3.4: pictures.WholePictures, pictures.RegionPictures
    section 4.1: scoring.score
    section 4.2: tasks.GroundedTuner, tasks.GroundedTextImages
    table 3: association.Keywords, keys.keywords

The paper's numbers are in `reported/`: table 1 by regions per image, table 2 by images per text,
the scores of table 3 as medians of 8 runs with AVG as printed, the sizes of table 4 as printed.
"""
