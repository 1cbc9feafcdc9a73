"""What must be in order on this machine before ranks start. Imports no torch.

``mjlab-dist doctor`` checks the same, and more: :mod:`mjlab_dist.machine.doctor`.
"""

from __future__ import annotations

import configparser
import contextlib
import enum
import errno
import netrc
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import RankDevice
from mjlab_dist.errors import PreflightError
from mjlab_dist.machine.devices import CPU_MEND, Gpu

PACKAGE = "mjlab-dist"
"""The distribution whose requirements the installed packages have to meet."""

GB = 10**9

NEEDED_BYTES = 10**6
"""What must fit where files go, tried by writing it: free space says nothing of quotas."""

LOW_BYTES = GB
"""Free space below which a run may well end with a full disk."""

UNUSED_SHARE = 0.9
"""Share of a GPU's memory that is free where nobody computes; the driver and a screen take some."""

WANDB_SERVER = "https://api.wandb.ai"
"""Where Weights & Biases keeps runs unless its settings say otherwise."""

WANDB_TIMEOUT_S = 1.0
"""Seconds that its server has to answer before a run starts."""

WARP = "warp-lang"
"""The distribution of Warp."""

TOOLKIT = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).wp_cuda_toolkit_version())"
"""Program that prints the version of CUDA, such as 12040, that Warp's library, its first argument, was built with; 0 without."""

WARP_TIMEOUT_S = 10.0
"""Timeout in seconds for loading this library, which has 300 MB."""

SOURCES = {
    "torch": "https://pytorch.org/get-started",
    WARP: "its +cuXX wheels at https://github.com/NVIDIA/warp/releases",
}
"""Where packages for another version of CUDA than that of the package index are found."""

DRIVERS = {12: 525, 13: 580}
"""Oldest branch of the NVIDIA driver, such as R525, for each major version of CUDA."""

CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])))"
"""Program that connects to a host, its first argument, at a port, its second."""


class Status(enum.StrEnum):
    """What a check came to."""

    OK = "ok"
    """In order."""
    WARNING = "warning"
    """Runs work, though slower, or without all that was asked for, or may end early."""
    FAIL = "fail"
    """Runs do not work."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a check saw."""

    name: str
    """What was checked."""
    figure: str
    """What was seen."""
    status: Status = Status.OK
    """Whether it is in order."""
    mend: str = ""
    """What puts it in order; empty where it is."""


def check_machine(
    config: TrainConfig,
    devices: Sequence[RankDevice],
    environ: Mapping[str, str],
    gpus: Sequence[Gpu],
    resumed: Path | None = None,
) -> list[str]:
    """Refuse to start ranks where they cannot work, in a fraction of a second; ``--logger wandb`` may add one.

    Args:
        config: The run's config.
        devices: The device of each rank of this machine.
        environ: The environment.
        gpus: The machine's GPUs.
        resumed: Directory of the run to resume; None where a new one is made below the log root.

    Returns:
        A line per warning: of GPUs that others use, a disk that is nearly full, curves that cannot be uploaded.

    Raises:
        PreflightError: If something of this machine would end the run.
    """
    flag, directory = ("--log-root", Path(config.log_root)) if resumed is None else ("--resume", resumed)
    found = [
        ("", check_versions()),
        (f"{flag} ", check_directory("log root", directory, LOW_BYTES, flag)),
        ("", check_loopback()),
    ]
    if devices[0].device != "cpu":
        found += [("", check_torch()), ("", check_warp())]
        chosen = [gpu for gpu in gpus if any(gpu.index == device.gpu_id for device in devices)]
        found += [(f"{finding.name}: ", finding) for finding in check_gpus(chosen)]
    if config.logger == "wandb":
        wandb = check_wandb(environ, WANDB_TIMEOUT_S)
        found.append((f"{wandb.name}: ", wandb))
    warnings: list[str] = []
    for about, finding in found:
        line = f"{about}{finding.figure}; {finding.mend}"
        if finding.status is Status.FAIL:
            raise PreflightError(f"{line} (uv run mjlab-dist doctor checks more)")
        if finding.status is Status.WARNING:
            warnings.append(line)
    return warnings


def check_versions() -> Finding:
    """Whether Python and the installed packages are what this package requires."""
    python, needed = platform.python_version(), metadata.metadata(PACKAGE)["Requires-Python"]
    wrong = [] if SpecifierSet(needed).contains(python) else [f"python {python} ({needed} is needed)"]
    required = [Requirement(line) for line in metadata.requires(PACKAGE) or ()]
    required = [each for each in required if each.marker is None or each.marker.evaluate({"extra": ""})]
    for each in required:
        try:
            installed = metadata.version(each.name)
        except metadata.PackageNotFoundError:
            installed = "is missing"
        if installed == "is missing" or not each.specifier.contains(installed, prereleases=True):
            wrong.append(f"{each.name} {installed} ({each.specifier} is needed)")
    if wrong:
        mend = "uv sync, or install those versions in the way that you install packages"
        return Finding(name="versions", figure=", ".join(wrong), status=Status.FAIL, mend=mend)
    here = f"{PACKAGE} {metadata.version(PACKAGE)}"
    return Finding(name="versions", figure=f"Python {python}, {here}, the {len(required)} packages that it requires")


def check_directory(name: str, directory: Path, low_bytes: int, setting: str) -> Finding:
    """Whether a directory can be made and written to, and what space there is.

    Args:
        name: What it is for.
        directory: Its path; need not be there yet.
        low_bytes: Free space below which it is too little.
        setting: The flag or variable that names another.
    """
    more_space = f"remove what is not needed there, or choose a directory of another disk by {setting}"
    try:
        there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(NEEDED_BYTES))
            file.flush()
            os.fsync(file.fileno())  # where some file systems notice a quota
        free = shutil.disk_usage(there).free
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        mend = more_space if full else f"choose a directory that you can write to by {setting}"
        return Finding(name=name, figure=f"{directory}: {error.strerror}", status=Status.FAIL, mend=mend)
    figure = f"{directory}: {shown_size(free)} free"
    if free < low_bytes:
        return Finding(name=name, figure=figure, status=Status.WARNING, mend=more_space)
    return Finding(name=name, figure=figure)


def check_loopback() -> Finding:
    """Whether processes of this machine can connect to each other."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=1),
        ):
            return Finding(name="loopback", figure="a port of 127.0.0.1 opened, and connected to")
    except OSError as error:
        return Finding(
            name="loopback",
            figure=f"no connection to 127.0.0.1: {error.strerror or error}",
            status=Status.FAIL,
            mend="ranks of one machine talk over it: sudo ip link set lo up, or let the firewall allow it",
        )


def check_torch() -> Finding:
    """Check whether the installed torch can use the GPUs of this machine, which has some."""
    try:
        torch = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return Finding(name="torch", figure="torch is missing", status=Status.FAIL, mend="uv sync")
    text = Path(str(torch.locate_file("torch/version.py"))).read_text()
    built_for = re.search(r"^cuda\b.*= '(\d+)\.(\d+)", text, re.MULTILINE)
    return judge_cuda("torch", torch.version, built_for and (int(built_for[1]), int(built_for[2])), driver_cuda())


def check_warp() -> Finding:
    """Check whether the installed Warp can use the GPUs of this machine, which has some.

    The version of CUDA that it was built with is stored only in its library, which a separate process loads to read it.
    """
    try:
        warp = metadata.distribution(WARP)
    except metadata.PackageNotFoundError:
        return Finding(name=WARP, figure=f"{WARP} is missing", status=Status.FAIL, mend="uv sync")
    try:
        library = str(warp.locate_file("warp/bin/warp.so"))
        number = int(run_program(TOOLKIT, library, timeout_s=WARP_TIMEOUT_S))
    except (OSError, ValueError) as error:
        return Finding(
            name=WARP,
            figure=f"{WARP} {warp.version}, whose version of CUDA is unknown ({error})",
            status=Status.WARNING,
            mend="see what `uv run python -c 'import warp; warp.init()'` prints",
        )
    return judge_cuda(WARP, warp.version, _cuda_version(number) if number else None, driver_cuda())


def judge_cuda(
    package: str, version: str, built_for: tuple[int, int] | None, driver: tuple[int, int] | None
) -> Finding:
    """Judge whether a package can use the GPUs of a driver.

    Within a major version of CUDA an older driver is enough, which NVIDIA calls minor version compatibility. Warp's own
    check is the same (``min_driver_version`` in its ``context.py``).

    Args:
        package: Its name.
        version: Its version.
        built_for: Major and minor version of its CUDA; None without.
        driver: What :func:`driver_cuda` returns.
    """
    if built_for is None:
        seen = f"{package} {version} is built without CUDA, and there are GPUs"
        fix = f"install one with CUDA ({SOURCES[package]})"
    elif driver is None:
        seen = "there are GPUs, and the NVIDIA driver's libcuda.so.1 cannot be loaded"
        fix = "start a container with NVIDIA_DRIVER_CAPABILITIES=compute,utility, or install the driver again"
    elif driver[0] < built_for[0]:
        seen = f"{package} {version} is built for CUDA {dotted(built_for)}, the NVIDIA driver supports CUDA {dotted(driver)} only"
        oldest = DRIVERS.get(built_for[0])
        fix = "update the driver" + (f" to R{oldest} or newer" if oldest else "")
        if driver[0] in DRIVERS:
            both = " and ".join(f"{name} ({source})" for name, source in SOURCES.items())
            fix += f", or install both {both} for CUDA {driver[0]}"
    else:
        return Finding(name=package, figure=f"{package} {version}, built for CUDA {dotted(built_for)}")
    return Finding(name=package, figure=seen, status=Status.FAIL, mend=f"{fix}, or {CPU_MEND}")


def driver_cuda() -> tuple[int, int] | None:
    """Newest version of CUDA, major and minor, that the driver of this machine's GPUs knows; None without its CUDA."""
    import pynvml  # noqa: PLC0415 (needless without a GPU)

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        version = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
    return _cuda_version(version)


def _cuda_version(number: int) -> tuple[int, int]:
    """Return major and minor version of a number such as 12040."""
    return number // 1000, number % 1000 // 10


def check_gpus(gpus: Sequence[Gpu]) -> list[Finding]:
    """Check whether GPUs can be used, who else uses them, and what memory that leaves.

    Args:
        gpus: The GPUs to look at.
    """
    import pynvml  # noqa: PLC0415 (needless without a GPU)

    if not gpus:
        return []
    pynvml.nvmlInit()
    try:
        return [_check_gpu(gpu) for gpu in gpus]
    finally:
        pynvml.nvmlShutdown()


def _check_gpu(gpu: Gpu) -> Finding:
    import pynvml  # noqa: PLC0415

    if gpu.fault:
        return _unusable(gpu, gpu.fault)
    try:
        by_uuid, by_index = pynvml.nvmlDeviceGetHandleByUUID, pynvml.nvmlDeviceGetHandleByIndex
        handle = by_uuid(gpu.uuid) if gpu.is_mig else by_index(gpu.card)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        pids = [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    except pynvml.NVMLError as error:
        # GPUs that share the host's memory have no such query, and a container may forbid it.
        if getattr(error, "value", None) in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION):
            return Finding(name=f"GPU {gpu.index}", figure=f"{gpu.name}, whose use is unknown ({error})")
        return _unusable(gpu, str(error))
    return judge_gpu(gpu, int(memory.free), int(memory.total), [pid for pid in pids if pid != os.getpid()])


def _unusable(gpu: Gpu, fault: str) -> Finding:
    mend = "see nvidia-smi: a lost GPU needs a reboot, a missing permission another container or job"
    figure = f"{gpu.name} cannot be used ({fault})"
    return Finding(name=f"GPU {gpu.index}", figure=figure, status=Status.WARNING, mend=mend)


def judge_gpu(gpu: Gpu, free_bytes: int, total_bytes: int, pids: Sequence[int]) -> Finding:
    """Whether a GPU is there for a run alone.

    Args:
        gpu: The GPU.
        free_bytes: Its free memory.
        total_bytes: All its memory.
        pids: Other processes that compute on it; a container may hide them.
    """
    name, figure = f"GPU {gpu.index}", f"{gpu.name}, {free_bytes / GB:.1f} of {total_bytes / GB:.1f} GB free"
    if not pids and free_bytes >= UNUSED_SHARE * total_bytes:
        return Finding(name=name, figure=figure)
    who = f"process {', '.join(map(str, pids))}" if pids else "processes that cannot be seen from here"
    mend = "a run shares its memory and its time with them: choose others by --gpu-ids, or wait (nvidia-smi)"
    return Finding(name=name, figure=f"{figure}, used by {who}", status=Status.WARNING, mend=mend)


def check_wandb(environ: Mapping[str, str], timeout_s: float) -> Finding:
    """Whether Weights & Biases would take a run's curves: an account, and a server that answers; or offline.

    Args:
        environ: The environment.
        timeout_s: Seconds that the server has to answer.
    """
    name, later = "--logger wandb", "`uv run wandb sync` uploads them later"
    mode = _wandb_setting(environ, "mode")
    if mode in {"offline", "disabled", "dryrun"}:
        return Finding(name=name, figure=f"set to {mode}")
    if not has_wandb_account(environ):
        mend = f"curves stay in the run directory (uv run wandb login, or WANDB_API_KEY; {later})"
        return Finding(name=name, figure="no account is logged in", status=Status.WARNING, mend=mend)
    try:
        host, port = _wandb_peer(environ)
        run_program(CONNECT, host, str(port), timeout_s=timeout_s)
    except (OSError, ValueError) as error:
        mend = f"curves stay in the run directory until it does ({later})"
        server = _wandb_server(environ)
        return Finding(name=name, figure=f"{server} does not answer: {error}", status=Status.WARNING, mend=mend)
    return Finding(name=name, figure=f"logged in, {host}:{port} answers")


def has_wandb_account(environ: Mapping[str, str]) -> bool:
    """Whether Weights & Biases finds an account by itself, where it looks: two variables and the netrc file.

    Args:
        environ: The environment.
    """
    if environ.get("WANDB_API_KEY") or environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    url = urlsplit(_wandb_server(environ))
    file = Path(environ.get("NETRC") or "~/.netrc").expanduser()
    try:
        logins = netrc.netrc(file)
    except (OSError, netrc.NetrcParseError):
        return False
    # Older versions leave the port out.
    return any(logins.authenticators(host) for host in (url.netloc, url.hostname or ""))


def run_program(program: str, *args: str, timeout_s: float) -> str:
    """What a line of Python prints in a process of its own: a name server that does not answer is given up in no other way.

    Args:
        program: The code; imports the standard library only.
        args: Its arguments.
        timeout_s: Seconds until it is killed.

    Raises:
        OSError: If it raises something, which the message tells, or takes longer.
    """
    command = [sys.executable, "-I", "-S", "-c", program, *args]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"timed out after {timeout_s:g} s") from None
    if done.returncode != 0:
        raised = done.stderr.strip().rpartition("\n")[2]
        raise OSError(re.sub(r"^[\w.]+: (\[Errno -?\d+\] )?", "", raised))
    return done.stdout.strip()


def shown_size(num_bytes: float) -> str:
    """Bytes for people."""
    return f"{num_bytes / GB:.1f} GB" if num_bytes >= GB else f"{num_bytes / 10**6:.1f} MB"


def dotted(version: tuple[int, int]) -> str:
    """A version for people."""
    return ".".join(map(str, version))


def _wandb_server(environ: Mapping[str, str]) -> str:
    return _wandb_setting(environ, "base_url") or WANDB_SERVER


def _wandb_setting(environ: Mapping[str, str], name: str) -> str | None:
    """A setting as Weights & Biases reads it: a variable, its file in the working directory, that of the user."""
    if value := environ.get(f"WANDB_{name.upper()}"):
        return value
    files = configparser.ConfigParser(interpolation=None)
    folder = Path(environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb").expanduser()
    with contextlib.suppress(configparser.Error, UnicodeDecodeError, OSError):
        files.read([folder / "settings", Path("wandb", "settings")])
    return files.get("default", name, fallback=None)


def _wandb_peer(environ: Mapping[str, str]) -> tuple[str, int]:
    """Host and port that it connects to: its server, or the proxy on the way there.

    Raises:
        ValueError: If one of the two is no URL.
    """
    url = urlsplit(_wandb_server(environ))
    variable = f"{url.scheme}_proxy"
    proxy = environ.get(variable) or environ.get(variable.upper())
    if proxy and not _is_bypassed(url.hostname or "", environ):
        url = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if not url.hostname:
        raise ValueError("that is no URL")
    return url.hostname, url.port or (80 if url.scheme == "http" else 443)


def _is_bypassed(host: str, environ: Mapping[str, str]) -> bool:
    """Whether connections to a host go without a proxy."""
    listed = (environ.get("no_proxy") or environ.get("NO_PROXY") or "").split(",")
    names = [name.strip().lstrip(".") for name in listed if name.strip()]
    return any(name in ("*", host) or host.endswith(f".{name}") for name in names)
