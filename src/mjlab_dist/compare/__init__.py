"""Compare runs by their files: curves, final values and configs. Imports no torch."""
