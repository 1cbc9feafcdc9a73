"""A 7-joint arm with a gripper. The arm reaches for poses, or lifts a cube."""

from mjlab_dist.config import lazy_modules

__getattr__ = lazy_modules(__name__, "terms")
