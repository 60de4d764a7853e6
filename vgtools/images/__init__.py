"""Pictures: where they are, how they are decoded, what a backbone sees in them and in their regions."""
