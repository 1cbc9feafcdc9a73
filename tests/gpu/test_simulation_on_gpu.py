"""A rank copies actions to its GPU and results back. On a CPU, this test only shows that the test itself works."""

from __future__ import annotations

import pickle
import socket
import threading
from multiprocessing.connection import Connection

import pytest
import torch
from conftest import HANG_S

import mjlab_dist
from mjlab_dist.sim import start_warp
from mjlab_dist.simulate.make import Job
from mjlab_dist.simulate.ranks import CLOSE, execute
from mjlab_dist.simulate.shard import Shard

NUM_ENVS = 256


@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda:0", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))],
)
def test_each_step_of_a_rank_gives_the_results_of_its_own_actions(device: str) -> None:
    start_warp(device)
    config = mjlab_dist.task_config("cartpole-balance")
    job = Job(configs=(config,), num_envs=NUM_ENVS, seed=0, final_observations=False)
    served, expected = (Shard(job, range(NUM_ENVS), device) for _ in range(2))
    ours, theirs = (Connection(end.detach()) for end in socket.socketpair())

    def serve() -> None:
        with theirs:
            execute(served, theirs, progress_s=1.0)

    rank = threading.Thread(target=serve, daemon=True)
    rank.start()
    with ours:  # if an assertion fails, this ends the thread
        for step in range(50):
            given = torch.randn(NUM_ENVS, 1, generator=torch.Generator().manual_seed(step))
            ours.send_bytes(pickle.dumps(("step", given.numpy())))
            assert ours.poll(HANG_S)
            error, results = ours.recv()
            assert error is None
            for name, value in expected.step(given.to(device)).items():
                assert torch.equal(torch.from_numpy(results[name]), value.cpu()), (step, name)
        ours.send_bytes(CLOSE)
        rank.join(HANG_S)
        assert not rank.is_alive()
