"""Functions that make the terms of a config from real functions and their parameters.

The config stores references "package.module:name", so that it can be read without importing the functions' modules.
Editors jump from the config to the functions, and type checkers check the parameters. Example::

    from mjlab_dist.config import reward
    from mjlab_dist.mdp import rewards

    rewards = {
        "tilt": reward(-1.0, rewards.tilt),
        "air": reward(0.5, rewards.feet_air_time, sensor="feet", command="velocity"),
    }
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, overload

from mjlab_dist.config.task import (
    ActionConfig,
    EventConfig,
    MetricConfig,
    ObservationConfig,
    ParamValue,
    Reduction,
    RewardConfig,
    TermConfig,
    TerminationConfig,
)
from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from mjlab_dist.env import Env
    from mjlab_dist.env.actions import Action, ActionBlock
    from mjlab_dist.env.term import Term

P = ParamSpec("P")


class Reference(str):
    """Name of a function or class that is not imported yet."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Import the function or class and call it."""
        return resolve(self)(*args, **kwargs)


class LazyModule:
    """Stand-in for a module that is not imported. Its attributes are references."""

    def __init__(self, name: str) -> None:
        """Store the name.

        Args:
            name: The module's full name.
        """
        self.__name__ = name

    def __getattr__(self, name: str) -> Reference:
        if name.startswith("__"):
            raise AttributeError(name)
        return Reference(f"{self.__name__}:{name}")


def lazy_modules(package: str, *names: str) -> Callable[[str], LazyModule]:
    """Make ``from package import module`` return a stand-in for the module, unless the module is already imported.

    Commands can then list and print configs without importing torch, while editors and type checkers still find the
    real functions. In the package's ``__init__.py``::

        __getattr__ = lazy_modules(__name__, "terms")

    Args:
        package: The package's ``__name__``.
        names: Names of the modules that get a stand-in.

    Returns:
        The package's ``__getattr__``.
    """

    def get(name: str) -> LazyModule:
        if name not in names:
            raise AttributeError(f"module {package} has no attribute {name}")
        return LazyModule(f"{package}.{name}")

    return get


def resolve(reference: str) -> Any:
    """Import and return the object that a reference names.

    Args:
        reference: The reference, as package.module:name.

    Raises:
        ImportError: If there is no such module.
        AttributeError: If the module has no such name.
        ValueError: If the reference is not of this form.
    """
    if ":" not in reference:
        raise ValueError("has no name after a colon")
    return pkgutil.resolve_name(reference)


def name_of(term: Callable[..., Any] | str) -> str:
    """Return the reference to a function or class.

    Args:
        term: The function or class itself, or a reference to it.
    """
    if isinstance(term, str):
        return str(term)
    module, name = getattr(term, "__module__", None), getattr(term, "__qualname__", None)
    if module is None or name is None:
        raise UserError(f"{term!r}: has no name; define a function or a class at the top level of a module")
    shown = f"{module}:{name}"
    if module == "__main__":
        raise UserError(f"{shown}: is defined in the script, which ranks cannot import; move it to a module")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not term:
        raise UserError(f"{shown}: cannot be found by this name; define it at the top level of its module")
    return shown


def action(
    func: Callable[Concatenate[Env, ActionBlock, P], Action],
    actuators: tuple[str, ...],
    *args: P.args,
    **params: P.kwargs,
) -> ActionConfig:
    """Make a block of actions. :meth:`ActionConfig.processed` adds scale, offset, clip and latency.

    Args:
        func: A class that derives from :class:`mjlab_dist.env.actions.Action`.
        actuators: Names of the actuators that the block drives, or regular expressions.
        args: Must be empty: give parameters by name.
        params: Parameters of the class.
    """
    return ActionConfig(func=name_of(func), actuators=actuators, params=_plain(func, args, params))


def observation(
    func: Callable[Concatenate[Env, P], Tensor | Term], *args: P.args, **params: P.kwargs
) -> ObservationConfig:
    """Make an observation. :meth:`ObservationConfig.processed` adds noise, clip, scale, delay and history.

    Args:
        func: A function or class that returns one row per env, (num_envs, width).
        args: Must be empty: give parameters by name.
        params: Parameters of the function or class.
    """
    return ObservationConfig(func=name_of(func), params=_plain(func, args, params))


def reward(
    weight: float, func: Callable[Concatenate[Env, P], Tensor | Term], *args: P.args, **params: P.kwargs
) -> RewardConfig:
    """Make a reward term, which adds weight * func(env) to the reward.

    Args:
        weight: Weight; negative for a cost.
        func: A function or class that returns one value per env, (num_envs,).
        args: Must be empty: give parameters by name.
        params: Parameters of the function or class.
    """
    if callable(weight) or isinstance(weight, str):
        name = name_of(weight)
        raise UserError(f"reward({name}, {func}): the weight comes first; write reward({func}, {name})")
    return RewardConfig(func=name_of(func), weight=weight, params=_plain(func, args, params))


@overload
def event(func: Callable[Concatenate[Env, P], Term], *args: P.args, **params: P.kwargs) -> EventConfig: ...
@overload
def event(func: Callable[Concatenate[Env, Tensor, P], None], *args: P.args, **params: P.kwargs) -> EventConfig: ...
def event(func: Callable[..., Any], *args: Any, **params: Any) -> EventConfig:
    """Make an event at the start of an episode.

    :meth:`EventConfig.every` and :meth:`EventConfig.at_startup` return a copy of the event that happens at other times.

    Args:
        func: A function of the env and a mask, (num_envs,) of bool, or a class whose instances are called with a mask.
        args: Must be empty: give parameters by name.
        params: Parameters of the function or class.
    """
    return EventConfig(func=name_of(func), params=_plain(func, args, params))


def termination(
    func: Callable[Concatenate[Env, P], Tensor | Term], *args: P.args, **params: P.kwargs
) -> TerminationConfig:
    """Make a termination. :meth:`TerminationConfig.as_time_out` returns a termination that is not a failure.

    Args:
        func: A function or class that returns True where the episode ends, (num_envs,) of bool.
        args: Must be empty: give parameters by name.
        params: Parameters of the function or class.
    """
    return TerminationConfig(func=name_of(func), params=_plain(func, args, params))


def metric(
    func: Callable[Concatenate[Env, P], Tensor | Term], reduce: Reduction = "mean", *args: P.args, **params: P.kwargs
) -> MetricConfig:
    """Make a metric: a quantity to log, which does not affect training.

    Args:
        func: A function or class that returns one value per env, (num_envs,) of float32 or bool.
        reduce: Value of an episode: mean, sum, max, min, or last (the value in its last step).
        args: Must be empty: give parameters by name.
        params: Parameters of the function or class.
    """
    return MetricConfig(func=name_of(func), reduce=reduce, params=_plain(func, args, params))


def term(func: Callable[Concatenate[Env, P], Tensor | Term], *args: P.args, **params: P.kwargs) -> TermConfig:
    """Make a command, sensor or curriculum.

    Args:
        func: The function or class.
        args: Must be empty: give parameters by name.
        params: Parameters of the function or class.
    """
    return TermConfig(func=name_of(func), params=_plain(func, args, params))


def _plain(func: Callable[..., Any], args: tuple[Any, ...], params: Mapping[str, Any]) -> dict[str, ParamValue]:
    """Check the parameters, and return them as a dict."""
    if args:
        raise UserError(f"{name_of(func)} {args[0]!r}: has no parameter name; give parameters as name=value")
    for name, value in params.items():
        if isinstance(value, Reference):
            raise UserError(
                f"{name_of(func)} {name}={value}: is not imported yet, so its value is not known; define constants in "
                "the config"
            )
    return dict(params)
