"""Rules of a launch: which variables ranks inherit, which ranks are forked, and that no process is left."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from processes import command_line

from mjlab_dist.config import registry
from mjlab_dist.distributed import RankDevice
from mjlab_dist.launch.hosts.ssh import Host
from mjlab_dist.launch.plan import RunPlan
from mjlab_dist.launch.preparation import can_fork, exported_names, prepared

CPU = RankDevice(device="cpu", name="cpu", torch_threads=1, backend="gloo")

EXPORTED = [
    "PATH", "HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONUNBUFFERED", "MUJOCO_GL", "MUJOCO_EGL_DEVICE_ID",
    "WANDB_MODE", "WANDB_BASE_URL", "WARP_CACHE_PATH", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS", "NCCL_DEBUG",
    "NCCL_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUDA-DIR", "TORCH_HOME", "PYTORCH_CUDA_ALLOC_CONF",
]  # fmt: skip

NOT_EXPORTED = [
    "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "TORCH_HUB_TOKEN", "MUJOCO_PASSWORD", "PYTHON_SECRET", "WANDB_PASS",
    "TORCH_CREDENTIALS", "NCCL_AUTH", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "EDITOR", "MY_PATH",
]  # fmt: skip


def test_variables_that_ranks_need_are_exported_but_no_secrets_and_no_others():
    assert set(exported_names(dict.fromkeys([*EXPORTED, *NOT_EXPORTED], "x"))) == set(EXPORTED)


@pytest.mark.parametrize("address", ["https://me:word@host/", "socks5://:word@host:1080"])
def test_addresses_with_passwords_are_not_exported(address: str):
    assert exported_names({"WANDB_BASE_URL": address}) == []
    assert exported_names({"WANDB_BASE_URL": "https://host:8080/me@home"}) == ["WANDB_BASE_URL"]


@pytest.mark.parametrize(
    ("device", "environ", "forks"),
    [("cpu", {}, True), ("cuda:0", {}, False), ("cpu", {"MUJOCO_GL": "egl"}, False)],
)
def test_ranks_are_forked_only_on_the_cpu_and_without_a_renderer(
    device: str, environ: dict[str, str], forks: bool
) -> None:
    own = RankDevice(device=device, name=device, torch_threads=1, backend="gloo")
    assert can_fork([own], environ) is forks


@pytest.fixture
def interrupted(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Prepare a launch, and expect that a function, which is called then, or the preparation itself is interrupted."""
    monkeypatch.setattr("tempfile.tempdir", str(short_tmp))
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    plan = RunPlan(hosts=(Host(devices=(CPU,)),), run_dir=short_tmp)

    def prepare(then: Callable[[], object]) -> None:
        with (
            pytest.raises(KeyboardInterrupt),
            prepared(registry.task_config("cartpole-balance"), plan, lambda _: None),
        ):
            then()

    return prepare


@pytest.mark.slow
def test_an_interrupt_before_ranks_start_leaves_no_process(
    interrupted: Callable[[Callable[[], object]], None], wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    before = psutil.Process().children(recursive=True)  # processes of other tests, such as a browser
    seen: set[psutil.Process] = set()

    def agent_has_children() -> bool:
        seen.update(set(psutil.Process().children(recursive=True)).difference(before))
        return any("forkserver" in " ".join(command_line(process)) for process in seen)

    def interrupt() -> None:
        wait_for(agent_has_children)  # the fork server imports torch
        raise KeyboardInterrupt

    interrupted(interrupt)
    assert not [line for process in seen if (line := command_line(process))]


def test_an_interrupt_while_an_agent_is_started_leaves_no_process(
    interrupted: Callable[[Callable[[], object]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[psutil.Process] = []
    start = subprocess.Popen[bytes].__init__

    def start_and_interrupt(self: subprocess.Popen[bytes], *args: Any, **options: Any) -> None:
        start(self, *args, **options)
        started.append(psutil.Process(self.pid))
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess.Popen, "__init__", start_and_interrupt)
    interrupted(lambda: None)
    (agent,) = started
    assert not agent.is_running()
