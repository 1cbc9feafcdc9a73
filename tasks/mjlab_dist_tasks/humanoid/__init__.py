"""A humanoid with 23 joints that follows velocity commands."""

from mjlab_dist.config import lazy_modules

__getattr__ = lazy_modules(__name__, "terms")
