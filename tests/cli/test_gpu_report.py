"""scripts/gpu_report.py: a dry run of all its parts on the CPU, resuming, failures, and the report's page."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_graphs import fake_graphs

SCRIPTS = Path(__file__).parents[2] / "scripts"

PARTS = (
    "machine",
    "tests",
    "cold-start",
    "capture",
    "speed-cartpole",
    "speed-half-cheetah",
    "speed-quadruped-flat",
    "speed-quadruped-rough",
    "sync",
    "two-ranks",
    "nccl-faults",
    "nccl-scaling",
    "train-quadruped",
    "train-humanoid",
    "mjlab",
)

SAME_CODE = {"speed-cartpole", "speed-half-cheetah", "speed-quadruped-rough", "train-humanoid"}
"""Parts that a dry run skips, because another part runs the same code."""


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Import a module from the directory scripts/."""
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module


def read(data: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in (data / "results").glob("*.json")}


def printed(out: str) -> dict[str, str]:
    """Return a dict from the name of each part to the text that the script prints when the part starts."""
    return dict(re.findall(r"^\[\d+/\d+\] ([a-z-]+):? (.*)$", out, re.MULTILINE))


@pytest.mark.slow
@pytest.mark.long
def test_a_dry_run_runs_all_parts_and_resumes(command: Callable[..., Any], tmp_path: Path) -> None:
    data, output = tmp_path / "data", tmp_path / "page"
    base = (sys.executable, str(SCRIPTS / "gpu_report.py"), "--dry-run", "--data", str(data), "--output", str(output))
    # The command `train` of this interpreter belongs to mjlab_dist and lacks mjlab's tasks, so mjlab's part fails.
    peer = ("--peer-python", sys.executable)

    done = command(*base, *peer, timeout_s=600)
    assert done.code == 1, done.out + done.err
    assert "failed: mjlab" in done.err
    results = read(data)
    assert set(results) == set(PARTS)
    skipped = {name for name, result in results.items() if result["status"] == "skipped"}
    assert skipped == {*SAME_CODE, "sync"}
    assert [name for name, result in results.items() if result["status"] == "failed"] == ["mjlab"]
    assert "Mjlab-Cartpole-Balance ended with exit code 2" in results["mjlab"]["reason"]
    assert_figures({name: result["data"] for name, result in results.items()})

    page = (output / "gpu.md").read_text()
    assert "dry run" in page.partition("##")[0]
    assert "proves nothing about GPUs" in page
    assert "could not be written" not in page
    for name, result in results.items():
        assert f"| `{name}` | {result['status']} |" in page
    assert "Mjlab-Cartpole-Balance ended with exit code 2" in page
    assert str(tmp_path) not in page
    for picture in re.findall(r"\(pictures/(.*)\)", page):
        assert (output / "pictures" / picture).stat().st_size > 0
    assert page.count("(pictures/") >= 2

    # A second call runs only parts that failed or whose result file is damaged.
    stamps = {path.name: path.stat().st_mtime_ns for path in (data / "results").iterdir()}
    (data / "results" / "sync.json").write_text("{")
    again = command(*base, *peer)
    assert again.code == 1
    lines = printed(again.out)
    assert {name for name, line in lines.items() if line == "already done"} == set(PARTS) - skipped - {"mjlab"}
    rewritten = {path.stem for path in (data / "results").iterdir() if path.stat().st_mtime_ns != stamps[path.name]}
    assert rewritten == {*skipped, "mjlab"}
    assert read(data)["sync"]["status"] == "skipped"

    # Without mjlab, its part is skipped, and no part fails.
    last = command(*base, "--parts", "mjlab")
    assert last.code == 0, last.out + last.err
    assert read(data)["mjlab"]["status"] == "skipped"


def assert_figures(data: dict[str, Any]) -> None:
    """Assert that all figures of a dry run exist and are positive."""
    assert data["machine"]["versions"]["torch"]
    assert {test["outcome"] for test in data["tests"]["tests"]} == {"skipped"}
    assert all("needs" in test["reason"] for test in data["tests"]["tests"])
    assert data["cold-start"]["cartpole-balance"]["warm"]["first_iteration_s"] > 0
    (sizes,) = data["speed-quadruped-flat"]["sizes"].values()
    trainings = [
        data["capture"]["cartpole-balance"]["off"],
        sizes,
        data["two-ranks"],
        data["nccl-scaling"]["1"],
        data["nccl-scaling"]["2"],
    ]
    for figures in trainings:
        for name in ("steps_per_s", "wall_steps_per_s", "collect_s", "learn_s"):
            assert figures[name] > 0
    assert data["nccl-scaling"]["2"]["num_envs"] == 2 * data["nccl-scaling"]["1"]["num_envs"]
    assert 0 < sizes["physics_s"] < sizes["env_step_eager_s"]
    assert sum(sizes["shares"].values()) == pytest.approx(1)
    assert data["nccl-faults"]["raise"] | {"seconds": 0} == {
        "code": 1,
        "expected_code": 1,
        "names_rank": True,
        "left": [],
        "seconds": 0,
        "as_expected": True,
    }
    assert data["train-quadruped"]["total_steps"] == 2 * 2 * 24
    assert data["train-quadruped"]["walk"]["robots"] == 2


@pytest.mark.slow
def test_mistakes_are_refused_in_one_line(command: Callable[..., Any], tmp_path: Path) -> None:
    script = str(SCRIPTS / "gpu_report.py")
    unknown = command(sys.executable, script, "--dry-run", "--data", str(tmp_path), "--parts", "physics")
    assert unknown.code == 2
    assert unknown.err.startswith("--parts physics: there is no such part; choose from machine, tests, ")
    without_peer = command(sys.executable, script, "--dry-run", "--peer-python", "/nowhere/python")
    assert without_peer.code == 2
    assert "--peer-python /nowhere/python: this file does not exist" in without_peer.err
    places = ("--data", str(tmp_path), "--output", str(tmp_path / "docs"))
    without_gpu = command(sys.executable, script, *places, env={"CUDA_VISIBLE_DEVICES": ""})
    assert without_gpu.code == 2
    assert without_gpu.err.endswith("No GPU can be used: see `mjlab-dist doctor`, or use --dry-run\n")
    assert not (tmp_path / "docs").exists()


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_command_past_its_limit_is_killed_with_all_its_processes(load: Callable[[str], Any], tmp_path: Path) -> None:
    commands = load("gpu_commands").Commands(logs=tmp_path, on_cpu=True)
    ended = commands.run(["sh", "-c", "setsid sleep 600 & echo $! $$; exec sleep 600"], limit_s=1, name="hang")
    assert ended.timed_out
    assert not any(is_running(int(pid)) for pid in ended.tail.split())
    with pytest.raises(RuntimeError, match="ran past its time limit"):
        ended.check("it")


def test_leftover_processes_of_a_command_are_named_and_killed(load: Callable[[str], Any], tmp_path: Path) -> None:
    commands = load("gpu_commands").Commands(logs=tmp_path, on_cpu=True)
    program = (
        "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True, stdout=-3, stderr=-3).pid)"
    )
    ended = commands.run([sys.executable, "-c", program], limit_s=60, name="leave")
    commands.deadline = 0.0
    with pytest.raises(RuntimeError, match="no time is left for this part of the report"):
        commands.run(["true"], limit_s=60, name="late")
    assert ended.code == 0
    assert ended.left == ["sleep"]
    assert not is_running(int(ended.tail))
    assert (tmp_path / "leave-1.txt").read_text().strip() == ended.tail


@pytest.mark.slow
def test_a_control_step_is_measured_from_graphs(load: Callable[[str], Any]) -> None:
    measure = load("gpu_measure").measure_step
    with fake_graphs():
        replayed = measure("cartpole-balance", 4, "cpu", 3, records=True)
    assert replayed["recorded"]
    assert replayed["physics_recorded"]
    assert min(replayed[name] for name in ("physics_s", "env_step_s", "env_step_eager_s")) > 0


def speed(task: str, steps_per_s: float) -> dict[str, Any]:
    """Return made-up figures of a part that measures speed. Physics takes half of the collection time."""
    figures: dict[str, Any] = {"steps_per_s": steps_per_s, "min_steps_per_s": 1.0, "max_steps_per_s": 2.0}
    figures |= {"wall_steps_per_s": 1.0, "collect_s": 0.2, "learn_s": 0.1, "wait_s": 0.0, "steps_per_env": 10}
    figures |= {"physics_s": 0.01, "env_step_s": 0.015, "recorded": True, "memory_gb": 3.0, "overflowed_envs": 0}
    return {"task": task, "sizes": {"4096": {**figures, "capture": "step", "warnings": []}, "16384": {"error": "no"}}}


def test_the_page_compares_with_the_goals_and_omits_host_names(load: Callable[[str], Any], tmp_path: Path) -> None:
    page, parts = load("gpu_page"), load("gpu_parts")
    gpu = {"name": "NVIDIA H200", "memory_gb": 141.0, "capability": "9.0", "multiprocessors": 132}
    machine = {"gpus": [gpu], "cpu": "a CPU", "cpu_cores": 16, "memory_gb": 128.0, "system": "Linux", "python": "3.11"}
    cartpole, quadruped = speed("cartpole-balance", 2e6), speed("quadruped-velocity-flat", 3e5)
    for data in (cartpole, quadruped):
        figures = data["sizes"]["4096"]
        figures["shares"] = parts.split_time(figures)
    done = {"status": "done", "reason": "", "seconds": 1.0, "started": "now", "commit": "abc"}
    failed = {**done, "status": "failed", "reason": f"{os.uname().nodename} {tmp_path}/data: out of memory"}
    results: dict[str, Any] = {part: {} for part in PARTS}
    results |= {
        "machine": {**done, "data": {**machine, "versions": {"torch": "2"}}},
        "speed-cartpole": {**failed, "data": cartpole},
        "speed-quadruped-flat": {**done, "data": quadruped},
        "capture": {**done, "data": {"cartpole-balance": {"off": 3}}},
    }
    text = page.write_page(tmp_path / "docs", results, tmp_path / "data", dry_run=False).read_text()
    assert "dry run on a CPU" not in text
    assert "The goals are for" not in text
    assert "4096 envs, env-steps/s | 1,500,000 | 2,000,000 | reached |" in text
    assert "4096 envs, env-steps/s | 400,000 | 300,000 | not reached |" in text
    assert "share of a rollout's time that physics takes | 80.0% | 50.0% | not reached |" in text
    assert "| cartpole-balance | 4096 | 33.3% | 16.7% | 16.7% | 33.3% | 0.0% | 50.0% |" in text
    assert "`mjlab` has not been run." in text
    assert str(tmp_path) not in text
    assert "HOST DATA: out of memory" in text or len(os.uname().nodename) <= 3
    assert text.count("This section could not be written") == 1, "only the section whose data is damaged"
    load("gpu_plots").draw(tmp_path / "docs", results)
    assert (tmp_path / "docs" / "pictures" / "gpu-shares.png").stat().st_size > 0
