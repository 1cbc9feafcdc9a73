"""Terms of the quadruped tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDict

from mjlab_dist.env.columns import Columns
from mjlab_dist.env.term import Term
from mjlab_dist.errors import UserError
from mjlab_dist.mdp.height_scan import HeightScan

if TYPE_CHECKING:
    from mjlab_dist.env import Env

# Mirror images of observations and actions if left and right are exchanged: for each number, the index of the number
# that takes its place, and its sign
_SAME = ((0, 1),)
_VECTOR = ((0, 1), (1, -1), (2, 1))
_ROTATION = ((0, -1), (1, 1), (2, -1))
_FEET = ((1, 1), (0, 1), (3, 1), (2, 1))
_JOINTS = tuple((3 * foot + joint, -1 if joint == 0 else 1) for foot, _ in _FEET for joint in range(3))
_MIRRORED = {
    "linear_velocity": _VECTOR,
    "angular_velocity": _ROTATION,
    "gravity": _VECTOR,
    "command": ((0, 1), (1, -1), (2, -1)),
    "joint_positions": _JOINTS,
    "joint_velocities": _JOINTS,
    "last_action": _JOINTS,
    "gait": ((0, -1), (1, -1)),
    "feet_in_contact": _FEET,
    "feet_in_the_air": _FEET,
    "height": _SAME,
    "friction": _FEET,
    "added_mass": _SAME,
}


class WithMirrored:
    """For --agent.symmetry: appends samples in which left and right are exchanged."""

    def __init__(self, env: Env) -> None:
        """Look up the columns of the observations.

        Raises:
            UserError: If the mirror image of an observation is not known.
        """
        self._actions = _selected(_JOINTS, env.device)
        known = dict(_MIRRORED)
        if "ground" in env.cfg.sensors:
            points = env.sensor("ground", HeightScan).offsets
            nearest = torch.cdist(points, points * points.new_tensor([1.0, -1.0])).argmin(dim=1)
            known["ground"] = tuple((i, 1) for i in nearest.tolist())
        self._groups: dict[str, tuple[Columns, torch.Tensor]] = {}
        for group, columns in env.observation_columns().items():
            unknown = [name for name in columns if name not in known]
            if unknown:
                raise UserError(
                    f"observation {unknown[0]}: its mirror image is not known; add it to _MIRRORED, or train with "
                    "--agent.symmetry.use-data-augmentation False"
                )
            # A term with a history has a block of columns per step
            mirrored = [
                (block + i, sign)
                for name, at in columns.items()
                for block in range(at.start, at.stop, len(known[name]))
                for i, sign in known[name]
            ]
            self._groups[group] = _selected(mirrored, env.device)

    def __call__(
        self,
        env: Env,  # noqa: ARG002 (rsl_rl passes the env)
        obs: TensorDict | None,
        actions: torch.Tensor | None,
    ) -> tuple[TensorDict | None, torch.Tensor | None]:
        """Return the given rows, followed by their mirror images.

        Args:
            env: The envs.
            obs: Observations, (samples, ...) for each group; None for actions alone.
            actions: Actions, (samples, 12); None for observations alone.
        """
        if obs is not None:
            both = {name: _with_mirrored(obs[name], *selected) for name, selected in self._groups.items()}
            obs = TensorDict(both, batch_size=[2 * len(obs)])
        return obs, None if actions is None else _with_mirrored(actions, *self._actions)


def _selected(mirrored: Sequence[tuple[int, int]], device: str) -> tuple[Columns, torch.Tensor]:
    indices, signs = zip(*mirrored, strict=True)
    return Columns(indices, device), torch.tensor(signs, dtype=torch.float32, device=device)


def _with_mirrored(rows: torch.Tensor, columns: Columns, signs: torch.Tensor) -> torch.Tensor:
    return torch.cat([rows, columns.of(rows) * signs])


class FootFriction(Term):
    """Observation: sliding friction of the feet, for the critic; (num_envs, feet)."""

    def __init__(self, env: Env, geoms: tuple[str, ...]) -> None:
        """Look up the feet.

        Args:
            env: The envs.
            geoms: Names of the feet's geoms.
        """
        self._columns = Columns([env.sim.model.geom(name).id for name in geoms], env.device)
        self._friction = env.sim.field("geom_friction")[..., 0]

    def __call__(self, env: Env) -> torch.Tensor:  # noqa: ARG002 (every term takes the env)
        return self._columns.of(self._friction)


class AddedMass(Term):
    """Observation: a body's mass minus its mass in the MJCF, in kg, for the critic; (num_envs, 1)."""

    def __init__(self, env: Env, body: str) -> None:
        """Look up the body.

        Args:
            env: The envs.
            body: Name of the body.
        """
        found = env.sim.model.body(body)
        self._mass_kg = env.sim.field("body_mass")[:, found.id : found.id + 1]
        self._nominal_kg = float(found.mass[0])

    def __call__(self, env: Env) -> torch.Tensor:  # noqa: ARG002 (every term takes the env)
        return self._mass_kg - self._nominal_kg
