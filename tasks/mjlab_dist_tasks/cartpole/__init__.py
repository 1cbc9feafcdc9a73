"""Cart and pole: keep the pole upright (balance), or bring it up first (swing-up)."""

from mjlab_dist.config import lazy_modules

__getattr__ = lazy_modules(__name__, "terms")
