"""A rank of a simulation sends actions to its GPU and results back. The test needs a GPU; on a CPU, it tests itself."""

from __future__ import annotations

import socket
import threading
from multiprocessing.connection import Connection

import pytest
import torch

import mjlab_dist
from mjlab_dist.sim import start_warp
from mjlab_dist.simulate.job import Job
from mjlab_dist.simulate.rank import _Server
from mjlab_dist.simulate.shard import Shard
from mjlab_dist.simulate.shared import create
from mjlab_dist.simulate.transport import SharedMemory

NUM_ENVS = 256


@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda:0", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))],
)
def test_each_step_of_a_rank_gives_the_results_of_its_own_actions(device: str) -> None:
    start_warp(device)
    config = mjlab_dist.task_config("cartpole-balance")
    job = Job(configs=(config,), num_envs=NUM_ENVS, seed=0, final_observations=False)
    rows = range(NUM_ENVS)
    served, expected = Shard(job, rows, device), Shard(job, rows, device)
    ends = [Connection(end.detach()) for end in socket.socketpair()]
    rank = threading.Thread(target=lambda: _Server(served, SharedMemory(ends[1]), progress_s=1.0).serve())
    rank.start()

    launcher = SharedMemory(ends[0])
    sizes = served.sizes
    actions, results = (create(layout) for layout in (sizes.action_layout(NUM_ENVS), sizes.step_layout(NUM_ENVS)))
    for block in (actions, results):
        launcher.offer(block, rows)
    for step in range(50):
        given = torch.randn(NUM_ENVS, sizes.num_actions, generator=torch.Generator().manual_seed(step))
        actions.tensors["actions"].copy_(given)
        ends[0].send(("step",))
        assert ends[0].recv() == (None, None)
        for name, value in expected.step(given.to(device)).items():
            assert torch.equal(results.tensors[name], value.cpu()), (step, name)
    ends[0].send(("close",))
    rank.join()
    for end in ends:
        end.close()
