"""The task template."""

from mjlab_dist.config import lazy_modules

# Allows list-tasks to read the config without importing torch. The line is optional; without it, commands are slower.
__getattr__ = lazy_modules(__name__, "terms")
