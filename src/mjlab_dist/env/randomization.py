"""Domain randomization: values drawn per env for fields of MuJoCo Warp's model."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
import torch

from mjlab_dist.config import EnvConfig, RandomizationConfig
from mjlab_dist.env.columns import log, normal, uniform, write_rows
from mjlab_dist.errors import UserError
from mjlab_dist.sim import Simulation
from mjlab_dist.sim.model_fields import MOVING_STATIC
from mjlab_dist.sim.names import check_entity, element_names, find_names

if TYPE_CHECKING:
    from mjlab_dist.env.parameters import Parameters

# Kinds of objects that the rows of fields describe, by the prefix of the fields
_KINDS = ("body", "jnt", "geom", "site", "cam", "light", "tendon", "actuator", "pair", "eq", "sensor", "mat")

# The same for all prefixes. Other fields, such as gravity, have one row.
_OBJECTS = {"dof": "jnt", "qpos0": "jnt", "qpos": "jnt", **{kind: kind for kind in _KINDS}}


def changed_fields(config: EnvConfig) -> tuple[str, ...]:
    """Return the fields of the model that randomizations and events of a task change, each once."""
    of_events = [field for event in config.events.values() for field in event.model_fields]
    return tuple(dict.fromkeys([*(draw.field for draw in config.randomizations.values()), *of_events]))


class Randomizations:
    """All randomizations of a task, in config order, and the fields of the model that events change.

    Attributes:
        intervals: For each randomization at intervals: range of the time between two draws, in s, and a function that
            takes the env and a mask, (num_envs,) of bool.
    """

    def __init__(self, config: EnvConfig, sim: Simulation, parameters: Parameters) -> None:
        """Look up the objects and apply the startup randomizations."""
        # Startup, and the constants that derive from the drawn fields
        configs, entities = config.randomizations, config.sim.entities
        draws: dict[str, _Draw] = {}
        for name, one in configs.items():
            changing = parameters.within(f"randomizations.{name}.")
            draws[name] = _Draw(f"--env.randomizations.{name}", one, sim, entities, changing)
        everywhere = torch.ones(sim.num_envs, dtype=torch.bool, device=sim.device)
        for name, draw in draws.items():
            if configs[name].when == "startup":
                draw.apply(everywhere, draw.field)
        if configs:
            sim.update_constants()
        self._at_reset = [draw for name, draw in draws.items() if configs[name].when == "reset"]
        at_intervals = [name for name, one in configs.items() if one.when == "interval"]
        self.intervals = [(configs[name].interval_s, self._at_interval(draws[name])) for name in at_intervals]
        # Fields that change after startup
        self._sim = sim
        events = config.events.values()
        self._startup_writes = any(event.model_fields for event in events if event.when == "startup")
        written = [field for event in events if event.when != "startup" for field in event.model_fields]
        drawn = [one.field for one in configs.values() if one.when != "startup"]
        self._fields = {name: sim.field(name) for name in dict.fromkeys([*drawn, *written])}
        self._updates = any(sim.derived(name) or name in MOVING_STATIC for name in self._fields)
        self._is_checked = False
        self._before: dict[str, torch.Tensor] = {}

    def end_startup(self) -> None:
        """Store the values of the fields that change later, because every episode starts from these values.

        Call this after the startup events.
        """
        if self._startup_writes:
            self._sim.update_constants()
        self._before = {name: field.clone() for name, field in self._fields.items()}

    def reset(self, mask: torch.Tensor) -> None:
        """Restore the values from the end of startup, and draw the values of the new episode.

        Args:
            mask: Envs in which an episode starts, (num_envs,) of bool.
        """
        for name, before in self._before.items():
            write_rows(self._fields[name], mask, before)
        for draw in self._at_reset:
            draw.apply(mask, draw.field)

    def update_constants(self) -> None:
        """Recompute the constants that derive from fields that change after startup, if there are any."""
        if self._updates:
            self._sim.update_constants(checked=not self._is_checked)
            self._is_checked = True

    def _at_interval(self, draw: _Draw) -> Callable[[object, torch.Tensor], None]:
        return lambda _, mask: draw.apply(mask, self._before[draw.name])

    def state(self) -> dict[str, torch.Tensor]:
        """Return, by field name, the values that fields had at the end of startup, (num_envs, ...) each.

        Only fields that change after startup are included.
        """
        return self._before


class _Draw:
    """One randomization of one field."""

    def __init__(
        self,
        flag: str,
        config: RandomizationConfig,
        sim: Simulation,
        entities: Collection[str],
        changing: Mapping[str, torch.Tensor],
    ) -> None:
        _validate(flag, config)
        self.name = config.field
        self.field = sim.field(config.field)
        self._config = config
        self._chosen = _chosen(flag, config, sim.model, self.field, entities)
        numbers = {name: getattr(config, name) for name in ("low", "high", "mean", "std")}
        if changing:  # torch accepts two numbers or two tensors as bounds, but not one of each
            given = {name: number for name, number in numbers.items() if number is not None}
            numbers = {name: torch.tensor(number, device=sim.device) for name, number in given.items()} | dict(changing)
        self._numbers: dict[str, Any] = numbers

    def apply(self, mask: torch.Tensor, before: torch.Tensor) -> None:
        """Draw new values.

        Args:
            mask: Envs to draw for, (num_envs,) of bool.
            before: Values to multiply by the drawn numbers, or to add to them; same shape as the field. The operation
                ``set`` ignores these values.
        """
        shape = [len(self.field), *[1] * (self.field.dim() - 1)] if self._config.shared else self.field.shape
        drawn = self._draw(torch.empty(shape, device=self.field.device))
        if self._config.operation == "scale":
            drawn = before * drawn
        elif self._config.operation == "add":
            drawn = before + drawn
        rows = mask.view(-1, *[1] * (self.field.dim() - 1))
        torch.where(rows & self._chosen, drawn, self.field, out=self.field)

    def _draw(self, like: torch.Tensor) -> torch.Tensor:
        low, high = self._numbers["low"], self._numbers["high"]
        if self._config.distribution == "normal":
            return normal(like, self._numbers["mean"], self._numbers["std"]).clamp_(low, high)
        if self._config.distribution == "log-uniform":
            return uniform(like, log(low), log(high)).exp()
        return uniform(like, low, high)


def _validate(flag: str, config: RandomizationConfig) -> None:
    if not config.low <= config.high:
        raise UserError(f"{flag}.low {config.low}: exceeds high {config.high}; swap them")
    if config.distribution == "log-uniform" and config.low <= 0:
        raise UserError(f"{flag}.low {config.low}: must be positive for log-uniform")
    if config.distribution == "normal":
        if config.mean is None or config.std is None or config.std < 0:
            name, given = ("mean", config.mean) if config.mean is None else ("std", config.std)
            raise UserError(f"{flag}.{name} {given}: normal needs a mean, and a std that is 0 or more; give both")
        return
    for name, given in (("mean", config.mean), ("std", config.std)):
        if given is not None:
            raise UserError(f"{flag}.{name} {given}: is only for distribution normal; drop it")
    if not (math.isfinite(config.low) and math.isfinite(config.high)):
        raise UserError(f"{flag}: {config.distribution} needs finite low and high; give both")


def _chosen(
    flag: str, config: RandomizationConfig, model: mujoco.MjModel, field: torch.Tensor, entities: Collection[str]
) -> torch.Tensor:
    """Return a mask of the selected values, with the shape of the field without its first dimension."""
    # Rows, by the names of their objects
    has_objects = config.field.partition("_")[0] in _OBJECTS
    if not has_objects:
        if config.names != RandomizationConfig.names:
            raise UserError(
                f"{flag}.names {' '.join(config.names)}: {config.field} belongs to the whole env; omit names"
            )
        if config.entity is not None:
            raise UserError(f"{flag}.entity {config.entity}: {config.field} belongs to the whole env; omit entity")
        rows = torch.ones(1, dtype=torch.bool)
        field = field.unsqueeze(1)
    else:
        rows = torch.tensor(_rows(flag, config, model, field.shape[1], entities))
    # Columns
    chosen = rows.view(-1, *[1] * (field.dim() - 2)).expand(field.shape[1:]).clone()
    if config.columns:
        width = field.shape[-1] if field.dim() > 2 else 0
        wrong = [column for column in config.columns if not 0 <= column < width]
        if wrong:
            has = f"has columns 0 to {width - 1}" if width else "has no columns; omit columns"
            raise UserError(f"{flag}.columns {wrong[0]}: {config.field} {has}")
        columns = torch.zeros(width, dtype=torch.bool)
        columns[list(config.columns)] = True
        chosen &= columns
    return (chosen if has_objects else chosen.squeeze(0)).to(field.device)


def _rows(
    flag: str, config: RandomizationConfig, model: mujoco.MjModel, num_rows: int, entities: Collection[str]
) -> list[bool]:
    """Return, for each row, whether the config selects the row's object."""
    prefix = config.field.partition("_")[0]
    # A joint with several degrees of freedom has several rows; its name selects all of them.
    of_qpos = np.repeat(range(model.njnt), np.diff([*model.jnt_qposadr, model.nq]))
    owners = {"dof": model.dof_jntid, "qpos0": of_qpos, "qpos": of_qpos}.get(prefix, range(num_rows))
    check_entity(f"{flag}.entity", config.entity, entities)
    elements = element_names(model, _OBJECTS[prefix], config.entity, entities)
    names = [elements[int(owner)] for owner in owners]
    found = set(find_names(f"{flag}.names", config.names, names))
    return [row in found for row in range(num_rows)]
