"""Text of the files of a new task."""
