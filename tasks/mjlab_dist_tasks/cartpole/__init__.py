"""Cartpole tasks: balance an upright pole, or swing it up first."""

from mjlab_dist.config import lazy_modules

__getattr__ = lazy_modules(__name__, "terms")
