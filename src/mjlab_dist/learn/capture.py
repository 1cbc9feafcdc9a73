"""Rollouts and mini-batch updates in CUDA graphs, because launching hundreds of small kernels one by one is slow."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import torch
import warp as wp
from tensordict import TensorDict

from mjlab_dist.env import Env
from mjlab_dist.imports import no_gc, patched
from mjlab_dist.learn.update import Batch, copy_batch, tensors_of
from mjlab_dist.messages import emit
from mjlab_dist.sim import Simulation

T = TypeVar("T")

# Number of mini-batches before the recording. In them, libraries choose kernels, and the optimizer creates its state.
WARM_UP = 3


class GraphSequence:
    """A sequence of torch operations (recorded as CUDA graphs) and calls that a graph cannot contain."""

    def __init__(self, device: str) -> None:
        """Create an empty sequence."""
        self.stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._pieces: list[Callable[[], object]] = []
        self._graph: torch.cuda.CUDAGraph | None = None

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record operations on the stream of this sequence, instead of executing them.

        Raises:
            RuntimeError: If an operation cannot be recorded. After that, the sequence must not be used.
        """
        # If the garbage collector freed an earlier graph during the capture, the capture would fail.
        gc.collect()
        torch.cuda.synchronize()
        with no_gc(), torch.cuda.stream(self.stream), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")  # a graph between two calls may be empty
            try:
                self._begin()
                yield
                self._end()
            except BaseException:
                # End the capture; otherwise the stream would stay in capture mode.
                if self._graph is not None:
                    with contextlib.suppress(RuntimeError):
                        self._end()
                # After a failed capture, torch 2.11 refuses random numbers until a capture has ended without an error.
                self._pool = torch.cuda.graph_pool_handle()
                with contextlib.suppress(RuntimeError):
                    self._begin()
                    self._end()
                raise

    def cut(self, call: Callable[[], object]) -> None:
        """Add a call to the replay, after the operations recorded so far. The call is made only in replays."""
        self._end()
        self._pieces.append(call)
        self._begin()

    def replay(self) -> None:
        """Execute the recorded operations and calls."""
        for piece in self._pieces:
            piece()

    def _begin(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        # With thread_local, other threads may use the device during the capture: the checkpoint writer copies tensors,
        # and NCCL's watchdog queries events.
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def _end(self) -> None:
        graph, self._graph = self._graph, None
        assert graph is not None
        graph.capture_end()
        self._pieces.append(graph.replay)


class CapturedStep:
    """Backward pass and optimizer step, each recorded once, then replayed. Gradients are reduced between them.

    The reduction over ranks stays outside of the graphs, so that gloo, NCCL and user-defined synchronizers work
    (docs/decisions/0006).
    """

    def __init__(
        self, backward: Callable[[Batch], None], reduce: Callable[[], None], apply: Callable[[], None], device: str
    ) -> None:
        """Create the step; the first calls run eagerly."""
        self._backward, self._reduce, self._apply = backward, reduce, apply
        self._sequence = GraphSequence(device)
        self._until_recording = WARM_UP
        self._batch: Batch | None = None

    def __call__(self, batch: Batch) -> None:
        """Learn from a mini-batch. All mini-batches must have the same shapes."""
        if self._until_recording == 0 and self._batch is None:
            self._record(batch)
        if self._batch is None:
            self._until_recording -= 1  # below 0 after a failed recording, so there is no second attempt
            # Use the stream of the later capture, because autograd keeps the stream on which a gradient first
            # accumulates.
            stream = self._sequence.stream
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._backward(batch)
                self._reduce()
                self._apply()
            torch.cuda.current_stream().wait_stream(stream)
            return
        for static, new in zip(tensors_of(self._batch), tensors_of(batch), strict=True):
            static.copy_(new)
        self._sequence.replay()

    def _record(self, batch: Batch) -> None:
        static = copy_batch(batch)
        try:
            with self._sequence.recording():
                self._backward(static)
                self._sequence.cut(self._reduce)
                self._apply()
        except RuntimeError as error:
            _warn("the update", error)
            return
        self._batch = static


class CapturedCall(Generic[T]):
    """A function of observations, recorded at its second call and replayed from then on.

    Warp kernels that the function launches are in separate graphs, which are launched between the graphs of torch
    operations (docs/decisions/0015).
    """

    def __init__(
        self, function: Callable[[TensorDict], T], name: str, device: str, sim: Simulation | None = None
    ) -> None:
        """Create the callable; the first call runs eagerly."""
        self._function = function
        self._name = name
        self._sim = sim
        self._sequence = GraphSequence(device)
        self._is_warm = False
        self._has_failed = False
        self._inputs: TensorDict | None = None
        self._outputs: list[T] = []

    @property
    def is_recorded(self) -> bool:
        """Whether calls replay graphs."""
        return bool(self._outputs)

    def __call__(self, obs: TensorDict) -> T:
        """Return the function's result. A replay copies the tensors of ``obs`` into the recorded inputs first."""
        if not self._is_warm or self._has_failed:
            self._is_warm = True  # after this call, buffers exist and libraries have chosen their kernels
            return self._function(obs)
        if not self._outputs:
            self._record(obs)
            return self(obs)
        assert self._inputs is not None
        for name, group in obs.items():
            self._inputs[name].copy_(group)
        self._sequence.replay()
        self._mark_changed()
        return self._outputs[0]

    def _record(self, obs: TensorDict) -> None:
        self._inputs = obs.clone()
        self._mark_changed()  # so that the recording also computes values that are cached
        try:
            with self._sequence.recording(), self._launches_cut():
                outputs = self._function(self._inputs)
        except RuntimeError as error:
            _warn(self._name, error)
            self._has_failed = True
        else:
            self._outputs.append(outputs)

    def _mark_changed(self) -> None:
        """Invalidate cached values: a replay changes the state, but does not run the code that invalidates them."""
        if self._sim is not None:
            self._sim.mark_changed()

    @contextlib.contextmanager
    def _launches_cut(self) -> Iterator[None]:
        """Launch the recorded programs of the physics only in replays. Raise if another Warp kernel is launched."""
        if self._sim is None:
            yield
            return
        launch, self._sim.recorder.launch = self._sim.recorder.launch, self._sequence.cut
        try:
            with patched(wp, "launch", _refuse), patched(wp, "launch_tiled", _refuse):
                yield
        finally:
            self._sim.recorder.launch = launch


def can_capture_steps(env: Env, *, learner_can: bool, is_main: bool) -> bool:
    """Return whether control steps can become CUDA graphs."""
    if not learner_can and is_main:
        emit(
            "status",
            text="--env.sim.capture step: steps of recurrent policies and of SAC cannot be captured; only the physics "
            "is captured.",
        )
    can_capture = env.device != "cpu" and env.sim.captured and learner_can
    if can_capture and env.uncapturable_terms and is_main:
        terms = ", ".join(f"env.{term}" for term in env.uncapturable_terms)
        emit(
            "status",
            text="--env.sim.capture step: these terms are called between graphs, because they cannot be captured: "
            f"{terms}.",
        )
    return can_capture


def _refuse(kernel: wp.Kernel, *_: Any, **__: Any) -> None:
    """Raise, because the kernel would be launched only now, and not in replays."""
    raise RuntimeError(f"kernel {kernel.key} is launched directly; use Simulation.record")


def _warn(what: str, error: RuntimeError) -> None:
    reason = str(error).partition("\n")[0]
    emit("warning", text=f"{what} cannot be recorded, so it runs without CUDA graphs, which is slower: {reason}")
