"""Start the ranks of a run: plan, processes, signals, restarts."""
