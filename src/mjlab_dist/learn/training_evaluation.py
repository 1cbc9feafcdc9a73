"""Evaluate the current policy between iterations, over whole episodes without exploration."""

from __future__ import annotations

import torch

from mjlab_dist.config import EnvConfig, TrainConfig
from mjlab_dist.distributed.group import sum_over_ranks
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.distributed.rank import Rank, seed_generators
from mjlab_dist.env import Env
from mjlab_dist.env.episodes import episode_columns, play_episodes
from mjlab_dist.learn.metrics import Row
from mjlab_dist.learn.networks import make_policy
from mjlab_dist.learn.rank_state import random_state, restore_random_state
from mjlab_dist.learn.runner import Hook, Runner
from mjlab_dist.messages import emit

# Number of envs of a batch. Each batch has its own random seed, and any rank can play it, so the number of ranks has no
# effect on the results.
NUM_ENVS = 16


class Evaluation(Hook):
    """Adds columns ``evaluation/...`` to the rows of some iterations.

    Envs, random numbers and policy are separate copies, so training is bitwise identical with and without evaluations.
    Every evaluation starts from the same states.
    """

    def __init__(self, config: TrainConfig, rank: Rank, control: Control) -> None:
        self._config = config
        self._control = control
        self._rank = rank
        self._firsts = range(0, config.evaluate_episodes, NUM_ENVS)
        self._built: EnvConfig | None = None
        self._envs: dict[int, Env] = {}
        self._starts: dict[int, dict[str, torch.Tensor]] = {}

    def columns(self, runner: Runner, iteration: int) -> Row:
        """If an evaluation is due, play all batches, and return the means over all episodes."""
        interval = self._config.evaluate_interval
        if interval is None or (iteration % interval and iteration != runner.max_iterations):
            return {}
        # Get the policy's weights, and allocate the sums of each batch
        state = runner.alg.network_state("actor")
        names = episode_columns(runner.env)
        sums = torch.zeros(len(self._firsts), len(names), dtype=torch.float64)
        # Play the batches of this rank, and restore the state of all random generators
        before = random_state(runner.env.device)
        try:
            self._build(runner.env)
            obs, num_actions = runner.env.get_observations(), runner.env.num_actions
            actor = make_policy(self._config.agent, obs, num_actions, runner.env.device)
            actor.load_state_dict(state)
            actor.eval()
            with torch.inference_mode():  # tensors of the envs may be inference tensors
                for index, env in self._envs.items():
                    seed_generators(self._config.seed, index)
                    env.load_state(self._starts[index], checked=False)
                    actor.reset()
                    values = play_episodes(env, actor, actor.reset, lambda: self._control.beat(iteration))
                    sums[index] = values.sum(dim=1)
        finally:
            restore_random_state(before, runner.env.device)
        # Each batch has a row, which is 0 on all ranks except one, so the sum over ranks is exact
        total = sum_over_ranks(sums.to(runner.env.device)).cpu().sum(dim=0) / self._config.evaluate_episodes
        # Columns
        row: Row = {f"evaluation/{name}": mean for name, mean in zip(names, total.tolist(), strict=True)}
        if self._rank.is_main:
            mean = row["evaluation/return"]
            emit("status", text=f"Iteration {iteration}: mean return {mean:.4g} without exploration.")
        return row

    def _build(self, training: Env) -> None:
        """Build the envs of this rank's batches. Build them again if the config of the training envs has changed.

        That config changes when buffers have grown.
        """
        if self._built is training.cfg:
            return
        self._built = training.cfg
        self._envs.clear()
        for index in range(self._rank.rank, len(self._firsts), self._rank.world_size):
            first = self._firsts[index]
            num_envs = min(NUM_ENVS, self._config.evaluate_episodes - first)
            seed_generators(self._config.seed, index)
            self._envs[index] = Env(training.cfg, num_envs, training.device, first)
            self._starts[index] = self._envs[index].state()
