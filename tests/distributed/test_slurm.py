"""The scripts of examples/slurm on a cluster of tests/fake_slurm.py: jobs that SLURM stops are requeued and resume."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import fake_slurm
import pytest
import yaml
from conftest import BIN, Command
from ssh_server import Add

from mjlab_dist.errors import Exit
from mjlab_dist.runs.run_dir import CONFIG_FILE, METRICS_FILE, RANKS_FILE, find_checkpoint, read_metrics

SCRIPTS = sorted((Path(__file__).parents[2] / "examples" / "slurm").glob("*.sbatch"))

ONE_NODE, SEEDS, SEVERAL_NODES = SCRIPTS

SMALL = ("--gpu-ids", "None", "--num-envs", "8", "--agent.num-steps-per-env", "4")

PREPARED = """#!/bin/sh
# Replaces uv. Starts train if it ends by itself; otherwise imitates it: records its start, and ends at SIGTERM
shift 2
case " $* " in *" --max-iterations "* | *" --dry-run "*)
    exec "$@"
esac
trap 'exit 75' TERM
echo "start ${SLURM_RESTART_COUNT:-0} $*" >>"starts-$SLURM_JOB_ID"
while [ ! -e fails ]; do sleep 0.1; done
exit 1
"""


class Cluster:
    """A fake SLURM cluster in the working directory of a test."""

    def __init__(self, command: Command, nodes: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:  # ranks connect to port 20000 + job number
            port = free.getsockname()[1]
        self.command = command
        self.environ = fake_slurm.install(command.cwd, nodes, first_job=20000 + (port - 20000) % 20000)
        uv = command.cwd / "slurm-bin" / "uv"
        uv.write_text(PREPARED)
        uv.chmod(0o755)
        self.environ["PATH"] = f"{uv.parent}:{BIN}:{self.environ['PATH']}"

    def __call__(self, *args: str) -> str:
        """Run a program of SLURM."""
        done = self.command("/usr/bin/env", *args, env=self.environ)
        assert done.code == 0, done.err
        return done.out.strip()

    def job(self, job_id: str) -> fake_slurm.Job:
        return json.loads((self.command.cwd / "slurm" / f"{job_id}.json").read_text())

    def starts(self, job_id: str) -> list[str]:
        file = self.command.cwd / f"starts-{job_id}"
        return file.read_text().splitlines() if file.exists() else []


WaitFor = Callable[[Callable[[], bool]], None]


@pytest.fixture
def cluster(command: Command, wait_for: WaitFor) -> Iterator[Cluster]:
    yield Cluster(command, "127.0.0.[1-3]")
    wait_for(lambda: not command.leftovers())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_shellcheck_accepts_the_script(script: Path):
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("needs shellcheck (Debian: apt-get install shellcheck)")
    done = subprocess.run([shellcheck, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_script_lets_slurm_stop_and_queue_the_job_again(script: Path):
    options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", script.read_text(), re.MULTILINE))
    assert options.keys() >= {"requeue", "signal", "time", "nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task"}
    assert options["open-mode"] == "append", "the second start would overwrite the output of the first"
    assert re.fullmatch(r"TERM@\d+", options["signal"])


def started(cluster: Cluster, script: Path, wait_for: WaitFor, *options: str) -> str:
    job_id = cluster("sbatch", "--parsable", *options, str(script))
    wait_for(lambda: len(cluster.starts(job_id)) == (2 if script == SEVERAL_NODES else 1))
    return job_id


@pytest.mark.slow
@pytest.mark.parametrize("script", [ONE_NODE, SEVERAL_NODES], ids=lambda script: script.stem)
def test_a_job_is_queued_again_when_its_time_is_over_but_not_when_it_is_cancelled(
    cluster: Cluster, script: Path, wait_for: WaitFor
):
    job_id = started(cluster, script, wait_for, "--ntasks-per-node=1")
    num_tasks = len(cluster.starts(job_id))
    assert num_tasks == (1 if script == ONE_NODE else 2)
    for times, program in enumerate(("expire", "preempt"), start=2):
        cluster(program, job_id)
        wait_for(lambda times=times: len(cluster.starts(job_id)) == times * num_tasks)
    cluster("scancel", job_id)
    wait_for(lambda: cluster.job(job_id)["code"] == Exit.RESUMABLE and cluster.job(job_id)["state"] == "CANCELLED")
    starts = cluster.starts(job_id)
    assert [line.split()[1] for line in starts] == sorted("012" * num_tasks)
    assert len({line.partition(" train ")[2] for line in starts}) == 1, "each start has the same command"
    assert f" --resume auto --run-name cartpole-{job_id}" in starts[0]


@pytest.mark.parametrize("script", [ONE_NODE, SEVERAL_NODES], ids=lambda script: script.stem)
def test_a_job_that_fails_is_not_queued_again(cluster: Cluster, script: Path, wait_for: WaitFor):
    job_id = started(cluster, script, wait_for, "--ntasks-per-node=1")
    (cluster.command.cwd / "fails").touch()
    wait_for(lambda: cluster.job(job_id)["state"] == "FAILED")
    assert cluster.job(job_id)["code"] == 1
    assert cluster.job(job_id)["restarts"] == 0


@pytest.mark.slow
def test_seeds_are_spaced_and_each_job_of_the_array_resumes_its_own_run(cluster: Cluster, wait_for: WaitFor):
    array = cluster("sbatch", "--parsable", "--array=0-2", str(SEEDS))
    ids = [str(int(array) + 1), str(int(array) + 2), array]  # the last job has the ID of the array
    wait_for(lambda: all(cluster.starts(job_id) for job_id in ids))
    seeds = [int(cluster.starts(job_id)[0].partition(" --seed ")[2].split()[0]) for job_id in ids]
    assert seeds == [1, 9, 17]
    names = {cluster.starts(job_id)[0].partition(" --run-name ")[2].split()[0] for job_id in ids}
    assert names == {f"cartpole-seeds-{array}_{index}" for index in range(3)}
    cluster("expire", f"{array}_2")
    wait_for(lambda: len(cluster.starts(array)) == 2)
    assert [cluster.job(job_id)["restarts"] for job_id in ids] == [0, 0, 1]
    cluster("scancel", array)
    wait_for(lambda: all(cluster.job(job_id)["state"] == "CANCELLED" for job_id in ids))


def only_run(root: Path) -> Path:
    (run,) = (root / "logs" / "cartpole-balance").glob("[!.]*")  # without the name that a running launch holds
    return run


@pytest.mark.slow
@pytest.mark.usefixtures("slow_training")
def test_a_preempted_job_resumes_with_fewer_ranks(cluster: Cluster, wait_for: WaitFor):
    """Train on three nodes until the job's time limit, then on two nodes until it is preempted, then on one node."""
    root = cluster.command.cwd

    def rows() -> int:
        return sum(file.read_bytes().count(b"\n") for file in root.rglob(METRICS_FILE))

    options = ("--nodes=1-3", "--ntasks-per-node=1", "--cpus-per-task=1")
    flags = (*SMALL, "--max-iterations", "100000", "--checkpoint.interval", "100000", "--logger", "slow_logger:Slow")
    job_id = cluster("sbatch", "--parsable", *options, str(SEVERAL_NODES), *flags)
    for restarts, program in enumerate(("expire", "preempt", "scancel")):
        wait_for(lambda restarts=restarts: cluster.job(job_id)["restarts"] == restarts)
        done = rows()  # ranks of this start have not written rows yet
        wait_for(lambda done=done: rows() > done + 1)
        assert len(json.loads((only_run(root) / RANKS_FILE).read_text())) == 3 - restarts
        (root / "slurm" / "nodes").write_text(f"127.0.0.[1-{max(1, 2 - restarts)}]")
        cluster(program, job_id)
    wait_for(lambda: cluster.job(job_id)["state"] == "CANCELLED")
    done = rows()
    run = only_run(root)
    assert cluster.job(job_id)["code"] == Exit.RESUMABLE
    assert [row["iteration"] for row in read_metrics(run)] == list(range(1, done + 1))
    assert find_checkpoint(run).name == f"model_{done}.pt"
    assert yaml.safe_load((run / CONFIG_FILE).read_text())["run_name"] == f"cartpole-{job_id}"
    output = (root / f"cartpole-{job_id}.out").read_text()
    assert output.count("Resuming from iteration") == 2


@pytest.mark.slow
def test_the_hosts_of_the_job_are_those_of_slurm(
    cluster: Cluster,
    add_host: Add,
    ssh_config: Path,
    wait_for: WaitFor,
):
    add_host("192.0.2.7")
    (cluster.command.cwd / "slurm" / "nodes").write_text("localhost,192.0.2.[7-8]")
    script = cluster.command.cwd / "job.sh"
    flags = f"--hosts slurm --ssh-config {ssh_config} --dry-run"
    script.write_text(
        f"#!/bin/sh\nsrun --nodes=1 --ntasks=1 uv run --no-sync train cartpole-balance {' '.join(SMALL)} {flags}\n"
    )
    job_id = cluster("sbatch", "--parsable", "--nodes=2", "--output=out", str(script))
    wait_for(lambda: cluster.job(job_id)["code"] is not None)
    output = (cluster.command.cwd / "out").read_text()
    assert cluster.job(job_id)["code"] == Exit.DONE, output
    assert "2: cpu" in output
    assert "on each of localhost and 192.0.2.7" in output
