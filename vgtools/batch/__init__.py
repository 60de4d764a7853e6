"""Large outputs in pieces, which any process may make, in any order, on any machine."""
