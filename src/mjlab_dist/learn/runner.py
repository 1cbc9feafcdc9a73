"""The training loop of one rank, with its hooks: rollout, update, metrics, checkpoint."""

from __future__ import annotations

import contextlib
import math
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.checks import parse_interval
from mjlab_dist.distributed.group import broadcast_from_main, check_equal, gather_on_main
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.distributed.rank import Rank, in_words, seed_generators
from mjlab_dist.distributed.synchronizer import make_synchronizer
from mjlab_dist.env import Env
from mjlab_dist.env.term import state_part
from mjlab_dist.errors import NonFiniteError
from mjlab_dist.learn import checkpoint
from mjlab_dist.learn.capture import CapturedCall, can_capture_steps
from mjlab_dist.learn.checkpoint import LEARNER, CheckpointStore
from mjlab_dist.learn.finite import FiniteCheck, describe
from mjlab_dist.learn.learner import flatten, make_learner
from mjlab_dist.learn.loggers.all_loggers import CheckpointWriter, Writer, writers
from mjlab_dist.learn.metrics import Advice, Metrics, Row, Sample
from mjlab_dist.learn.networks import check_fit
from mjlab_dist.learn.overflow import OverflowCheck
from mjlab_dist.learn.rank_state import RankState, difference, fits, pack, random_state, restore_random_state, unpack
from mjlab_dist.messages import emit
from mjlab_dist.runs.lease import Lease
from mjlab_dist.runs.run_dir import ERRORS_DIR, METRICS_FILE
from mjlab_dist.runs.run_files import explaining

if TYPE_CHECKING:
    from mjlab_dist.learn.video_process import VideoWriter

# Minimum floating-point operations of a mini-batch that uses several threads; with fewer, one thread is faster
MIN_SHARED_FLOP = 1e9


class Hook:
    """Base class of hooks. A rank's training loop calls the hooks in :attr:`Runner.hooks`."""

    def before_iteration(self, runner: Runner, iteration: int) -> None:
        """Run before the rollout.

        Args:
            runner: The training loop.
            iteration: The iteration that begins, from 1.
        """

    def after_iteration(self, runner: Runner, iteration: int, sample: Sample) -> None:
        """Run after the update, before metrics are reduced over ranks.

        Args:
            runner: The training loop.
            iteration: The iteration that has ended.
            sample: Measurements of this rank.
        """

    def columns(self, runner: Runner, iteration: int) -> Row:  # noqa: ARG002 (for subclasses)
        """Return columns to add to the row of an iteration. Every rank calls this after the metrics are known.

        Args:
            runner: The training loop.
            iteration: The iteration.
        """
        return {}


class Runner:
    """The training loop of one rank. The process group must already exist. Nothing in a rollout waits for the device.

    Attributes:
        env: This rank's envs.
        alg: The learner.
        current_learning_iteration: Iterations done.
        max_iterations: Iterations of the whole run.
        hooks: Called before and after each iteration, in this order.
        replays_rollouts: Whether control steps are replayed from CUDA graphs, without running their Python code.
    """

    def __init__(
        self, env: Env, config: TrainConfig, rank: Rank, run_dir: Path | None = None, lease: Lease | None = None
    ) -> None:
        """Build the learner and the storage of a rollout."""
        self.env = env
        self.current_learning_iteration = 0
        self.max_iterations = config.max_iterations
        self.hooks: list[Hook] = []
        self._rank = rank
        self._config = config
        self._run_dir = run_dir
        self._lease = lease
        self._num_steps = config.agent.num_steps_per_env
        self._control = Control()
        # State of checkpoints, videos and comparisons of the ranks
        self._store: CheckpointStore | None = None
        self._videos: VideoWriter | None = None
        self._interval, self._interval_s = parse_interval(config.checkpoint.interval)
        self._saved_at = 0.0
        self._last_check = 0
        # Learner
        self.alg = make_learner(config, env, make_synchronizer(config.sync), rank)
        for note in self.alg.notes() if rank.is_main else ():
            emit("status", text=note)
        # Rollout
        self._finite = FiniteCheck(env, self.alg.storage)
        self._overflow = OverflowCheck(env, config, is_main=rank.is_main)
        self._advice = Advice(config, rank, env.device, env.num_envs)
        self._roll_out: Callable[[TensorDict], TensorDict] = self._take_steps
        wants = config.env.sim.capture == "step"
        self.replays_rollouts = wants and can_capture_steps(
            env, learner_can=self.alg.can_capture_rollouts, is_main=rank.is_main
        )
        if self.replays_rollouts:
            self._roll_out = CapturedCall(self._take_steps, "the control step", env.device, env.sim)
        # Sum of the steps' mean rewards. It must stay the same tensor, because recorded steps add to its address.
        self._reward = torch.zeros((), device=env.device)
        self._num_threads = torch.get_num_threads()
        # Per parameter and sample, 2 operations in the forward pass, and 4 in the backward pass
        self._is_update_shared = 6 * self.alg.batch_size * self.alg.num_parameters >= MIN_SHARED_FLOP

    @contextlib.contextmanager
    def _threads(self, *, shared: bool) -> Iterator[None]:
        """On the CPU, let torch use all threads of this rank, or only one, which is faster for small batches."""
        if self.env.device == "cpu" and not shared:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            if self.env.device == "cpu":
                torch.set_num_threads(self._num_threads)

    def train(self, control: Control | None = None, parting: contextlib.ExitStack | None = None) -> Row:
        """Train up to ``max_iterations`` iterations, from the newest checkpoint of the run directory if there is one.

        Returns:
            The last row of metrics.

        Raises:
            NonFiniteError: On every rank, if a number of any rank is not finite. No checkpoint is written after that.
            BufferOverflowError: On every rank, if a buffer of any rank is too small and on_overflow is not ``warn``.
            DesyncError: On every rank, if ranks that must be equal differ.
            TakenOverError: On rank 0, if another launch has taken over this run.
            OSError: On rank 0, if a file cannot be written.
        """
        self._control = control or Control()
        self.alg.train_mode()
        with contextlib.ExitStack() as stack:
            # Start or resume
            if self._run_dir and self._rank.is_main:
                self._store = CheckpointStore(self._run_dir, self._config.checkpoint, self._lease)
                stack.callback(self._store.close)
            content = self._newest_checkpoint()
            obs = self._start() if content is None else self._resume(content)
            done = self.current_learning_iteration
            # Metrics
            metrics = Metrics(
                rank=self._rank.rank,
                world_size=self._rank.world_size,
                num_samples=self.env.num_envs * self._num_steps,
                episode_names=[
                    *(f"reward/{name}" for name in self.env.reward_names),
                    *(f"termination/{name}" for name in self.env.termination_names),
                    *self.env.metric_names,
                ],
                num_parameters=self.alg.num_parameters,
                clock=self.alg.clock,
                log_ranks=self._config.log_ranks,
                iteration=done,
                counters=content and content.get("counters"),
            )
            # Number of iterations from the remaining steps, because earlier iterations may have had more or fewer steps
            if self._config.total_timesteps is not None:
                left = self._config.total_timesteps - metrics.total_steps
                self.max_iterations = done + max(0, left // metrics.num_samples)
            if self._rank.is_main:
                emit("length", max_iterations=self.max_iterations)
            # Writers, then the iterations
            outputs = self._writers(done)
            writing = stack.enter_context(contextlib.ExitStack())
            for writer in outputs:
                writing.callback(writer.close)
            row = self._iterate(obs, metrics, outputs)
            self._overflow.raise_pending()
            if self._videos is not None and self.current_learning_iteration == self.max_iterations:
                writing.push(self._videos.finishing(self._control))
                (parting or stack).push(writing.pop_all())
            return row

    def _newest_checkpoint(self) -> dict[str, Any] | None:
        """Return the newest checkpoint. Rank 0 reads and sends it, because only rank 0 may have access to the file."""
        newest = self._store.read_newest(LEARNER) if self._store else None
        data = broadcast_from_main(newest[1] if newest else None)
        return checkpoint.load(data, "cpu") if data else None

    def _writers(self, done: int) -> list[Writer]:
        """Return the writers of rank 0. They remove older rows of iterations after ``done``, where the run resumes."""
        if not self._run_dir or not self._store:
            return []
        self._store.check()
        has_rows = (self._run_dir / METRICS_FILE).exists()
        rows, loggers = writers(self._config, self._run_dir, done if has_rows else None)
        outputs = [rows, loggers, CheckpointWriter(self._store, loggers)]
        if self._config.video_interval is not None:
            from mjlab_dist.learn.video_process import VideoWriter

            self._videos = VideoWriter(self._run_dir, self._config, loggers)
            outputs.append(self._videos)
        return outputs

    def _start(self) -> TensorDict:
        """Start a run and return the first observations."""
        if self._config.init_from is not None:
            content = checkpoint.load(Path(self._config.init_from), self.env.device)
            check_fit(self.alg.models, content, f"--init-from {self._config.init_from}")
            self.alg.load(content, {"actor": True, "critic": True}, strict=True)
        self.env.stagger()
        return self.env.get_observations()

    def _resume(self, content: dict[str, Any]) -> TensorDict:
        """Continue from a checkpoint and return the next observations."""
        # Learner
        check_fit(self.alg.networks_in(content), content, f"--resume {self._run_dir}")
        self.alg.load(content, None, strict=True)
        done = self.current_learning_iteration = self._last_check = content["iter"]
        # Check whether the state of every rank can be restored
        obs = self.env.get_observations()
        own = self._rank_state(obs)
        states = content.get("ranks") or []
        same = len(states) == self._rank.world_size and fits(states[self._rank.rank], own)
        if self._rank.is_main:
            emit(
                "status",
                text=f"Resuming from iteration {done}{'' if same else difference(len(states), self._rank.world_size)}.",
            )
        self._load_history(done, continues=same)
        if not same:
            # Start new episodes. They must not repeat the random numbers of the start of the run.
            seed_generators(self._config.seed, self._rank.rank, resumed_iteration=done)
            self.env.resume_curricula([state_part(state, "env/") for state in states])
            self.env.reset()
            self.env.stagger()
            return self.env.get_observations()
        # Restore the state
        state = states[self._rank.rank]
        self.env.load_state(state_part(state, "env/"))
        self._overflow.ignore_restored()
        self.alg.load_memory(state_part(state, "memory/"))
        if (learner := state_part(state, "learner/")) and not self.alg.synchronizer.keeps_equal:
            self.alg.replicas.restore(learner)
        for group, saved in state_part(state, "obs/").items():
            obs[group] = saved.to(self.env.device)
        restore_random_state(state_part(state, "random/"), self.env.device)  # last: calls above may use the generators
        return obs

    def _load_history(self, iteration: int, *, continues: bool) -> None:
        """Restore the learner's history, if it has one that was saved with this iteration for as many envs in all."""
        data = broadcast_from_main(self._store.read_replay(iteration) if self._store else None)
        saved = checkpoint.load(data, "cpu") if data else {}
        num_envs, first = self.env.num_envs, self._rank.rank * self.env.num_envs
        is_whole = all(rows.shape[1:2] == (num_envs * self._rank.world_size,) for rows in saved.values())
        own = {name: rows[:, first : first + num_envs] for name, rows in saved.items()} if is_whole else {}
        note = self.alg.load_history(own, continues=continues)
        if note and self._rank.is_main:
            emit("status", text=note)

    def _rank_state(self, obs: TensorDict, learner: RankState | None = None) -> RankState:
        """Return the per-rank state between two iterations."""
        parts = {
            "env/": self.env.state(),
            "memory/": self.alg.memory(),
            "obs/": dict(obs.items()),
            "random/": random_state(self.env.device),
            "learner/": learner or {},
        }
        return {prefix + name: tensor for prefix, part in parts.items() for name, tensor in part.items()}

    def _iterate(self, obs: TensorDict, metrics: Metrics, outputs: list[Writer]) -> Row:
        row: Row = {}
        check_interval = self._config.sync.check_interval
        self._control.beat(self.current_learning_iteration)
        self._saved_at = time.monotonic()
        for iteration in range(self.current_learning_iteration + 1, self.max_iterations + 1):
            saves = iteration == self.max_iterations or iteration % (self._interval or sys.maxsize) == 0
            self.alg.begin_iteration(iteration, self.max_iterations)
            # Rollout and update
            for hook in self.hooks:
                hook.before_iteration(self, iteration)
            obs, sample = self._iteration(obs, iteration)
            for hook in self.hooks:
                hook.after_iteration(self, iteration, sample)
            self.current_learning_iteration = iteration
            # Metrics of all ranks, in one collective
            row, totals, stops, save_is_due, not_finite, ranks, wait_shares = metrics.outcome(iteration, sample)
            # Buffers of the physics, before numbers that are not finite: buffers that are too small can cause these
            stops |= self._overflow.must_end(row)
            self._raise_if_not_finite(row, not_finite, sample)
            row |= {name: value for hook in self.hooks for name, value in hook.columns(self, iteration).items()}
            # Curricula and warnings
            self.env.end_iteration(totals)
            self._advice.check(iteration, wait_shares)
            # Write rows. First, raise if a checkpoint could not be written, or another launch has taken over this run
            if self._store:
                self._store.check()
                self._write(row, ranks, outputs)
            # Checkpoint, or only a comparison of the ranks; a checkpoint includes the comparison
            if self._run_dir and (saves or stops or save_is_due):
                self._checkpoint(obs, metrics, row)
            elif self._are_ranks_equal(row) and iteration // check_interval > self._last_check // check_interval:
                self._compared_state()
            self._control.beat(iteration)
            if stops:
                break
        if row and not self._are_ranks_equal(row):
            self.alg.replicas.average()
        return row

    def _write(self, row: Row, ranks: list[Row], outputs: list[Writer]) -> None:
        assert self._run_dir is not None
        with explaining(self._run_dir, self._run_dir / METRICS_FILE):
            for writer in outputs:
                writer.write(row, ranks)
        emit("iteration", row=row)

    def _checkpoint(self, obs: TensorDict, metrics: Metrics, row: Row) -> None:
        """Compare the ranks. Then rank 0 writes a checkpoint with the state of all ranks."""
        # Learner. If copies differ, save their average, and restore the copies below, so that training is not affected.
        learner = None if self._are_ranks_equal(row) else self.alg.replicas.own()
        if learner:
            self.alg.replicas.average()
        content = self._compared_state()
        # Check parameters too: the check of the losses does not cover the last optimizer step.
        numbers = {name: t for name, t in flatten(content).items() if t.is_floating_point()}
        finite = torch.stack([t.isfinite().all() for t in numbers.values()]).tolist()
        broken = [name for name, is_finite in zip(numbers, finite, strict=True) if not is_finite]
        if broken:
            raise NonFiniteError(f"iteration {row['iteration']}: not finite after the update: {', '.join(broken[:4])}")
        # State of every rank
        own = self._rank_state(obs, learner)
        packed = gather_on_main(pack(own))
        history = self.alg.history() if self._config.checkpoint.replay else {}
        histories = gather_on_main(pack(history)) if history else []
        self._saved_at = time.monotonic()
        # Write the file
        if self._store:
            ranks = [unpack(one, own) for one in packed]
            full = {**content, "infos": None, "counters": metrics.counters(), "ranks": ranks}
            parts = [unpack(one, history) for one in histories]
            replay = {name: torch.cat([part[name] for part in parts], dim=1) for name in history}
            self._store.save(self.current_learning_iteration, full, row["mean_return"], replay)
        if learner:
            self.alg.replicas.restore(learner)

    def _are_ranks_equal(self, row: Row) -> bool:
        """Return whether all ranks have the same learner after the iteration of a row."""
        return self.alg.synchronizer.keeps_equal or row["parameter_spread"] is not None

    def _compared_state(self) -> dict[str, Any]:
        """Return the learner's state with its iteration and task, after checking that it is equal on all ranks."""
        state = self.alg.save()
        if self._rank.world_size > 1:
            check_equal(flatten(state), f"iteration {self.current_learning_iteration}")
        self._last_check = self.current_learning_iteration
        return {**state, "iter": self.current_learning_iteration, "task": self._config.task}

    def _iteration(self, obs: TensorDict, iteration: int) -> tuple[TensorDict, Sample]:
        clock = self.alg.clock
        # Rollout
        start = clock.mark()
        with self.alg.no_grad(), self._threads(shared=False):
            obs = self._roll_out(obs)
            self.alg.compute_returns(obs)
            not_finite = self._finite.count(obs)
        # Update
        collected = clock.mark()
        with self._threads(shared=self._is_update_shared):
            measured = self.alg.update()
        # Averaging of parameters, if gradients are not averaged
        spread = torch.full((), math.nan, device=self.env.device)
        if not self.alg.synchronizer.keeps_equal and self.alg.synchronizer.due(iteration):
            spread = self.alg.replicas.average()
        # Times: CUDA events can be read only after the device has done the work before them.
        done = clock.mark()
        if self.env.device != "cpu":
            torch.cuda.synchronize(self.env.device)
        # A checkpoint is due by the clock of rank 0, whose result all ranks use
        saves = self._rank.is_main and time.monotonic() - self._saved_at >= (self._interval_s or math.inf)
        # Measurements of this rank, still on the device
        return obs, Sample(
            totals=self.env.pop_episode_totals(),
            curricula=self.env.curriculum_metrics(),
            reward=self._reward / self._num_steps,
            measured=measured,
            learning_rate=self.alg.rate,
            action_std=self.alg.action_std(),
            spread=spread,
            overflows=(self.env.sim.overflow != 0).sum(),
            collect_s=clock.seconds(start, collected),
            learn_s=clock.seconds(collected, done),
            wait_s=clock.pop_wait_s() * (self._rank.world_size > 1),  # a single rank waits for nobody
            not_finite=not_finite,
            nan_resets=self.env.pop_nan_resets(),
            wants_stop=self._control.stop_requested,
            wants_save=saves,
        )

    def _take_steps(self, obs: TensorDict) -> TensorDict:
        """Take all control steps of a rollout and return the observations after the last one."""
        self._reward.zero_()
        self.alg.storage.clear()  # a failed recording has stored steps
        for step in range(self._num_steps):
            obs = self._control_step(step, obs)
        return obs

    def _control_step(self, step: int, obs: TensorDict) -> TensorDict:
        """Act, take a control step, and store the transition. Return the observations after the step."""
        actions = self.alg.act(obs)
        self._finite.record(step)
        obs, rewards, dones, extras = self.env.step(actions)
        self.alg.process_env_step(obs, rewards, dones, extras)
        self._reward += rewards.mean()
        return obs

    def _raise_if_not_finite(self, row: Row, ranks: list[int], sample: Sample) -> None:
        """Raise on every rank if a number of any rank is not finite. A rank with such numbers dumps the envs."""
        when = f"iteration {row['iteration']}"
        if ranks:
            self._overflow.raise_pending()
        if self._rank.rank in ranks:
            dump = self._finite.dump(self._config.task, sample.totals)
            text = f"{when}: {describe(dump)}"
            if self._run_dir:
                path = self._run_dir / ERRORS_DIR / f"nan_rank{self._rank.rank}.pt"
                checkpoint.save(path, dict(dump))
                text += f". Inspect this dump: uv run play {self._config.task} --nan-dump {shlex.quote(str(path))}"
            raise NonFiniteError(text)
        if ranks:
            raise NonFiniteError(f"{when}: a number is not finite on {in_words(ranks)}", of_another_rank=True)
        bad = [name for name, value in row.items() if name.startswith("loss/") and not math.isfinite(value or 0.0)]
        if bad:
            raise NonFiniteError(
                f"{when}: {', '.join(bad)} is not finite; lower --agent.learning-rate, or scale observations or "
                "rewards that are very large"
            )
