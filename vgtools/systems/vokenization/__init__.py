"""Vokenization (Tan & Bansal 2020).

"Vokenization: Improving Language Understanding with Contextualized, Visual-Grounded Supervision".

Where each section of the paper is implemented, as `module.definition` of this package:

    section 2.2: voken_lm.VisuallySupervisedLM, voken_lm.VokenHead, objectives.Objective,
            pretraining.VokenPretraining
    section 3.1: vokenize.vokenize, calibration.Calibration, published.read_vokens
    section 3.2: matcher.TokenImageMatcher, matcher.hinge_loss, matcher_training.evaluate_matcher,
            evaluation.Evaluation, locate.RelevanceLocator, dual.DualEmbedding, emoji.bank
    section 3.3: revokenize.revokenize
    section 5.2: term_frequency.TermFrequency, controls.DrawWork
    table 5: voken_lm.VokenMasking
    table 6: voken_lm.control_vokens, states.StateEmbedding, clusters.fit_clusters
    appendix A.4: recipe.MatcherConfig, matcher.hinge_loss, retrieve.SentenceRetriever
    appendix A.5: term_frequency.TermFrequency

The controls of table 6 are next to those that the paper does not have. Its numbers are in
`reported/`: the scores of tables 2 to 6, SQuAD's as the mean of exact match and F1, Avg. as
printed, and the corpora of table 1, whose divergences are to English Wikipedia.
"""
