"""An arm with 7 joints and a gripper: reaching for poses, lifting a cube."""

from mjlab_dist.config import lazy_modules

__getattr__ = lazy_modules(__name__, "terms")
