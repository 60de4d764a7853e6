"""One training loop, and everything around it: steps, processes, the run directory."""
