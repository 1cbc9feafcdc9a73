"""PPO over all ranks: rsl_rl's algorithm, with our own training loop, metrics and checkpoints.

The learner of a rank is its copy of the policy, the value function, the optimizer and the observation normalizers.
"""
