"""The downstream tasks: their table, examples, token sequences, predictions and scores."""
