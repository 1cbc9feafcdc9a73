"""Make the terms of a task from their names in its config."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from mjlab_dist.config import ObservationConfig, ParamValue, RewardConfig, TermConfig
from mjlab_dist.config.references import resolve
from mjlab_dist.env.term import OutsideOfGraphs, Term, is_capturable
from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env

TermT = TypeVar("TermT", bound=Term)


class Binder:
    """Makes the terms of one batch of envs.

    Attributes:
        memories: Terms that are classes, by their place in the config, such as ``rewards.forward``.
        uncapturable: Places of the terms that no CUDA graph can contain.
    """

    def __init__(self, env: Env) -> None:
        """Make nothing yet.

        Args:
            env: The envs, which terms look things up in.
        """
        self.memories: dict[str, Term] = {}
        self.uncapturable: list[str] = []
        self._env = env

    def make_call(self, where: str, func: str, params: Mapping[str, ParamValue], *, num_args: int = 1) -> Any:
        """Make a term, and return what a control step calls.

        Args:
            where: Its place in the config.
            func: Its function or class, as package.module:name.
            params: Its parameters.
            num_args: Number of positional arguments of a function.

        Raises:
            UserError: If there is no such function, or it does not take these parameters.
        """
        return self.outside_of_graphs(self._make(where, func, params, num_args=num_args))

    def make_calls(
        self, kind: str, configs: Mapping[str, TermConfig | RewardConfig | ObservationConfig]
    ) -> list[Callable[..., Any]]:
        """Make the terms of a kind, and return what a control step calls, in their order.

        Args:
            kind: Name of the kind in the config, such as ``rewards``.
            configs: The terms by name.

        Raises:
            UserError: As :meth:`make_call` does.
        """
        return [self.make_call(f"{kind}.{name}", config.func, config.params) for name, config in configs.items()]

    def make_classes(self, kind: str, configs: Mapping[str, TermConfig], base: type[TermT]) -> dict[str, TermT]:
        """Make the terms of a kind that are all classes.

        Args:
            kind: Name of the kind in the config, such as ``sensors``.
            configs: The terms by name.
            base: The class that each must derive from.

        Raises:
            UserError: If there is no such class, or it does not take these parameters or derive from ``base``.
        """
        made = {}
        for name, config in configs.items():
            term = self._make(f"{kind}.{name}", config.func, config.params)
            if not isinstance(term, base):
                raise UserError(
                    f"--env.{kind}.{name}.func {config.func}: is no {base.__name__}; name a class that is one"
                )
            made[name] = term
        return made

    def outside_of_graphs(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a term, or a method of one, such that recorded control steps call it between graphs if they must.

        Args:
            call: The term or method.
        """
        return call if is_capturable(call) else OutsideOfGraphs(call, self._env.sim)

    def _make(self, where: str, func: str, params: Mapping[str, ParamValue], *, num_args: int = 1) -> Any:
        term = bind(f"--env.{where}.func", func, params, self._env, num_args=num_args)
        if isinstance(term, Term):
            self.memories[where] = term
        if not is_capturable(term):
            self.uncapturable.append(where)
        return term


def bind(flag: str, func: str, params: Mapping[str, ParamValue], env: Env, *, num_args: int = 1) -> Callable[..., Any]:
    """Import a term and bind its parameters; make an instance if it is a class.

    Args:
        flag: The flag that names it, for messages.
        func: The function or class, as package.module:name.
        params: Keyword arguments.
        env: The envs.
        num_args: Number of positional arguments of a function.

    Raises:
        UserError: If there is no such function, or it does not take these parameters.
    """
    try:
        found = resolve(func)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise UserError(f"{flag} {func}: {error}; write package.module:function") from error
    if not callable(found):
        raise UserError(f"{flag} {func}: is no function; write package.module:function")
    is_class = isinstance(found, type)
    args = [env] * (1 if is_class else num_args)
    try:
        # First, so that a misspelled parameter is reported as such and not as a missing one.
        inspect.signature(found).bind_partial(*args, **params)
        inspect.signature(found).bind(*args, **params)
    except TypeError as error:
        raise UserError(f"{flag} {func}: {error}; change the params of the term") from error
    _check_lengths(flag, found, params)
    return found(env, **params) if is_class else functools.partial(found, **params)


def _check_lengths(flag: str, func: Callable[..., Any], params: Mapping[str, ParamValue]) -> None:
    """Raise if a tuple has the wrong length. The command line cannot check this: it does not import the term."""
    try:
        hints = typing.get_type_hints(func.__init__ if isinstance(func, type) else func, localns={"Env": object})
    except NameError:
        return  # a user's annotation that only a type checker can read
    for name, value in params.items():
        wanted = typing.get_args(hints.get(name))
        is_fixed = typing.get_origin(hints.get(name)) is tuple and Ellipsis not in wanted
        if is_fixed and isinstance(value, tuple) and len(value) != len(wanted):
            given = " ".join(map(str, value))
            raise UserError(
                f"{flag.removesuffix('.func')}.params.{name.replace('_', '-')} {given}: takes {len(wanted)} numbers"
            )
