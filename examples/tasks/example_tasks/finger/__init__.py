"""A finger that is bent by two tendons, and sees its target in a depth image."""

from mjlab_dist.config import lazy_modules

__getattr__ = lazy_modules(__name__, "terms")
