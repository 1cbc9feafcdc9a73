"""The training loop of one rank: rollout, update, metrics, checkpoint."""

from __future__ import annotations

import contextlib
import io
import math
import sys
from pathlib import Path
from typing import Any

import torch
from rsl_rl.runners import OnPolicyRunner

from mjlab_dist import runs
from mjlab_dist.config import TrainConfig, parse_interval
from mjlab_dist.distributed.consistency import check_equal
from mjlab_dist.distributed.rank import Rank
from mjlab_dist.distributed.synchronizer import AllReduce, make_synchronizer
from mjlab_dist.env import Env
from mjlab_dist.events import emit
from mjlab_dist.learn import checkpoint
from mjlab_dist.learn.metrics import Metrics, Row, Sample, Writer, writers
from mjlab_dist.learn.ppo import PPO, flatten
from mjlab_dist.learn.rsl_rl_config import rsl_rl_config


class Runner(OnPolicyRunner):
    """rsl_rl's runner with our loop: the process group is given, nothing in a rollout waits for the device.

    Attributes:
        env: This rank's envs.
        current_learning_iteration: Iterations done.
    """

    env: Env
    alg: PPO

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
        self._interval, self._interval_s = parse_interval(config.checkpoint.interval)
        self._last_check = 0
        synchronizer = make_synchronizer(config.sync)
        if rank.world_size == 1:
            # There is nobody to differ from, and no process group that one of the user's could use.
            synchronizer = AllReduce()
        # rsl_rl prints the networks; nobody reads them between two lines of progress.
        with contextlib.redirect_stdout(io.StringIO()):
            super().__init__(env, rsl_rl_config(config, synchronizer), log_dir=None, device=env.device)
        if rank.is_main and config.fsdp_devices > 1:
            emit("status", text=self.alg.sharding.table(config.fsdp_min_size_mb))

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
            FloatingPointError: On every rank, if a loss of any is NaN or infinite; no checkpoint is written from there on.
            DesyncError: On every rank, if parameters differ that have to be equal.
        """
        self.alg.train_mode()
        self.env.stagger()
        metrics = Metrics(
            rank=self._rank.rank,
            world_size=self._rank.world_size,
            num_samples=self.env.num_envs * self.cfg["num_steps_per_env"],
            reward_names=self.env.reward_names,
            num_parameters=self.alg.num_parameters,
            clock=self.alg.clock,
        )
        outputs = writers(self._config, self._output_dir) if self._output_dir else []
        try:
            return self._iterate(metrics, outputs)
        finally:
            for writer in outputs:
                writer.close()

    def save(self, path: str, infos: dict[str, Any] | None = None) -> None:
        """Compare all ranks' learners, then write a checkpoint that stock rsl_rl can load too; called by every rank.

        Args:
            path: Where rank 0 puts it.
            infos: More plain values to keep.

        Raises:
            DesyncError: If ranks differ; nothing is written then.
        """
        content = {
            **self._compared_state(),
            "iter": self.current_learning_iteration,
            "infos": infos,
            "task": self._config.task,
        }
        if self._output_dir:
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
            saves = iteration == self._config.max_iterations or iteration % (self._interval or sys.maxsize) == 0
            obs, sample = self._iteration(obs, iteration, saves)
            self.current_learning_iteration = iteration
            row = metrics.row(iteration, sample)
            _check_finite(row)
            self._warn_of_overflow(row)
            if self._rank.is_main:
                for writer in outputs:
                    writer.write(row)
                emit("iteration", row=row)
            if saves and self._run_dir:
                self.save(str(runs.checkpoint_path(self._run_dir, iteration)))
            elif self._check_is_due(averaged=row["parameter_spread"] is not None):
                self._compared_state()
        return row

    def _check_is_due(self, averaged: bool) -> bool:
        comparable = self.alg.synchronizer.keeps_equal or averaged
        interval = self._config.sync.check_interval
        return comparable and self.current_learning_iteration // interval > self._last_check // interval

    def _compared_state(self) -> dict[str, Any]:
        """The learner's state, once it is known to be the same on every rank."""
        state = self.alg.save()
        if self.is_distributed:
            check_equal(flatten(state), f"iteration {self.current_learning_iteration}")
        self._last_check = self.current_learning_iteration
        return state

    def _warn_of_overflow(self, row: Row) -> None:
        if self._rank.is_main and row["overflowed_envs"] and not self._warned:
            self._warned = True
            emit(
                "warning",
                text=f"{row['overflowed_envs']} envs had more contacts or constraints than fit, so that some were dropped; "
                "raise --env.sim.nconmax and --env.sim.njmax",
            )

    def _iteration(self, obs: Any, iteration: int, saves: bool) -> tuple[Any, Sample]:
        clock = self.alg.clock
        start = clock.mark()
        reward = torch.zeros((), device=self.device)
        # FSDP2 keeps what a rollout has gathered for the update, which may not use tensors of inference mode.
        with torch.no_grad() if self.alg.sharding.sharded else torch.inference_mode():
            for _ in range(self.cfg["num_steps_per_env"]):
                actions = self.alg.act(obs)
                obs, rewards, dones, extras = self.env.step(actions)
                self.alg.process_env_step(obs, rewards, dones, extras)
                reward += rewards.mean()
            self.alg.compute_returns(obs)
        collected = clock.mark()
        losses = self.alg.update()
        spread = torch.full((), math.nan, device=self.device)
        if not self.alg.synchronizer.keeps_equal and (saves or self.alg.synchronizer.due(iteration)):
            spread = self.alg.average()
        done = clock.mark()
        if self.device != "cpu":
            torch.cuda.synchronize(self.device)
        return obs, Sample(
            totals=self.env.pop_episode_totals(),
            reward=reward / self.cfg["num_steps_per_env"],
            kl=losses.pop("kl"),
            losses=losses,
            learning_rate=self.alg.rate,
            action_std=self.alg.get_policy().output_std.mean(),
            spread=spread,
            overflows=(self.env.sim.overflow != 0).sum(),
            collect_s=clock.seconds(start, collected),
            learn_s=clock.seconds(collected, done),
            wait_s=clock.pop_wait_s(),
        )


def _check_finite(row: Row) -> None:
    bad = [name for name, value in row.items() if name.startswith("loss/") and not math.isfinite(value or 0.0)]
    if bad:
        raise FloatingPointError(
            f"iteration {row['iteration']}: {', '.join(bad)} is not finite; an observation, a reward or the step size is"
        )
