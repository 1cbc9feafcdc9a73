"""For authors of tasks: make a task from an MJCF, check a task, and measure the buffers that it needs."""
