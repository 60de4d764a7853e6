"""What Does BERT with Vision Look At? (Li et al. 2020).

With the text-side probes of Clark et al. 2019, on which it builds.

Where each section of the papers is implemented, as `module.definition` of this package:

    section 3.1: region_heads.GroundingProbe, region_heads.syntactic_queries, scores.HeadScores,
            probing.probe_caption_file, controls.blind_rates
    section 3.2: examples.make_groups
    Clark et al. 2019, section 4.1: text.between_words
    Clark et al. 2019, section 4.2: text.word_heads
    Clark et al. 2019, section 5: head_classifier.HeadClassifier, head_classifier.ClassifierProbe
    Clark et al. 2019, section 6: text.divergences
"""
