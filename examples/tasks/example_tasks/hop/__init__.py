"""A planar leg that hops as high as it is told to, when it is told to."""

from mjlab_dist.config import lazy_modules

__getattr__ = lazy_modules(__name__, "terms")
