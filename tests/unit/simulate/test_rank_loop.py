"""A rank executes commands, and compares its models with other machines. Launchers import no simulation libraries."""

from __future__ import annotations

import dataclasses
import pickle
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import cloudpickle
import pytest
import torch
from torch._C._distributed_c10d import TCPStore

import mjlab_dist
from mjlab_dist.distributed import Rank, group
from mjlab_dist.errors import PreflightError
from mjlab_dist.simulate.make import Job
from mjlab_dist.simulate.ranks import CLOSE, PROGRESS, check_same_variants, execute
from mjlab_dist.simulate.shard import Shard

XML = '<mujoco><worldbody><body><joint damping="{}"/><geom size="0.1"/></body></worldbody></mujoco>'


def job(*dampings: float) -> Job:
    """Return a job with a variant of the env for each damping."""
    config = mjlab_dist.task_config("cartpole-balance")
    sims = [dataclasses.replace(config.env.sim, model=XML.format(damping), actuators={}) for damping in dampings]
    envs = [dataclasses.replace(config.env, sim=sim) for sim in sims]
    configs = tuple(dataclasses.replace(config, env=env) for env in envs)
    return Job(configs=configs, num_envs=len(configs), seed=0, final_observations=False)


def compared(*jobs: Job) -> list[str]:
    """Let ranks, each on its own machine, compare their jobs. Return their error messages."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def compare(number: int) -> str:
        own = Rank(rank=number, world_size=len(jobs), master_port=store.port, joins_store=True)
        try:
            check_same_variants(group.meet(own), own, ["here"] * len(jobs), jobs[number])
        except PreflightError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(compare, range(len(jobs))))


def test_another_model_of_any_variant_is_found() -> None:
    assert compared(job(0.1, 0.1, 0.2), job(0.1, 0.1, 0.2)) == ["", ""]
    errors = compared(job(0.1, 0.2), job(0.1, 0.3))
    assert errors[0] == errors[1]
    assert "rank 1" in errors[0]
    assert "dof_damping" in errors[0]


def test_a_rollout_reports_progress_and_a_policy_that_cannot_be_unpickled_is_refused() -> None:
    config = mjlab_dist.task_config("cartpole-balance")
    shard = Shard(Job(configs=(config,), num_envs=1, seed=0, final_observations=False), range(1), "cpu")
    ours, theirs = (Connection(end.detach()) for end in socket.socketpair())
    with ThreadPoolExecutor(1) as pool, theirs, ours:
        rank = pool.submit(execute, shard, theirs, 0.0)
        ours.send_bytes(pickle.dumps(("rollout", b"cos\nno_such_function\n.", 2)))
        error, _ = ours.recv()
        assert "policy" in error
        assert "no_such_function" in error
        policy = cloudpickle.dumps(lambda _: torch.zeros(1, 1))
        ours.send_bytes(pickle.dumps(("rollout", policy, 3)))
        received = [ours.recv()]
        while received[-1] == PROGRESS:
            received.append(ours.recv())
        *progress, (error, results) = received
        assert (len(progress), error) == (3, None)
        assert results["rewards"].shape == (3, 1)
        ours.send_bytes(CLOSE)
        rank.result()


@pytest.mark.slow
def test_a_program_that_only_starts_ranks_does_not_import_their_libraries() -> None:
    libraries = '{"rsl_rl", "tensordict", "warp", "mujoco", "torch._dynamo"}'
    imports = "import sys, mjlab_dist.simulate.ranks, mjlab_dist.simulate.envs"
    code = f"{imports}; sys.exit(str({libraries} & {{*sys.modules}} or ''))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
