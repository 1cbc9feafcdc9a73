"""Parameters of terms that curricula change: tensors take the place of the numbers of the config."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from mjlab_dist.config import EnvConfig, ObservationConfig, ParamValue, RandomizationConfig
from mjlab_dist.env.binding import import_term, naming
from mjlab_dist.env.term import Curriculum, state_part
from mjlab_dist.errors import UserError, did_you_mean, listed

_KINDS = ("actions", "commands", "events", "metrics", "randomizations", "rewards", "sensors", "terminations")

# Fields of configs that curricula may change, in addition to the parameters of functions and classes
_FIELDS: dict[type, tuple[str, ...]] = {
    ObservationConfig: ("uniform_noise", "gaussian_noise", "scale"),
    RandomizationConfig: ("low", "high", "mean", "std"),
}


class Parameters:
    """The parameters that the curricula of a task change, by path, such as ``rewards.track.params.std_m_s``."""

    def __init__(self, config: EnvConfig, device: str) -> None:
        """Make a tensor for each parameter."""
        self._device = device
        self._terms = _terms(config)
        # The numbers of each parameter, (k,) of float32; a curriculum changes them in place
        self._found: dict[str, torch.Tensor] = {}
        # The values that the terms receive: a 0-dim view of the number, or a tuple of such views
        self._views: dict[str, torch.Tensor | tuple[torch.Tensor, ...]] = {}
        for name, one in config.curricula.items():
            curriculum = import_term(f"--env.curricula.{name}.func", one.func)
            if isinstance(curriculum, type) and issubclass(curriculum, Curriculum):
                with naming(f"env.curricula.{name}", one.func):
                    for path in curriculum.changes(one.params):
                        self._add(path)

    def find(self, path: str) -> torch.Tensor:
        """Return the numbers of a parameter, (k,) of float32, to be changed in place; k is 1 for one number."""
        if path in self._found:
            return self._found[path]
        whole, _, index = path.rpartition(".")
        if whole not in self._found or not index.isdecimal():
            raise UserError(
                f"parameter {path}: is unknown to the env; return it from changes(params) of the curriculum"
            )
        return self._found[whole][int(index) :][:1]

    def within(self, where: str) -> dict[str, Any]:
        """Return the values of a term's parameters that curricula change, by their paths relative to the term.

        Returns:
            0-dim tensors, and tuples of them.
        """
        return {path.removeprefix(where): value for path, value in self._views.items() if path.startswith(where)}

    def numbers(self, where: str) -> dict[str, torch.Tensor]:
        """Return the numbers of a term's parameters that curricula change, (k,) each, by path relative to the term."""
        return state_part(self._found, where)

    def _add(self, path: str) -> None:
        # Find the number or tuple
        where = next((where for where in self._terms if path.startswith(f"{where}.")), None)
        if where is None:
            raise UserError(f"parameter {path}: there is no such term; {self._near_term(path)}")
        known = self._values(where)
        whole, _, index = path.rpartition(".")
        if whole not in known or not index.isdecimal():
            whole, index = path, ""
        if whole not in known:
            numeric = [name.removeprefix(f"{where}.") for name, value in known.items() if _numbers(value)]
            rest = path.removeprefix(f"{where}.")
            near = did_you_mean(rest, numeric, f"{where} has {listed(numeric) or 'none'}")
            raise UserError(f"parameter {path}: there is no such parameter; {near}")
        # Check the value and the index
        value, numbers = known[whole], _numbers(known[whole])
        if not numbers:
            raise UserError(f"parameter {path}: is {value!r}, not a number or tuple of numbers; name another parameter")
        if index and (not isinstance(value, tuple) or int(index) >= len(numbers)):
            last = len(numbers) - 1
            has = f"indices 0 to {last}" if isinstance(value, tuple) else f"one number, without an index; name {whole}"
            raise UserError(f"parameter {path}: there is no index {index}; {whole} has {has}")
        self._check_readable(path, where, whole)
        # Make the tensor
        if whole not in self._found:
            tensor = self._found[whole] = torch.tensor(numbers, dtype=torch.float32, device=self._device)
            self._views[whole] = tensor.unbind() if isinstance(value, tuple) else tensor[0]

    def _near_term(self, path: str) -> str:
        """Return a suggestion for the message if no term matches a path."""
        kind, _, rest = path.partition(".")
        if kind not in (*_KINDS, "observations"):
            return did_you_mean(kind, (*_KINDS, "observations"), "write <kind>.<term>.params.<parameter>")
        known = [where.removeprefix(f"{kind}.") for where in self._terms if where.startswith(f"{kind}.")]
        return did_you_mean(rest.partition(".params")[0], known, f"the task has {listed(known) or f'no {kind}'}")

    def _values(self, where: str) -> dict[str, Any]:
        """Return the values that a term receives, by path, from the config or from the defaults of its function."""
        term = self._terms[where]
        fields = {f"{where}.{name}": getattr(term, name) for name in _FIELDS.get(type(term), ())}
        if isinstance(term, RandomizationConfig):
            return fields
        signature = inspect.signature(import_term(f"--env.{where}.func", term.func))
        defaults = {name: one.default for name, one in signature.parameters.items() if one.default is not one.empty}
        return fields | {f"{where}.params.{name}": value for name, value in {**defaults, **term.params}.items()}

    def _check_readable(self, path: str, where: str, whole: str) -> None:
        """Raise if the term does not read the parameter again after a curriculum has changed it."""
        term = self._terms[where]
        if getattr(term, "when", "") == "startup":
            raise UserError(f"parameter {path}: is read once, at startup; set --env.{where}.when to reset or interval")
        name = whole.removeprefix(f"{where}.params.")
        if name == whole:
            return  # a field of the config, which the env itself reads in every step
        found = import_term(f"--env.{where}.func", term.func)
        can_change: tuple[str, ...] = getattr(found, "schedulable", ())
        if isinstance(found, type) and name not in can_change:
            others = f"; otherwise, name {listed(can_change, 'or')}" if can_change else ""
            is_command = where.startswith("commands.")
            ranges = f"; {where}.0 names the range of the command's first number" if is_command else ""
            raise UserError(
                f"parameter {path}: the class {term.func} does not list {name} in schedulable; if the class reads "
                f"{name} in every call, add it to schedulable{others}{ranges}"
            )


def _terms(config: EnvConfig) -> dict[str, Any]:
    """Return the terms and randomizations of a task by path."""
    terms = {f"{kind}.{name}": one for kind in _KINDS for name, one in getattr(config, kind).items()}
    groups = config.observations.items()
    return terms | {f"observations.{group}.{name}": one for group, found in groups for name, one in found.items()}


def _numbers(value: ParamValue) -> list[float]:
    """Return a number or a tuple of numbers as a list; for any other value, return an empty list."""
    parts = value if isinstance(value, tuple) else (value,)
    numbers = [float(part) for part in parts if isinstance(part, int | float) and not isinstance(part, bool)]
    return numbers if len(numbers) == len(parts) else []
