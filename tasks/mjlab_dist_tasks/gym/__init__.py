"""Gymnasium's MuJoCo v5 tasks on MuJoCo Warp, for comparison with published results."""

from mjlab_dist.config import lazy_modules

__getattr__ = lazy_modules(__name__, "terms")
