"""Visual awareness (Zhang et al. 2019).

"Probing Contextualized Sentence Representations with Visual Awareness".

Where each section of the paper is implemented, as `module.definition` of this package:

    section 2.1: pixels.PixelRetriever, recipe.RetrieverConfig, retriever.Retriever,
            retriever.triplet_loss, retrieve.RetrieverSearch, training.fit, words.WordReader
    section 5.1: localisation.pointing, localisation.segmentation
    figure 2: retriever.ImagePath
    section 2.3: slots.SlotImages, fusion.Fusion
    section 2.4: fusion.Fusion
    section 2.5: tasks.FusedTuner
    section 3.1: translation.FusedTranslationLearner, translation.StreamTranslator
    figure 4: concepts.concept_weights

The scores of tables 1 to 3 are in `reported/`: BLEU, of which two pairs of languages are two
rows, accuracy and F1.
"""
