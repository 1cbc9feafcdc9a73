"""CUDA tensors on a machine without a GPU: torch's fake tensors have a device, a shape and a type but no memory.

With fake tensors, `.item()`, `bool()`, `nonzero` and operations on tensors of several devices raise.
:func:`never_waits` also raises for operations that fake tensors allow but that wait for a GPU: copies between devices,
`equal`, boolean indices.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from mjlab_dist.authoring.check.host_syncs import HostSyncs
from mjlab_dist.env import Env
from mjlab_dist.sim.recorder import Recorder

DEVICE = "cuda:0"

aten: Any = torch.ops.aten

_LIBRARIES = {"mujoco", "mujoco_warp", "numpy", "tensordict", "torch", "warp"}
"""Packages whose objects are not copied with an env."""


class _Event:
    """Replaces a CUDA event: every interval takes a millisecond."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self) -> None:
        pass

    def elapsed_time(self, _: _Event) -> float:
        return 1.0


@contextlib.contextmanager
def fake_cuda() -> Iterator[None]:
    """Make every new tensor a fake one, allow the device ``cuda:0``, and run no Warp kernels.

    Backward and Adam's fused kernel do nothing: backward needs a CUDA context, and the kernel has no fake version.
    """
    with (
        FakeTensorMode(allow_non_fake_inputs=False),
        mock.patch.object(torch.cuda, "Event", _Event),
        mock.patch.object(torch.cuda, "synchronize"),
        mock.patch.object(torch.cuda, "is_bf16_supported", return_value=True),
        mock.patch.object(torch.cuda, "get_device_capability", return_value=(9, 0)),
        mock.patch.object(torch.cuda, "get_device_properties"),
        mock.patch.object(torch.cuda.amp.common, "amp_definitely_not_available", return_value=False),
        mock.patch.object(torch, "_fused_adam_", _fused_adam),
        mock.patch.object(torch.Tensor, "backward"),
        # Module.to does nothing: modules are built on the device, and parameters without memory could not be replaced.
        mock.patch.object(torch.nn.Module, "to", lambda module, *_, **__: module),
        mock.patch.object(Recorder, "run"),
    ):
        yield


def _fused_adam(*tensors: list[torch.Tensor], **options: Any) -> None:
    rate = options["lr"]
    devices = {str(t.device) for group in tensors for t in group} | {str(rate.device)}
    assert devices == {DEVICE}, f"Adam mixes {sorted(devices)}"


@contextlib.contextmanager
def never_waits(indices: bool = True) -> Iterator[HostSyncs]:
    """Raise AssertionError at the end of the context if an operation waited for the device.

    Args:
        indices: Whether indexing with integer tensors raises too.
    """
    with HostSyncs(indices) as syncs:
        yield syncs
    assert not syncs.found, f"waits for the device: {', '.join(syncs.found)}"


class HostReadsAllowed(TorchDispatchMode):
    """Return 0 or True when the host reads a fake tensor.

    Use it for constructors, which may read tensors. For example, Adam reads its learning rate.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten._local_scalar_dense.default:
            return True if args[0].dtype == torch.bool else 0
        return func(*args, **(kwargs or {}))


def on_fake_cuda(env: Env) -> Env:
    """Copy an env from the CPU to fake CUDA, without its physics. Call it under :func:`fake_cuda`.

    Args:
        env: The env; terms must be instances of importable classes.
    """
    shared: list[Any] = []
    stream = io.BytesIO()
    with unset_fake_temporarily():
        _Pickler(stream, shared).dump(env)
    fakes = _Fakes()
    stream.seek(0)
    copied: Env = _Unpickler(stream, shared, fakes).load()
    copied.device = copied.sim.device = DEVICE
    # Let these functions return fake tensors, too, because terms may call them in any step
    vars(copied.sim).update(view=fakes.of(env.sim.view), field=fakes.of(env.sim.field))
    return copied


class _Fakes:
    """Creates one fake tensor for each real tensor."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, real: torch.Tensor) -> torch.Tensor:
        if id(real) not in self._made:
            fake = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device=DEVICE)
            self._made[id(real)] = (real, fake)
        return self._made[id(real)][1]

    def of(self, read: Callable[[str], torch.Tensor]) -> Callable[[str], torch.Tensor]:
        """Wrap a function so that it returns fake copies of its results."""

        def fake(name: str) -> torch.Tensor:
            with unset_fake_temporarily():
                real = read(name)
            return self(real)

        return fake


class _Pickler(pickle.Pickler):
    """Pickles an env, and collects the objects that are not copied."""

    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._shared = shared

    def persistent_id(self, obj: Any) -> int | None:
        is_code = isinstance(obj, type | types.FunctionType | types.BuiltinFunctionType | types.ModuleType)
        if not is_code and type(obj).__module__.partition(".")[0] not in _LIBRARIES:
            return None
        self._shared.append(obj)
        return len(self._shared) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: list[Any], fakes: _Fakes) -> None:
        super().__init__(file)
        self._shared = shared
        self._fakes = fakes

    def persistent_load(self, pid: int) -> Any:
        found = self._shared[pid]
        return self._fakes(found) if isinstance(found, torch.Tensor) else found
