"""Make envs from a config: checks, devices, and the choice between this process and ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence
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
from mjlab_dist.simulate.job import Job

if TYPE_CHECKING:
    from mjlab_dist.simulate.envs import Envs


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
    job = Job(configs=tuple(variants), num_envs=total, seed=config.seed, final_observations=final_observations)
    from mjlab_dist.simulate.envs import Envs  # imports torch

    here = in_this_process(own[0], os.environ, gpus) if num_ranks == 1 else None
    if here is not None:
        from mjlab_dist.simulate.shard import Here  # imports rsl_rl, which ranks import themselves

        with listening(listen):
            return Envs(job, Here(job, here.device), arrays, listen)
    from mjlab_dist.simulate.live_ranks import Ranks

    return Envs(job, Ranks(job, config, hosts, listen), arrays, listen)
