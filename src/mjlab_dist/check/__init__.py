"""Checks of a task for its authors: types, waits for the device, replays, finite numbers, seeds, resuming, buffers."""

NUM_CHECKED = 16
"""Number of envs if none is given."""
