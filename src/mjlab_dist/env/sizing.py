"""How many envs the memory of every rank holds: an env's bytes are measured on small batches, the rest is arithmetic."""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from mjlab_dist.config import AgentConfig, TrainConfig
from mjlab_dist.env.env import Env
from mjlab_dist.errors import UserError
from mjlab_dist.machine.control_groups import memory_room
from mjlab_dist.wording import byte_size

MAX_NUM_ENVS = 16384
"""Envs that auto never exceeds: more make batches larger, and hardly any task learns faster from that."""

GPU_SHARE = 0.8
"""Part of a GPU's free memory that envs and rollout may take; the rest is for what libraries allocate later."""

CPU_SHARE = 0.5
"""Part of the machine's free memory that all ranks together may take. What a step allocates for itself, 20 to 40% of what an
env holds, is not counted there."""

PROBE_SIZES = (64, 256)
"""Envs of the two batches whose difference gives the bytes of one env, free of what the model takes once."""

GPU_PROBE_SIZE = 2048
"""Envs of the batch that is weighed on a GPU: large beside the 32 MiB that CUDA hands out at a time."""

FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Room:
    """What one rank has and what an env takes there."""

    env_bytes: int
    """Bytes that one more env takes, with its part of the rollout and of the networks' activations."""
    usable_bytes: int
    """Bytes that this rank's envs may take together."""


def choose_num_envs(rooms: Sequence[Room]) -> tuple[int, str]:
    """The largest power of two of envs that fits on every rank, up to :data:`MAX_NUM_ENVS`.

    Args:
        rooms: What each rank has, in order of ranks.

    Returns:
        Envs per rank, and a line that says why so many.

    Raises:
        UserError: If not one env fits on some rank.
    """
    fits = [room.usable_bytes // room.env_bytes for room in rooms]
    rank = fits.index(min(fits))
    least, room = fits[rank], rooms[rank]
    takes, usable = byte_size(room.env_bytes), byte_size(room.usable_bytes)
    if least < 1:
        raise UserError(
            f"--num-envs auto: an env takes {takes}, and rank {rank} has room for {usable}; free memory, or lower "
            "--agent.num-steps-per-env, --env.sim.njmax or --env.sim.nconmax"
        )
    num_envs = min(MAX_NUM_ENVS, 1 << (least.bit_length() - 1))
    most = ", the most that auto takes: larger batches hardly train faster" if num_envs == MAX_NUM_ENVS else ""
    where = f"rank {rank} has the least room, {usable}" if len(rooms) > 1 else f"there is room for {usable}"
    return num_envs, f"--num-envs auto: {num_envs} envs per rank{most}. An env takes {takes}; {where}."


def learner_bytes(agent: AgentConfig, observations: Mapping[str, int], num_actions: int, device: str) -> int:
    """Return the bytes that the learner takes per env.

    They are its part of the rollout, of a shuffled copy, of what normalization computes in fp64, of a mini-batch's activations,
    and, where the update is recorded as CUDA graphs, of the mini-batch that the graphs read.

    Args:
        agent: The learner.
        observations: Numbers per env in each observation group.
        num_actions: Actions per env.
        device: ``cpu`` or ``cuda:<index>``.
    """
    # Action, its mean and its deviation; then reward, done, value, return, advantage and log-probability.
    stored = sum(observations.values()) + 3 * num_actions + 6
    # Policy and value have recurrent layers each. An LSTM keeps four gates and two states a unit; a GRU fewer.
    recurrent = 0 if agent.rnn == "none" else 2 * agent.rnn_num_layers * agent.rnn_hidden_dim
    widths = sum(agent.actor_hidden_dims) + sum(agent.critic_hidden_dims) + 6 * recurrent
    # Temporaries in fp64, one after the other: four numbers per advantage; per observation a copy in fp32 and two numbers.
    normalized = max([8, *(5 * width for width in observations.values() if agent.obs_normalization)])
    records = agent.capture and device != "cpu" and agent.rnn == "none"
    recorded = stored / agent.num_mini_batches if records else 0
    per_step = 2 * stored + 2 * recurrent + normalized + recorded + 2 * widths / agent.num_mini_batches
    return math.ceil(FLOAT_BYTES * agent.num_steps_per_env * per_step)


def measure_room(config: TrainConfig, device: str, num_ranks_here: int) -> Room:
    """Build small batches of envs, weigh them and look how much memory there is. Random states stay as they are.

    Args:
        config: The run's config.
        device: ``cpu`` or ``cuda:<index>``.
        num_ranks_here: Ranks that share this machine's memory; on a GPU it does not matter.

    Raises:
        UserError: If the config names a function, an actuator or a model that does not exist.
    """
    gpus = [] if device == "cpu" else [device]
    with torch.random.fork_rng(devices=gpus):
        env_bytes = _env_bytes(config, device)
    gc.collect()  # the worker keeps the collector off during start-up, and envs refer to themselves
    if gpus:
        torch.cuda.empty_cache()
    share = CPU_SHARE / num_ranks_here if device == "cpu" else GPU_SHARE
    return Room(env_bytes=env_bytes, usable_bytes=int(share * free_bytes(device)))


def free_bytes(device: str) -> int:
    """Bytes that this process could still allocate on a device.

    Args:
        device: ``cpu`` or ``cuda:<index>``.
    """
    if device == "cpu":
        return int(min(psutil.virtual_memory().available, memory_room(Path("/"))))
    torch.cuda.synchronize(device)
    free, _ = torch.cuda.mem_get_info(device)
    return free


def _env_bytes(config: TrainConfig, device: str) -> int:
    few, more = (_stepped(config, device, size) for size in PROBE_SIZES)
    held = math.ceil((more.num_bytes() - few.num_bytes()) / (more.num_envs - few.num_envs))
    if device != "cpu":
        held = max(held, _weigh_on_gpu(config, device, held))
    observations = {
        name: math.prod(group.shape[1:]) for name, group in more.get_observations().items() if isinstance(name, str)
    }
    # Of every step of a rollout the state is kept beside the learner's samples: see learn/finite.py.
    state = sum(t.nbytes for t in (*more.sim.physics.values(), more.episode_length_buf)) // more.num_envs
    recorded = (config.agent.num_steps_per_env + 1) * state
    return held + recorded + learner_bytes(config.agent, observations, more.num_actions, device)


def _weigh_on_gpu(config: TrainConfig, device: str, held: int) -> int:
    """Bytes per env that the driver counts, what a step allocates for itself and what graphs keep included.

    Kernels and libraries must be loaded already, for they take memory once. What arrays hold alone would be too little.
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
