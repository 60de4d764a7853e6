"""Large outputs in pieces: what can be made by any process, in any order, on any machine."""
