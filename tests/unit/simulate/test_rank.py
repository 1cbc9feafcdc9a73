"""Ranks on different machines compare their models. A program that starts ranks imports no simulation libraries."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch._C._distributed_c10d import TCPStore

import mjlab_dist
from mjlab_dist.distributed import Rank, group
from mjlab_dist.errors import PreflightError
from mjlab_dist.simulate.job import Job
from mjlab_dist.simulate.rank import check_same_variants

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


@pytest.mark.slow
def test_a_program_that_only_starts_ranks_does_not_import_their_libraries() -> None:
    libraries = '{"rsl_rl", "tensordict", "warp", "mujoco", "torch._dynamo"}'
    imports = "import sys, mjlab_dist.simulate.ranks, mjlab_dist.simulate.envs"
    code = f"{imports}; sys.exit(str({libraries} & {{*sys.modules}} or ''))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
