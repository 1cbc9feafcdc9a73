"""Pack a run into one file for others."""
