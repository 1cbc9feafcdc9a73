"""The rank is read from environment variables that torchrun, torchrunx and SLURM set."""

from __future__ import annotations

import dataclasses

import pytest

from mjlab_dist.distributed import Rank, outside_launcher, rank_from_environment
from mjlab_dist.errors import UserError
from mjlab_dist.launch import worker

TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node-a",
    "MASTER_PORT": "29501",
}

# Variables that srun sets in each task of a step.
SRUN = {
    "SLURM_JOB_ID": "4711",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "node[07-08]",
    "SLURM_STEP_NUM_NODES": "2",
}

# Variables in a batch script with four tasks, outside srun.
SBATCH = {
    "SLURM_JOB_ID": "4711",
    "SLURM_NTASKS": "4",
    "SLURM_NPROCS": "4",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_JOB_NODELIST": "node[07-08]",
}


def test_a_launcher_without_a_local_world_size_uses_its_master_address():
    environ = {name: value for name, value in TORCHRUN.items() if name != "LOCAL_WORLD_SIZE"}
    rank = rank_from_environment(environ)
    assert (rank.master_address, rank.on_one_machine) == ("node-a", False)


@pytest.mark.parametrize("missing", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_an_incomplete_set_of_variables_is_not_a_launcher(missing: str):
    environ = {name: value for name, value in TORCHRUN.items() if name != missing}
    assert outside_launcher(environ) is None
    assert rank_from_environment(environ) == Rank()


def test_slurm_uses_the_master_address_of_the_script():
    environ = {**SRUN, "MASTER_ADDR": "node-b", "MASTER_PORT": "12345"}
    assert outside_launcher(environ) == "slurm"
    rank = rank_from_environment(environ)
    assert rank == Rank(rank=3, local_rank=1, world_size=4, master_address="node-b", master_port=12345)


def test_slurm_uses_the_first_node_by_default():
    rank = rank_from_environment(SRUN)
    assert (rank.rank, rank.local_rank, rank.world_size) == (3, 1, 4)
    assert rank.master_address == "node07"
    # All tasks of a job use one port, and another job on the node uses another
    other = rank_from_environment({**SRUN, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"})
    assert (other.master_address, other.master_port) == (rank.master_address, rank.master_port)
    assert rank_from_environment({**SRUN, "SLURM_JOB_ID": "4712"}).master_port != rank.master_port


def test_a_node_list_that_cannot_be_read_is_an_error():
    with pytest.raises(UserError, match=r"^SLURM_STEP_NODELIST other\[1-: "):
        rank_from_environment({**SRUN, "SLURM_STEP_NODELIST": "other[1-"})


def test_a_batch_script_without_srun_is_one_process():
    assert outside_launcher(SBATCH) is None
    assert rank_from_environment(SBATCH) == Rank()


def test_a_step_of_one_task_is_one_process():
    environ = {**SRUN, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    assert outside_launcher(environ) is None
    assert rank_from_environment(environ) == Rank()


def test_torchrun_under_srun_is_torchrun():
    environ = {**SRUN, **TORCHRUN}
    assert outside_launcher(environ) == "torchrun"
    assert rank_from_environment(environ).rank == 5


def test_ranks_use_the_network_interface_that_reaches_rank_0() -> None:
    apart = Rank(rank=1, world_size=2, master_address="127.0.0.1")
    chosen: dict[str, str] = {}
    worker.set_interfaces(apart, chosen)
    assert chosen == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}

    chosen = {}
    worker.set_interfaces(dataclasses.replace(apart, master_address="::1"), chosen)
    assert chosen == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo", "NCCL_SOCKET_FAMILY": "AF_INET6"}

    kept = {"GLOO_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "ib"}
    worker.set_interfaces(apart, kept)
    assert kept == {"GLOO_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "ib"}


def test_ranks_of_one_machine_listen_on_the_loopback_interface_only() -> None:
    chosen = {"NCCL_SOCKET_IFNAME": "eth1"}
    worker.set_interfaces(Rank(rank=1, world_size=2, on_one_machine=True, master_address="192.0.2.1"), chosen)
    assert chosen == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "eth1"}

    alone: dict[str, str] = {}
    worker.set_interfaces(Rank(), alone)
    assert alone == {}
