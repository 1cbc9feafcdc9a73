"""Measure the buffer sizes that a task needs: step its envs, and count constraint rows and contacts."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mjlab_dist.config import SimConfig, TrainConfig
from mjlab_dist.config.dotted_names import replaced
from mjlab_dist.config.physics import (
    BUFFER_MARGIN,
    CONTACT_OVERFLOWS,
    MIN_BUFFER,
    ROW_OVERFLOWS,
    SHARED_MARGIN,
    size_for,
    with_sizes,
)
from mjlab_dist.distributed import Rank, RankDevice
from mjlab_dist.errors import listed
from mjlab_dist.imports import start_up
from mjlab_dist.launch.worker import prepare_process
from mjlab_dist.messages import emit

if TYPE_CHECKING:
    import mujoco
    import mujoco_warp as mjw
    import torch
    from tensordict import TensorDict

    from mjlab_dist.env import Env

# The measured sizes must be large enough for batches of this many envs or more. All envs share one list of contacts.
# The fewer envs share the list, the more their mean number of contacts varies, so that a small batch needs more room
# per env.
FEW = 16

# Maximum number of times that a buffer is doubled
MAX_DOUBLINGS = 8


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Maximum use of the buffers over all steps."""

    # Number of envs in the batch
    num_envs: int
    # Whether the model can have constraint rows: from limits, friction, equalities or contacts
    can_constrain: bool
    # Whether the model has geoms that can collide
    can_touch: bool
    # Maximum number of constraint rows in one env
    rows: int
    # Maximum number of contacts in one env
    contacts: int
    # Maximum number of contacts in a group of FEW envs, divided by the number of envs in the group
    contacts_of_few: float
    # Maximum number of contacts in the whole batch
    contacts_of_all: int
    # Maximum number of geom pairs that pass MuJoCo Warp's broad phase, in the whole batch. The list of pairs has room
    # for as many entries as the list of contacts, so nconmax must cover the pairs too.
    pairs_of_all: int

    @property
    def njmax(self) -> int:
        """Constraint rows to allocate per env."""
        return size_for(BUFFER_MARGIN * self.rows, self.can_constrain)

    @property
    def contacts_per_env(self) -> float:
        """Maximum number of contacts or near pairs in the whole batch, divided by the number of envs."""
        return max(self.contacts_of_all, self.pairs_of_all) / self.num_envs

    @property
    def nconmax(self) -> int:
        """Contacts to allocate per env."""
        return size_for(SHARED_MARGIN * max(self.contacts_per_env, self.contacts_of_few), self.can_touch)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """Buffer sizes and the result of stepping with them."""

    # Constraint rows allocated per env
    njmax: int
    # Contacts allocated per env
    nconmax: int
    # Use of the buffers
    usage: Usage
    # Buffers that overflowed, named as in mujoco_warp.OverflowType
    overflows: tuple[str, ...]


def can_constrain(model: mujoco.MjModel) -> bool:
    """Return whether a model can have constraint rows other than those of contacts."""
    limited = model.jnt_limited.any() or model.tendon_limited.any()
    rubbing = model.dof_frictionloss.any() or model.tendon_frictionloss.any()
    return bool(limited or rubbing or model.neq)


def can_touch(model: mujoco.MjModel, warp_model: mjw.Model) -> bool:
    """Return whether a model can have contacts."""
    import mujoco

    is_off = bool(model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_CONTACT)
    return bool(warp_model.nxn_geom_pair_filtered.size) and not is_off


def measure(
    config: TrainConfig,
    device: RankDevice,
    *,
    num_envs: int,
    num_steps: int,
    checkpoint: Path | None,
) -> list[Attempt]:
    """Step a task, and count constraint rows and contacts. If buffers are too small, double them and repeat.

    Returns:
        The attempts. In every attempt except the last, a buffer was too small. After :data:`MAX_DOUBLINGS`
            doublings, a buffer may be too small in the last attempt too.
    """
    with start_up():
        prepare_process(device, Rank(), config.seed)
        from mjlab_dist.env import Env  # noqa: F401 (while the garbage collector is off)

    attempts: list[Attempt] = []
    while True:
        attempts.append(_attempt(config, device.device, num_envs, num_steps, checkpoint))
        larger = larger_sizes(config.env.sim, attempts[-1].overflows, attempts[-1].usage)
        if not larger or len(attempts) > MAX_DOUBLINGS:
            return attempts
        config = with_sizes(config, larger)
        overflows = attempts[-1].overflows
        why = f"Overflow of {listed(overflows)}" if overflows else "Collision is off with nconmax 0"
        sim = config.env.sim
        emit("status", text=f"{why}: measuring again with njmax {sim.njmax} and nconmax {sim.nconmax}.")


def _attempt(config: TrainConfig, device: str, num_envs: int, num_steps: int, checkpoint: Path | None) -> Attempt:
    import mujoco_warp as mjw
    import torch

    from mjlab_dist.env import Env

    # Envs and actions
    env = Env(replaced(config.env, ["sim", "engine"], "warp"), num_envs, device)
    act = _random(env, config.agent.init_std) if checkpoint is None else _policy(env, config, checkpoint)
    gauge = BufferGauge(env)
    # Steps, with a count after each
    with torch.inference_mode():
        obs, dones = env.get_observations(), torch.ones(env.num_envs, dtype=torch.bool, device=device)
        for _ in range(num_steps):
            obs, _, dones, _ = env.step(act(obs, dones))
            gauge.read()
    # Result
    overflows = [bit for bit in mjw.OverflowType if bool((env.sim.overflow & int(bit)).any())]
    return Attempt(
        njmax=config.env.sim.njmax,
        nconmax=config.env.sim.nconmax,
        usage=gauge.usage(),
        overflows=tuple(str(bit.name) for bit in overflows),
    )


def _random(env: Env, std: float) -> Callable[[TensorDict, torch.Tensor], torch.Tensor]:
    import torch

    return lambda _obs, _dones: std * torch.randn(env.num_envs, env.num_actions, device=env.device)


def _policy(env: Env, config: TrainConfig, checkpoint: Path) -> Callable[[TensorDict, torch.Tensor], torch.Tensor]:
    from mjlab_dist.learn.networks import load_policy

    policy = load_policy(env, config, checkpoint)

    def act(obs: TensorDict, dones: torch.Tensor) -> torch.Tensor:
        policy.reset(dones)
        return policy(obs)

    return act


def larger_sizes(sim: SimConfig, overflows: Collection[str], usage: Usage) -> dict[str, int]:
    """Return twice the size for each buffer that was too small, by name of its field in the config."""
    changes: dict[str, int] = {}
    if not ROW_OVERFLOWS.isdisjoint(overflows):
        changes["njmax"] = max(2 * sim.njmax, MIN_BUFFER)
    # With nconmax 0, MuJoCo Warp skips collision, so nothing overflows.
    if not CONTACT_OVERFLOWS.isdisjoint(overflows) or (sim.nconmax == 0 and usage.can_touch):
        changes["nconmax"] = max(2 * sim.nconmax, MIN_BUFFER)
    return changes


class BufferGauge:
    """Counter of the buffer entries that an env uses.

    It counts only after the last physics step of each control step. Overflows in earlier physics steps are not missed,
    because the env's overflow flags cover every physics step.
    """

    def __init__(self, env: Env) -> None:
        import torch
        import warp as wp

        data = env.sim._data
        self._rows, self._num_contacts = env.sim.view("nefc"), env.sim.view("nacon")
        self._num_pairs = env.sim.view("ncollision")
        self._env_of = wp.to_torch(data.contact.worldid)
        self._slots = torch.arange(len(self._env_of), device=env.device)
        self._num_envs = env.num_envs
        few = min(FEW, env.num_envs)
        self._can_touch = can_touch(env.sim.model, env.sim._warp_model)
        self._can_constrain = self._can_touch or can_constrain(env.sim.model)
        self._few, self._whole = few, env.num_envs // few * few
        # Maxima: rows of an env; contacts of an env, of a group of envs, and of the batch; pairs of the batch
        self._max = torch.zeros(5, dtype=torch.int64, device=env.device)

    def read(self) -> None:
        """Count rows, contacts and pairs, and update the maxima."""
        import torch

        # Contacts per env. Unused slots count as contacts of one additional env, whose count is dropped.
        contacts = torch.zeros(self._num_envs + 1, dtype=torch.int64, device=self._slots.device)
        owners = torch.where(self._slots < self._num_contacts, self._env_of, self._num_envs).long()
        contacts = contacts.index_add_(0, owners, torch.ones_like(self._slots))[:-1]
        # Maxima
        of_few = contacts[: self._whole].view(-1, self._few).sum(dim=1)
        seen = [self._rows.max(), contacts.max(), of_few.max(), self._num_contacts[0], self._num_pairs[0]]
        self._max.copy_(torch.maximum(self._max, torch.stack([number.long() for number in seen])))

    def usage(self) -> Usage:
        """Return the maxima."""
        rows, contacts, of_few, of_all, pairs = self._max.tolist()
        return Usage(
            num_envs=self._num_envs,
            can_constrain=self._can_constrain,
            can_touch=self._can_touch,
            rows=rows,
            contacts=contacts,
            contacts_of_few=of_few / self._few,
            contacts_of_all=of_all,
            pairs_of_all=pairs,
        )
