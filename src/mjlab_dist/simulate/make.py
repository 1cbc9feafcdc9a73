"""Make envs from a config: checks, devices, and the choice between this process and ranks. Imports no torch."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.checks import validate
from mjlab_dist.distributed import outside_launcher
from mjlab_dist.errors import UserError
from mjlab_dist.launch.budget import total_num_envs
from mjlab_dist.launch.plan import devices_of, plan_hosts, settled
from mjlab_dist.machine.devices import find_gpus, in_this_process
from mjlab_dist.machine.memory import check_memory
from mjlab_dist.messages import Listener, listening

if TYPE_CHECKING:
    import torch

    from mjlab_dist.simulate.envs import Envs

# Tensors by name
Tensors = dict[str, "torch.Tensor"]

# Prefix of the names of observations before resets
FINAL = "final_observations"

# Prefix of the names of the observations after a rollout
LAST = "last_observations"


@dataclass(frozen=True, kw_only=True)
class Job:
    """A simulation: the envs of all ranks."""

    # Config of each variant. All variants have the same number of envs; the envs of variant 0 come first.
    configs: tuple[TrainConfig, ...]
    num_envs: int
    # Random seed. All variants use the same random numbers.
    seed: int
    # Whether steps also return the observations before resets
    final_observations: bool

    @property
    def envs_per_variant(self) -> int:
        """Number of envs of each variant."""
        return self.num_envs // len(self.configs)

    def rows(self, rank: int, world_size: int) -> range:
        """Return the global ids of the envs of a rank. The numbers of envs of two ranks differ by at most one."""
        return range(self.num_envs * rank // world_size, self.num_envs * (rank + 1) // world_size)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of the envs of a task."""

    # Width of each observation group
    observations: dict[str, int]
    num_actions: int
    action_names: tuple[str, ...]
    # Minimum and maximum to which each action is clipped; infinite if it is not clipped
    action_bounds: tuple[tuple[float, float], ...]
    # Simulated seconds per control step
    step_dt_s: float


def require_same(sizes: Sequence[Sizes]) -> Sizes:
    """Return the sizes, which must be the same for all variants."""
    for other in sizes[1:]:
        for field in dataclasses.fields(Sizes):
            first, second = getattr(sizes[0], field.name), getattr(other, field.name)
            if first != second:
                raise UserError(f"variants: have different {field.name} ({first} and {second}); use the same for all")
    return sizes[0]


def make(
    config: TrainConfig,
    variants: Sequence[TrainConfig],
    arrays: Literal["torch", "numpy"],
    listen: Listener,
    *,
    final_observations: bool,
) -> Envs:
    """Make the envs of a task on the chosen devices."""
    # Check the arguments and the configs
    if arrays not in ("torch", "numpy"):
        raise UserError(f"arrays {arrays}: takes torch or numpy")
    if launcher := outside_launcher(os.environ):
        raise UserError(f"make: starts its own ranks; run it without {launcher}")
    for one in variants:
        validate(one)

    # Machines and devices
    gpus = find_gpus()
    with listening(listen):
        hosts = plan_hosts(config, os.environ, gpus)
    own = hosts[0].devices
    devices = devices_of(hosts)
    config, num_ranks = settled(config, devices), len(devices)
    variants = [settled(one, devices) for one in variants]
    # Every rank needs an env, and all variants have the same number of envs
    total = total_num_envs(config, num_ranks)
    if total < num_ranks:
        raise UserError(f"--total-num-envs {total}: is less than one env per rank; use {num_ranks} or more")
    if extra := total % len(variants):
        enough = total - extra + len(variants)
        raise UserError(f"--total-num-envs {total}: does not divide into {len(variants)} variants; use {enough}")
    check_memory(config, -(-total // num_ranks), own, gpus)

    # Envs
    from mjlab_dist.simulate.envs import Envs  # imports torch

    job = Job(configs=tuple(variants), num_envs=total, seed=config.seed, final_observations=final_observations)
    here = in_this_process(own[0], os.environ, gpus) if num_ranks == 1 else None
    if here is not None:
        from mjlab_dist.simulate.shard import Here  # imports rsl_rl, which ranks import themselves

        with listening(listen):
            return Envs(job, Here(job, here.device), arrays, listen)
    from mjlab_dist.simulate.ranks import Ranks

    return Envs(job, Ranks(job, config, hosts, listen), arrays, listen)
