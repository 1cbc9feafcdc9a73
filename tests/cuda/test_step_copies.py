"""Copying actions to a GPU and the results of a step from it: the host waits once. On fake CUDA tensors."""

from __future__ import annotations

import types
from typing import Any
from unittest import mock

import torch
from fake_cuda import DEVICE, fake_cuda
from torch.utils._python_dispatch import TorchDispatchMode

from mjlab_dist.simulate.job import Layout, Sizes, Tensors
from mjlab_dist.simulate.rank import _Server
from mjlab_dist.simulate.shared import create, pin

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
    """Notes copies between devices: whether each of them lets the host continue."""

    def __init__(self) -> None:
        super().__init__()
        self.continues: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is torch.ops.aten.copy_.default and args[0].device != args[1].device:
            self.continues.append(len(args) > 2 and args[2])
        if func is torch.ops.aten._to_copy.default and result.device != args[0].device:
            self.continues.append(kwargs.get("non_blocking", False))
        return result


def zeros(layout: Layout, device: str) -> Tensors:
    """Tensors on a device."""
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
    with (
        fake_cuda(),
        mock.patch("mjlab_dist.simulate.rank.pin") as pinned,
        mock.patch.object(torch.cuda, "current_stream") as stream,
        Copies() as copies,
    ):
        _Server(shard, transport, progress_s=1.0)._step()
    assert pinned.call_count == 2, "actions and results"
    assert copies.continues == [True] * (1 + len(SIZES.step_layout(NUM_ENVS)))
    assert stream.return_value.synchronize.call_count == 1


def test_all_results_are_in_the_memory_that_is_pinned() -> None:
    tensors = create(SIZES.step_layout(NUM_ENVS)).tensors
    with mock.patch.object(torch.cuda, "cudart") as cudart:
        cudart.return_value.cudaHostRegister.return_value = 0
        pin(tensors)
    ((start, size, _),) = [call.args for call in cudart.return_value.cudaHostRegister.call_args_list]
    for tensor in tensors.values():
        assert start <= tensor.data_ptr()
        assert tensor.data_ptr() + tensor.nbytes <= start + size
