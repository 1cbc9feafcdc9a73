"""Measure how training scales with the number of ranks: launch runs, split their time, and explain what limits them."""
