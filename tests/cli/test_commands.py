"""The installed commands: list of tasks, help, mistakes and exit codes. Before a run starts, torch is not imported."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from conftest import Command

from mjlab_dist.errors import Exit
from mjlab_dist.runs.run_dir import CHECKPOINTS_DIR, CONFIG_FILE, checkpoint_path

TASKS = {
    "cartpole-balance": "Keep a pole upright on a cart that moves along a rail.",
    "cartpole-swingup": "Swing a hanging pole up and keep it upright on a cart that moves along a rail.",
}


@pytest.mark.parametrize(
    "argv", [("list-tasks",), ("mjlab-dist", "list-tasks"), (sys.executable, "-m", "mjlab_dist", "list-tasks")]
)
def test_list_tasks(command: Command, argv: tuple[str, ...]) -> None:
    done = command(*argv)
    assert done.code == 0
    listed = dict(line.split("  ", 1) for line in done.out.splitlines())
    assert {name: line.strip() for name, line in listed.items()}.items() >= TASKS.items()


def test_train_help_names_the_tasks(command: Command) -> None:
    done = command("train", "--help")
    assert done.code == 0
    assert "usage: train TASK " in done.out
    assert all(task in done.out for task in TASKS)
    assert "--num-envs INT" in done.out
    assert "--help-all" in done.out
    assert "--env.rewards" not in done.out


@pytest.mark.parametrize("argv", [("train",), ("mjlab-dist", "train")])
def test_task_help_shows_every_flag_with_its_meaning(command: Command, argv: tuple[str, ...]) -> None:
    done = command(*argv, "cartpole-balance", "--help-all")
    assert done.code == 0
    text = " ".join(done.out.split())
    for flag in ("--num-envs", "--gpu-ids", "--cpu-ranks", "--torchrunx-log-dir", "--agent.learning-rate"):
        assert flag in text
    assert "--env.rewards.smooth.weight FLOAT" in text
    assert "Weight of the entropy bonus." in text


def test_task_help_shows_the_everyday_flags_with_the_defaults_of_the_task(command: Command) -> None:
    done = command.here("train", "cartpole-balance", "-h")
    assert done.code == 0
    assert re.search(r"--max-iterations INT .*\(default: 150\)", done.out)
    assert 20 <= len(re.findall(r"(?m)^\W* --", done.out)) <= 30
    assert command.here("train", "--help", "cartpole-balance").out == done.out


def test_help_of_a_group(command: Command) -> None:
    done = command.here("train", "cartpole-balance", "--help", "env.rewards")
    assert done.code == 0
    assert "--env.rewards.smooth.weight FLOAT" in done.out
    assert "--num-envs" not in done.out
    assert "--agent.learning-rate FLOAT" in command.here("train", "--help", "agent").out
    for argv in (("cartpole-balance", "--help", "env.rewardz"), ("--help", "env.rewards"), ("--help-all",)):
        wrong = command.here("train", *argv)
        assert wrong.code == 2
        (line,) = wrong.err.splitlines()
        assert line.startswith(f"train: {' '.join(argv).removeprefix('cartpole-balance ')}: ")


def test_help_shows_the_values_of_a_config_file(command: Command) -> None:
    printed = command.here("train", "cartpole-balance", "--seed", "7", "--print-config").out
    (command.cwd / "config.yaml").write_text(printed)
    done = command.here("train", "--config", "config.yaml", "--help")
    assert done.code == 0
    assert re.search(r"--seed INT .*\(default: 7\)", done.out)


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("play", ["--video", "--nan-dump"]),
        ("verify", ["--scaling", "--until-return FLOAT", "--plot STR", "--max-iterations INT", "--cpu-ranks"]),
        ("demo", ["--video", "--port"]),
        ("doctor", ["--json", "--log-root"]),
        ("list-tasks", []),
        ("new-task", ["--mjcf", "--dir"]),
        ("size-buffers", ["--steps", "--run", "--num-envs"]),
    ],
)
def test_every_command_shows_its_flags_without_a_task(command: Command, name: str, flags: list[str]) -> None:
    done = command.here("mjlab-dist", name, "--help")
    assert done.code == 0
    assert f"usage: mjlab-dist {name}" in done.out
    assert all(flag in done.out for flag in flags)
    assert done.err == ""


@pytest.mark.slow
@pytest.mark.parametrize("task", ["cartpole-balance", "quadruped-velocity-rough"])
def test_a_printed_config_is_read_back(command: Command, task: str) -> None:
    flags = ["--num-envs", "64", "--agent.learning-rate", "2e-5", "--gpu-ids", "None", "--print-config"]
    first = command.here("train", task, *flags)
    assert first.code == 0, first.err
    assert "num_envs: 64" in first.out
    (command.cwd / "config.yaml").write_text(first.out)
    again = command.here("train", "--config", "config.yaml", "--print-config")
    assert again.code == 0, again.err
    assert again.out == first.out
    assert [path.name for path in command.cwd.iterdir()] == ["config.yaml"]


def test_umbrella_without_a_command_lists_the_commands(command: Command) -> None:
    done = command.here("mjlab-dist")
    assert done.code == 2
    assert "list-tasks" in done.out
    wrong = command.here("mjlab-dist", "trian")
    assert wrong.code == 2
    (line,) = wrong.err.splitlines()
    assert re.match(r"mjlab-dist: .*\btrian: .* train\?", line)
    assert command.here("mjlab-dist", "help").out == done.out
    assert command.here("mjlab-dist", "help", "demo").out == command.here("mjlab-dist", "demo", "--help").out
    assert command.here("mjlab-dist", "--version").out == f"mjlab-dist {metadata.version('mjlab-dist')}\n"


# Mistakes that a check of the config finds are in tests/unit/config/test_checks.py
TRAIN_MISTAKES = {
    "": ["train TASK", "cartpole-balance"],
    "cartpole-balanc": ["cartpole-balanc:", " cartpole-balance"],
    "cartpole-balance --num-envs 0": ["--num-envs 0:", " 1"],
    "cartpole-balance --num-envs 4 --total-num-envs=8": ["--num-envs 4", "--total-num-envs 8"],
    "cartpole-balance --gpu-ids None --total-timesteps 100": ["--total-timesteps 100", "1 x 1024 x 32 = 32768"],
    "cartpole-balance --gpu-ids None --cpu-ranks 4 --fsdp-devices 3": ["--fsdp-devices 3", " 4 ranks", " 1, 2 or 4"],
    "cartpole-balance --gpu-ids 99": ["--gpu-ids 99:", " GPU 99"],
    "cartpole-balance --gpu-ids -1": ["--gpu-ids -1:", " -1 "],
    "cartpole-balance --gpu-ids 0 0": ["--gpu-ids 0 0: "],
    "cartpole-balance --gpu-ids 0 --cpu-ranks 2": ["--cpu-ranks 2:", "--gpu-ids 0"],
    "cartpole-balance --gpu-ids None --cpu-ranks 0": ["--cpu-ranks 0:", " 1"],
    "cartpole-balance --gpu-ids None --num-envs 1e12": ["--num-envs 1000000000000:", " GB per rank", "--num-envs auto"],
    "cartpole-balance --gpu-ids None --num-envs 4 --agent.actor-hidden-dims 1e7 1e7": ["--num-envs 4:", "networks"],
    "cartpole-balance --config nowhere/config.yaml": ["--config nowhere/config.yaml", "No such file"],
    "cartpole-balance --init-from model.pt": ["--init-from model.pt:", "model_<iteration>.pt"],
    "cartpole-balance --resume latest": ["--resume latest:", " cartpole-balance ", " logs"],
    "cartpole-balance --resume nowhere": ["--resume nowhere:", "config.yaml"],
    "cartpole-balance --resume x --init-from y": ["--resume x:", "--init-from"],
    "cartpole-balance --resume auto": ["--resume auto:", "--run-name"],
    "--resume latest": ["--resume latest:"],
    "--resume x --config y": ["--resume x:", "--config y"],
    "--resume auto --run-name a": ["--resume auto:", "train TASK"],
    "cartpole-balance --hosts slurm": ["--hosts slurm:", "SLURM_JOB_NODELIST", "sbatch"],
}


@pytest.mark.parametrize("flags", TRAIN_MISTAKES)
def test_a_mistake_in_train_is_one_line_that_names_it(
    command: Command, flags: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"WANDB_API_KEY": "", "NETRC": "nowhere", "WANDB_MODE": "", "CUDA_VISIBLE_DEVICES": ""}.items():
        monkeypatch.setenv(name, value)
    done = command.here("train", *flags.split())
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert line.startswith("train: ")
    for part in TRAIN_MISTAKES[flags]:
        assert part in line
    assert not (command.cwd / "logs").exists()


def test_log_root_that_cannot_be_written_is_a_failed_preflight(command: Command) -> None:
    done = command.here("train", "cartpole-balance", "--gpu-ids", "None", "--log-root", "/proc/nothing")
    assert done.code == 3
    (line,) = done.err.splitlines()
    assert line.startswith("train: --log-root /proc/nothing: ")


@pytest.mark.slow
def test_mistakes_in_play(command: Command) -> None:
    none = command.here("play", "cartpole-balance")
    assert none.code == 2
    assert re.match(r"play: --run latest: .* cartpole-balance .* logs\b", none.err)

    run = command.cwd / "logs" / "cartpole-balance" / "2026-01-01_00-00-00"
    run.mkdir(parents=True)
    write_config(run, "cartpole-balance")
    empty = command.here("play", "cartpole-balance", "--run", str(run))
    assert empty.code == 2
    assert empty.err.startswith(f"play: --run {run}: ")

    other = command.here("play", "cartpole-swingup", "--run", str(run))
    assert other.code == 2
    assert re.match(f"play: --run {run}: .* cartpole-balance.* cartpole-swingup", other.err)

    video = command.here("play", "cartpole-balance", "--run", str(run), "--video", "nowhere/x.mp4")
    assert video.code == 2
    assert video.err.startswith("play: --video nowhere/x.mp4: ")


def write_config(run: Path, task: str) -> None:
    from mjlab_dist.config import registry
    from mjlab_dist.runs.provenance import write_origin

    write_origin(run, registry.task_config(task), ["test"], ["cpu"])


@pytest.mark.parametrize(
    "argv",
    [
        ["train", "--help"],
        ["train", "cartpole-balance", "--help"],
        ["train", "cartpole-balance", "--help-all"],
        ["train", "cartpole-balance", "--print-config"],
        ["train", "cartpole-balance", "--gpu-ids", "99"],
        ["list-tasks"],
        ["play", "cartpole-balance", "--run", "nowhere"],
    ],
)
def test_no_heavy_import_before_a_run_starts(tmp_path: Path, argv: list[str]) -> None:
    function = argv[0].replace("-", "_")
    code = f"""
import sys
from mjlab_dist.cli.main import {function}
sys.argv = {argv!r}
try:
    {function}()
except SystemExit:
    pass
heavy = {{"torch", "warp", "mujoco", "rsl_rl", "torchrunx", "wandb", "tensorboard"}} & sys.modules.keys()
sys.exit(f"imported {{heavy}}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_resuming_the_latest_run_reports_newer_runs_without_a_checkpoint(command: Command) -> None:
    root = command.cwd / "logs" / "cartpole-balance"
    for name in ("2026-01-01_00-00-00", "2026-01-02_00-00-00"):
        (root / name / CHECKPOINTS_DIR).mkdir(parents=True)
        (root / name / CONFIG_FILE).write_text(command.here("train", "cartpole-balance", "--print-config").out)
    checkpoint_path(root / "2026-01-01_00-00-00", 3).touch()
    done = command.here("train", "cartpole-balance", "--resume", "latest", "--log-root", "logs", "--print-config")
    assert done.code == Exit.DONE, done.err
    (line,) = done.err.splitlines()
    assert line.startswith("Warning: --resume latest: uses logs/cartpole-balance/2026-01-01_00-00-00;")
    assert "2026-01-02_00-00-00" in line


@pytest.mark.slow
def test_training_and_evaluation_import_neither_the_compiler_of_torch_nor_wandb(tmp_path: Path) -> None:
    small = ["--num-envs", "8"]
    evaluate = ["mjlab-dist", "evaluate", "quadruped-velocity-flat", "--run", "pretrained", *small, "--gpu-ids", "None"]
    commands = [
        ["train", "cartpole-balance", *small, "--max-iterations", "1"],
        [*evaluate, "--num-episodes", "1", "--env.episode-length-s", "0.1"],
    ]
    code = f"""
import os, sys
from mjlab_dist.cli.main import train, umbrella
for argv in {commands!r}:
    if os.fork() == 0:
        os.dup2(os.open(argv[0], os.O_CREAT | os.O_WRONLY), 2)
        sys.argv = argv
        train() if argv[0] == "train" else umbrella()
        unused = {{"torch._dynamo", "torch._inductor", "sympy", "wandb"}} & sys.modules.keys()
        sys.exit(f"imported {{unused}}" if unused else 0)
    if os.wait()[1]:
        sys.exit(f"failed: {{argv}}")
"""
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=hidden, capture_output=True, text=True, check=False
    )
    errors = {file.name: file.read_text() for file in tmp_path.iterdir() if file.is_file()}
    assert done.returncode == 0, (done.stderr, errors)
    assert errors["train"] == "", "the user has hidden the GPUs and needs no warning"


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "1000 None"), ({"GOMP_SPINCOUNT": "5"}, "5 None"), ({"OMP_WAIT_POLICY": "active"}, "None active")],
)
def test_waiting_openmp_threads_do_not_spin(tmp_path: Path, given: dict[str, str], expected: str) -> None:
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    code = f"""
import os, sys
from mjlab_dist.cli.main import list_tasks
sys.argv = ["list-tasks"]
list_tasks()
print(*(os.environ.get(name) for name in {names!r}))
"""
    env = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**env, **given}, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == expected
