"""Retrieval: the image bank, exact or in lists, and the searches in it.

`exact` and `device` are the exact search, on a CPU and on a GPU; `index` opens and searches index
files, `build` writes them, `choice` and `duplicates` decide what of, `foreign` reads embeddings
that were made elsewhere; `texts` finds images of whole texts.
"""
