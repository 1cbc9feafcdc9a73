"""Verify that ranks train one policy, and measure how fast: train briefly, gather evidence on each rank, judge it."""
