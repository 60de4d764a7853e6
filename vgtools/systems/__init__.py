"""One package per paper; its `SECTIONS` maps sections to the definitions that implement them."""
