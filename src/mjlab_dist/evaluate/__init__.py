"""Evaluate a trained policy: many episodes on all ranks, at several values of the env's parameters if asked to."""
