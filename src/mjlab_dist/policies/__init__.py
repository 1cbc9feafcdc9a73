"""Play a trained policy, record videos of it, and repeat the steps of a run that led to NaN or infinity."""

from mjlab_dist.policies.choice import resolve, with_changes
from mjlab_dist.policies.policy_episodes import PlayResult, load_env_and_policy, play
from mjlab_dist.policies.replay import Replayed, replay

__all__ = ["PlayResult", "Replayed", "load_env_and_policy", "play", "replay", "resolve", "with_changes"]
