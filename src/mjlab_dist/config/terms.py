"""Functions that make the terms of a config from real functions and their parameters.

Editors jump from the config to the functions, and type checkers check the parameters. Example::

    from mjlab_dist.config import reward
    from mjlab_dist.mdp import rewards

    rewards = {
        "tilt": reward(-1.0, rewards.tilt),
        "air": reward(0.5, rewards.feet_air_time, sensor="feet", command="velocity"),
    }
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, overload

from mjlab_dist.config.references import Reference, name_of
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
    from mjlab_dist.env.action import Action, ActionBlock
    from mjlab_dist.env.term import Term

P = ParamSpec("P")


def action(
    func: Callable[Concatenate[Env, ActionBlock, P], Action],
    actuators: tuple[str, ...],
    *args: P.args,
    **params: P.kwargs,
) -> ActionConfig:
    """Make a block of actions. :meth:`ActionConfig.processed` adds scale, offset, clip and latency.

    Args:
        func: A class that derives from :class:`mjlab_dist.env.action.Action`.
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
