"""One module a paper: model, losses, batch builder, paper-only algorithms."""
