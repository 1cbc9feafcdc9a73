"""MDP terms that tasks are built from: one module per kind of term.

In a config, ``from mjlab_dist.mdp import rewards`` does not import torch: ``rewards.tilt`` is the reference
"mjlab_dist.mdp.rewards:tilt". The function is imported when the env is built.
"""

from mjlab_dist.config.terms import lazy_modules

__getattr__ = lazy_modules(
    __name__,
    "observations",
    "rewards",
    "terminations",
    "events",
    "commands",
    "sensors",
    "actions",
    "motors",
    "curricula",
    "height_scan",
    "motion",
)
