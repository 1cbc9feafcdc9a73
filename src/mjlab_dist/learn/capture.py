"""Rollout and mini-batch update in CUDA graphs: both are hundreds of small kernels, and launching them takes the time."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import torch
import warp as wp
from tensordict import TensorDict

from mjlab_dist.garbage_collection import no_gc
from mjlab_dist.learn.mini_batches import Batch, copy_batch, tensors_of
from mjlab_dist.messages import emit
from mjlab_dist.patching import patched
from mjlab_dist.sim import Simulation

T = TypeVar("T")

WARM_UP = 3
"""Mini-batches before recording: libraries choose their kernels and the optimizer makes its state in them."""


class GraphSequence:
    """torch operations recorded as CUDA graphs, and between them the calls that no graph can hold."""

    def __init__(self, device: str) -> None:
        """Create an empty sequence.

        Args:
            device: ``cuda:<index>``.
        """
        self.stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._pieces: list[Callable[[], object]] = []
        self._graph: torch.cuda.CUDAGraph | None = None

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record operations instead of executing them, on the stream of this sequence.

        Raises:
            RuntimeError: If an operation cannot be recorded. The sequence is then of no use.
        """
        # An earlier graph that the collector frees during a capture would break it.
        gc.collect()
        torch.cuda.synchronize()
        with no_gc(), torch.cuda.stream(self.stream), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")  # between two calls that follow each other
            self._begin()
            try:
                yield
            except BaseException:
                # A capture that has begun must end, even if it has failed: the stream stays in capture mode otherwise.
                if self._graph is not None:
                    with contextlib.suppress(RuntimeError):
                        self._end()
                raise
            self._end()

    def cut(self, call: Callable[[], object]) -> None:
        """Have replays make a call at this point, in the order of the recorded operations. It is not made now.

        Args:
            call: Enqueues work on torch's current stream, and takes and returns nothing.
        """
        self._end()
        self._pieces.append(call)
        self._begin()

    def replay(self) -> None:
        """Execute what was recorded."""
        for piece in self._pieces:
            piece()

    def _begin(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        # Other threads may use the device: the checkpoint writer copies, NCCL's watchdog queries events.
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def _end(self) -> None:
        graph, self._graph = self._graph, None
        assert graph is not None
        graph.capture_end()
        self._pieces.append(graph.replay)


class CapturedStep:
    """Backward and optimizer step, each recorded once and replayed, with the reduction launched between them.

    The reduction stays outside of the graphs, so that gloo, NCCL and a user's own synchronizer all work (docs/decisions/0006).
    """

    def __init__(
        self, backward: Callable[[Batch], None], reduce: Callable[[], None], apply: Callable[[], None], device: str
    ) -> None:
        """Record nothing yet.

        Args:
            backward: From a mini-batch to gradients.
            reduce: From this rank's gradients to those of all.
            apply: From gradients to parameters.
            device: ``cuda:<index>``.
        """
        self._backward, self._reduce, self._apply = backward, reduce, apply
        self._sequence = GraphSequence(device)
        self._until_recording = WARM_UP
        self._batch: Batch | None = None

    def __call__(self, batch: Batch) -> None:
        """Learn from a mini-batch; all must have the same shapes."""
        if self._until_recording == 0 and self._batch is None:
            self._record(batch)
        if self._batch is None:
            self._until_recording -= 1  # below 0 where recording has failed, which is not tried again
            self._run_eagerly(batch)
            return
        for static, new in zip(tensors_of(self._batch), tensors_of(batch), strict=True):
            static.copy_(new)
        self._sequence.replay()

    def _run_eagerly(self, batch: Batch) -> None:
        # On the stream of the capture to come: autograd remembers the stream that a gradient was first accumulated on.
        stream = self._sequence.stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._backward(batch)
            self._reduce()
            self._apply()
        torch.cuda.current_stream().wait_stream(stream)

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

    Warp's programs are graphs of their own, launched between those of torch's operations (docs/decisions/0015).
    """

    def __init__(
        self, function: Callable[[TensorDict], T], name: str, device: str, sim: Simulation | None = None
    ) -> None:
        """Record nothing yet.

        Args:
            function: A pure replay (docs/decisions/0014). What it returns is overwritten by the next call.
            name: What it computes, for a warning if it cannot be recorded.
            device: ``cuda:<index>``.
            sim: The physics that it launches, if any.
        """
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
        """Compute the function's result; tensors of ``obs`` are copied."""
        if not self._is_warm or self._has_failed:
            self._is_warm = True  # once this returns, buffers exist and libraries have chosen their kernels
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
        self._mark_changed()  # so that the recording computes cached values too
        try:
            with self._sequence.recording(), self._launches_cut():
                outputs = self._function(self._inputs)
        except RuntimeError as error:
            _warn(self._name, error)
            self._has_failed = True
        else:
            self._outputs.append(outputs)

    def _mark_changed(self) -> None:
        """Invalidate values cached for the state: a replay changes the state without running its Python."""
        if self._sim is not None:
            self._sim.mark_changed()

    @contextlib.contextmanager
    def _launches_cut(self) -> Iterator[None]:
        """Have the physics launch its programs in replays, not now, and refuse other kernels of Warp."""
        if self._sim is None:
            yield
            return
        launch, self._sim.launch = self._sim.launch, self._sequence.cut
        try:
            with patched(wp, "launch", _refuse), patched(wp, "launch_tiled", _refuse):
                yield
        finally:
            self._sim.launch = launch


def _refuse(kernel: wp.Kernel, *_: Any, **__: Any) -> None:
    """Raise: this launch would take place now, and in no replay."""
    raise RuntimeError(f"kernel {kernel.key} is launched by itself; use Simulation.record")


def _warn(what: str, error: RuntimeError) -> None:
    reason = str(error).partition("\n")[0]
    emit("warning", text=f"{what} cannot be recorded as CUDA graphs and runs without, which is slower: {reason}")
