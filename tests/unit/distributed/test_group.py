"""The process group that ranks on GPUs join: functions of torch.distributed are replaced, so no GPU is needed.

The tests in tests/distributed use real process groups, of ranks on CPUs.
"""

from __future__ import annotations

import contextlib
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from conftest import Command
from torch._C._distributed_c10d import HashStore
from torch.distributed.distributed_c10d import BackendConfig

from mjlab_dist.distributed import Rank, RankDevice, group
from mjlab_dist.errors import UserError
from mjlab_dist.launch import worker


def test_gpu_ranks_gather_cpu_tensors_through_gloo() -> None:
    """Rank 0 gathers the env states of all ranks in CPU memory, because its GPU may lack the memory for them."""
    joined: dict[str, Any] = {}

    def init(backend: str, **options: Any) -> None:
        joined.update(options, devices=BackendConfig(dist.Backend(backend)).get_device_backend_map())

    rank = Rank(rank=1, local_rank=1, world_size=2)
    with (
        mock.patch.object(dist, "init_process_group", init),
        mock.patch.object(dist, "barrier"),
        mock.patch.object(dist, "destroy_process_group"),
        group.process_group(rank, "cuda:1", "nccl", HashStore()),
    ):
        assert joined["devices"] == {"cpu": "gloo", "cuda": "nccl"}
        assert joined["device_id"] == torch.device("cuda:1")


def test_a_run_after_one_that_failed_with_nccl_is_refused() -> None:
    with (
        mock.patch.object(dist, "is_initialized", return_value=True),
        pytest.raises(UserError, match="NCCL"),
        group.process_group(Rank(world_size=2), "cuda:0", "nccl", HashStore()),
    ):
        raise AssertionError("the process group was joined")


@pytest.mark.parametrize(("backend", "destroyed"), [("gloo", 1), ("nccl", 0)])
def test_after_an_error_only_groups_without_nccl_are_destroyed(backend: str, destroyed: int) -> None:
    """Destroying a group with NCCL waits for the machine's other ranks, which may wait for this rank."""
    with (
        mock.patch.object(dist, "init_process_group"),
        mock.patch.object(dist, "destroy_process_group") as destroy,
        pytest.raises(RuntimeError, match="injected"),
        group.process_group(Rank(world_size=2), "cuda:0", backend, HashStore()),
    ):
        raise RuntimeError("injected")
    assert destroy.call_count == destroyed


FAILS_LATER = """
import sys
import torch.distributed as dist
from mjlab_dist.distributed import Rank, group

rank, file = int(sys.argv[1]), sys.argv[2]
with group.process_group(Rank(rank=rank, world_size=2), "cpu", "gloo", dist.FileStore(file, 2)):
    pass
raise ValueError("of the caller")
"""


@pytest.mark.slow
def test_a_later_traceback_of_the_caller_has_no_prefix(command: Command) -> None:
    script = command.script(FAILS_LATER)
    ranks = [command.start(script, str(rank), str(command.cwd / "store")) for rank in range(2)]
    for rank in ranks:
        lines = command.finish(rank).err.splitlines()
        assert "Traceback (most recent call last):" in lines
        assert lines[-1] == "ValueError: of the caller"


@pytest.mark.parametrize(("num_visible", "is_refused"), [(1, False), (8, True)])
def test_a_rank_that_selects_its_gpu_after_cuda_started_is_refused(num_visible: int, is_refused: bool) -> None:
    """Without this error, every rank would train on GPU 0."""
    device = RankDevice(device="cuda:0", visible="GPU-1", name="GPU", torch_threads=1, backend="nccl")
    refused = pytest.raises(UserError, match="CUDA_VISIBLE_DEVICES") if is_refused else contextlib.nullcontext()
    with mock.patch.object(torch.cuda, "device_count", return_value=num_visible), refused:
        worker._check_visible(device)
