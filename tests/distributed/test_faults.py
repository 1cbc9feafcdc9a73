"""Faults on two CPU ranks, injected or caused by signals: messages, durations, and remaining processes and files.

``test_row_N`` checks row N of the table of faults in docs/safety.md. Time limits are for two cores.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from conftest import Command, Done
from fault_injection import faults
from processes import AGENT_MODULE, send_all, with_argument
from run_files import SMALL, assert_equal, final, only_run, untimed

from mjlab_dist.errors import Exit
from mjlab_dist.runs.lease import LEASE_FILE, leased
from mjlab_dist.runs.provenance import PROVENANCE_FILE
from mjlab_dist.runs.run_dir import (
    ERRORS_DIR,
    METRICS_FILE,
    RANKS_FILE,
    checkpoint_path,
    find_checkpoint,
    list_checkpoints,
    read_metrics,
)

TWO = ("--gpu-ids", "None", "--cpu-ranks", "2")
# MuJoCo's C code; test_synchronizers.py resumes a run of MuJoCo Warp
TRAIN = ("train", "cartpole-balance", "--env.sim.engine", "mujoco", *TWO, *SMALL)
LONG = ("--max-iterations", "100000", "--logger", "slow_logger:Slow")

Within = Callable[[float, float], None]
WaitFor = Callable[[Callable[[], bool]], None]
Training = Callable[..., subprocess.Popen[str]]


def since_last_row(run: Path) -> float:
    """Return the seconds since the last row of metrics was written."""
    return time.time() - (run / METRICS_FILE).stat().st_mtime


@pytest.fixture
def training(command: Command, slow_training: Path, wait_for: WaitFor) -> Training:  # noqa: ARG001
    """Start a long run, and wait until it has trained some iterations."""

    def start(*flags: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        process = command.start(*TRAIN, *LONG, *flags, env=env)
        logs = command.cwd / "logs"
        wait_for(lambda: any(p.stat().st_size > 3000 for p in logs.rglob(METRICS_FILE)))
        return process

    return start


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of eight iterations in which nothing goes wrong."""
    command = Command(f"{os.getpid()}-unharmed", tmp_path_factory.mktemp("unharmed"))
    done = command(*TRAIN, "--max-iterations", "8", "--checkpoint.interval", "2")
    assert done.code == Exit.DONE, done.err
    return only_run(command.cwd)


@pytest.mark.slow
def test_row_1_the_rank_that_raised_is_shown_first(command: Command, assert_within: Within) -> None:
    done = command(*TRAIN, *faults(command.cwd, "1:3:raise"))
    run = only_run(command.cwd)
    took_s = since_last_row(run)
    assert done.code == Exit.FAILED
    assert done.err.startswith("Traceback (most recent call last):")
    shown = re.search(r"^train: rank 1 .*RuntimeError: .* (logs/\S+)$", done.err, re.MULTILINE)
    assert shown
    assert "RuntimeError: " in (command.cwd / shown[1]).read_text()
    assert json.loads((run / ERRORS_DIR / "rank1.json").read_text())["iteration"] == 2
    assert_within(took_s, 10)


@pytest.mark.slow
def test_rows_2_and_7_a_killed_run_resumes_with_identical_results(
    command: Command, unharmed: Path, wait_for: WaitFor
) -> None:
    temporary = command.cwd / "tmp"  # with this long path, ranks are spawned
    temporary.mkdir()
    flags = ("--max-iterations", "8", "--checkpoint.interval", "2", "--max-restarts", "2")
    fault = faults(command.cwd, "1:4:sigkill", "1:7:slow")
    process = command.start(*TRAIN, *flags, *fault, env={"TMPDIR": str(temporary)})
    wait_for(lambda: any(len(read_metrics(p.parent)) == 6 for p in (command.cwd / "logs").rglob(METRICS_FILE)))
    run = only_run(command.cwd)
    # Rank 1 is slow in iteration 7, so that the agent is killed during this iteration.
    wait_for(checkpoint_path(run, 6).is_file)
    with_argument(command.processes(), AGENT_MODULE)[0].kill()
    done = command.finish(process)
    assert done.code == Exit.DONE, done.out + done.err
    assert re.search(r"^Warning: .*\brank 1 .*\(1 of 2\)", done.out, re.MULTILINE)
    assert " iteration 2." in done.out
    assert "(2 of 2)" in done.out
    assert " iteration 6." in done.out
    assert_equal(final(run), final(unharmed))
    assert untimed(run) == untimed(unharmed)
    assert not list(temporary.iterdir())


@pytest.mark.slow
@pytest.mark.long
def test_row_3_a_repeated_fault_ends_the_run(command: Command) -> None:
    flags = ("--checkpoint.interval", "1", "--max-restarts", "5")
    done = command(*TRAIN, *flags, *faults(command.cwd, "1:3:exit", "1:3:exit", "1:3:exit"))
    assert done.code == Exit.INFRASTRUCTURE
    assert re.findall(r"Restarting.* \(\d of \d\)", done.out) == ["Restarting (1 of 5)", "Restarting in 1 s (2 of 5)"]
    assert find_checkpoint(only_run(command.cwd)).name == "model_2.pt"


@pytest.mark.slow
@pytest.mark.long
def test_row_3_a_loss_before_the_first_iteration_does_not_end_the_run(command: Command, unharmed: Path) -> None:
    flags = ("--max-iterations", "8", "--checkpoint.interval", "2", "--max-restarts", "5")
    done = command(*TRAIN, *flags, *faults(command.cwd, "1:1:sigkill", "0:4:exit", "0:3:raise"))
    assert done.code == Exit.DONE, done.err
    # There are two pauses: after the first attempt, and after the third, which starts at iteration 2 and fails at once.
    assert re.findall(r"Restarting( in \d s)?", done.out) == [" in 1 s", "", " in 2 s"]
    assert_equal(final(only_run(command.cwd)), final(unharmed))
    assert untimed(only_run(command.cwd)) == untimed(unharmed)


@pytest.mark.slow
def test_row_3_restarts_are_counted(command: Command) -> None:
    flags = ("--checkpoint.interval", "1", "--max-restarts", "1")
    done = command(*TRAIN, *flags, *faults(command.cwd, "1:3:raise", "0:5:raise", "1:7:raise"))
    assert done.code == Exit.FAILED
    assert re.search(r"^train: rank 0 .*RuntimeError: .* 1 restart", done.err, re.MULTILINE)


@pytest.mark.slow
def test_row_5_ctrl_c_stops_cleanly_and_the_run_resumes(
    command: Command, training: Training, short_tmp: Path, assert_within: Within
) -> None:
    process = training(env={"TMPDIR": str(short_tmp)})
    run = only_run(command.cwd)
    os.killpg(process.pid, signal.SIGINT)  # in a terminal, Ctrl-C reaches every process of the group
    stopped = command.finish(process)
    assert stopped.code == Exit.RESUMABLE, stopped.out + stopped.err
    assert stopped.err == ""
    done = read_metrics(run)[-1]["iteration"]
    assert f" {done} of 100000 " in stopped.out
    assert f"uv run train cartpole-balance --resume logs/cartpole-balance/{run.name}" in stopped.out
    assert find_checkpoint(run).name == f"model_{done}.pt"
    assert not command.leftovers()
    assert not list(short_tmp.iterdir())
    assert_within(stopped.took_s, 10)

    again = command("train", "cartpole-balance", "--resume", "latest", "--max-iterations", str(done + 2))
    assert again.code == Exit.DONE, again.err
    assert f" iteration {done}." in again.out
    assert [row["iteration"] for row in read_metrics(run)] == list(range(1, done + 3))
    assert len(json.loads((run / PROVENANCE_FILE).read_text())["resumed"]) == 1


@pytest.mark.slow
def test_row_4_a_scheduler_sends_sigterm_to_every_process(
    command: Command, training: Training, assert_within: Within
) -> None:
    process = training()
    send_all(command.processes(), signal.SIGTERM)
    stopped = command.finish(process)
    assert stopped.code == Exit.RESUMABLE, stopped.out + stopped.err
    assert stopped.err == ""
    run = only_run(command.cwd)
    assert find_checkpoint(run).name == f"model_{read_metrics(run)[-1]['iteration']}.pt"
    assert not command.leftovers()
    assert_within(stopped.took_s, 10)


@pytest.mark.slow
def test_row_5_a_second_ctrl_c_ends_at_once(
    command: Command, training: Training, short_tmp: Path, wait_for: WaitFor, assert_within: Within
) -> None:
    # A stopped rank never ends its iteration, so the second Ctrl-C arrives before the first one has stopped the run.
    process = training(*faults(command.cwd, "1:10:sigstop"), env={"TMPDIR": str(short_tmp)})
    wait_for(lambda: any(other.status() == psutil.STATUS_STOPPED for other in command.processes()))
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout is not None
    assert any(line.startswith("Ctrl-C: ") for line in process.stdout)
    os.killpg(process.pid, signal.SIGINT)
    done = command.finish(process)
    assert done.code == Exit.FORCED, done.out + done.err
    assert re.search(r"Ctrl-C .*\b\d+ of \d+ ", done.out)
    assert_within(done.took_s, 5)
    assert not list(short_tmp.iterdir())


@pytest.mark.slow
def test_row_6_nothing_outlives_the_launcher(
    command: Command, training: Training, short_tmp: Path, wait_for: WaitFor
) -> None:
    process = training("--max-restarts", "1", env={"TMPDIR": str(short_tmp)})
    wait_for(lambda: len(list(short_tmp.iterdir())) == 1)
    process.kill()
    process.communicate()
    wait_for(lambda: not command.leftovers() and not list(short_tmp.iterdir()))


def take_over(run: Path) -> None:
    """Replace the lease of a run, as a launch on another machine may do while this machine is suspended."""
    path = run / LEASE_FILE
    other = {**json.loads(path.read_text()), "token": "other", "host": "node7", "system": "another machine"}
    changed = path.with_suffix(".new")
    changed.write_text(json.dumps(other))
    changed.replace(path)


SAME = ("train", "cartpole-balance", *SMALL)  # with one engine, because some launches resume the run of another

LAUNCHERS = {
    "2 ranks": (*SAME, *TWO),
    "2 ranks, restarts": (*SAME, *TWO, "--max-restarts", "3"),
    "1 rank": (*SAME, "--gpu-ids", "None"),
    "torchrun": ("torchrun", "--nproc-per-node", "2", "--no-python"),
}


@pytest.mark.slow
@pytest.mark.usefixtures("slow_training")
@pytest.mark.parametrize(
    "launcher", ["2 ranks", "1 rank", "torchrun", pytest.param("2 ranks, restarts", marks=pytest.mark.long)]
)
def test_row_29_a_run_that_another_machine_has_taken_over_writes_no_more(
    command: Command, wait_for: WaitFor, launcher: str
) -> None:
    args = LAUNCHERS[launcher]
    if launcher == "torchrun":
        args = (*args, command.program("train"), "cartpole-balance", "--gpu-ids", "None", *SMALL)
    process = command.start(*args, *LONG)
    logs = command.cwd / "logs"
    wait_for(lambda: any(path.stat().st_size > 3000 for path in logs.rglob(METRICS_FILE)))
    run = only_run(command.cwd)
    take_over(run)
    rows = run / METRICS_FILE
    # The launch keeps metrics.jsonl open, so any rows that it still writes make this file longer.
    written = rows.stat().st_size
    done = command.finish(process)
    assert done.code == Exit.FAILED, done.out + done.err
    lines = [line for line in done.err.splitlines() if "node7" in line]
    assert lines
    assert lines[0].startswith("train: ")
    assert "(1 of 3)" not in done.out
    assert rows.stat().st_size - written < 2000, "at most the row that was being written"
    assert json.loads((run / LEASE_FILE).read_text())["token"] == "other"


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher", ["1 rank", *(pytest.param(each, marks=pytest.mark.long) for each in ("torchrun", "2 ranks"))]
)
def test_row_29_a_run_of_another_machine_is_not_resumed(command: Command, wait_for: WaitFor, launcher: str) -> None:
    args = LAUNCHERS[launcher]
    if launcher == "torchrun":
        args = (*args, command.program("train"), "cartpole-balance", "--gpu-ids", "None", *SMALL)
    one = command(*LAUNCHERS["1 rank"], "--max-iterations", "2")
    assert one.code == Exit.DONE, one.err
    run = only_run(command.cwd)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    with leased(run):
        take_over(run)
        process = command.start(*args, "--resume", str(run), "--max-iterations", "4")
        # Renew the lease until this launch ends, as the other machine does while it is alive.
        wait_for(lambda: (os.utime(run / LEASE_FILE), process.poll() is not None)[1])
        done = command.finish(process)
    assert done.code == (Exit.FAILED if launcher == "torchrun" else Exit.USAGE), done.out + done.err
    assert re.search(rf"^train: --resume \S*{run.name}: process \d+ on node7 ", done.err, re.MULTILINE)
    (run / LEASE_FILE).unlink()
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.slow
@pytest.mark.long
def test_row_29_a_killed_run_is_resumed_at_once(command: Command, training: Training, wait_for: WaitFor) -> None:
    process = training("--checkpoint.interval", "2")
    process.kill()
    process.communicate()
    run = only_run(command.cwd)
    assert (run / LEASE_FILE).is_file()
    # After the launcher was killed, ranks may train for a few seconds until the kernel has ended all of them.
    last = max(list_checkpoints(run)) + 40
    again = command("train", "--resume", str(run), "--max-iterations", str(last), "--checkpoint.interval", "100")
    assert again.code == Exit.DONE, again.err
    assert "waiting" not in again.out
    assert [row["iteration"] for row in read_metrics(run)] == list(range(1, last + 1))
    assert not (run / LEASE_FILE).exists()
    wait_for(lambda: not command.leftovers())


@pytest.mark.slow
@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param(TWO, id="2 ranks", marks=pytest.mark.long),
        pytest.param(("--gpu-ids", "None", "--cpu-ranks", "1"), id="1 rank"),
    ],
)
def test_row_35_a_run_with_damaged_files_is_resumed(command: Command, unharmed: Path, ranks: tuple[str, ...]) -> None:
    run = command.cwd / "logs" / "cartpole-balance" / unharmed.name
    shutil.copytree(unharmed, run, symlinks=True)
    for name in (PROVENANCE_FILE, RANKS_FILE):
        (run / name).write_bytes((run / name).read_bytes()[:60])
    rows = (run / METRICS_FILE).read_bytes().splitlines(keepends=True)
    (run / METRICS_FILE).write_bytes(b"".join(rows[:5]) + bytes(len(b"".join(rows[5:]))))
    content = torch.load(checkpoint_path(run, 8), weights_only=True)
    del content["optimizer_state_dict"]
    torch.save(content, checkpoint_path(run, 8))
    done = command("train", "--resume", str(run), *ranks, "--max-iterations", "9")
    assert done.code == Exit.DONE, done.err
    assert not done.err
    for name in (PROVENANCE_FILE, METRICS_FILE, "model_8.pt"):
        assert len([line for line in done.warnings if name in line]) == 1, done.out
    assert "Resuming from iteration 6" in done.out
    assert [row["iteration"] for row in read_metrics(run)] == [1, 2, 3, 4, 5, 7, 8, 9]
    assert {"provenance.json.unreadable", "model_8.pt.unreadable"} <= {path.name for path in run.rglob("*")}
    (run / METRICS_FILE).write_bytes((run / METRICS_FILE).read_bytes() + bytes(4096))
    played = command("play", "cartpole-balance", "--run", str(run), "--num-envs", "2")
    assert played.code == Exit.DONE, played.err
    compared = command("mjlab-dist", "compare", str(run), "--output", "curves.png")
    assert compared.code == Exit.DONE, compared.err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sigstop", pytest.param("skip_collective", marks=pytest.mark.long)])
def test_row_8_a_hang_is_detected_and_the_run_resumes(command: Command, unharmed: Path, kind: str) -> None:
    flags = ("--max-iterations", "8", "--checkpoint.interval", "2", "--max-restarts", "1", "--hang-timeout", "5")
    done = command(*TRAIN, *flags, *faults(command.cwd, f"1:4:{kind}"))
    assert done.code == Exit.DONE, done.err
    run = only_run(command.cwd)
    assert "(1 of 1)" in done.out
    if kind == "sigstop":
        assert re.search(r"^Warning: .*\brank 0 .*\b3 .*\brank 1 .*\b\d ", done.out, re.MULTILINE)
        assert re.search(r"^Rank 0, .*\b3 .*: HangError: ", done.out, re.MULTILINE)
        assert re.search(r"^Rank 1, .*SIGSTOP", done.out, re.MULTILINE)
        assert "in sum_over_ranks" in done.out, "the stack shows where rank 0 waits"
    assert_equal(final(run), final(unharmed))
    assert untimed(run) == untimed(unharmed)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, *(pytest.param(rank, marks=pytest.mark.long) for rank in (0, 2))])
def test_row_8_the_rank_that_skips_a_collective_is_named(command: Command, rank: int) -> None:
    three = ("--gpu-ids", "None", "--cpu-ranks", "3", "--hang-timeout", "60")
    fault = faults(command.cwd, f"{rank}:2:skip_collective")
    done = command("train", "cartpole-balance", *three, *SMALL, "--max-iterations", "4", *fault)
    assert done.code == Exit.FAILED, done.err
    (line,) = (line for line in done.err.splitlines() if line.startswith("train: "))
    assert line.startswith(f"train: rank {rank} "), done.err
    assert f"localhost[{rank}].log" in line


@pytest.mark.slow
def test_row_9_nan_on_one_rank_stops_all_and_can_be_replayed(command: Command, assert_within: Within) -> None:
    flags = ("--checkpoint.interval", "1", "--max-restarts", "3")
    done = command(*TRAIN, *flags, *faults(command.cwd, "1:3:nan"))
    assert done.code == Exit.NUMERICS, done.err
    run = only_run(command.cwd)
    took_s = since_last_row(run)
    line = next(line for line in done.err.splitlines() if line.startswith("train: "))
    assert re.match("train: rank 1 .*NonFiniteError: iteration 3: ", line)
    assert "physics qvel (slider)" in line
    assert "observation actor (cart_velocity)" in line
    assert "env 32," in line, "the first env of rank 1, counted over all ranks"
    assert "(1 of " not in done.out
    assert find_checkpoint(run).name == "model_2.pt"
    assert read_metrics(run)[-1]["iteration"] == 2
    dump = run / ERRORS_DIR / "nan_rank1.pt"
    assert f"--nan-dump {dump.relative_to(command.cwd)}" in line
    assert_within(took_s, 10)
    played = command("play", "cartpole-balance", "--nan-dump", str(dump))
    assert played.code == Exit.DONE, played.err
    assert "slider" in played.out


@pytest.mark.slow
def test_row_9_envs_with_nan_can_be_reset_instead(command: Command) -> None:
    done = command(*TRAIN, "--env.nan-policy", "reset", "--max-iterations", "5", *faults(command.cwd, "1:3:nan"))
    assert done.code == Exit.DONE, done.err
    run = only_run(command.cwd)
    rows = read_metrics(run)
    assert [row["nan_resets"] for row in rows] == [0, 0, 1, 0, 0]
    assert all(torch.isfinite(t).all() for t in final(run)["actor_state_dict"].values())  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.slow
def test_init_from_starts_a_new_run_with_old_weights(command: Command) -> None:
    one = ("train", "cartpole-balance", "--gpu-ids", "None", *SMALL)
    first = command(*one, "--max-iterations", "2", "--log-root", "first")
    assert first.code == Exit.DONE, first.err
    (old,) = (command.cwd / "first" / "cartpole-balance").iterdir()
    # The learning rate is so small that no parameter changes.
    frozen = ("--agent.learning-rate", "1e-20", "--agent.schedule", "fixed", "--seed", "8", "--max-iterations", "1")
    done = command(*one, *frozen, "--init-from", str(find_checkpoint(old)))
    assert done.code == Exit.DONE, done.err
    new = final(only_run(command.cwd))
    assert new["iter"] == 1
    assert_equal(new["actor_state_dict"], final(old)["actor_state_dict"])
    # Networks of a different size are refused, and no run is created
    other = ("--agent.actor-hidden-dims", "8", "--log-root", "third")
    refused = command(*one, *other, "--init-from", str(find_checkpoint(old)))
    assert refused.code == Exit.USAGE, refused.err
    assert len(refused.err.splitlines()) == 1
    assert "actor" in refused.err
    assert not list((command.cwd / "third" / "cartpole-balance").iterdir())


@pytest.mark.slow
def test_row_10_a_flipped_bit_ends_the_run_and_is_in_no_checkpoint(command: Command) -> None:
    flags = ("--checkpoint.interval", "4", "--sync.check-interval", "6", "--max-restarts", "3")
    done = command(*TRAIN, *flags, *faults(command.cwd, "1:5:corrupt"))
    assert done.code == Exit.NUMERICS, done.err
    assert re.search(r"DesyncError: iteration 6: ranks 0-1 .* actor\.", done.err)
    assert "(1 of " not in done.out
    run = only_run(command.cwd)
    assert find_checkpoint(run).name == "model_4.pt"
    assert read_metrics(run)[-1]["iteration"] == 6


RESUMES = {
    "1 rank, normalizers": ("--gpu-ids", "None", "--agent.obs-normalization"),
    "2 ranks, LSTM": (*TWO, "--agent.rnn", "lstm", "--agent.rnn-hidden-dim", "8"),
}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RESUMES.values(), ids=RESUMES)
def test_row_14_a_resumed_run_is_bit_equal(command: Command, ranks: tuple[str, ...]) -> None:
    train = ("train", "cartpole-balance", *ranks, *SMALL)
    whole = command(*train, "--max-iterations", "10", "--checkpoint.interval", "5")
    assert whole.code == Exit.DONE, whole.err
    run = only_run(command.cwd)
    # A copy of the run, without the second checkpoint: as after a failure between the two checkpoints
    other = command.cwd / "other" / run.name
    shutil.copytree(run, other, symlinks=True)
    checkpoint_path(other, 10).unlink()
    again = command("train", "--resume", str(other))
    assert again.code == Exit.DONE, again.err
    assert "Resuming from iteration 5." in again.out
    assert_equal(final(run), final(other))
    assert untimed(run) == untimed(other)


@pytest.mark.slow
def test_row_15_a_run_resumes_with_another_number_of_ranks(command: Command) -> None:
    def resume(*ranks: str, iterations: int) -> Done:
        done = command("train", "cartpole-balance", "--resume", "latest", *ranks, "--max-iterations", str(iterations))
        assert done.code == Exit.DONE, done.err
        return done

    first = command(*TRAIN, "--agent.obs-normalization", "--max-iterations", "3")
    assert first.code == Exit.DONE, first.err
    run = only_run(command.cwd)
    two = final(run)
    one = resume("--cpu-ranks", "1", iterations=4)
    assert re.search(r" iteration 3\b.*\b2 ranks", one.out)
    back = resume("--cpu-ranks", "2", iterations=5)
    assert re.search(r" iteration 4\b.*\b1 rank\b", back.out)

    steps = [row["total_steps"] for row in read_metrics(run)]
    assert steps == [512, 1024, 1536, 1792, 2304]
    # The steps of Adam and the normalizer's count continue. The count includes all envs of all ranks.
    last = torch.load(find_checkpoint(run), weights_only=True)
    assert last["optimizer_state_dict"]["state"][0]["step"] == 5 * 2 * 2
    assert last["actor_state_dict"]["obs_normalizer.count"] == 2304
    assert isinstance(two["actor_state_dict"], dict)
    assert two["actor_state_dict"]["obs_normalizer.count"] == 1536


@pytest.mark.slow
@pytest.mark.long
def test_checkpoints_can_be_written_at_time_intervals(command: Command) -> None:
    flags = ("--max-iterations", "8", "--checkpoint.interval", "4s", "--checkpoint.keep-best", "0")
    done = command(*TRAIN, *flags, *faults(command.cwd, "1:4:slow"))
    assert done.code == Exit.DONE, done.err
    assert {4, 8} <= list_checkpoints(only_run(command.cwd)).keys(), "the slow iteration took five seconds"


@pytest.mark.slow
@pytest.mark.long
def test_row_16_ten_launches_at_once_all_train(command: Command) -> None:
    processes = [
        command.start(*TRAIN, "--max-iterations", "3", "--log-root", f"logs{i}", "--hang-timeout", "600")
        for i in range(10)
    ]
    for process in processes:
        out, err = process.communicate(timeout=800)
        assert process.returncode == Exit.DONE, out + err


@pytest.mark.slow
def test_row_19_only_rank_0_writes(command: Command) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    trace = command.cwd / "trace"
    done = command(
        strace, "-f", "-qq", "-y", "-e",
        "trace=clone,clone3,openat,creat,mkdir,mkdirat,rename,renameat,renameat2,link,linkat,"
        "symlink,symlinkat,unlink,unlinkat,write,pwrite64",
        "-e", "signal=none", "-o", str(trace), "--seccomp-bpf",
        command.program("train"), *TRAIN[1:], "--max-iterations", "3", "--checkpoint.interval", "1",
    )  # fmt: skip
    assert done.code == Exit.DONE, done.err
    run = only_run(command.cwd)
    ranks = {rank["pid"]: rank["rank"] for rank in json.loads((run / RANKS_FILE).read_text())}
    writers = writers_of(trace.read_text(errors="replace").splitlines(), run.name)
    assert any(ranks.get(pid) == 0 for pid in writers), "strace saw rank 0 write its files"
    assert not {pid: names for pid, names in writers.items() if ranks.get(pid, 0) != 0}


def writers_of(lines: list[str], name: str) -> dict[int, set[str]]:
    """Find, in the output of strace, the processes that changed a path with this name.

    Returns:
        Dict from the ID of a process to the system calls with which it changed the path.
    """
    process_of: dict[int, int] = {}
    pending: dict[int, str] = {}
    found: dict[int, set[str]] = {}
    for line in lines:
        thread, _, call = line.partition(" ")
        tid, call = int(thread), call.strip()
        if call.endswith("<unfinished ...>"):
            pending[tid] = call.removesuffix("<unfinished ...>")
            continue
        if call.startswith("<..."):
            call = pending.pop(tid, "") + call.partition("resumed>")[2]
        if "CLONE_THREAD" in call:
            process_of[int(call.rpartition("= ")[2].split()[0])] = process_of.get(tid, tid)
        only_reads = call.startswith(("openat", "clone")) and not any(
            f in call for f in ("O_WRONLY", "O_RDWR", "O_CREAT")
        )
        if name in call and not only_reads and " = -1 " not in call:
            found.setdefault(process_of.get(tid, tid), set()).add(call[:160])
    return found


def attack(port: int, *, payload: bytes = b"", framed: bool = True) -> None:
    """Send data to a port. The process that listens there may close the connection at any time."""
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection(("127.0.0.1", port), timeout=5) as connection,
    ):
        connection.sendall((struct.pack(">L", len(payload)) if framed else b"") + payload + b"\n")


class Payload:
    """Runs a command in the process that unpickles it."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.target}",)


def forged(kind: str, **data: object) -> bytes:
    """Return a forged event of rank 0, in the format in which ranks send events."""
    parts = b"events 0", json.dumps({"kind": kind, "rank": 0, **data}).encode()
    return b"".join(struct.pack(">i", len(part)) + part for part in parts)


@pytest.mark.slow
def test_row_21_nothing_that_a_stranger_sends_is_executed_or_accepted(
    command: Command, training: Training, wait_for: WaitFor
) -> None:
    process = training()
    bystander = subprocess.Popen(["sleep", "600"])
    listening = [
        c
        for p in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for c in p.net_connections("inet")
        if c.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert {c.laddr.ip for c in listening} == {"127.0.0.1"}
    target = command.cwd / "executed"
    try:
        for port in {c.laddr.port for c in listening}:
            attack(port, payload=pickle.dumps(Payload(target)))
            attack(port, payload=pickle.dumps({"name": "x", "event": Payload(target)}))
            attack(port, payload=b"half a record"[:5], framed=False)
            attack(port, payload=forged("result", result={"stopped": False}), framed=False)
            attack(port, payload=forged("joined", pid=bystander.pid, host="localhost"), framed=False)
            attack(port, payload=forged("no such kind"), framed=False)
        run = only_run(command.cwd)
        rows = len(read_metrics(run))
        wait_for(lambda: len(read_metrics(run)) > rows)
        process.send_signal(signal.SIGINT)
        done = command.finish(process)
        assert done.code == Exit.RESUMABLE, done.out + done.err
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    assert not target.exists()
