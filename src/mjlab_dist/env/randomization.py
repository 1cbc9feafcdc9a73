"""Domain randomization: values drawn per env for fields of MuJoCo Warp's model."""

from __future__ import annotations

import math
from collections.abc import Mapping

import mujoco
import torch

from mjlab_dist.config import RandomizationConfig
from mjlab_dist.env.columns import find_names, uniform, write_rows
from mjlab_dist.errors import UserError
from mjlab_dist.sim import Simulation

_OBJECTS = {
    "body": mujoco.mjtObj.mjOBJ_BODY,
    "jnt": mujoco.mjtObj.mjOBJ_JOINT,
    "dof": mujoco.mjtObj.mjOBJ_JOINT,
    "qpos0": mujoco.mjtObj.mjOBJ_JOINT,
    "qpos": mujoco.mjtObj.mjOBJ_JOINT,
    "geom": mujoco.mjtObj.mjOBJ_GEOM,
    "site": mujoco.mjtObj.mjOBJ_SITE,
    "cam": mujoco.mjtObj.mjOBJ_CAMERA,
    "light": mujoco.mjtObj.mjOBJ_LIGHT,
    "tendon": mujoco.mjtObj.mjOBJ_TENDON,
    "actuator": mujoco.mjtObj.mjOBJ_ACTUATOR,
    "pair": mujoco.mjtObj.mjOBJ_PAIR,
    "eq": mujoco.mjtObj.mjOBJ_EQUALITY,
    "sensor": mujoco.mjtObj.mjOBJ_SENSOR,
    "mat": mujoco.mjtObj.mjOBJ_MATERIAL,
}
"""Objects that the rows of a field belong to, by the prefix of its name; other fields (gravity) have one row."""


class Randomizations:
    """All randomizations of a task, in config order."""

    def __init__(self, configs: Mapping[str, RandomizationConfig], sim: Simulation) -> None:
        """Look up the objects and apply the randomizations of startup.

        Args:
            configs: Randomizations by name.
            sim: The physics, whose randomized fields have one value per env.

        Raises:
            UserError: If a name matches no object, a column does not exist, a bound is invalid, or constants derive
                from a field that is randomized at resets.
        """
        # Startup, and the constants that derive from the drawn fields
        draws = [(config.when, _Draw(f"--env.randomizations.{name}", config, sim)) for name, config in configs.items()]
        everywhere = torch.ones(sim.num_envs, dtype=torch.bool, device=sim.device)
        for when, draw in draws:
            if when == "startup":
                draw.apply(everywhere)
        if configs:
            sim.update_constants()
        self._at_reset = [draw for when, draw in draws if when == "reset"]
        # Each episode starts from the values after startup, not from those of the previous episode.
        self._before = {draw.name: (draw.field, draw.field.clone()) for draw in self._at_reset}

    def reset(self, mask: torch.Tensor) -> None:
        """Draw the values of an episode.

        Args:
            mask: Envs in which an episode starts, (num_envs,) of bool.
        """
        for field, before in self._before.values():
            write_rows(field, mask, before)
        for draw in self._at_reset:
            draw.apply(mask)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the values after startup of the fields drawn at resets, by field, (num_envs, ...)."""
        return {name: before for name, (_, before) in self._before.items()}


class _Draw:
    """One randomization of one field."""

    def __init__(self, flag: str, config: RandomizationConfig, sim: Simulation) -> None:
        _validate(flag, config)
        if config.when == "reset" and (derived := sim.derived(config.field)):
            raise UserError(
                f"{flag}.when reset: {', '.join(derived)} derive from {config.field} and are computed only once; use "
                "startup"
            )
        self.name = config.field
        self.field = sim.field(config.field)
        self._config = config
        self._chosen = _chosen(flag, config, sim.model, self.field)
        self._low, self._high = config.low, config.high
        if config.distribution == "log-uniform":
            self._low, self._high = math.log(config.low), math.log(config.high)

    def apply(self, mask: torch.Tensor) -> None:
        shape = [len(self.field), *[1] * (self.field.dim() - 1)] if self._config.shared else self.field.shape
        drawn = uniform(torch.empty(shape, device=self.field.device), self._low, self._high)
        if self._config.distribution == "log-uniform":
            drawn = drawn.exp()
        if self._config.operation == "scale":
            drawn = self.field * drawn
        elif self._config.operation == "add":
            drawn = self.field + drawn
        rows = mask.view(-1, *[1] * (self.field.dim() - 1))
        torch.where(rows & self._chosen, drawn, self.field, out=self.field)


def _validate(flag: str, config: RandomizationConfig) -> None:
    if not config.low <= config.high:
        raise UserError(f"{flag}.low {config.low}: exceeds high {config.high}; swap them")
    if config.distribution == "log-uniform" and config.low <= 0:
        raise UserError(f"{flag}.low {config.low}: must be positive for log-uniform")


def _chosen(flag: str, config: RandomizationConfig, model: mujoco.MjModel, field: torch.Tensor) -> torch.Tensor:
    """Return a mask of the selected values, with the shape of the field without its first dimension."""
    # Rows, by the names of their objects
    has_objects = config.field.partition("_")[0] in _OBJECTS
    if not has_objects:
        if config.names != RandomizationConfig.names:
            raise UserError(
                f"{flag}.names {' '.join(config.names)}: {config.field} belongs to the whole env; omit names"
            )
        rows = torch.ones(1, dtype=torch.bool)
        field = field.unsqueeze(1)
    else:
        rows = torch.tensor(_rows(flag, config, model, field.shape[1]))
    # Columns
    chosen = rows.view(-1, *[1] * (field.dim() - 2)).expand(field.shape[1:]).clone()
    if config.columns:
        width = field.shape[-1] if field.dim() > 2 else 0
        wrong = [column for column in config.columns if not 0 <= column < width]
        if wrong:
            has = f"has columns 0 to {width - 1}" if width else "has one value per object; omit columns"
            raise UserError(f"{flag}.columns {wrong[0]}: {config.field} {has}")
        columns = torch.zeros(width, dtype=torch.bool)
        columns[list(config.columns)] = True
        chosen &= columns
    return (chosen if has_objects else chosen.squeeze(0)).to(field.device)


def _rows(flag: str, config: RandomizationConfig, model: mujoco.MjModel, num_rows: int) -> list[bool]:
    """Return whether the config selects the object of each row."""
    prefix = config.field.partition("_")[0]
    # A joint with several degrees of freedom has several rows; its name selects all of them.
    of_qpos = _joint_of_qpos(model)
    owners = {"dof": list(model.dof_jntid), "qpos0": of_qpos, "qpos": of_qpos}.get(prefix, list(range(num_rows)))
    names = [mujoco.mj_id2name(model, _OBJECTS[prefix], int(owner)) or "" for owner in owners]
    found = set(find_names(f"{flag}.names", config.names, names))
    return [row in found for row in range(num_rows)]


def _joint_of_qpos(model: mujoco.MjModel) -> list[int]:
    ends = [*model.jnt_qposadr[1:], model.nq]
    return [
        joint for joint, (start, end) in enumerate(zip(model.jnt_qposadr, ends, strict=True)) for _ in range(start, end)
    ]
