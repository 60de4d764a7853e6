"""Vokenization (Tan & Bansal 2020).

"Vokenization: Improving Language Understanding with Contextualized, Visual-Grounded Supervision".
"""

# Where each section of the paper is implemented: `module.definition` of this package.
SECTIONS = {
    "section 2.2": (
        "voken_lm.VisuallySupervisedLM",
        "voken_lm.VokenHead",
        "objectives.Objective",
        "pretraining.VokenPretraining",
    ),
    "section 3.1": ("vokenize.vokenize", "calibration.Calibration", "published.read_vokens"),
    "section 3.2": (
        "matcher.TokenImageMatcher",
        "matcher.hinge_loss",
        "matcher_training.evaluate_matcher",
        "evaluation.Evaluation",
        "locate.RelevanceLocator",
        "dual.DualEmbedding",
    ),
    "section 3.3": ("revokenize.revokenize",),
    "section 5.2": ("term_frequency.TermFrequency", "controls.DrawWork"),
    "table 1": ("reported.corpora",),
    "table 2": ("reported.scores",),
    "table 5": ("voken_lm.VokenMasking",),
    # Next to the controls of the paper are those that it does not have.
    "table 6": (
        "voken_lm.control_vokens",
        "states.StateEmbedding",
        "clusters.fit_clusters",
    ),
    "appendix A.4": (
        "recipe.MatcherConfig",
        "matcher.hinge_loss",
        "retrieve.SentenceRetriever",
    ),
    "appendix A.5": ("term_frequency.TermFrequency",),
}
