"""Evaluate a trained policy over many episodes on all ranks, optionally for several values of the env's parameters."""
