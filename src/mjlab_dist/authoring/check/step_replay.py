"""Record control steps as lists of operations, compare them, and replay them without the Python code that issued them.

A control step can become one CUDA graph if every step issues the same operations on the same memory. :class:`Recorder`
checks this contract, operation by operation:

- Operations, their order, and the shapes and types of their results are the same in every step.
- Python numbers, flags and types among the arguments are the same in every step.
- A tensor among the arguments is one of three: memory that was allocated before the first step and has the same address
  in every step; a result of the same step; or an observation that the previous step returned (a graph copies it into
  its own buffer).
- The only exception to these rules is the index of the step in the rollout. It selects a row of the buffers that hold
  the rollout.
- Nothing waits for the device, and no tensor is made from host data.
- Warp's kernels run in programs. A program is a graph of kernel launches that ``Simulation`` has captured from a
  function. It counts as one operation.

Operations that draw from torch's default generator are allowed: a replay draws the next numbers from this generator.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import warp as wp

from mjlab_dist.authoring.check.host_syncs import HostReads, HostSyncs, pausing
from mjlab_dist.imports import patched
from mjlab_dist.sim import Simulation

aten: Any = torch.ops.aten

# Address, shape, strides and type of a tensor
Key = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]

# Names of libraries and of this package's check, with a dot after each. Messages name the line that calls them.
_SKIPPED = tuple(
    f"{name}."
    for name in (
        "mjlab_dist.authoring.check",
        "torch",
        "warp",
        "tensordict",
        "mujoco_warp",
        "rsl_rl",
        "contextlib",
        "functools",
    )
)


class ReplayError(Exception):
    """A step cannot be replayed. The message gives the reason and, if one operation is the cause, its line of code."""


@dataclasses.dataclass(frozen=True)
class Constant:
    """An argument that is not a tensor."""

    # The argument's repr. Constants are compared by repr: NaN equals NaN, and 1 differs from 1.0 and from True.
    text: str
    value: Any = dataclasses.field(compare=False, repr=False)

    @classmethod
    def of(cls, value: Any) -> Constant:
        """Wrap a value."""
        return cls(repr(value), value)

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True)
class Memory:
    """An argument that was allocated before the first step."""

    key: Key
    value: torch.Tensor = dataclasses.field(compare=False, repr=False)

    def __str__(self) -> str:
        return f"the memory {_describe(self.value)} at {self.value.data_ptr():#x}"


@dataclasses.dataclass(frozen=True)
class Result:
    """An argument that an operation of the same step returned."""

    # Index of the operation
    operation: int
    # Index of the tensor among the results of the operation
    leaf: int

    def __str__(self) -> str:
        return f"the result of operation {self.operation}"


@dataclasses.dataclass(frozen=True)
class Carried:
    """An observation that the previous step returned."""

    name: str

    def __str__(self) -> str:
        return f"{self.name} of the previous step"


@dataclasses.dataclass(frozen=True)
class StepIndex:
    """The index of the step in the rollout, as a number."""

    def __str__(self) -> str:
        return "the index of the step"


@dataclasses.dataclass(frozen=True)
class Row:
    """The step's row of a buffer that holds a rollout."""

    name: str
    buffer: torch.Tensor = dataclasses.field(compare=False, repr=False)

    def __str__(self) -> str:
        return f"the step's row of {self.name}"


Argument = Constant | Memory | Result | Carried | StepIndex | Row | tuple["Argument", ...]


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation of a step."""

    name: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...]
    # Shapes and types of its results
    results: tuple[str, ...]
    run: Callable[..., Any] = dataclasses.field(compare=False, repr=False)
    # File and line of the code that issued the operation
    line: str = dataclasses.field(compare=False)

    def difference(self, other: Operation) -> str:
        """Describe how this operation differs from the first step's operation at the same position; empty if equal."""
        if self.name != other.name:
            return f"was {other.name} before"
        if len(self.args) != len(other.args) or [k for k, _ in self.kwargs] != [k for k, _ in other.kwargs]:
            return "had other arguments before"
        named = [(f"argument {i}", a) for i, a in enumerate(self.args)] + list(self.kwargs)
        others = [*other.args, *(value for _, value in other.kwargs)]
        for (name, mine), theirs in zip(named, others, strict=True):
            if mine != theirs:
                return f"{name} is {_text(mine)}, and was {_text(theirs)} before"
        return "" if self.results == other.results else f"returns {self.results}, and returned {other.results} before"


@dataclasses.dataclass(frozen=True)
class Recording:
    """The operations of one step, and the tensors that it returns."""

    operations: Sequence[Operation]
    # Named tensors that the step returns and the next step takes
    outputs: Mapping[str, Argument]

    def replay(self, carried: Mapping[str, torch.Tensor], row: int) -> dict[str, torch.Tensor]:
        """Execute the operations again."""
        results: list[Sequence[Any]] = []

        def value(argument: Argument) -> Any:
            match argument:
                case Constant() | Memory():
                    return argument.value
                case Result():
                    return results[argument.operation][argument.leaf]
                case Carried():
                    return carried[argument.name]
                case StepIndex():
                    return row
                case Row():
                    return argument.buffer[row]
                case _:
                    return [value(part) for part in argument]

        for operation in self.operations:
            returned = operation.run(*map(value, operation.args), **{k: value(v) for k, v in operation.kwargs})
            results.append(returned if isinstance(returned, tuple | list) else (returned,))
        return {name: value(output) for name, output in self.outputs.items()}


class Recorder:
    """Records consecutive control steps, and raises if a step breaks the contract of this module."""

    def __init__(
        self,
        sim: Simulation,
        rollout: Mapping[str, torch.Tensor],
        *,
        indices: bool = True,
        place: Callable[[], str] | None = None,
    ) -> None:
        """Start without a recording.

        Args:
            rollout: Named buffers that hold a rollout, (steps, ...) each. Every step writes to its own row.
        """
        self._sim = sim
        self._rollout = rollout
        self._indices = indices
        self._place = place or line_of_code
        self._modes: list[HostSyncs | HostReads] = []
        self._fresh: set[int] = set()
        self._first: Recording | None = None
        # Tensors of the steps, kept alive so that no later tensor gets the address of one of them
        self._kept: list[torch.Tensor] = []

    @property
    def recording(self) -> Recording:
        """The operations of a step. All steps recorded so far had the same operations."""
        assert self._first is not None
        return self._first

    def record(
        self, step: Callable[[], Mapping[str, torch.Tensor]], carried: Mapping[str, torch.Tensor], row: int
    ) -> dict[str, torch.Tensor]:
        """Run and record a step."""
        mode, reads = _StepMode(self, carried, row), HostReads(lambda function: f"{function}, {self._place()}")
        self._modes = [mode, reads]
        with _warp_recorded(mode, self._sim), reads, mode:
            outputs = dict(step())
        if reads.found:
            raise ReplayError(f"the step reads a tensor on the host: {', '.join(reads.found)}")
        made = Recording(mode.operations, {name: mode.argument(tensor) for name, tensor in outputs.items()})
        self._fresh |= mode.fresh
        self._kept += mode.kept
        if self._first is None:
            self._first = made
        else:
            _compare(made, self._first)
        return outputs

    def paused(self) -> AbstractContextManager[None]:
        """Return a context that executes code of a step without recording it."""
        return pausing(*self._modes)


class _StepMode(HostSyncs):
    """Records the operations of one step."""

    def __init__(self, recorder: Recorder, carried: Mapping[str, torch.Tensor], row: int) -> None:
        super().__init__(recorder._indices)
        self.operations: list[Operation] = []
        self.fresh: set[int] = set()
        self.kept: list[torch.Tensor] = []
        self.place = recorder._place
        self._rollout = recorder._rollout
        self._buffers = {_key(buffer) for buffer in self._rollout.values()}
        self._carried = {_key(tensor): Carried(name) for name, tensor in carried.items()}
        self._row = row
        self._stale = recorder._fresh
        self._results: dict[Key, Result] = {}

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        line = self.place()
        where = f"{func}, {line}"
        if self._waits(func, args, kwargs):
            raise ReplayError(f"{where}: waits for the device")
        if func.overloadpacket is aten.lift_fresh:
            raise ReplayError(f"{where}: makes a tensor from host data; make it once, before the first step")
        taken = [self.argument(value, where) for value in args]
        named = [(name, self.argument(value, where)) for name, value in kwargs.items()]
        if func is aten.select.int and _key(args[0]) in self._buffers and args[1:] == (0, self._row):
            taken[2] = StepIndex()
        known = {_storage(tensor) for tensor in _tensors([*args, *kwargs.values()])}
        returned = func(*args, **kwargs)
        leaves = list(returned) if isinstance(returned, tuple | list) else [returned]
        for leaf, tensor in enumerate(leaves):
            if isinstance(tensor, torch.Tensor):
                self.kept.append(tensor)
                self._results.setdefault(_key(tensor), Result(len(self.operations), leaf))
                self.fresh |= {_storage(tensor)} - known - {0}  # 0 is the address of every empty tensor
        results = tuple(_describe(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf) for leaf in leaves)
        self.operations.append(Operation(str(func), tuple(taken), tuple(named), results, func, line))
        return returned

    def argument(self, value: Any, where: str = "the step's outputs") -> Argument:
        """Return where an argument comes from."""
        if isinstance(value, list | tuple):
            return tuple(self.argument(part, where) for part in value)
        if not isinstance(value, torch.Tensor):
            return Constant.of(value)
        key, storage = _key(value), _storage(value)
        if key in self._results:
            return self._results[key]
        if key in self._carried:
            return self._carried[key]
        if storage in self._stale:
            raise ReplayError(
                f"{where}: uses a tensor {_describe(value)} that an earlier step allocated; allocate the tensor once, "
                "before the first step, and write to it in place"
            )
        self.kept.append(value)
        for name, buffer in self._rollout.items():
            if key == _key(buffer[self._row]):
                return Row(name, buffer)
        return Memory(key, value)


def _compare(step: Recording, first: Recording) -> None:
    for index, (mine, theirs) in enumerate(zip(step.operations, first.operations, strict=False)):
        difference = mine.difference(theirs)
        if difference:
            raise ReplayError(f"operation {index}, {mine.name}, {mine.line}: {difference}")
    if len(step.operations) != len(first.operations):
        counts = f"{len(step.operations)} operations, but the first step has {len(first.operations)}"
        raise ReplayError(f"a step has {counts}")
    if step.outputs != first.outputs:
        raise ReplayError("a step does not return the same tensors as the first step")


@contextmanager
def _warp_recorded(mode: _StepMode, sim: Simulation) -> Iterator[None]:
    """Record launches of a simulation's programs, and raise at launches of single kernels."""
    launch_graph, launch_kernel = wp.capture_launch, wp.launch
    names = {id(graph): getattr(program, "__qualname__", "a program") for program, graph in sim.recorder.graphs.items()}

    def recorded(graph: wp.Graph, stream: wp.Stream | None = None) -> None:
        if not mode.paused:
            args = (Constant.of(graph), Constant.of(stream))
            made = Operation(f"Warp's {names[id(graph)]}", args, (), (), launch_graph, mode.place())
            mode.operations.append(made)
        launch_graph(graph, stream)

    def refused(kernel: Any, *args: Any, **kwargs: Any) -> None:
        if not mode.paused:
            where = f"Warp's kernel {kernel.key}, {mode.place()}"
            raise ReplayError(f"{where}: is launched outside of a recorded program; record it with Simulation.record")
        launch_kernel(kernel, *args, **kwargs)

    with patched(wp, "capture_launch", recorded), patched(wp, "launch", refused):
        yield


def line_of_code() -> str:
    """Return the file and line of the innermost call outside of libraries and of the recording modules."""
    frame = sys._getframe(1)
    while frame.f_back and is_library(frame):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def is_library(frame: FrameType) -> bool:
    """Return whether a frame belongs to a library or to the recording modules, which messages do not name."""
    return f"{frame.f_globals.get('__name__', '')}.".startswith(_SKIPPED)


def _tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _key(tensor: torch.Tensor) -> Key:
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _describe(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _text(argument: Argument) -> str:
    return f"({', '.join(map(_text, argument))})" if isinstance(argument, tuple) else str(argument)
