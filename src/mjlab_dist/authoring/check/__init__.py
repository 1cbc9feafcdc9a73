"""Check that a task works before it is trained: its terms, physics, seeds, resuming, graph capture and buffers."""

# Default number of envs in which a task is checked
NUM_CHECKED = 16
