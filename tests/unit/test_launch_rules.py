"""Rules of a launch: where log files go, what ranks inherit, and what is imported before there are ranks."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mjlab_dist import registry
from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import RankDevice
from mjlab_dist.launch.ranks import can_fork, exported_names, log_dir

RUN_DIR = Path("logs/run")


def with_flag(value: str | None) -> TrainConfig:
    return dataclasses.replace(registry.task_config("cartpole-balance"), torchrunx_log_dir=value)


@pytest.mark.parametrize(
    ("variable", "flag", "directory"),
    [
        (None, None, RUN_DIR / "torchrunx"),
        (None, "by-flag", Path("by-flag")),
        ("by-variable", None, Path("by-variable")),
        ("by-variable", "by-flag", Path("by-variable")),
        (None, "", None),
        ("", None, None),
        ("", "by-flag", None),
        ("by-variable", "", Path("by-variable")),
    ],
)
def test_the_variable_beats_the_flag_and_the_flag_the_default(
    variable: str | None, flag: str | None, directory: Path | None
):
    environ = {} if variable is None else {"TORCHRUNX_LOG_DIR": variable}
    assert log_dir(with_flag(flag), RUN_DIR, environ) == directory


PASSED_ON = [
    "PATH",
    "HOME",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
    "MUJOCO_GL",
    "MUJOCO_EGL_DEVICE_ID",
    "WANDB_MODE",
    "WANDB_BASE_URL",
    "WARP_CACHE_PATH",
    "GLOO_SOCKET_IFNAME",
    "OMP_NUM_THREADS",
    "NCCL_DEBUG",
    "NCCL_SOCKET_IFNAME",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_HOME",
    "TORCH_HOME",
    "PYTORCH_CUDA_ALLOC_CONF",
]

KEPT_BACK = [
    "WANDB_API_KEY",
    "WANDB_IDENTITY_TOKEN_FILE",
    "TORCH_HUB_TOKEN",
    "MUJOCO_PASSWORD",
    "PYTHON_SECRET",
    "AWS_SECRET_ACCESS_KEY",
    "GITHUB_TOKEN",
    "EDITOR",
    "MY_PATH",
]


def test_what_ranks_need_is_passed_on():
    assert set(exported_names(dict.fromkeys([*PASSED_ON, *KEPT_BACK], "x"))) == set(PASSED_ON)


@pytest.mark.parametrize("name", KEPT_BACK)
def test_secrets_and_what_is_foreign_do_not_reach_a_command_line(name: str):
    assert exported_names({name: "x"}) == []


def imported_by(statement: str) -> set[str]:
    """Top-level modules that a statement adds to a fresh interpreter."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


HEAVY = {"torch", "warp", "mujoco", "mujoco_warp", "rsl_rl", "tensordict", "torchrunx", "tensorboard", "wandb"}


@pytest.mark.parametrize(
    "module",
    [
        "cli.main",
        "cli.train",
        "cli.play",
        "cli.list_tasks",
        "cli.completion",
        "cli.console",
        "launch.train",
        "machine.devices",
        "machine.preflight",
        "launch.ranks",
        "launch.agent",
        "launch.supervision",
        "machine.processes",
        "launch.signals",
        "launch.restarts",
        "machine.doctor",
        "config",
        "mdp",
        "launch.hosts",
        "cli.doctor",
        "distributed",
        "worker",
        "play",
        "run_dir",
        "registry",
        "budget",
        "distributed.rank_info",
    ],
)
def test_importing_the_front_of_the_house_imports_nothing_heavy(module: str):
    imported = imported_by(f"import mjlab_dist.{module}")
    assert "mjlab_dist" in imported
    assert not imported & HEAVY


@pytest.mark.parametrize("order", [None, "FASTEST_FIRST"])
def test_every_command_numbers_gpus_by_bus_unless_the_user_chose_an_order(order: str | None):
    code = (
        "import os, sys; from mjlab_dist.cli import main; sys.argv = ['mjlab-dist', 'list-tasks']; main.umbrella(); "
        "print(os.environ['CUDA_DEVICE_ORDER'])"
    )
    environ = {name: value for name, value in os.environ.items() if name != "CUDA_DEVICE_ORDER"}
    environ |= {"CUDA_DEVICE_ORDER": order} if order else {}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == (order or "PCI_BUS_ID")


def test_a_tasks_config_is_made_without_anything_heavy():
    imported = imported_by(
        "from mjlab_dist import registry; [registry.task_config(name) for name in registry.task_names()]"
    )
    assert "mjlab_dist_tasks" in imported
    assert not imported & HEAVY


@pytest.mark.parametrize(
    "module",
    [
        "config",
        "errors",
        "messages",
        "control",
        "faults",
        "registry",
        "budget",
        "distributed.rank",
        "distributed.rank_info",
        "distributed.plan",
    ],
)
def test_what_everything_rests_on_imports_the_standard_library_only(module: str):
    imported = imported_by(f"import mjlab_dist.{module}")
    assert imported - sys.stdlib_module_names == {"mjlab_dist"}


def test_ranks_are_forked_from_a_process_without_threads_and_devices() -> None:
    code = """
import sys
from pathlib import Path
import mjlab_dist.launch.fork_server
assert {"torch", "mujoco_warp", "rsl_rl", "torchrunx"} <= sys.modules.keys()
import torch, warp
assert not torch.cuda.is_initialized()
assert warp._src.context.runtime is None
print(len(list(Path("/proc/self/task").iterdir())))
"""
    # OpenBLAS has threads too, which it ends before a fork by itself.
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1\n"


@pytest.mark.parametrize(
    ("device", "environ", "forks"),
    [("cpu", {}, True), ("cuda:0", {}, False), ("cpu", {"MUJOCO_GL": "egl"}, False)],
)
def test_ranks_are_forked_on_the_cpu_only_and_without_a_renderer(
    device: str, environ: dict[str, str], forks: bool
) -> None:
    own = RankDevice(device=device, name=device, torch_threads=1, backend="gloo")
    assert can_fork([own], environ) is forks
