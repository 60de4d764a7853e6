"""Pretrained models, opened by reference, and the computations with them."""
