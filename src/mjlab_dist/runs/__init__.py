"""The files of a run: its directory, lease, provenance and metrics, and the comparison of runs. Imports no torch."""
