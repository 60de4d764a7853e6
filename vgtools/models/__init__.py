"""Pretrained models, opened by reference, and what is computed with them."""
