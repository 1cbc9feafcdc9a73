"""Terms of the quadruped tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mjlab_dist.env.columns import Columns
from mjlab_dist.env.term import Term
from mjlab_dist.mdp.mirror import SAME, Image, Mirror

if TYPE_CHECKING:
    from mjlab_dist.env import Env


class FootFriction(Term):
    """Observation: sliding friction of the feet, for the critic; (num_envs, feet)."""

    def __init__(self, env: Env, geoms: tuple[str, ...]) -> None:
        """Look up the feet.

        Args:
            env: The envs.
            geoms: Names of the feet's geoms.
        """
        self._geoms = geoms
        self._columns = Columns([env.sim.model.geom(name).id for name in geoms], env.device)
        self._friction = env.sim.field("geom_friction")[..., 0]

    def __call__(self, env: Env) -> torch.Tensor:  # noqa: ARG002 (every term takes the env)
        return self._columns.of(self._friction)

    def mirrored(self, mirror: Mirror) -> Image:
        """Return the mirror image of the observation."""
        return mirror.places("geom", self._geoms)


class AddedMass(Term):
    """Observation: a body's mass minus its mass in the MJCF, in kg, for the critic; (num_envs, 1)."""

    mirrored = SAME

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
