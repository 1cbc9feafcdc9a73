"""Simulation of a task without training, on one or several ranks."""
