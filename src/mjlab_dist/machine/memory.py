"""Memory of this machine, and lower bounds of the memory that a run needs. Imports no torch."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import psutil

from mjlab_dist.config import AgentConfig, SacConfig, SymmetryConfig, TrainConfig
from mjlab_dist.distributed import RankDevice
from mjlab_dist.errors import UserError, byte_size
from mjlab_dist.machine.control_groups import memory_room
from mjlab_dist.machine.devices import Gpu
from mjlab_dist.machine.gpu_checks import total_bytes

FLOAT_BYTES = 4

# Lower bound of the bytes of a constraint row: MuJoCo Warp stores 10 numbers per row, and also a row of the Jacobian
ROW_BYTES = 40

# Maximum number of samples that a function for symmetry makes of one: 2 with one plane of symmetry, 4 with two
MIRRORED_COPIES = 4

# Lower bound of the bytes of a contact: MuJoCo Warp stores 48 numbers per contact
CONTACT_BYTES = 160


def free_cpu_bytes() -> int:
    """Return the bytes of main memory that this process can still allocate."""
    return int(min(psutil.virtual_memory().available, memory_room()))


def transition_bytes(observations: Mapping[str, int], num_actions: int) -> int:
    """Return the memory of a transition in SAC's replay: observations before and after, action, reward and two bits."""
    return FLOAT_BYTES * (2 * sum(observations.values()) + num_actions + 1) + 2


def learner_bytes(agent: AgentConfig, observations: Mapping[str, int], num_actions: int, device: str) -> int:
    """Return the memory that learning needs per env, in bytes; for SAC, without the replay, whose size is fixed.

    For PPO, this includes the rollout, a shuffled copy of it, temporaries of normalization in fp64, and the activations
    of a mini-batch. If the update is recorded as CUDA graphs, it also includes the mini-batch that the graphs read.
    """
    if isinstance(agent, SacConfig):
        # The rollout, and its transitions on their way to the replay
        return 2 * agent.num_steps_per_env * transition_bytes(observations, num_actions)
    # Numbers that the rollout stores per step: observations; action, its mean and its standard deviation; reward, done,
    # value, return, advantage, log-probability.
    stored = sum(observations.values()) + 3 * num_actions + 6
    # Actor and critic each have recurrent layers. An LSTM stores four gates and two states per unit; a GRU stores less.
    recurrent = 0 if agent.rnn == "none" else 2 * agent.rnn_num_layers * agent.rnn_hidden_dim
    widths = sum(agent.actor_hidden_dims) + sum(agent.critic_hidden_dims) + 6 * recurrent
    # Temporaries of normalization: four fp64 values per advantage; or, per observed value, two in fp64 and one in fp32.
    # Advantages and observations are never normalized at the same time, so only the larger number counts.
    normalizes = agent.obs_normalization or (agent.rnd.is_used and agent.rnd.state_normalization)
    normalized = max([8, *(5 * width for width in observations.values() if normalizes)])
    # The intrinsic reward of a whole rollout is computed before the update: its input, also normalized, and two layers.
    explored = 0
    if agent.rnd.is_used:
        layers = agent.rnd.predictor_hidden_dims + agent.rnd.target_hidden_dims
        widths += sum(layers)
        explored = stored + 2 * max(observations.values()) + 2 * max(layers)
    copies = MIRRORED_COPIES if agent.symmetry.is_used else 1
    records = agent.capture and device != "cpu" and agent.rnn == "none"
    recorded = copies * stored / agent.num_mini_batches if records else 0
    activations = 2 * copies * widths / agent.num_mini_batches
    updated = (1 + copies) * stored + 2 * recurrent + normalized + recorded + activations
    per_step = max(explored, updated)
    return math.ceil(FLOAT_BYTES * agent.num_steps_per_env * per_step)


def min_env_bytes(config: TrainConfig) -> int:
    """Return a lower bound of the memory of an env in bytes, without building the model or its terms.

    ``--num-envs auto`` and ``--dry-run`` measure the memory instead.
    """
    sim = config.env.sim
    observations = {
        group: sum(term.history for term in terms.values()) for group, terms in config.env.observations.items()
    }
    buffers = 0 if sim.engine == "mujoco" else ROW_BYTES * sim.njmax + CONTACT_BYTES * sim.nconmax
    agent = config.agent
    if not isinstance(agent, SacConfig):
        agent = dataclasses.replace(agent, symmetry=SymmetryConfig())  # the number of mirrored samples is unknown
    learner = learner_bytes(agent, observations, len(config.env.actions), "cpu")
    # The learner's data does not all exist at the same time: measured peaks are 0.5 to 1 times `learner`.
    return buffers + learner // 2


def min_network_bytes(agent: AgentConfig) -> int:
    """Return a lower bound of the memory of the networks in bytes: weights, gradients and Adam moments."""
    networks = (agent.actor_hidden_dims, agent.critic_hidden_dims)
    weights = sum(fan_in * fan_out for widths in networks for fan_in, fan_out in itertools.pairwise(widths))
    recurrent = 0
    if not isinstance(agent, SacConfig) and agent.rnn != "none":
        recurrent = 2 * 3 * agent.rnn_num_layers * agent.rnn_hidden_dim**2
    return 4 * FLOAT_BYTES * (weights + recurrent)


def check_memory(config: TrainConfig, num_envs: int, devices: Sequence[RankDevice], gpus: Sequence[Gpu]) -> None:
    """Raise if the envs cannot fit into memory, before anything is built."""
    per_env, networks = min_env_bytes(config), min_network_bytes(config.agent)
    for device in devices[:1] if devices[0].device == "cpu" else devices:
        if device.device == "cpu":
            room = free_cpu_bytes() // len(devices)
        else:
            total = next((total_bytes(gpu) for gpu in gpus if gpu.index == device.gpu_id), None)
            if total is None:
                continue
            room = total
        if networks + per_env * num_envs <= room:
            continue
        fits, whose = (room - networks) // per_env, f"{device.name} has {byte_size(room)} per rank"
        if fits < 1:
            raise UserError(
                f"--num-envs {num_envs}: an env and the networks need at least {byte_size(per_env + networks)}, but "
                f"{whose}; lower --agent.num-steps-per-env, the sizes of the networks, --env.sim.njmax or "
                "--env.sim.nconmax"
            )
        total_envs = config.total_num_envs
        flag = f"--num-envs {num_envs}" if total_envs is None else f"--total-num-envs {total_envs}"
        raise UserError(
            f"{flag}: needs at least {byte_size(networks + per_env * num_envs)} per rank, but {whose}; use up to "
            f"{fits} envs per rank, or --num-envs auto"
        )
