"""One package per paper; its `SECTIONS` maps the paper's sections to the definitions that implement them."""
