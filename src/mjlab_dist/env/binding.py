"""Construction of the terms of a task from their names in the config, and the calls of its commands."""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import typeguard

from mjlab_dist.config import (
    ActionConfig,
    EventConfig,
    MetricConfig,
    ObservationConfig,
    ParamValue,
    Reduction,
    RewardConfig,
    TermConfig,
)
from mjlab_dist.config.serialization import as_tuples, in_words
from mjlab_dist.config.terms import resolve
from mjlab_dist.env.actions import ActionBlock
from mjlab_dist.env.observation_group import ObservationGroup
from mjlab_dist.env.term import Command, Curriculum, OutsideOfGraphs, Term, is_capturable
from mjlab_dist.errors import UserError, describe, place_of

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env

T = TypeVar("T")

TermT = TypeVar("TermT", bound=Term)

# A part of the config with a function or class, and its parameters
_Config = TermConfig | RewardConfig | ObservationConfig | EventConfig | ActionConfig


class Binder:
    """Builder of the terms of one batch of envs.

    Attributes:
        memories: All terms that are instances of classes. Keys are their paths in the config, such as
            ``rewards.forward``.
        uncapturable: Paths of the terms that cannot be part of a CUDA graph.
    """

    def __init__(self, env: Env) -> None:
        self.memories: dict[str, Term] = {}
        self.uncapturable: list[str] = []
        self._env = env

    def make_call(self, where: str, config: _Config, *, num_args: int = 1) -> Any:
        """Make a term and return the function that a control step calls."""
        term = NamedTerm(f"env.{where}", config.func, self._make(where, config, num_args=num_args))
        return self.outside_of_graphs(term)

    def make_calls(self, kind: str, configs: Mapping[str, _Config]) -> list[Callable[..., Any]]:
        """Make the terms of a kind and return the functions that a control step calls, in config order."""
        return [self.make_call(f"{kind}.{name}", config) for name, config in configs.items()]

    def make_classes(self, kind: str, configs: Mapping[str, TermConfig], base: type[TermT]) -> dict[str, TermT]:
        """Make all terms of a kind whose terms must be classes, such as sensors."""
        return {name: self.make_class(f"{kind}.{name}", config, base) for name, config in configs.items()}

    def make_class(self, where: str, config: _Config, base: type[TermT], *more_args: ActionBlock) -> TermT:
        """Make a term that must be an instance of a class."""
        term = self._make(where, config, *more_args)
        if not isinstance(term, base):
            raise UserError(
                f"--env.{where}.func {config.func}: does not derive from {base.__name__}; use a class that does"
            )
        return term

    def outside_of_graphs(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a term or its method. If it cannot be part of a CUDA graph, return a wrapper.

        The wrapper runs the term or method between two graphs.
        """
        return call if is_capturable(call) else OutsideOfGraphs(call, self._env.sim)

    def make_observations(self, group: str, configs: Mapping[str, ObservationConfig]) -> ObservationGroup:
        """Make an observation group; evaluate its terms once to measure their widths."""
        env = self._env
        calls = [functools.partial(call, env) for call in self.make_calls(f"observations.{group}", configs)]
        changing = env.parameters.numbers(f"observations.{group}.")
        return ObservationGroup(group, configs, calls, env.num_envs, env.device, changing=changing)

    def measurements(
        self, configs: Mapping[str, MetricConfig]
    ) -> tuple[list[Callable[[], Mapping[str, torch.Tensor]]], list[tuple[str, Reduction]]]:
        """Return the functions that compute the metrics of terms, and the name and reduction of each metric.

        Call this after all terms are made. Curricula are left out, because the runner reads their metrics once per
        iteration.

        Returns:
            The functions, which return (num_envs,) tensors by name. Then the name and reduction of each metric: first
            the metrics of the config, then those that the functions return.
        """
        measures = []
        metrics: list[tuple[str, Reduction]] = [(f"metric/{name}", config.reduce) for name, config in configs.items()]
        for where, term in self.memories.items():
            found = [] if isinstance(term, Curriculum) else list(term.metrics())
            if found:
                kind, _, rest = where.partition(".")
                metrics.extend((f"{kind.removesuffix('s')}/{rest.replace('.', '/')}/{name}", "mean") for name in found)
                measures.append(term.metrics if is_capturable(term) else _outside_of_graphs(term, self._env))
        return measures, metrics

    def _make(self, where: str, config: _Config, *more_args: ActionBlock, num_args: int = 1) -> Any:
        """Import a term and bind its parameters; create an instance if it is a class."""
        flag, func, env = f"--env.{where}.func", config.func, self._env
        found = import_term(flag, func)
        is_class = isinstance(found, type)
        args = [env, *more_args] if is_class else [env] * num_args
        try:
            # Call bind_partial first, so that a misspelled parameter is reported as unknown and not as missing.
            inspect.signature(found).bind_partial(*args, **config.params)
            inspect.signature(found).bind(*args, **config.params)
        except TypeError as error:
            raise UserError(f"{flag} {func}: {error}; change the params of the term") from error
        params: dict[str, Any] = _checked(flag, found, config.params) | env.parameters.within(f"{where}.params.")
        if is_class:
            with naming(f"env.{where}", func):
                term = found(*args, **params)
        else:
            term = functools.partial(found, **params)
        if isinstance(term, Term):
            self.memories[where] = term
        if not is_capturable(term):
            self.uncapturable.append(where)
        return term


def _outside_of_graphs(term: Term, env: Env) -> Callable[[], dict[str, torch.Tensor]]:
    """Return a function that computes the metrics of a term, which is called between two graphs."""
    names = list(term.metrics())
    measure = OutsideOfGraphs(lambda: torch.stack(list(term.metrics().values())), env.sim)

    def metrics() -> dict[str, torch.Tensor]:
        values = measure()
        assert values is not None
        return dict(zip(names, values.unbind(), strict=True))

    return metrics


def look_up(kind: str, name: str, known: Mapping[str, T]) -> T:
    """Return a part of a task by its name."""
    if name not in known:
        raise UserError(f"{kind} {name}: does not exist; the task has {', '.join(known) or 'none'}")
    return known[name]


def import_term(flag: str, func: str) -> Callable[..., Any]:
    """Import a term."""
    try:
        found = resolve(func)
    except Exception as error:
        # The module belongs to the user, so any exception is an error in the value of this flag.
        if place_of(error, func):
            raise UserError(f"{flag} {func}: {describe(error, func)}") from error
        raise UserError(f"{flag} {func}: {error}; write package.module:function") from error
    if not callable(found):
        raise UserError(f"{flag} {func}: is not a function; write package.module:function")
    return found


class NamedTerm:
    """A term whose name is added to the errors that its code raises.

    Attributes:
        capturable: Whether the term can be part of a CUDA graph.
    """

    def __init__(self, where: str, func: str, call: Callable[..., Any]) -> None:
        self._where, self._func, self._call = where, func, call
        self.capturable = is_capturable(call)

    def __call__(self, *args: Any) -> Any:
        """Call the term."""
        try:
            return self._call(*args)
        except Exception as error:
            with naming(self._where, self._func):
                raise error


@contextlib.contextmanager
def naming(where: str, func: str) -> Iterator[None]:
    """Add the name of a term, and the failing line of its package, to the errors that its code raises."""
    try:
        yield
    except UserError as error:
        if str(error).startswith(f"--{where}."):
            raise  # the message already names the term, by a flag
        raise UserError(f"{where}: {error}") from error
    except KeyError as error:
        # Errors of MuJoCo's lookups by name, such as model.site("foot")
        match = re.fullmatch(r"Invalid name '(.*)'\. Valid names: (\[.*\])", str(error.args[0]))
        if match is None:
            error.add_note(_note(where, func, error))
            raise
        known = ", ".join(filter(None, ast.literal_eval(match[2])))
        raise UserError(f"{where}: {match[1]}: there is no such name; the model has {known or 'none'}") from error
    except Exception as error:
        error.add_note(_note(where, func, error))
        raise


def _note(where: str, func: str, error: Exception) -> str:
    place = place_of(error, func)
    return f"in the term {where}" + (f" ({place})" if place else "")


def _checked(flag: str, func: Callable[..., Any], params: Mapping[str, ParamValue]) -> dict[str, ParamValue]:
    """Return the parameters, with a tuple instead of a single text where the term takes several; raise for other types.

    The command line cannot check this, as it does not import the term.
    """
    # Types of the parameters; none if they cannot be resolved
    function = inspect.unwrap(func.__init__ if isinstance(func, type) else func)
    names = _Names(vars(builtins) | getattr(function, "__globals__", {}))
    hints: dict[str, Any] = {}
    with contextlib.suppress(AttributeError, NameError, TypeError):
        hints = typing.get_type_hints(function, localns=names)
    # Values
    checked = dict(params)
    for name, value in params.items():
        hint = hints.get(name, object)
        if isinstance(value, str) and hint in {tuple[str, ...], tuple[str, ...] | None}:
            checked[name] = (value,)
        try:
            typeguard.check_type(as_tuples(checked[name]), hint)
        except typeguard.TypeCheckError as error:
            parts = value if isinstance(value, list | tuple) else (value,)
            given = f"{flag.removesuffix('.func')}.params.{name.replace('_', '-')} {' '.join(map(str, parts))}"
            raise UserError(f"{given}: takes {in_words(hint)}") from error
    return checked


class _Names(dict[str, Any]):
    """Names in an annotation. Those that only type checkers can resolve stand for any type."""

    def __missing__(self, name: str) -> Any:
        return object


class CommandGroup:
    """All commands of a task.

    Attributes:
        by_name: The commands by name, in config order.
    """

    def __init__(self, env: Env, configs: dict[str, TermConfig], binder: Binder) -> None:
        self.by_name: dict[str, Command] = binder.make_classes("commands", configs, Command)
        commands = self.by_name.values()
        self._resets = [binder.outside_of_graphs(command.reset) for command in commands]
        self._resamples = [binder.outside_of_graphs(command.resample) for command in commands]
        self._follows = [binder.outside_of_graphs(command.follow) for command in commands]
        cleared = [tensor for command in commands for tensor in command.cleared()]
        self._clear = env.sim.record_clearing(cleared) if cleared else None

    def find(self, name: str) -> Command:
        """Return a command."""
        return look_up("command", name, self.by_name)

    def resample(self, env: Env, mask: torch.Tensor) -> None:
        """Advance the clocks by one step. Draw new commands in envs whose time is up or whose episode starts.

        Args:
            mask: Envs in which an episode starts, (num_envs,) of bool.
        """
        for reset in self._resets:
            reset(mask)
        if self._clear is not None:
            self._clear()
        for resample in self._resamples:
            resample(env)

    def follow(self, env: Env) -> None:
        """Adjust the values to the current state."""
        for follow in self._follows:
            follow(env)
