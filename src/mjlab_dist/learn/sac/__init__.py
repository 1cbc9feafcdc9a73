"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905) for many envs and any number of ranks."""
