"""PPO over all ranks: rsl_rl's algorithm, our loop, metrics and checkpoints."""

from mjlab_dist.learn.networks import load_policy, load_policy_without_env
from mjlab_dist.learn.runner import Runner

__all__ = ["Runner", "load_policy", "load_policy_without_env"]
