"""Composable Unix-style tools for visually grounded language learning."""

__version__ = "0.1.0"
