"""Several machines: SSH, checks before ranks start on them, their devices, and whether they simulate the same task."""
