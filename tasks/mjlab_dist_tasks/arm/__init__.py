"""An arm with 7 joints and a gripper that reaches for poses or lifts a cube."""

from mjlab_dist.config import lazy_modules

__getattr__ = lazy_modules(__name__, "terms")
