"""Radford et al. 2021: Learning Transferable Visual Models From Natural Language Supervision.

It is not among the five papers: `vg pretrain clip` makes a small CLIP where the published weights,
which XDBERT needs for its teacher, are not at hand.

Where each section of the paper is implemented, as `module.definition` of this package:

    section 2.3: training.Contrastive, training.info_nce, training.ClipPretraining
"""
