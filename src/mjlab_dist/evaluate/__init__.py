"""Evaluate a trained policy over many episodes on all ranks, also at several values of the env's parameters."""
