"""Tokens, words, vokens and blocks of text."""
