"""The task template."""

from mjlab_dist.config import lazy_modules

# Lets list-tasks read the config without importing torch. Without this line everything works, but slower.
__getattr__ = lazy_modules(__name__, "terms")
