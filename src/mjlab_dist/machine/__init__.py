"""This machine: its devices, the checks before a run, the doctor, and control groups."""
