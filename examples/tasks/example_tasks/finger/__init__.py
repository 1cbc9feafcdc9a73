"""A finger that two tendons bend. It observes its target in a depth image."""

from mjlab_dist.config import lazy_modules

__getattr__ = lazy_modules(__name__, "terms")
