"""How large the buffers for constraints and contacts have to be: steps a task and looks how full they get."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import Rank, RankDevice
from mjlab_dist.imports import start_up
from mjlab_dist.wording import listed
from mjlab_dist.worker import prepare_process

if TYPE_CHECKING:
    import mujoco
    import mujoco_warp as mjw
    import torch
    from tensordict import TensorDict

    from mjlab_dist.env import Env

MARGIN = 1.25
"""A buffer of each env is to be so many times as large as the most that was in one."""

SHARED_MARGIN = 1.5
"""As much for the list that all envs share: it is sized by a mean over envs, which a policy changes more than what is most in one."""

FEW = 16
"""Envs of the smallest batch that is thought of: all envs share one list of contacts, and among few these average out less."""

ROW_OVERFLOWS = frozenset({"NEFC", "NJMAX_NNZ"})
"""Overflows, by the names of ``mujoco_warp.OverflowType``, that a larger njmax mends."""

CONTACT_OVERFLOWS = frozenset({"BROADPHASE", "NARROWPHASE", "CCD"})
"""Overflows that a larger nconmax mends."""

LEAST = 4
"""Rows and contacts per env that are the least where there can be any."""

MAX_DOUBLINGS = 8
"""How often a buffer that was too small is doubled."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """How full the buffers were."""

    num_envs: int
    """Envs in the batch."""
    can_constrain: bool
    """Whether joints have limits or friction, or the model has equalities or contacts: then some rows are needed in any case."""
    can_touch: bool
    """Whether the model has geoms that can collide: then some contacts are needed in any case."""
    rows: int
    """Most constraint rows in one env."""
    contacts: int
    """Most contacts in one env."""
    contacts_of_few: float
    """Most contacts of :data:`FEW` envs, per env."""
    contacts_of_all: int
    """Most contacts of the whole batch."""
    pairs_of_all: int
    """Most pairs of geoms that MuJoCo Warp's broad phase left, in the whole batch; they are listed in as many places as contacts."""

    @property
    def njmax(self) -> int:
        """Constraint rows to allocate per env."""
        return size_for(MARGIN * self.rows, self.can_constrain)

    @property
    def nconmax(self) -> int:
        """Contacts to allocate per env."""
        per_env = max(self.contacts_of_all, self.pairs_of_all) / self.num_envs
        return size_for(SHARED_MARGIN * max(per_env, self.contacts_of_few), self.can_touch)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """Sizes, and what came of them."""

    njmax: int
    """Constraint rows allocated per env."""
    nconmax: int
    """Contacts allocated per env."""
    usage: Usage
    """How full they were."""
    overflows: tuple[str, ...]
    """What did not fit, by the names of ``mujoco_warp.OverflowType``."""


def size_for(number: float, is_possible: bool) -> int:
    """A size to allocate per env. There are few, since kernels are compiled anew for another.

    Args:
        number: Rows or contacts that are to fit.
        is_possible: Whether there can be any; then there is room for a few in any case.
    """
    step = LEAST if number <= 32 else 8 if number <= 64 else 16
    return max(math.ceil(number / step) * step, LEAST if is_possible else 0)


def can_constrain(model: mujoco.MjModel) -> bool:
    """Whether a model can have constraint rows other than those of contacts."""
    limited = model.jnt_limited.any() or model.tendon_limited.any()
    rubbing = model.dof_frictionloss.any() or model.tendon_frictionloss.any()
    return bool(limited or rubbing or model.neq)


def can_touch(model: mujoco.MjModel, warp_model: mjw.Model) -> bool:
    """Whether a model can have contacts.

    Args:
        model: The model.
        warp_model: The same in MuJoCo Warp, which lists the pairs of geoms.
    """
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
    said: Callable[[str], None],
) -> list[Attempt]:
    """Step a task, with larger buffers again where they were too small.

    Args:
        config: The task.
        device: Where to step it.
        num_envs: Number of envs.
        num_steps: Control steps.
        checkpoint: Policy to act by; None for random actions, as a policy's that has not learnt yet.
        said: Takes lines for the user.

    Returns:
        Attempts; none but the last was without the sizes' fault.

    Raises:
        UserError: If the config names what does not exist, or the checkpoint does not fit.
    """
    with start_up():
        prepare_process(device, Rank(), config.seed)
        from mjlab_dist.env import Env  # noqa: F401, PLC0415 (while the collector is off)

    attempts: list[Attempt] = []
    while True:
        attempts.append(_attempt(config, device.device, num_envs, num_steps, checkpoint))
        larger = _larger(config, attempts[-1])
        if larger is None or len(attempts) > MAX_DOUBLINGS:
            return attempts
        config = larger
        why = f"Overflow of {listed(attempts[-1].overflows)}" if attempts[-1].overflows else "No contact is looked for"
        sim = config.env.sim
        said(f"{why}: measuring again with njmax {sim.njmax} and nconmax {sim.nconmax}.")


def _attempt(config: TrainConfig, device: str, num_envs: int, num_steps: int, checkpoint: Path | None) -> Attempt:
    import mujoco_warp as mjw
    import torch

    from mjlab_dist.env import Env  # noqa: PLC0415

    env = Env(config.env, num_envs, device)
    act = _random(env, config.agent.init_std) if checkpoint is None else _policy(env, config, checkpoint)
    gauge = _Gauge(env)
    with torch.inference_mode():
        obs, dones = env.get_observations(), torch.ones(env.num_envs, dtype=torch.bool, device=device)
        for _ in range(num_steps):
            obs, _, dones, _ = env.step(act(obs, dones))
            gauge.read()
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
    from mjlab_dist.learn import load_policy  # noqa: PLC0415

    policy = load_policy(env, config, checkpoint)

    def act(obs: TensorDict, dones: torch.Tensor) -> torch.Tensor:
        policy.reset(dones)
        return policy(obs)

    return act


def _larger(config: TrainConfig, attempt: Attempt) -> TrainConfig | None:
    """The same with twice the size of what was too small; None where that would mend nothing."""
    sim = config.env.sim
    changes: dict[str, int] = {}
    if not ROW_OVERFLOWS.isdisjoint(attempt.overflows):
        changes["njmax"] = max(2 * sim.njmax, LEAST)
    # With no room for any, MuJoCo Warp does not look for contacts, and nothing overflows.
    if not CONTACT_OVERFLOWS.isdisjoint(attempt.overflows) or (sim.nconmax == 0 and attempt.usage.can_touch):
        changes["nconmax"] = max(2 * sim.nconmax, LEAST)
    if not changes:
        return None
    return dataclasses.replace(config, env=dataclasses.replace(config.env, sim=dataclasses.replace(sim, **changes)))


class _Gauge:
    """How full the buffers of an env are after its steps.

    What is read is the last substep of each step; that something did not fit is known of every substep.
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
        # rows, contacts of one env, of few, of all, pairs of all
        self._most = torch.zeros(5, dtype=torch.int64, device=env.device)

    def read(self) -> None:
        """Look."""
        import torch

        contacts = torch.zeros(self._num_envs + 1, dtype=torch.int64, device=self._slots.device)
        # Slots that are not in use are counted for an env that does not exist.
        owners = torch.where(self._slots < self._num_contacts, self._env_of, self._num_envs).long()
        contacts = contacts.index_add_(0, owners, torch.ones_like(self._slots))[:-1]
        of_few = contacts[: self._whole].view(-1, self._few).sum(dim=1)
        seen = [self._rows.max(), contacts.max(), of_few.max(), self._num_contacts[0], self._num_pairs[0]]
        self._most.copy_(torch.maximum(self._most, torch.stack([number.long() for number in seen])))

    def usage(self) -> Usage:
        """What was most."""
        rows, contacts, of_few, of_all, pairs = self._most.tolist()
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
