"""The quadruped that imitates reference motions."""
