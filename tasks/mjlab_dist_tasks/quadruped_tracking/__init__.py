"""A quadruped that imitates reference motions."""
