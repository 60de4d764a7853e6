"""Official data sets to rows."""
