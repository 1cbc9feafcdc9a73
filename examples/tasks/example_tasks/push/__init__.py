"""A pusher and a box: two entities in a scene in which everything is randomized."""

from mjlab_dist.config import lazy_modules

__getattr__ = lazy_modules(__name__, "terms")
