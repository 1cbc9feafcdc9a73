"""The installed train command on two CPU ranks: files, logs, failures, signals, other launchers."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable

import imageio.v3 as iio
import pytest
import torch
from conftest import Command, Done
from fault_injection import faults
from run_files import only_run

from mjlab_dist.errors import Exit
from mjlab_dist.runs.run_dir import (
    RANK_METRICS_FILE,
    find_checkpoint,
    follow_link,
    list_checkpoints,
    read_config_file,
    read_metrics,
)

SMALL = ("--num-envs", "32", "--agent.num-steps-per-env", "8", "--env.episode-length-s", "0.1")
TWO = ("--gpu-ids", "None", "--cpu-ranks", "2")


@pytest.mark.slow
def test_metrics_of_ranks_add_up_to_those_of_the_run(command: Command) -> None:
    done = command("train", "cartpole-balance", *TWO, *SMALL, "--max-iterations", "3", "--log-ranks")
    assert done.code == 0, done.err
    run = only_run(command.cwd)
    rows, of_ranks = read_metrics(run), read_metrics(run, RANK_METRICS_FILE)
    assert [(one["iteration"], one["rank"]) for one in of_ranks] == [(i, rank) for i in (1, 2, 3) for rank in (0, 1)]
    for row in rows:
        own = [one for one in of_ranks if one["iteration"] == row["iteration"]]
        assert sum(one["episodes"] for one in own) == row["episodes"]
        assert sum(one["wait_s"] for one in own) / 2 == pytest.approx(row["wait_s"])
        assert max(one["collect_s"] for one in own) == row["collect_s"]
        assert all(one["steps_per_s"] == pytest.approx(32 * 8 / (one["collect_s"] + one["learn_s"])) for one in own)
        assert all(100 < one["memory_mb"] < 5000 for one in own)
    ended = [one for one in of_ranks if one["episodes"]]
    assert ended
    assert all(0 < one["mean_return"] <= 10 for one in ended), "an episode has 10 steps, with rewards of at most 1"
    total = sum(one["episodes"] * one["mean_return"] for one in ended) / sum(one["episodes"] for one in ended)
    if sum(one["episodes"] for one in ended if one["iteration"] < 3) < 100:
        assert total == pytest.approx(rows[-1]["mean_return"])
    compare = ("mjlab-dist", "compare", str(run), "--ranks")
    done = command(*compare, "--metric", "wait_s", "--json", "--output", "ranks.png")
    assert done.code == 0, done.err
    assert iio.imread(command.cwd / "ranks.png").ndim == 3
    compared = json.loads(done.out)["groups"]
    assert [group["name"].rpartition(", ")[2] for group in compared] == ["rank 0", "rank 1"]
    last = [row["wait_s"] for row in of_ranks if row["iteration"] == rows[-1]["iteration"]]
    assert [group["mean"] for group in compared] == last
    assert all(group["steps"] == rows[-1]["total_steps"] for group in compared)
    wrong = command(*compare, "--metric", "value_loss")
    assert wrong.code == 2
    assert "--metric value_loss" in wrong.err


@pytest.mark.slow
def test_only_ranks_in_processes_of_their_own_need_loopback(command: Command) -> None:
    def without_loopback(*args: str) -> Done:
        return command("/usr/bin/unshare", "-rn", command.program(args[0]), *args[1:])

    if without_loopback("/usr/bin/true").code != 0:
        pytest.skip("unshare is not allowed here")
    train = ("train", "cartpole-balance", "--gpu-ids", "None", *SMALL, "--max-iterations", "1")
    done = without_loopback(*train)
    assert done.code == 0, done.err
    run = only_run(command.cwd)
    for ranks in (("--cpu-ranks", "2"), ("--max-restarts", "1")):
        done = without_loopback(*train, *ranks)
        assert done.code == Exit.PREFLIGHT
        assert done.err.startswith("train: no connection to 127.0.0.1: ")
    done = without_loopback("mjlab-dist", "evaluate", "cartpole-balance", "--run", str(run), "--cpu-ranks", "2")
    assert done.code == Exit.PREFLIGHT, done.err
    assert only_run(command.cwd) == run, "nothing is left of what was refused"


@pytest.mark.slow
def test_two_ranks_train_and_leave_a_complete_run(command: Command) -> None:
    done = command(
        "train",
        "cartpole-balance",
        *TWO,
        *SMALL,
        "--max-iterations",
        "5",
        "--checkpoint.interval",
        "2",
        "--run-name",
        "two",
    )
    assert done.code == 0, done.err
    run = only_run(command.cwd)

    # Without a terminal, the output is plain lines. The last lines name the run directory and the commands that play
    # the run.
    lines = done.out.splitlines()
    assert lines[0].startswith("Training cartpole-balance with 2 ranks on ")
    assert any(" 5/5 " in line for line in lines)
    assert lines[1] == f"Watch: uv run mjlab-dist watch logs/cartpole-balance/{run.name}"
    play = f"uv run play cartpole-balance --run logs/cartpole-balance/{run.name}"
    assert lines[-3:] == [
        f"Run:   logs/cartpole-balance/{run.name}",
        f"Play:  {play} --viewer web",
        f"Video: {play} --video cartpole-balance.mp4",
    ]
    assert "\x1b" not in done.out
    assert done.err == ""

    # Files of the run directory
    assert run.name.endswith("_two")
    names = {p.name for p in run.iterdir()}
    assert {"config.yaml", "provenance.json", "metrics.jsonl", "checkpoints", "torchrunx"} <= names
    assert sum(name.startswith("events.out.tfevents") for name in names) == 1
    assert set(list_checkpoints(run)) == {2, 4, 5}
    assert follow_link(run / "checkpoints" / "latest.pt").name == "model_5.pt"
    rows = read_metrics(run)
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4, 5]
    assert rows[-1]["total_steps"] == 2 * 32 * 8 * 5
    assert rows[-1]["reward/smooth"] == pytest.approx(rows[-1]["mean_return"])
    provenance = json.loads((run / "provenance.json").read_text())
    assert provenance["devices"] == ["cpu", "cpu"]
    assert provenance["host"] == socket.gethostname()
    assert provenance["command"][1:3] == ["cartpole-balance", "--gpu-ids"]
    assert provenance["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert {p.name for p in (run / "torchrunx").rglob("*.log")} == {"localhost[0].log", "localhost[1].log"}

    # The log of rank 1 contains no events of iterations, because only rank 0 sends these.
    (log_of_1,) = (run / "torchrunx").rglob("localhost[[]1].log")
    assert "iteration" not in log_of_1.read_text()

    # The run can be played by its name and as `latest`, and a new run can use its config
    played = command("play", "cartpole-balance", "--run", "latest", "--num-envs", "2")
    assert played.code == 0, played.err
    assert played.out.splitlines()[0].endswith(f" logs/cartpole-balance/{run.name}/checkpoints/model_5.pt")
    assert re.search("^2 episodes", played.out, re.MULTILINE)
    again = command("train", "--config", str(run / "config.yaml"), "--max-iterations", "1", "--log-root", "again")
    assert again.code == 0, again.err
    (second,) = (command.cwd / "again" / "cartpole-balance").iterdir()
    first_config, second_config = read_config_file(run), read_config_file(second)
    assert second_config.cpu_ranks == 2
    assert second_config.env == first_config.env
    assert second_config.agent == first_config.agent
    assert read_metrics(second)[0]["mean_step_reward"] == rows[0]["mean_step_reward"], "same seed, same run"


@pytest.mark.slow
@pytest.mark.long
def test_the_log_directory_is_that_of_the_variable_else_of_the_flag(command: Command) -> None:
    base = ("train", "cartpole-balance", *TWO, *SMALL, "--max-iterations", "1")
    done = command(*base, "--torchrunx-log-dir", "", env={"TORCHRUNX_LOG_DIR": "elsewhere"})
    assert done.code == 0, done.err
    assert {p.name for p in (command.cwd / "elsewhere").rglob("*.log")} >= {"localhost[0].log", "localhost[1].log"}
    assert not (only_run(command.cwd) / "torchrunx").exists()

    off = command(*base, "--torchrunx-log-dir", "", "--log-root", "off")
    assert off.code == 0, off.err
    assert not list((command.cwd / "off").rglob("*.log"))


@pytest.mark.slow
def test_a_mistake_found_by_a_rank_is_one_line_and_leaves_no_run(command: Command) -> None:
    done = command("train", "cartpole-balance", *TWO, "--env.actions.force.actuators", "thruster")
    assert done.code == 2
    assert re.fullmatch("train: --env.actions.force.actuators thruster: .* force\\n", done.err)
    assert not list((command.cwd / "logs" / "cartpole-balance").iterdir())


@pytest.mark.slow
def test_ctrl_c_stops_one_rank_cleanly(
    command: Command,
    wait_for: Callable[[Callable[[], bool]], None],
    assert_within: Callable[[float, float], None],
) -> None:
    process = command.start("train", "cartpole-balance", "--gpu-ids", "None", *SMALL, "--max-iterations", "100000")
    wait_for(lambda: any(p.stat().st_size > 1000 for p in (command.cwd / "logs").rglob("metrics.jsonl")))
    process.send_signal(signal.SIGINT)
    stopped = command.finish(process)
    assert stopped.code == Exit.RESUMABLE, stopped.out + stopped.err
    assert_within(stopped.took_s, 20)
    run = only_run(command.cwd)
    done = read_metrics(run)[-1]["iteration"]
    assert f" {done} of 100000 " in stopped.out
    assert find_checkpoint(run).name == f"model_{done}.pt"
    assert stopped.err == ""


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_before_training_ends_the_run_at_once(
    command: Command, assert_within: Callable[[float, float], None], signum: int, code: int
) -> None:
    # The signals must have an effect even if the program that starts the command has blocked them
    block = functools.partial(signal.pthread_sigmask, signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    process = command.start("train", "cartpole-balance", *TWO, *SMALL, preexec_fn=block)
    assert process.stdout is not None
    process.stdout.readline()  # after this line, ranks are started
    process.send_signal(signum)
    done = command.finish(process)
    assert done.code == code
    assert_within(done.took_s, 10)
    assert ("Ctrl-C" if signum == signal.SIGINT else "SIGTERM") in done.out
    assert not re.search(r"\d of \d", done.out), "it has not trained"


@pytest.mark.slow
def test_torchrun_starts_the_ranks(command: Command) -> None:
    train = command.program("train")
    done = command(
        "torchrun", "--nproc-per-node", "2", "--no-python", train, "cartpole-balance", "--gpu-ids", "None", *SMALL,
        "--max-iterations", "2",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert read_metrics(only_run(command.cwd))[-1]["total_steps"] == 2 * 32 * 8 * 2
    assert done.out.count("\nRun: ") == 1, "ranks other than 0 are silent"


OWN_REWARD = """
import atexit, os, threading

@atexit.register
def at_exit():
    {at_exit}

def reward(env):
    return env.sim.qpos[:, 0]
"""


def train_with_own_exit(command: Command, at_exit: str, *flags: str) -> Done:
    """Train with torchrun. Each rank registers a function that runs if the rank's interpreter shuts down."""
    (command.cwd / "own.py").write_text(OWN_REWARD.format(at_exit=at_exit))
    return command(
        "torchrun", "--nproc-per-node", "2", "--no-python", command.program("train"), "cartpole-balance", "--gpu-ids",
        "None", *SMALL, "--env.rewards.smooth.func", "own:reward", *flags,
        env={"PYTHONPATH": os.pathsep.join([str(command.cwd), os.environ.get("PYTHONPATH", "")])},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.long
def test_a_failing_rank_of_torchrun_skips_the_shutdown_of_the_interpreter(command: Command) -> None:
    """While the interpreter shuts down, NCCL would wait for other ranks. In this test, a handler waits instead."""
    fault = faults(command.cwd, "1:2:raise")
    done = train_with_own_exit(command, "threading.Event().wait()", "--max-iterations", "3", *fault)
    assert done.code == 1
    assert re.search(r"^RuntimeError: ", done.err, re.MULTILINE)  # traceback of rank 1


@pytest.mark.slow
def test_a_rank_of_torchrun_that_is_done_skips_the_shutdown_of_the_interpreter(command: Command) -> None:
    """While the interpreter shuts down, a thread of torch.distributed may abort it. In this test, a handler aborts."""
    done = train_with_own_exit(command, "os.abort()", "--max-iterations", "2")
    assert done.code == 0, done.err
    assert read_metrics(only_run(command.cwd))[-1]["total_steps"] == 2 * 32 * 8 * 2


@pytest.mark.slow
def test_slurm_starts_the_ranks(command: Command) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "127.0.0.[1-2]", "SLURM_JOB_ID": str(port - 20000),
        "MASTER_PORT": str(port),
    }  # fmt: skip
    processes: list[subprocess.Popen[str]] = [
        command.start(
            "train", "cartpole-balance", "--gpu-ids", "None", *SMALL, "--max-iterations", "2",
            env={**common, "SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)},
        )
        for i in range(2)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert "uv run play " in outputs[0][0]
    assert outputs[1][0] == ""
    assert read_metrics(only_run(command.cwd))[-1]["total_steps"] == 2 * 32 * 8 * 2
