"""Construction of the terms of a task from their names in the config."""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import typeguard

from mjlab_dist.config import (
    ActionConfig,
    MetricConfig,
    ObservationConfig,
    ParamValue,
    Reduction,
    RewardConfig,
    TermConfig,
)
from mjlab_dist.config.references import resolve
from mjlab_dist.config.serialization import as_tuples
from mjlab_dist.config.type_words import in_words
from mjlab_dist.env.action import Action, ActionBlock
from mjlab_dist.env.observation_group import ObservationGroup
from mjlab_dist.env.term import Curriculum, OutsideOfGraphs, Term, is_capturable
from mjlab_dist.errors import UserError
from mjlab_dist.places import describe, place_of

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env

T = TypeVar("T")

TermT = TypeVar("TermT", bound=Term)

# Singular of each kind of term, for the names of metrics
_SINGULAR = {
    "actions": "action",
    "commands": "command",
    "events": "event",
    "metrics": "metric",
    "observations": "observation",
    "rewards": "reward",
    "sensors": "sensor",
    "terminations": "termination",
}


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

    def make_call(self, where: str, func: str, params: Mapping[str, ParamValue], *, num_args: int = 1) -> Any:
        """Make a term and return the function that a control step calls."""
        term = NamedTerm(f"env.{where}", func, self._make(where, func, params, num_args=num_args))
        return self.outside_of_graphs(term)

    def make_calls(
        self, kind: str, configs: Mapping[str, TermConfig | RewardConfig | ObservationConfig]
    ) -> list[Callable[..., Any]]:
        """Make the terms of a kind and return the functions that a control step calls, in config order."""
        return [self.make_call(f"{kind}.{name}", config.func, config.params) for name, config in configs.items()]

    def make_classes(self, kind: str, configs: Mapping[str, TermConfig], base: type[TermT]) -> dict[str, TermT]:
        """Make all terms of a kind whose terms must be classes, such as sensors."""
        return {name: self._make_class(f"{kind}.{name}", config, base) for name, config in configs.items()}

    def make_actions(self, blocks: Sequence[ActionBlock]) -> list[Action]:
        """Make the term of each block of actions."""
        return [self._make_class(f"actions.{block.name}", block.config, Action, block) for block in blocks]

    def _make_class(
        self, where: str, config: TermConfig | ActionConfig, base: type[TermT], *more_args: ActionBlock
    ) -> TermT:
        term = self._make(where, config.func, config.params, more_args=more_args)
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
                metrics.extend((f"{_SINGULAR[kind]}/{rest.replace('.', '/')}/{name}", "mean") for name in found)
                measures.append(term.metrics if is_capturable(term) else _MetricsOutsideOfGraphs(term, self._env))
        return measures, metrics

    def _make(
        self,
        where: str,
        func: str,
        params: Mapping[str, ParamValue],
        *,
        num_args: int = 1,
        more_args: Sequence[ActionBlock] = (),
    ) -> Any:
        term = bind(f"--env.{where}.func", func, params, self._env, num_args=num_args, more_args=more_args)
        if isinstance(term, Term):
            self.memories[where] = term
        if not is_capturable(term):
            self.uncapturable.append(where)
        return term


class _MetricsOutsideOfGraphs:
    """The metrics of a term that cannot be part of a CUDA graph and is therefore called between two graphs."""

    def __init__(self, term: Term, env: Env) -> None:
        self._term = term
        self._names = list(term.metrics())
        self._measure = OutsideOfGraphs(self._stacked, env.sim)

    def __call__(self) -> dict[str, torch.Tensor]:
        values = self._measure()
        assert values is not None
        return dict(zip(self._names, values.unbind(), strict=True))

    def _stacked(self) -> torch.Tensor:
        return torch.stack(list(self._term.metrics().values()))


def look_up(kind: str, name: str, known: Mapping[str, T]) -> T:
    """Return a part of a task by its name."""
    if name not in known:
        raise UserError(f"{kind} {name}: does not exist; the task has {', '.join(known) or 'none'}")
    return known[name]


def bind(
    flag: str,
    func: str,
    params: Mapping[str, ParamValue],
    env: Env,
    *,
    num_args: int = 1,
    more_args: Sequence[ActionBlock] = (),
) -> Callable[..., Any]:
    """Import a term and bind its parameters; create an instance if it is a class."""
    found = import_term(flag, func)
    is_class = isinstance(found, type)
    args = [env, *more_args] if is_class else [env] * num_args
    try:
        # Call bind_partial first, so that a misspelled parameter is reported as unknown and not as missing.
        inspect.signature(found).bind_partial(*args, **params)
        inspect.signature(found).bind(*args, **params)
    except TypeError as error:
        raise UserError(f"{flag} {func}: {error}; change the params of the term") from error
    params = _checked(flag, found, params)
    where = flag.removeprefix("--").removesuffix(".func")
    changing = env.parameters.within(f"{where.removeprefix('env.')}.params.")
    if not is_class:
        return functools.partial(found, **{**params, **changing})
    with naming(where, func):
        return found(*args, **{**params, **changing})


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
    hints, checked = _hints(func), dict(params)
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


def _hints(func: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of the parameters of a function or class; an empty dict if they cannot be resolved."""
    function = inspect.unwrap(func.__init__ if isinstance(func, type) else func)
    names = _Names(vars(builtins) | getattr(function, "__globals__", {}))
    try:
        return typing.get_type_hints(function, localns=names)
    except (AttributeError, NameError, TypeError):
        return {}
