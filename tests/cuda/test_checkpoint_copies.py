"""To copy a checkpoint from a GPU, the host waits once, not once per tensor. The tests use fake CUDA tensors."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from fake_cuda import DEVICE, fake_cuda, never_waits

from mjlab_dist.authoring.check.host_syncs import HostSyncs
from mjlab_dist.learn.checkpoint import snapshot
from mjlab_dist.learn.rank_state import pack


def of_learner() -> Any:
    model = {f"layer{i}": torch.ones(3, i + 1, device=DEVICE) for i in range(5)}
    return {"model": model, "optimizer": [{"step": torch.tensor(1.0)}, model["layer2"][0]], "iter": 3}


def of_rank() -> dict[str, torch.Tensor]:
    on_gpu = {f"env/{i}": torch.ones(4, i + 1, device=DEVICE) for i in range(5)}
    return {**on_gpu, "random/torch": torch.zeros(16, dtype=torch.uint8)}


def test_the_host_waits_once_for_the_learner() -> None:
    with fake_cuda(), mock.patch.object(torch.cuda, "current_stream") as stream:
        state = of_learner()
        with never_waits():
            copied = snapshot(state)
        assert stream.return_value.synchronize.call_count == 1
        leaves = [*copied["model"].values(), *copied["optimizer"][1:]]
        assert {leaf.device.type for leaf in leaves} == {"cpu"}


def test_the_host_waits_once_for_the_envs_of_a_rank() -> None:
    with fake_cuda():
        state = of_rank()
        with HostSyncs() as syncs:
            packed = pack(state)
        assert len(syncs.found) == 1
        assert packed.device.type == "cpu"
        assert len(packed) == sum(tensor.nbytes for tensor in state.values())


def test_a_copy_per_tensor_is_detected() -> None:
    with fake_cuda():
        state = of_rank()
        with pytest.raises(AssertionError, match="waits"), never_waits():
            torch.cat([tensor.cpu().view(-1) for tensor in state.values()])
