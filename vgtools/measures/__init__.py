"""Knowledge in the words and sentences of encoders as they are, without fine-tuning.

A measure (`evaluation.py`) asks every encoder (`subject.py`) for vectors of words or sentences,
and predicts the gold value of its items from them. `compare.py` compares the encoders on the items
that all of them know; `saved.py` keeps items and predictions for later comparisons.
"""
