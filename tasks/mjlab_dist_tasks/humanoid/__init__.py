"""A humanoid of 23 joints that walks as it is told."""
