"""Play a trained policy: returns, videos, and the steps that led to numbers that are not finite."""

from mjlab_dist.play.choice import resolve, without_disturbances
from mjlab_dist.play.episodes import PlayResult, load_env_and_policy, play
from mjlab_dist.play.replay import Replayed, replay

__all__ = ["PlayResult", "Replayed", "load_env_and_policy", "play", "replay", "resolve", "without_disturbances"]
