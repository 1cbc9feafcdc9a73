"""The installed train command with --logger wandb: wandb cannot make the command fail or hang, or reveal a secret."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Command
from processes import command_line
from run_files import only_run
from wandb_files import logged_steps, records_of

from mjlab_dist.errors import Exit
from mjlab_dist.runs.run_dir import CONFIG_FILE, PROVENANCE_FILE, WANDB_FILE, list_checkpoints, read_metrics

KEY = "0123456789abcdef" * 2 + "01234567"

SMALL = (
    "train", "cartpole-balance", "--gpu-ids", "None", "--num-envs", "8", "--agent.num-steps-per-env", "2",
    "--agent.num-learning-epochs", "1", "--agent.num-mini-batches", "1",
    "--env.episode-length-s", "0.1", "--logger", "wandb", "--wandb-project", "proj",
)  # fmt: skip

WaitFor = Callable[[Callable[[], bool]], None]


@pytest.fixture(autouse=True)
def account(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set an API key that no server checks, because Weights & Biases is offline or not installed."""
    for name in ("WANDB_BASE_URL", "WANDB_SERVICE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("NETRC", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR"):
        monkeypatch.setenv(name, str(command.cwd / name.lower()))
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_MODE", "offline")


SLOW = (*SMALL, "--logger", "wandb", "slow_logger:Slow")


def wandb_files(root: Path) -> set[Path]:
    return set(root.glob("logs/*/*/wandb/*run-*/*.wandb"))


def has_wandb_rows(root: Path) -> bool:
    return any(logged_steps(file) for file in wandb_files(root))


@pytest.mark.slow
def test_row_21_the_key_is_in_no_command_line_and_no_file(
    command: Command, slow_training: Path, wait_for: WaitFor
) -> None:
    slow_training.write_text("0.05")  # so that the processes are seen
    process = command.start(*SLOW, "--cpu-ranks", "2", "--max-iterations", "60")
    words: set[str] = set()

    def has_ended() -> bool:
        for other in command.processes():
            words.update(command_line(other))
        return process.poll() is not None

    wait_for(has_ended)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert any(word.endswith("wandb-core") for word in words)
    assert not [word for word in words if KEY in word]
    assert KEY not in out + err

    assert has_wandb_rows(command.cwd)
    files = [path for path in command.cwd.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {CONFIG_FILE, PROVENANCE_FILE, WANDB_FILE, "localhost[0].log", "debug.log", "debug-internal.log"} <= names
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


SCRIPT = """
import mjlab_dist

small = {"num_envs": 8, "agent.num_steps_per_env": 2, "agent.num_learning_epochs": 1, "agent.num_mini_batches": 1}
mjlab_dist.train("cartpole-balance", gpu_ids=None, max_iterations=3, logger=("wandb",), wandb_project="proj", **small)
"""


@pytest.mark.slow
def test_passwords_of_a_script_are_in_no_file_and_files_follow_the_umask(command: Command) -> None:
    secrets = ("--db.password", KEY, f"--api-key={KEY}", "--from", f"postgres://me:{KEY}@host/x")
    done = command.finish(command.start(command.script(SCRIPT), *secrets, umask=0o027))
    assert done.code == 0, done.err
    assert has_wandb_rows(command.cwd)
    run = only_run(command.cwd)
    files = [path for path in run.rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    own = [run, *(path for path in run.rglob("*") if "wandb" not in path.parts and not path.is_symlink())]
    assert len(own) > 5
    assert {(path.is_dir(), path.stat().st_mode & 0o777) for path in own} == {(True, 0o750), (False, 0o640)}


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["no network", "killed", "stopped"])
def test_row_20_training_continues_without_wandb(
    command: Command, wait_for: WaitFor, monkeypatch: pytest.MonkeyPatch, slow_training: Path, fault: str
) -> None:
    if fault == "no network":
        monkeypatch.delenv("WANDB_MODE")
        monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    process = command.start(*SLOW, "--max-iterations", "1000000")
    wait_for(lambda: has_wandb_rows(command.cwd))
    run = only_run(command.cwd)

    # Training continues, even if a stopped wandb gets more rows than its socket's buffer can hold
    if fault != "no network":
        for service in command.processes():
            if "wandb-core" in " ".join(command_line(service)):
                service.send_signal(signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
    slow_training.unlink()
    num_rows = len(read_metrics(run)) + (400 if fault == "stopped" else 20)
    wait_for(lambda: len(read_metrics(run)) >= num_rows)
    process.send_signal(signal.SIGTERM)
    done = command.finish(process)
    assert done.code == Exit.RESUMABLE, done.err
    assert set(command.leftovers()) <= ({"wandb-symon"} if fault == "killed" else set())
    wait_for(lambda: not command.leftovers())  # wandb-symon ends some seconds after a killed wandb-core

    steps = [row["iteration"] for row in read_metrics(run)]
    assert steps == list(range(1, len(steps) + 1))
    # Without the warning of the check before the run
    (warning,) = (line for line in done.warnings if "--logger wandb: " not in line)
    expected = {"no network": "wandb sync", "killed": "failed in log()", "stopped": "failed in close()"}
    assert expected[fault] in warning
    assert done.err == ""
    if fault == "no network":
        (file,) = run.glob("wandb/offline-run-*/*.wandb")
        assert logged_steps(file) == steps


@pytest.mark.slow
@pytest.mark.long
def test_a_killed_run_leaves_no_process_and_resumes_its_wandb_run(
    command: Command, slow_training: Path, wait_for: WaitFor
) -> None:
    process = command.start(*SLOW, "--max-iterations", "100000", "--checkpoint.interval", "5")
    wait_for(lambda: has_wandb_rows(command.cwd) and any(command.cwd.rglob("model_*.pt")))
    process.kill()
    process.wait()
    wait_for(lambda: not command.leftovers())

    run = only_run(command.cwd)
    told = json.loads((run / WANDB_FILE).read_text())
    saved = max(list_checkpoints(run))
    first = wandb_files(command.cwd)
    last = saved + 5
    process = command.start(*SLOW, "--resume", f"anyone/proj/{told['id']}", "--max-iterations", str(last))
    slow_training.unlink()
    done = command.finish(process)
    assert done.code == 0, done.err
    assert only_run(command.cwd) == run
    assert json.loads((run / WANDB_FILE).read_text()) == told
    assert [row["iteration"] for row in read_metrics(run)] == list(range(1, last + 1))
    (second,) = wandb_files(command.cwd) - first
    assert second.parent.name.endswith(told["id"])
    assert logged_steps(second) == list(range(saved + 1, last + 1))


@pytest.mark.slow
def test_a_sweep_chooses_the_run_and_checkpoints_are_artifacts_of_it(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Start the run as `wandb agent` does
    params = command.cwd / "params.yaml"
    params.write_text("wandb_version: 1\nagent.learning_rate:\n  value: 0.0005\n")
    sweep = {"SWEEP_ID": "sweep", "RUN_ID": "chosen", "PROJECT": "swept", "SWEEP_PARAM_PATH": str(params)}
    flags = (*SMALL, "--checkpoint.wandb", "--checkpoint.interval", "10", "--checkpoint.keep-last", "1")
    with monkeypatch.context() as patch:
        for name, value in sweep.items():
            patch.setenv(f"WANDB_{name}", value)
        done = command(*flags, "--agent.learning_rate=0.0005", "--max-iterations", "30")
    assert done.code == 0, done.err
    run = only_run(command.cwd)
    assert json.loads((run / WANDB_FILE).read_text()) == {"entity": None, "project": "swept", "id": "chosen"}
    (file,) = run.glob("wandb/offline-run-*/*.wandb")
    first = records_of(file, "run")[0]
    assert (first.run_id, first.sweep_id) == ("chosen", "sweep")
    versions = records_of(file, "artifact")
    assert {(version.name, version.type) for version in versions} == {("checkpoint-chosen", "model")}
    assert [version.manifest.contents[0].path for version in versions] == [f"model_{n}.pt" for n in (10, 20, 30)]
    assert all({"latest", f"iteration-{10 * (i + 1)}"} <= set(one.aliases) for i, one in enumerate(versions))
    assert "best" in versions[0].aliases
    newest = list_checkpoints(run)[30]
    assert newest.stat().st_size == versions[-1].manifest.contents[0].size
    assert not list(run.glob("wandb/.model_*"))
