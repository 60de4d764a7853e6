"""Images: where they are, how they are decoded, and the features that a backbone gives them."""
