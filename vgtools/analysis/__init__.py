"""Measurements of texts and vokens that no paper's system is needed for."""
