"""A pusher and a box: two entities in a scene with many randomizations."""

from mjlab_dist.config import lazy_modules

__getattr__ = lazy_modules(__name__, "terms")
