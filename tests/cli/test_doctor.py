"""The installed command mjlab-dist doctor: on this machine as it is, and with problems that the tests cause."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, Done

DOCTOR = ("mjlab-dist", "doctor")

NOBODY = {"WANDB_API_KEY": "", "NETRC": "nowhere", "WANDB_MODE": ""}
"""Environment variables with which doctor finds no account of Weights & Biases."""


def report_of(done: Done) -> dict[str, dict[str, Any]]:
    """Return a dict from name to check. Assert that `passed` and the exit code agree with the checks."""
    report = json.loads(done.out)
    assert set(report) == {"checks", "passed"}
    for check in report["checks"]:
        assert set(check) == {"name", "figure", "status", "fix"}
        assert check["status"] in {"ok", "warning", "fail"}
        assert bool(check["fix"]) == (check["status"] != "ok"), check
        assert check["figure"]
    assert report["passed"] == all(check["status"] != "fail" for check in report["checks"])
    assert done.code == (0 if report["passed"] else 3)
    return {check["name"]: check for check in report["checks"]}


def test_this_machine_passes_in_seconds_without_new_files(
    command: Command, assert_within: Callable[[float, float], None]
) -> None:
    done = command(*DOCTOR, "--json", env=NOBODY)
    checks = report_of(done)
    assert done.code == 0
    assert done.err == ""
    assert_within(done.took_s, 10)
    names = [
        "versions", "CPU cores", "memory", "log root", "temporary files", "kernel cache", "open files", "loopback",
        "drawing", "leftover processes", "--logger wandb",
    ]  # fmt: skip
    assert [name for name in checks if name in names] == names
    assert any("GPU" in name for name in checks)
    assert checks["log root"]["figure"].startswith("logs: ")
    assert "wandb login" in checks["--logger wandb"]["fix"]
    assert not list(command.cwd.iterdir())


def test_the_table_shows_findings_and_fixes(command: Command) -> None:
    done = command(*DOCTOR, env=NOBODY)
    assert done.code == 0
    rows = [line.strip("│").split("│") for line in done.out.splitlines() if line.startswith("│")]
    by_name = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows if row[0].strip()}
    assert by_name["loopback"][1] == "ok"
    assert by_name["--logger wandb"][1] == "warning"
    assert any("uv run wandb login" in row[1] for row in rows)


def test_a_failed_check_is_named_and_exits_with_3(command: Command) -> None:
    (command.cwd / "file").touch()
    done = command(*DOCTOR, "--log-root", "file/logs", env=NOBODY)
    assert done.code == 3
    lines = done.out.splitlines()
    (failed,) = [line for line in lines if "FAIL" in line]
    assert "file/logs: Not a directory" in failed
    (fix,) = [line for line in lines if "--log-root" in line]
    assert "Fix: " in fix
    assert lines[-1].startswith("1 ")
    checks = report_of(command(*DOCTOR, "--log-root", "file/logs", "--json", env=NOBODY))
    assert [name for name, check in checks.items() if check["status"] == "fail"] == ["log root"]


def test_a_low_limit_of_open_files_fails_and_names_the_fix(command: Command) -> None:
    checks = report_of(command("/bin/sh", "-c", f"ulimit -S -n 60; exec {command.program(DOCTOR[0])} doctor --json"))
    assert checks["open files"]["status"] == "fail"
    assert checks["open files"]["fix"] == "ulimit -n 1024"
    checks = report_of(command("/bin/sh", "-c", f"ulimit -n 500; exec {command.program(DOCTOR[0])} doctor --json"))
    assert checks["open files"]["status"] == "warning"
    assert "limits.conf" in checks["open files"]["fix"]


def test_a_kernel_cache_that_cannot_be_written_fails(command: Command) -> None:
    (command.cwd / "file").touch()
    cache = report_of(command(*DOCTOR, "--json", env={"WARP_CACHE_PATH": "file"}))["kernel cache"]
    assert cache["status"] == "fail"
    assert "WARP_CACHE_PATH" in cache["fix"]


def test_an_unreachable_wandb_is_a_warning_that_does_not_show_the_key(command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        environ = {"WANDB_API_KEY": "k" * 40, "WANDB_BASE_URL": url, "WANDB_MODE": ""}
        checks = report_of(command(*DOCTOR, "--json", env=environ))
        assert checks["--logger wandb"]["status"] == "ok"
    done = command(*DOCTOR, "--json", env=environ)
    assert report_of(done)["--logger wandb"]["status"] == "warning"
    assert "Connection refused" in report_of(done)["--logger wandb"]["figure"]
    assert "k" * 40 not in done.out


@pytest.mark.parametrize("flags", ["--log-rot x", "--log-root"])
def test_a_mistake_names_the_flag_and_exits_with_2(command: Command, flags: str) -> None:
    done = command(*DOCTOR, *flags.split())
    assert done.code == 2
    assert "--log-root" in done.err


def test_help_describes_the_command(command: Command) -> None:
    done = command(*DOCTOR, "--help")
    assert done.code == 0
    assert "--log-root" in done.out
    assert "doctor" in command("mjlab-dist", "--help").out


@pytest.mark.parametrize("flags", [[], ["--json"], ["--help"]])
def test_nothing_heavy_is_imported(tmp_path: Path, flags: list[str]) -> None:
    code = f"""
import sys
from mjlab_dist.cli.main import umbrella
sys.argv = ["mjlab-dist", "doctor", *{flags}]
try:
    umbrella()
except SystemExit:
    pass
heavy = {{"torch", "warp", "mujoco", "rsl_rl", "torchrunx", "wandb", "tensorboard"}} & sys.modules.keys()
sys.exit(f"imported {{heavy}}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
