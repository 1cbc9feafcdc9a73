"""A 12-joint quadruped of 12.8 kg that follows velocity commands."""

from mjlab_dist.config import lazy_modules

__getattr__ = lazy_modules(__name__, "terms")
