"""A rank copies actions to its GPU and results back. On a CPU, this test only shows that the test itself works."""

from __future__ import annotations

import socket
import threading
from multiprocessing.connection import Connection

import pytest
import torch
from conftest import HANG_S

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
    ours, theirs = (Connection(end.detach()) for end in socket.socketpair())

    def serve() -> None:
        with theirs:
            _Server(served, SharedMemory(theirs), progress_s=1.0).serve()

    rank = threading.Thread(target=serve, daemon=True)
    rank.start()
    sizes = served.sizes
    actions, results = (create(layout) for layout in (sizes.action_layout(NUM_ENVS), sizes.step_layout(NUM_ENVS)))
    with ours:  # if an assertion fails, this ends the thread
        launcher = SharedMemory(ours)
        for block in (actions, results):
            launcher.offer(block, rows)
        for step in range(50):
            given = torch.randn(NUM_ENVS, sizes.num_actions, generator=torch.Generator().manual_seed(step))
            actions.tensors["actions"].copy_(given)
            ours.send(("step",))
            assert ours.poll(HANG_S)
            assert ours.recv() == (None, None)
            for name, value in expected.step(given.to(device)).items():
                assert torch.equal(results.tensors[name], value.cpu()), (step, name)
        ours.send(("close",))
        rank.join(HANG_S)
        assert not rank.is_alive()
