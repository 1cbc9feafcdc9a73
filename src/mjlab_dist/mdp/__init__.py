"""What a task is written with: a file for each kind of term.

``from mjlab_dist.mdp import rewards`` imports no torch in a config: ``rewards.tilt`` is the reference "mjlab_dist.mdp.rewards:tilt".
"""

from mjlab_dist.config.references import lazy_modules

__getattr__ = lazy_modules(
    __name__,
    "observations",
    "rewards",
    "terminations",
    "events",
    "commands",
    "sensors",
    "curricula",
    "height_scan",
    "motion",
)
