"""Images: where they are, how they are decoded, and what a backbone makes of them."""
