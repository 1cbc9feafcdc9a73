"""What a task is written with: a file for each kind of term."""
