"""Choice of ``--num-envs auto``: measure the memory of one env on small batches, then fill the memory of every rank."""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mjlab_dist.config import SacConfig, TrainConfig
from mjlab_dist.env.env import Env
from mjlab_dist.errors import UserError, byte_size
from mjlab_dist.machine.memory import free_cpu_bytes, learner_bytes, transition_bytes

# Maximum for auto. More envs make batches larger, and few tasks learn faster with larger batches.
MAX_NUM_ENVS = 16384

# Share of the free memory of a GPU for envs and rollout; the rest is for later allocations of libraries
GPU_SHARE = 0.8

# Share of the free memory of a machine for all its ranks. It is lower than the share on a GPU, because temporary arrays
# of a step (20 to 40% of the memory of an env) are not measured on the CPU.
CPU_SHARE = 0.5

# Numbers of envs in two batches. The difference in memory yields the memory per env, without the model's memory.
PROBE_SIZES = (64, 256)

# Maximum number of envs in the batch that is measured on a GPU.
#
# CUDA allocates memory in units of 32 MiB. So many envs need far more, so that a larger batch would hardly improve
# the measurement.
GPU_PROBE_SIZE = 2048


@dataclass(frozen=True, kw_only=True)
class Room:
    """Memory that one rank may use, and memory of one env."""

    # Memory of one additional env in bytes, including its share of the rollout and of network activations
    env_bytes: int
    # Memory in bytes that the envs of this rank may use in total
    usable_bytes: int


def choose_num_envs(rooms: Sequence[Room]) -> tuple[int, str]:
    """Return the largest number of envs that is a power of two and fits on every rank, up to :data:`MAX_NUM_ENVS`.

    Returns:
        Envs per rank, and a line for the user that explains the number.
    """
    # The rank with the smallest capacity decides.
    capacities = [room.usable_bytes // room.env_bytes for room in rooms]
    rank = capacities.index(min(capacities))
    capacity, room = capacities[rank], rooms[rank]
    needed, usable = byte_size(room.env_bytes), byte_size(room.usable_bytes)
    if capacity < 1:
        raise UserError(
            f"--num-envs auto: an env needs {needed}, and rank {rank} can use {usable}; free some memory, or lower "
            "--agent.num-steps-per-env, --env.sim.njmax or --env.sim.nconmax"
        )
    num_envs = min(MAX_NUM_ENVS, 1 << (capacity.bit_length() - 1))
    limit = ", the maximum for auto, as larger batches hardly speed up training" if num_envs == MAX_NUM_ENVS else ""
    where = f"rank {rank} has the least usable memory, {usable}" if len(rooms) > 1 else f"{usable} can be used"
    return num_envs, f"--num-envs auto: {num_envs} envs per rank{limit}. An env needs {needed}; {where}."


def measure_room(config: TrainConfig, device: str, num_ranks_here: int) -> Room:
    """Build small batches of envs to measure their memory, and read how much is free.

    The states of random number generators do not change.
    """
    gpus = [] if device == "cpu" else [device]
    with torch.random.fork_rng(devices=gpus):
        env_bytes, transition = _env_bytes(config, device)
    # Free the envs, which contain reference cycles. Workers disable the garbage collector, so this call is needed.
    gc.collect()
    if gpus:
        torch.cuda.empty_cache()
    share = CPU_SHARE / num_ranks_here if device == "cpu" else GPU_SHARE
    # Ranks on other machines may take over a part of the replay, but their number is not known here.
    replay = transition * config.agent.replay_size // num_ranks_here if isinstance(config.agent, SacConfig) else 0
    return Room(env_bytes=env_bytes, usable_bytes=max(0, int(share * free_bytes(device)) - replay))


def free_bytes(device: str) -> int:
    """Return the bytes that this process can still allocate on a device."""
    if device == "cpu":
        return free_cpu_bytes()
    torch.cuda.synchronize(device)
    free, _ = torch.cuda.mem_get_info(device)
    return free


def _env_bytes(config: TrainConfig, device: str) -> tuple[int, int]:
    """Return the bytes of an env with its share of the learner's data, and of a transition in SAC's replay."""
    # Memory of physics and env
    few, more = (_stepped(config, device, size) for size in PROBE_SIZES)
    held = math.ceil((more.num_bytes() - few.num_bytes()) / (more.num_envs - few.num_envs))
    if device != "cpu":
        held = max(held, _measure_on_gpu(config, device, held))

    # Memory of the rollout and networks, and of the states that learn/finite.py stores for every step of a rollout
    observations = {
        name: math.prod(group.shape[1:]) for name, group in more.get_observations().items() if isinstance(name, str)
    }
    state = sum(t.nbytes for t in (*more.sim.physics.values(), more.episode_length_buf)) // more.num_envs
    recorded = (config.agent.num_steps_per_env + 1) * state
    learner = learner_bytes(config.agent, observations, more.num_actions, device)
    return held + recorded + learner, transition_bytes(observations, more.num_actions)


def _measure_on_gpu(config: TrainConfig, device: str, held: int) -> int:
    """Return the bytes per env that the driver reports, including temporary arrays of a step and memory of graphs.

    :meth:`Env.num_bytes` is too low, because it leaves these two out. Kernels and libraries must already be loaded:
    they need memory only once, which must not count as memory of an env.
    """
    torch.cuda.empty_cache()
    before = free_bytes(device)
    size = max(PROBE_SIZES[-1], min(GPU_PROBE_SIZE, before // (8 * held)))
    env = _stepped(config, device, size)
    return math.ceil((before - free_bytes(device)) / env.num_envs)


def _stepped(config: TrainConfig, device: str, num_envs: int) -> Env:
    env = Env(config.env, num_envs, device)
    env.step(torch.zeros(num_envs, env.num_actions, device=device))
    return env
