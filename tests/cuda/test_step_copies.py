"""To copy actions to a GPU and the step's results back, the host waits once. The tests use fake CUDA tensors."""

from __future__ import annotations

import types
from typing import Any
from unittest import mock

import pytest
import torch
from fake_cuda import DEVICE, fake_cuda
from torch.utils._python_dispatch import TorchDispatchMode

from mjlab_dist.simulate.job import Layout, Sizes, Tensors
from mjlab_dist.simulate.rank import _Server
from mjlab_dist.simulate.shared import create, pinned

NUM_ENVS = 4

SIZES = Sizes(
    observations={"actor": 3, "critic": 5},
    num_actions=2,
    action_names=("left", "right"),
    action_bounds=((-1.0, 1.0),) * 2,
    step_dt_s=0.02,
    final_observations=True,
)


class Copies(TorchDispatchMode):
    """Records, in order, copies between devices (True for a non-blocking copy) and waits of the host ("wait")."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[bool | str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is torch.ops.aten.copy_.default and args[0].device != args[1].device:
            self.events.append(len(args) > 2 and args[2])
        if func is torch.ops.aten._to_copy.default and result.device != args[0].device:
            self.events.append(kwargs.get("non_blocking", False))
        return result

    def wait(self) -> None:
        """Record that the host waits."""
        self.events.append("wait")


def zeros(layout: Layout, device: str) -> Tensors:
    """Return tensors of zeros on a device."""
    return {
        name: torch.zeros(entry.shape, dtype=getattr(torch, entry.dtype), device=device)
        for name, entry in layout.items()
    }


def test_the_host_waits_once_for_all_results_of_a_step() -> None:
    def step(actions: torch.Tensor) -> Tensors:
        assert str(actions.device) == DEVICE
        return zeros(SIZES.step_layout(NUM_ENVS), DEVICE)

    def obtain(layout: Layout, rows: range) -> Any:
        assert len(rows) == NUM_ENVS
        return types.SimpleNamespace(tensors=zeros(layout, "cpu"), receive=lambda: None)

    shard: Any = types.SimpleNamespace(sizes=SIZES, total=NUM_ENVS, rows=range(NUM_ENVS), device=DEVICE, step=step)
    transport: Any = types.SimpleNamespace(connection=None, obtain=obtain)
    with fake_cuda(), mock.patch.object(torch.cuda, "current_stream") as stream, Copies() as copies:
        stream.return_value.synchronize = copies.wait
        _Server(shard, transport, progress_s=1.0)._step()
    assert copies.events == [True] * (1 + len(SIZES.step_layout(NUM_ENVS))) + ["wait"]


@pytest.mark.parametrize("error", [0, 712])
def test_the_memory_of_all_results_is_pinned_until_the_end(error: int) -> None:
    tensors = create(SIZES.step_layout(NUM_ENVS)).tensors
    with mock.patch.object(torch.cuda, "cudart") as cudart, mock.patch.object(torch, "zeros") as raises:
        runtime = cudart.return_value
        runtime.cudaHostRegister.return_value = error
        raises.side_effect = RuntimeError("CUDA error: part or all of the requested memory range is already mapped")
        with pinned(tensors, DEVICE):
            assert not runtime.cudaHostUnregister.called
    ((start, size, _),) = [call.args for call in runtime.cudaHostRegister.call_args_list]
    assert min(tensor.data_ptr() for tensor in tensors.values()) == start
    assert max(tensor.data_ptr() + tensor.nbytes for tensor in tensors.values()) == start + size
    assert [call.args for call in runtime.cudaHostUnregister.call_args_list] == ([] if error else [(start,)])
    assert raises.called == bool(error), "the error must not remain for the next operation"
