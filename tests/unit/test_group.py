"""The process group that ranks on GPUs join; ranks on CPUs join real ones in tests/distributed."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.distributed_c10d import BackendConfig

from mjlab_dist.distributed import Rank, group


def test_ranks_on_gpus_gather_what_is_on_the_cpu_through_gloo() -> None:
    """Packed env states of all ranks stay off the GPU of rank 0, which need not have room for them."""
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
