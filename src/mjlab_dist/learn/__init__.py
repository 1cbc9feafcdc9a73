"""PPO over all ranks: rsl_rl's algorithm, with our own training loop, metrics and checkpoints.

The learner of a rank is its copy of the policy, the value function, the optimizer and the observation normalizers.
"""

from mjlab_dist.learn.networks import load_policy, load_policy_without_env
from mjlab_dist.learn.runner import Runner

__all__ = ["Runner", "load_policy", "load_policy_without_env"]
