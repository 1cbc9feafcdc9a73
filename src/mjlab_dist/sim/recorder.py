"""Record programs of Warp kernels on one device, once, and replay them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import warp as wp

from mjlab_dist.messages import emit
from mjlab_dist.sim import kernels, recording

# A program that takes no arguments
Run = Callable[[], None]


class Recorder:
    """Records programs and runs them in the order of the torch operations around them.

    Attributes:
        graphs: The recording of each program; empty if programs are not recorded.
        launch: Function that launches recorded programs. It is replaced while torch operations are recorded as a CUDA
            graph, because the launch of a graph cannot be recorded in another graph.
        num_changes: Number of runs that may have changed the state.
    """

    def __init__(self, device: str, *, captures: bool) -> None:
        """Check whether the device can record programs."""
        reason = recording.why_not_capturable(device)
        if captures and reason:
            emit("warning", text=f"the physics is not captured, which is slower: {reason}")
        self.captures, self._prepares = captures and not reason, not reason
        self.graphs: dict[Run, wp.Graph] = {}
        self.launch: Callable[[Run], None] = operator.call
        self.num_changes = 0
        self._device = device
        self._stream = wp.stream_from_torch(device) if device != "cpu" else None
        self._readers: set[Run] = set()

    def record(self, *programs: Run, changes_state: bool = True) -> None:
        """Compile missing kernels of programs, and record each program.

        Programs must allocate no memory, and the caller must keep the arrays that their kernels use.
        """
        if not changes_state:
            self._readers.update(programs)
        with wp.ScopedDevice(self._device):
            # Load every kernel first, because loading a module during a capture breaks the capture.
            if self._prepares:
                kernels.prepare(self._device, functools.partial(_call_all, programs))
            if self.captures:
                self.graphs |= {program: recording.capture(self._device, program) for program in programs}

    def run(self, *programs: Run) -> None:
        """Run programs, in order."""
        if not self._readers.issuperset(programs):
            self.num_changes += 1
        if self.graphs.keys() >= set(programs):
            graphs = [self.graphs[program] for program in programs]
            # On the torch stream, so that these kernels and those of the terms stay in order without a synchronization.
            self.launch(functools.partial(recording.replay, graphs, self._stream))
        elif self._stream is None:
            # Without a recording, Python launches the same kernels one by one.
            with wp.ScopedDevice(self._device) as device, recording.launching(device):
                _call_all(programs)
        else:
            with wp.ScopedStream(self._stream):
                _call_all(programs)


def _call_all(programs: tuple[Run, ...]) -> None:
    for program in programs:
        program()
