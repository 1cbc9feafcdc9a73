"""A humanoid of 23 joints that walks as it is told."""

from mjlab_dist.config import lazy_modules

__getattr__ = lazy_modules(__name__, "terms")
