"""Plan a run, start its ranks, supervise and restart them, and handle signals."""
