"""The training loop of one rank: rollout, update, metrics, checkpoint."""

from __future__ import annotations

import contextlib
import io
import math
import time
from pathlib import Path
from typing import Any

import torch
from rsl_rl.runners import OnPolicyRunner

from mjlab_dist import runs
from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed.rank import Rank
from mjlab_dist.env import Env
from mjlab_dist.events import emit
from mjlab_dist.learn import checkpoint
from mjlab_dist.learn.metrics import Metrics, Row, Sample, Writer, writers
from mjlab_dist.learn.rsl_rl_config import rsl_rl_config


class Runner(OnPolicyRunner):
    """rsl_rl's runner with our loop: the process group is given, nothing in a rollout waits for the device.

    Attributes:
        env: This rank's envs.
        current_learning_iteration: Iterations done.
    """

    env: Env

    def __init__(self, env: Env, config: TrainConfig, rank: Rank, run_dir: Path | None = None) -> None:
        """Build policy, value, optimizer and storage.

        Args:
            env: This rank's envs.
            config: The run's config.
            rank: Which rank this is; the process group is joined already.
            run_dir: Where rank 0 writes; None writes nothing.
        """
        self._rank = rank
        self._config = config
        self._run_dir = run_dir
        self._warned = False
        # rsl_rl prints the networks; nobody reads them between two lines of progress.
        with contextlib.redirect_stdout(io.StringIO()):
            super().__init__(env, rsl_rl_config(config), log_dir=None, device=env.device)

    def _configure_multi_gpu(self) -> None:
        # rsl_rl's own insists on NCCL and one GPU per local rank; here the worker has joined the group already.
        self.gpu_world_size = self._rank.world_size
        self.gpu_global_rank = self._rank.rank
        self.gpu_local_rank = self._rank.local_rank
        self.is_distributed = self._rank.world_size > 1
        self.cfg["multi_gpu"] = (
            {"global_rank": self._rank.rank, "local_rank": self._rank.local_rank, "world_size": self._rank.world_size}
            if self.is_distributed
            else None
        )

    def train(self) -> Row:
        """Train for ``max_iterations`` iterations.

        Returns:
            The last row of metrics.

        Raises:
            FloatingPointError: If a loss is NaN or infinite; no checkpoint is written from there on.
        """
        if self.is_distributed:
            self.alg.broadcast_parameters()
        self.alg.train_mode()
        self.env.stagger()
        num_samples = self.env.num_envs * self.cfg["num_steps_per_env"]
        metrics = Metrics(self._rank.rank, self._rank.world_size, num_samples, self.env.reward_names)
        outputs = writers(self._config, self._output_dir) if self._output_dir else []
        try:
            return self._iterate(metrics, outputs)
        finally:
            for writer in outputs:
                writer.close()

    def save(self, path: str, infos: dict[str, Any] | None = None) -> None:
        """Write a checkpoint that stock rsl_rl can load too.

        Args:
            path: Where it goes.
            infos: More plain values to keep.
        """
        content = {
            **self.alg.save(),
            "iter": self.current_learning_iteration,
            "infos": infos,
            "task": self._config.task,
        }
        checkpoint.save(Path(path), content)

    def load(
        self,
        path: str,
        load_cfg: dict[str, bool] | None = None,
        strict: bool = True,
        map_location: str | None = None,
    ) -> dict[str, Any]:
        """Read a checkpoint; arguments as rsl_rl's.

        Raises:
            UserError: If it is damaged, or fits other networks than this config's.
        """
        content = checkpoint.load(Path(path), map_location or self.device)
        if self.alg.load(content, load_cfg, strict):
            self.current_learning_iteration = content["iter"]
        return content["infos"]

    @property
    def _output_dir(self) -> Path | None:
        return self._run_dir if self._rank.is_main else None

    def _iterate(self, metrics: Metrics, outputs: list[Writer]) -> Row:
        row: Row = {}
        obs = self.env.get_observations()
        for iteration in range(self.current_learning_iteration + 1, self._config.max_iterations + 1):
            obs, sample = self._iteration(obs)
            self.current_learning_iteration = iteration
            row = metrics.row(iteration, sample, self.alg.learning_rate, self.alg.get_policy().output_std.mean())
            _check_finite(iteration, sample)
            self._warn_of_overflow(row)
            if self._rank.is_main:
                for writer in outputs:
                    writer.write(row)
                emit("iteration", row=row)
            last = iteration == self._config.max_iterations
            if self._output_dir and (last or iteration % self._config.save_interval == 0):
                self.save(str(runs.checkpoint_path(self._output_dir, iteration)))
        return row

    def _warn_of_overflow(self, row: Row) -> None:
        if self._rank.is_main and row["overflowed_envs"] and not self._warned:
            self._warned = True
            emit(
                "warning",
                text=f"{row['overflowed_envs']} envs had more contacts or constraints than fit, so that some were dropped; "
                "raise --env.sim.nconmax and --env.sim.njmax",
            )

    def _iteration(self, obs: Any) -> tuple[Any, Sample]:
        start = time.perf_counter()
        reward = torch.zeros((), device=self.device)
        with torch.inference_mode():
            for _ in range(self.cfg["num_steps_per_env"]):
                actions = self.alg.act(obs)
                obs, rewards, dones, extras = self.env.step(actions)
                self.alg.process_env_step(obs, rewards, dones, extras)
                reward += rewards.mean()
            self.alg.compute_returns(obs)
        if self.device != "cpu":
            torch.cuda.synchronize(self.device)
        collected = time.perf_counter()
        losses = self.alg.update()
        done = time.perf_counter()
        return obs, Sample(
            totals=self.env.pop_episode_totals(),
            reward=reward / self.cfg["num_steps_per_env"],
            losses=losses,
            overflows=(self.env.sim.overflow != 0).sum().float(),
            collect_s=collected - start,
            learn_s=done - collected,
        )


def _check_finite(iteration: int, sample: Sample) -> None:
    bad = [name for name, loss in sample.losses.items() if not math.isfinite(loss)]
    if bad:
        raise FloatingPointError(
            f"iteration {iteration}: the loss of {', '.join(bad)} is not finite; an observation, a reward or the step size is"
        )
