"""Gymnasium's MuJoCo v5 tasks, whose results are published, on MuJoCo Warp."""

from mjlab_dist.config import lazy_modules

__getattr__ = lazy_modules(__name__, "terms")
