"""The tasks of mjlab_dist, one folder each."""
