"""Checks of this machine before ranks start. Where possible, tests cause the real fault for each check."""

from __future__ import annotations

import dataclasses
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_nvml
import pynvml
import pytest
from fake_nvml import FakeGpu

from mjlab_dist.config import TrainConfig, registry
from mjlab_dist.errors import Exit, PreflightError, UserError
from mjlab_dist.imports import require_extra
from mjlab_dist.machine import Status, doctor
from mjlab_dist.machine.devices import Gpu, plan_devices
from mjlab_dist.machine.gpu_checks import check_warp, judge_cuda, judge_gpu
from mjlab_dist.machine.preflight import check_directory, check_loopback, check_machine, check_versions
from mjlab_dist.machine.processes import LAUNCH

H200 = Gpu(index=1, card=1, uuid="GPU-1", card_uuid="GPU-1", name="NVIDIA H200")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home and working directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def chosen(**changes: Any) -> TrainConfig:
    return dataclasses.replace(registry.task_config("cartpole-balance"), gpu_ids=None, **changes)


def checked(config: TrainConfig, environ: dict[str, str] | None = None, run_dir: Path | None = None) -> list[str]:
    return check_machine(config, plan_devices(config, {}, []), environ or {}, [], run_dir)


def refusal_of(config: TrainConfig, run_dir: Path | None = None, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(PreflightError) as caught:
        checked(config, environ, run_dir)
    assert caught.value.exit_code == Exit.PREFLIGHT
    message = str(caught.value)
    assert "\n" not in message
    assert "mjlab-dist doctor" in message
    return message


def add_distribution(folder: Path, name: str, version: str, *lines: str) -> None:
    """Write the metadata of an installed distribution."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines]))


def in_namespace(flags: str, script: str, *args: object) -> str:
    """Run a shell script as root in new namespaces, and return its output. Skip the test if unshare is not allowed."""
    if subprocess.run(["unshare", flags, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("unshare is not allowed here")
    command = ["unshare", flags, "sh", "-ec", script, "sh", *map(str, args)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def python(code: str) -> str:
    """Return a command line that runs Python code. The code can use all names of doctor."""
    header = "import sys\nfrom pathlib import Path\nfrom mjlab_dist.machine.doctor import *\n"
    return shlex.join([sys.executable, "-c", header + textwrap.dedent(code)])


def test_a_working_machine_passes_silently_within_a_fraction_of_a_second(
    tmp_path: Path, assert_within: Callable[[float, float], None]
):
    took_s: list[float] = []
    for _ in range(5):
        start = time.monotonic()
        lines = checked(chosen(log_root=str(tmp_path / "new" / "logs")))
        took_s.append(time.monotonic() - start)
        assert all(line.startswith("--log-root") for line in lines), (
            "only a disk that is nearly full may be warned about"
        )
    assert_within(min(took_s), 0.3)
    assert not list(tmp_path.iterdir()), "the checks leave no files"


def test_every_directory_that_is_written_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "file"
    file.touch()
    wrong = str(file / "logs")
    assert refusal_of(chosen(log_root="file/logs")).startswith("--log-root file/logs: Not a directory; ")
    assert refusal_of(chosen(torchrunx_log_dir=wrong)).startswith(f"--torchrunx-log-dir {wrong}: Not a directory;")
    for variable in ("TORCHRUNX_LOG_DIR", "WARP_CACHE_PATH"):
        assert refusal_of(chosen(), environ={variable: wrong}).startswith(f"{variable} {wrong}: Not a directory;")
    assert checked(chosen(torchrunx_log_dir=wrong), {"TORCHRUNX_LOG_DIR": ""}) == checked(chosen()), (
        "an empty variable turns log files off"
    )
    monkeypatch.setattr(tempfile, "tempdir", wrong)
    assert refusal_of(chosen()).startswith(f"TMPDIR {wrong}: Not a directory;")


def test_a_resumed_run_is_checked_by_its_own_directory(tmp_path: Path):
    (tmp_path / "file").touch()
    assert refusal_of(chosen(), tmp_path / "file" / "run").startswith(f"--resume {tmp_path}/file/run: Not a directory;")
    assert checked(chosen(log_root="file/logs"), run_dir=tmp_path) in ([], checked(chosen()))


def test_a_full_disk_is_refused_and_a_nearly_full_one_causes_a_warning(tmp_path: Path):
    report = python("""
        for directory in ("full", "small"):
            finding = check_directory("log root", Path(directory, "logs"), LOW_BYTES, "--log-root")
            print(finding.status, finding.figure, finding.fix, sep="|")
    """)
    out = in_namespace(
        "-rm",
        f'cd "$1"; mkdir full small; mount -t tmpfs -o size=3m none full; mount -t tmpfs -o size=3m none small; '
        f"head -c 2500000 /dev/zero > full/file; {report}; ls -A full small",
        tmp_path,
    )
    full, small, *files = out.splitlines()
    assert full.startswith("fail|full/logs: No space left on device|")
    assert small.startswith("warning|small/logs: 3.1 MB ")
    assert files == ["full:", "file", "", "small:"], "nothing is left behind"


def test_the_limit_of_free_space_depends_on_the_use(tmp_path: Path):
    statuses = [check_directory("x", tmp_path, low, "X").status for low in (1, 10**18)]
    assert statuses == [Status.OK, Status.WARNING]


def test_a_machine_without_loopback_is_refused():
    assert check_loopback().status is Status.OK
    out = in_namespace("-rn", python("finding = check_loopback(); print(finding.status, finding.figure, finding.fix)"))
    assert out.startswith("fail ")
    assert "127.0.0.1" in out
    assert "sudo ip link set lo up" in out


def test_packages_that_do_not_satisfy_the_requirements_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert check_versions().status is Status.OK
    add_distribution(tmp_path, "dacite", "1.0")
    monkeypatch.syspath_prepend(tmp_path)
    message = refusal_of(chosen())
    assert message.startswith("dacite 1.0 (>=1.8 ")
    assert "; uv sync" in message


def test_missing_packages_and_an_unsupported_python_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    requirements = "not-installed-here>=2,<3", "not-here-either; extra == 'all'", "nor-this; python_version < '3'"
    lines = [f"Requires-Dist: {each}" for each in requirements]
    add_distribution(tmp_path, "mjlab-dist", "9", "Requires-Python: >=99", *lines)
    monkeypatch.syspath_prepend(tmp_path)
    finding = check_versions()
    assert finding.status is Status.FAIL
    python, package = finding.figure.split("), ")
    assert python.startswith("python 3.")
    assert ">=99" in python
    assert package.startswith("not-installed-here ")
    assert "<3,>=2" in package


def test_an_extra_is_refused_if_a_package_has_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lines = ("not-installed-here", "outdated>=2; extra == 'viewer'", "tidy; extra == 'plots'")
    add_distribution(tmp_path, "mjlab-dist", "9", *(f"Requires-Dist: {each}" for each in lines))
    for name in ("outdated", "tidy"):
        add_distribution(tmp_path, name, "1.0")
    monkeypatch.syspath_prepend(tmp_path)
    require_extra("plots", "--plot a.png")
    with pytest.raises(UserError, match=r"^--viewer web: outdated 1\.0 \(>=2 .*\[viewer\]"):
        require_extra("viewer", "--viewer web")


@pytest.mark.parametrize(
    ("package", "built_for", "driver", "parts"),
    [
        ("torch", None, (13, 0), ["CUDA", "pytorch.org"]),
        ("warp-lang", None, (13, 0), ["CUDA", "NVIDIA/warp"]),
        ("torch", (13, 2), None, ["libcuda.so.1"]),
        ("torch", (13, 2), (12, 8), ["13.2", "12.8", "R580", "torch", "warp", "CUDA 12"]),
        ("warp-lang", (12, 6), (11, 8), ["12.6", "11.8", "R525"]),
    ],
)
def test_a_package_that_cannot_use_the_gpus_is_refused(
    package: str, built_for: tuple[int, int] | None, driver: tuple[int, int] | None, parts: list[str]
):
    finding = judge_cuda(package, "2.15.0", built_for, driver)
    assert finding.status is Status.FAIL
    for part in parts:
        assert part in f"{finding.figure}; {finding.fix}"
    assert "--gpu-ids None" in finding.fix


@pytest.mark.parametrize("driver", [(12, 0), (13, 0)])
def test_an_older_driver_of_the_same_major_version_is_accepted(driver: tuple[int, int]):
    assert judge_cuda("torch", "2.15.0", (12, 8), driver).status is Status.OK


def test_the_cuda_of_the_installed_warp_is_what_warp_reports(monkeypatch: pytest.MonkeyPatch):
    fake_nvml.install(monkeypatch, [FakeGpu("GPU-a")])
    code = (
        "import warp; warp.config.log_level = warp.LOG_ERROR; warp.init(); "
        "print(*warp._src.context.runtime.toolkit_version)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    major, minor = done.stdout.split()[-2:]
    assert f"CUDA {major}.{minor}" in check_warp().figure


@pytest.mark.parametrize(
    ("free_gb", "pids", "figure"),
    [
        (20, [12, 34], r"NVIDIA H200, 20\.0 of 140\.0 GB .*\b12, 34"),
        (139, [12], r"NVIDIA H200, 139\.0 of 140\.0 GB .*\b12"),
        (20, [], r"NVIDIA H200, 20\.0 of 140\.0 GB \D*"),
    ],
)
def test_a_gpu_in_use_by_others_causes_a_warning(free_gb: int, pids: list[int], figure: str):
    finding = judge_gpu(H200, free_gb * 10**9, 140 * 10**9, pids)
    assert (finding.name, finding.status) == ("GPU 1", Status.WARNING)
    assert re.fullmatch(figure, finding.figure)
    assert "--gpu-ids" in finding.fix


def test_memory_reserved_by_the_driver_does_not_count_as_use():
    assert judge_gpu(H200, 139 * 10**9, 140 * 10**9, []).status is Status.OK


def test_doctor_shows_gpus_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch):
    gone = pynvml.NVML_ERROR_GPU_IS_LOST
    gpus = [
        FakeGpu("GPU-a", fails={"nvmlDeviceGetHandleByIndex": gone}),
        FakeGpu("GPU-b", fails={"nvmlDeviceGetMemoryInfo": gone}),
        FakeGpu("GPU-c", fails={"nvmlDeviceGetMemoryInfo": pynvml.NVML_ERROR_NOT_SUPPORTED}),
        FakeGpu("GPU-d"),
    ]
    fake_nvml.install(monkeypatch, gpus)
    found = {finding.name: finding for finding in doctor.check_devices()}
    assert [found[f"GPU {i}"].status for i in range(4)] == [Status.WARNING, Status.WARNING, Status.OK, Status.OK]
    for i in (0, 1):
        assert "lost" in found[f"GPU {i}"].figure
        assert found[f"GPU {i}"].fix


def test_doctor_shows_every_mig_instance(monkeypatch: pytest.MonkeyPatch):
    instances = [FakeGpu("MIG-a0", "Slice", total_bytes=10**10, free_bytes=10**10), FakeGpu("MIG-a1", "Slice")]
    fake_nvml.install(monkeypatch, [FakeGpu("GPU-a", instances=instances)])
    found = {finding.name: finding for finding in doctor.check_devices()}
    assert "Slice, 10.0 of 10.0 GB" in found["GPU 0"].figure
    assert "Slice, 80.0 of 80.0 GB" in found["GPU 1"].figure


def test_doctor_shows_a_driver_that_cannot_count_its_gpus(monkeypatch: pytest.MonkeyPatch):
    fake_nvml.install(monkeypatch, [FakeGpu("GPU-a")], {"nvmlDeviceGetCount": pynvml.NVML_ERROR_UNKNOWN})
    (finding,) = doctor.check_devices()
    assert finding.status is Status.WARNING


DRIVER = """
#include <stdlib.h>
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned int pid; unsigned long long used; unsigned int gi, ci; } process;
int nvmlInitWithFlags(unsigned int flags) { return atoi(getenv("FAKE_ERROR")); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int error) { return "Driver/library version mismatch"; }
int nvmlSystemGetDriverVersion(char *to) { strcpy(to, "535.99"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *to) { *to = atoi(getenv("FAKE_CUDA")); return 0; }
int nvmlDeviceGetCount_v2(unsigned int *to) { *to = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int i, void **to) { *to = (void *)(i + 1L); return 0; }
int nvmlDeviceGetUUID(void *device, char *to) { strcpy(to, device == (void *)1 ? "GPU-a" : "GPU-b"); return 0; }
int nvmlDeviceGetName(void *device, char *to) { strcpy(to, "Model"); return 0; }
int nvmlDeviceGetMemoryInfo(void *device, memory *to) {
    to->total = 80000000000; to->free = device == (void *)1 ? 79500000000 : 30000000000; return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, process *to) {
    unsigned int there = device == (void *)1 ? 0 : 1, room = *count;
    *count = there;
    if (there == 0) return 0;
    if (room == 0) return 7;
    to[0].pid = 4711; to[0].used = 1; return 0;
}
"""
"""Source of a library that replaces NVIDIA's and simulates two GPUs. The second GPU is in use."""


@pytest.fixture(scope="module")
def on_gpus(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[str]]:
    """Function that runs code as if the machine had the two simulated GPUs."""
    directory = tmp_path_factory.mktemp("driver")
    (directory / "driver.c").write_text(DRIVER)
    compiler = ["cc", "-shared", "-fPIC", "-o", directory / "libnvidia-ml.so.1", directory / "driver.c"]
    try:
        subprocess.run(compiler, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no C compiler")

    def run(code: str, cuda: int = 13020, error: int = 0) -> list[str]:
        fake = {"LD_LIBRARY_PATH": str(directory), "FAKE_CUDA": str(cuda), "FAKE_ERROR": str(error)}
        done = subprocess.run(
            python(code), shell=True, check=False, capture_output=True, text=True, env={**os.environ, **fake}
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


DEVICES = "for finding in check_devices(): print(finding.name, finding.status, finding.figure, sep='|')"


def test_doctor_reads_driver_torch_and_every_gpu(on_gpus: Callable[..., list[str]]):
    driver, torch, warp, first, second, shared = on_gpus(DEVICES)
    assert driver == "NVIDIA driver|ok|535.99, CUDA 13.2"
    assert torch.split("|")[2].startswith("torch 2.")
    assert warp.startswith("warp-lang|ok|")
    assert first.startswith("GPU 0|ok|Model, 79.5 of 80.0 GB ")
    assert second.startswith("GPU 1|warning|Model, 30.0 of 80.0 GB ")
    assert second.endswith(" 4711")
    assert shared.startswith("shared memory|")


def test_doctor_reports_a_driver_that_is_too_old(on_gpus: Callable[..., list[str]]):
    driver, *_ = on_gpus(DEVICES, cuda=12020)
    assert driver == "NVIDIA driver|warning|535.99, CUDA 12.2: the physics runs without CUDA graphs, which is slower"


def test_doctor_distinguishes_a_broken_driver_from_a_missing_one(on_gpus: Callable[..., list[str]]):
    (broken,) = on_gpus(DEVICES, error=18)
    assert broken.startswith("GPUs|warning|the driver: ")
    assert on_gpus(DEVICES, error=9) == ["GPUs|ok|none: ranks train on the CPU"]


ON_GPU = """
    import dataclasses, os, sys
    from mjlab_dist.config import registry
    from mjlab_dist.errors import PreflightError
    from mjlab_dist.machine.devices import find_gpus, plan_devices
    from mjlab_dist.machine.preflight import check_machine
    config = dataclasses.replace(registry.task_config("cartpole-balance"), gpu_ids=(int(os.environ.get("ID", 1)),))
    gpus = find_gpus()
    devices = plan_devices(config, {}, gpus)
    try:
        print(*check_machine(config, devices, {}, gpus), sep="\\n")
    except PreflightError as error:
        print("refused:", error)
    assert not {"torch", "warp"} & sys.modules.keys()
"""


def test_a_run_warns_only_about_its_own_gpus(on_gpus: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch):
    line = next(line for line in on_gpus(ON_GPU) if "GPU" in line)
    assert re.match(r"GPU 1: Model, 30\.0 of 80\.0 GB .*\b4711; .*--gpu-ids", line)
    monkeypatch.setenv("ID", "0")
    assert not [line for line in on_gpus(ON_GPU) if "GPU" in line]


def test_a_run_is_refused_on_gpus_that_torch_or_warp_cannot_use(on_gpus: Callable[..., list[str]], tmp_path: Path):
    (line,) = on_gpus(ON_GPU, cuda=11080)
    assert line.startswith("refused: torch 2.")
    assert "11.8" in line
    # The fake torch is for CUDA 12, but the installed Warp needs CUDA 13.
    add_distribution(tmp_path, "torch", "2.15.0")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text("cuda: Optional[str] = '12.8'\n")
    (line,) = on_gpus(f"sys.path.insert(0, {str(tmp_path)!r})\n" + textwrap.dedent(ON_GPU), cuda=12080)
    assert line.startswith("refused: warp-lang ")
    assert "R580" in line


def test_doctor_requires_the_driver_that_the_physics_requires():
    from mjlab_dist.sim.recorder import CAPTURABLE_DRIVER

    assert doctor.CAPTURABLE_DRIVER == CAPTURABLE_DRIVER


def test_the_access_to_wandb_is_checked_only_with_its_logger():
    assert any(line.startswith("--logger wandb: ") for line in checked(chosen(logger=("wandb",))))
    assert not any("wandb" in line for line in checked(chosen()))


def test_little_shared_memory_causes_a_warning(tmp_path: Path):
    code = python("print(check_shared_memory(Path(sys.argv[-1])))")
    out = in_namespace("-rm", f'mount -t tmpfs -o size=3m none "$1"; {code} "$1"', tmp_path)
    assert "3.1 MB " in out
    assert "--shm-size=1g" in out


@pytest.mark.slow
def test_a_picture_is_drawn():
    environ = {name: value for name, value in os.environ.items() if name != "MUJOCO_GL"}
    assert doctor.check_drawing(environ).status is Status.OK
    finding = doctor.check_drawing({**environ, "MUJOCO_GL": "vulkan"})
    assert finding.status is Status.WARNING
    assert finding.fix == "unset MUJOCO_GL"


def test_processes_without_their_launcher_are_named():
    environ = {**os.environ, LAUNCH: "test"}
    with subprocess.Popen(["sleep", "60"], env=environ) as looked_after:
        orphan = subprocess.run(
            ["sh", "-c", "sleep 60 > /dev/null 2>&1 & echo $!"], env=environ, check=True, capture_output=True, text=True
        ).stdout.strip()
        end = os.pidfd_open(int(orphan))
        try:
            finding = doctor.check_leftovers()
        finally:
            signal.pidfd_send_signal(end, signal.SIGKILL)
            looked_after.kill()
            select.select([end], [], [])  # wait until the orphan, which is not a child of this process, has ended
            os.close(end)
    assert finding.status is Status.WARNING
    assert finding.fix.startswith("kill -9 ")
    assert orphan in finding.fix.split()
    assert str(looked_after.pid) not in finding.fix.split()
    assert orphan not in doctor.check_leftovers().fix.split()


@pytest.mark.parametrize("environ", [{"WARP_CACHE_PATH": "there"}, {"XDG_CACHE_HOME": "caches"}, {}])
def test_the_kernel_cache_is_that_of_warp(home: Path, environ: dict[str, str]):
    code = "import warp; warp.config.log_level = warp.LOG_ERROR; warp.init(); print(warp.config.kernel_cache_dir)"
    inherited = {k: v for k, v in os.environ.items() if k not in ("WARP_CACHE_PATH", "XDG_CACHE_HOME")}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**inherited, **environ}, check=True, capture_output=True, text=True
    )
    theirs = Path(done.stdout.splitlines()[-1]).resolve()
    assert theirs.parent == doctor.kernel_cache(environ).resolve()
    assert theirs.is_relative_to(home)
