"""Measure how training scales with the number of ranks, and report what limits it."""
