"""The tasks that come with mjlab_dist, one folder each."""
