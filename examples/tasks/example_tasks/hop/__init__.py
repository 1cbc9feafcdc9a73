"""A planar leg that hops to a commanded height at commanded times."""

from mjlab_dist.config import lazy_modules

__getattr__ = lazy_modules(__name__, "terms")
