"""Train with Stable-Baselines3's PPO (package stable-baselines3): python sb3_ppo.py [task] [steps]."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv, VecMonitor

import mjlab_dist.gymnasium  # noqa: F401 (registers the tasks)

TASK = sys.argv[1] if len(sys.argv) > 1 else "gym-inverted-pendulum"
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 200_000


class Envs(VecEnv):
    """Gymnasium's vector env, with the interface of Stable-Baselines3."""

    def __init__(self, envs: gymnasium.vector.VectorEnv[Any, Any, Any]) -> None:
        self.envs = envs
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self) -> np.ndarray:
        return self.envs.reset()[0]

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = actions

    def step_wait(self) -> Any:
        observations, rewards, terminated, truncated, info = self.envs.step(self.actions)
        last = info.get("final_obs", observations)
        infos = [{"terminal_observation": o, "TimeLimit.truncated": t} for o, t in zip(last, truncated, strict=True)]
        return observations, rewards, terminated | truncated, infos

    def close(self) -> None:
        self.envs.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self.envs, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError("all envs share one object, so an attribute of a single env cannot be set")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError("all envs share one object, so a method of a single env cannot be called")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False for _ in self._get_indices(indices)]


torch.set_num_threads(1)  # the networks are too small for more threads
envs = VecMonitor(Envs(gymnasium.make_vec(f"mjlab_dist/{TASK}", num_envs=64)))
PPO("MlpPolicy", envs, n_steps=32, batch_size=512, verbose=1, device="cpu").learn(STEPS)
envs.close()
