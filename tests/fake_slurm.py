"""Programs of SLURM for tests: sbatch, srun, scontrol, squeue and scancel. All nodes of the cluster are this machine.

The programs behave like SLURM 22.05:
- sbatch reads the options in the script, and starts the script with the environment variables of a job.
- srun starts a process per task with the variables of a step, and returns the highest exit code.
- scancel --signal sends the signal to the processes of steps, but not to the script.
- If a job is canceled without --signal, or is requeued, the steps and the script receive SIGTERM. Later, processes that
  still run are killed. A requeued job runs its script again, with SLURM_RESTART_COUNT.
- The last job of an array has the same number as the array; as an argument, this number means all jobs of the array.

Two more programs do what a cluster does: ``expire`` sends a job the signal that the job requested with --signal, and
``preempt`` takes away the job's nodes.

A job is a JSON file, and a process that runs the job's script.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mjlab_dist.distributed.rank import slurm_hosts

PROGRAMS = ("sbatch", "srun", "scontrol", "squeue", "scancel", "expire", "preempt")

STATE = "FAKE_SLURM"
"""Environment variable that names the directory of jobs. The file ``nodes`` in this directory lists the nodes."""

PLACE = "FAKE_SLURM_PLACE"
"""Variable that marks the processes of a step or a script. Its value is <job>.<step>, or <job>.batch for a script."""

KILL_WAIT_S = 30.0
"""Seconds from SIGTERM to SIGKILL: SLURM's default."""

POLL_S = 0.05
"""Seconds between two checks of a job."""

FLAGS = {"--requeue", "--parsable", "--noheader"}
"""Options without a value."""

SHORT = {"-s": "--signal", "-N": "--nodes", "-J": "--job-name"}
"""Short form of each option, with its long form."""

Job = dict[str, Any]


def install(directory: Path, nodes: str, first_job: int) -> dict[str, str]:
    """Create the programs and a cluster in a directory, and return the variables by which processes find them."""
    programs, jobs = directory / "slurm-bin", directory / "slurm"
    programs.mkdir()
    jobs.mkdir()
    for name in PROGRAMS:
        path = programs / name
        path.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, __file__, name])} "$@"\n')
        path.chmod(0o755)
    (jobs / "nodes").write_text(nodes)
    (jobs / "next").write_text(str(first_job))
    return {"PATH": f"{programs}:{os.environ['PATH']}", STATE: str(jobs)}


def root() -> Path:
    return Path(os.environ[STATE])


@contextlib.contextmanager
def changed(job_id: str) -> Iterator[Job]:
    """Read a job, and write it when the context ends. Other processes cannot change the job during the context."""
    with (root() / f"{job_id}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        job = read(job_id)
        yield job
        write(job)


def read(job_id: str) -> Job:
    return json.loads((root() / f"{job_id}.json").read_text())


def write(job: Job) -> None:
    temporary = root() / f"{job['id']}.tmp"
    temporary.write_text(json.dumps(job))
    temporary.rename(root() / f"{job['id']}.json")


def jobs_named(name: str) -> list[Job]:
    """Return the jobs with this number: one job, or all jobs of an array."""
    every = [json.loads(path.read_text()) for path in sorted(root().glob("*.json"))]
    array = [job for job in every if job["array"] == name]
    return array or [job for job in every if name in (job["id"], f"{job['array']}_{job['index']}")]


def split(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split arguments at the first word that is not an option. Return the options, and the remaining arguments."""
    options: dict[str, str] = {}
    rest = list(argv)
    while rest and rest[0].startswith("-"):
        name, is_joined, value = rest.pop(0).partition("=")
        name = SHORT.get(name, name)
        options[name] = value if is_joined else "" if name in FLAGS else rest.pop(0)
    return options, rest


def sbatch(argv: Sequence[str]) -> int:
    given, (script, *args) = split(argv)
    lines = re.findall(r"^#SBATCH (.*)$", Path(script).read_text(), re.MULTILINE)
    options = {**split([word for line in lines for word in shlex.split(line, comments=True)])[0], **given}
    # Job numbers. The last job of an array has the number of the array
    first, last = map(int, options.get("--array", "0-0").split("-"))
    indices = range(first, last + 1)
    counter = root() / "next"
    base = int(counter.read_text())
    counter.write_text(str(base + len(indices)))
    is_array = "--array" in options
    copy = root() / f"{base}.sh"  # a copy, so that later changes of the script have no effect
    copy.write_bytes(Path(script).read_bytes())
    for index in indices:
        job: Job = {
            "id": str(base if index == last else base + 1 + index - first),
            "array": str(base) if is_array else None,
            "index": index if is_array else None,
            "state": "PENDING",
            "script": str(copy),
            "args": args,
            "options": options,
            "name": options.get("--job-name", Path(script).name),
            "restarts": 0,
            "requeue": False,
            "steps": 0,
            "kill_at": None,
            "code": None,
        }
        write(job)
        with open(os.devnull, "r+b") as null:  # noqa: PTH123 (readers of sbatch's output must not wait for the job)
            subprocess.Popen(
                [sys.executable, __file__, "run", job["id"]],
                stdin=null,
                stdout=null,
                stderr=null,
                start_new_session=True,
            )
    print(base if "--parsable" in options else f"Submitted batch job {base}")
    return 0


def run(argv: Sequence[str]) -> int:
    """Run the script of a job. Run it again if the job is requeued."""
    job_id = argv[0]
    while True:
        with changed(job_id) as job:
            job.update(state="RUNNING", requeue=False, kill_at=None, steps=0, code=None)
            environ = environ_of(job)
        with Path(output_of(job)).open("a") as output:
            script = subprocess.Popen(
                ["bash", job["script"], *job["args"]], env=environ, stdout=output, stderr=output, start_new_session=True
            )
        while script.poll() is None:
            kill_at = read(job_id)["kill_at"]
            if kill_at is not None and time.time() > kill_at:
                send(job_id, "", signal.SIGKILL)
            time.sleep(POLL_S)
        send(job_id, "", signal.SIGKILL)  # steps do not outlive the script
        with changed(job_id) as job:
            job["code"] = script.returncode
            if not job["requeue"]:
                done = "COMPLETED" if script.returncode == 0 else "FAILED"
                job["state"] = "CANCELLED" if job["state"] == "COMPLETING" else done
                return 0
            job["restarts"] += 1


def environ_of(job: Job) -> dict[str, str]:
    """Return the environment of a job's script, with the cluster's current nodes, up to the job's maximum."""
    options = job["options"]
    least, _, most = options.get("--nodes", "1").partition("-")
    nodes = slurm_hosts({"nodes": (root() / "nodes").read_text()}, "nodes")[: int(most or least)]
    assert len(nodes) >= int(least), "the job would wait for nodes"
    per_node = options.get("--ntasks-per-node", "1")
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SLURM_")},
        PLACE: f"{job['id']}.batch",
        "SLURM_JOB_ID": job["id"],
        "SLURM_JOB_NAME": job["name"],
        "SLURM_JOB_NODELIST": ",".join(nodes),
        "SLURM_NNODES": str(len(nodes)),
        "SLURM_NTASKS_PER_NODE": per_node,
        "SLURM_NTASKS": str(len(nodes) * int(per_node)),
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
    }
    if "--cpus-per-task" in options:
        environ["SLURM_CPUS_PER_TASK"] = options["--cpus-per-task"]
    if job["array"] is not None:
        environ.update(SLURM_ARRAY_JOB_ID=job["array"], SLURM_ARRAY_TASK_ID=str(job["index"]))
    if job["restarts"]:
        environ["SLURM_RESTART_COUNT"] = str(job["restarts"])
    return environ


def output_of(job: Job) -> str:
    values = {"j": job["id"], "x": job["name"], "A": job["array"] or job["id"], "a": str(job["index"])}
    return re.sub("%(.)", lambda match: values[match[1]], job["options"].get("--output", "slurm-%j.out"))


def srun(argv: Sequence[str]) -> int:
    options, command = split(argv)
    signal.signal(signal.SIGTERM, lambda *_: None)  # srun waits for its tasks; they do not inherit this handler
    with changed(os.environ["SLURM_JOB_ID"]) as job:
        step = job["steps"]
        job["steps"] += 1
    nodes = os.environ["SLURM_JOB_NODELIST"].split(",")[: int(options.get("--nodes", os.environ["SLURM_NNODES"]))]
    num_tasks = int(options.get("--ntasks", len(nodes) * int(os.environ["SLURM_NTASKS_PER_NODE"])))
    per_node = -(-num_tasks // len(nodes))
    tasks = [
        subprocess.Popen(
            command,
            env={
                **os.environ,
                PLACE: f"{job['id']}.{step}",
                "SLURM_STEP_ID": str(step),
                "SLURM_STEP_NUM_TASKS": str(num_tasks),
                "SLURM_STEP_NUM_NODES": str(len(nodes)),
                "SLURM_STEP_NODELIST": ",".join(nodes),
                "SLURM_PROCID": str(rank),
                "SLURM_LOCALID": str(rank % per_node),
                "SLURM_NODEID": str(rank // per_node),
                "SLURMD_NODENAME": nodes[rank // per_node],
            },
            start_new_session=True,
        )
        for rank in range(num_tasks)
    ]
    # Kill the other tasks if a task fails, or some time after the first task has ended
    kills, wait_s = options.get("--kill-on-bad-exit", "0") == "1", float(options.get("--wait", "0"))
    kill_at: float | None = None
    while any(task.poll() is None for task in tasks):
        if kill_at is None and (ended := [task for task in tasks if task.poll() is not None]):
            bad = kills and any(task.returncode for task in ended)
            kill_at = 0.0 if bad else time.monotonic() + wait_s if wait_s else None
        if kill_at is not None and time.monotonic() > kill_at:
            send(job["id"], str(step), signal.SIGKILL)
        time.sleep(POLL_S)
    codes = [task.returncode for task in tasks]
    return max(code if code >= 0 else 128 - code for code in codes)


def send(job_id: str, step: str, signum: int) -> None:
    """Send a signal to all processes of a step, or, if `step` is empty, of all steps and the script."""
    start = f"{job_id}.{step}"
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            variables = (path / "environ").read_bytes().decode(errors="replace").split("\0")
            places = [value.partition("=")[2] for value in variables if value.startswith(f"{PLACE}=")]
            if places and (places[0] == start if step else places[0].startswith(start)):
                os.kill(int(path.name), signum)


def send_to_steps(job: Job, signum: int) -> None:
    for step in range(job["steps"]):
        send(job["id"], str(step), signum)


def end(name: str, *, requeue: bool) -> int:
    """End jobs. Queue them again if `requeue` is set."""
    for found in jobs_named(name):
        with changed(found["id"]) as job:
            if job["state"] != "RUNNING":
                continue
            job.update(state="COMPLETING", requeue=requeue, kill_at=time.time() + KILL_WAIT_S)
        send(job["id"], "", signal.SIGTERM)
    return 0 if jobs_named(name) else 1


def scancel(argv: Sequence[str]) -> int:
    options, (name,) = split(argv)
    if "--signal" not in options:
        return end(name, requeue=False)
    for job in jobs_named(name):
        send_to_steps(job, signal.Signals[f"SIG{options['--signal']}"])
    return 0


def scontrol(argv: Sequence[str]) -> int:
    if tuple(argv[:2]) == ("show", "hostnames"):
        print("\n".join(slurm_hosts({"nodes": argv[2]}, "nodes")))
        return 0
    action, name = argv
    assert action == "requeue", action
    return end(name, requeue=True)


def squeue(argv: Sequence[str]) -> int:
    options, _ = split(argv)
    assert options["--format"] == "%T", options
    assert "--noheader" in options
    for job in jobs_named(options["--job"]):
        if job["state"] in ("PENDING", "RUNNING", "COMPLETING"):
            print(job["state"])
    return 0


def expire(argv: Sequence[str]) -> int:
    """Send the signal that a job requested with --signal, as SLURM does before the job's time limit."""
    (job,) = jobs_named(argv[0])
    match = re.fullmatch(r"([A-Z0-9]+)@\d+", job["options"]["--signal"])
    assert match, job["options"]["--signal"]
    send_to_steps(job, signal.Signals[f"SIG{match[1]}"])
    return 0


def preempt(argv: Sequence[str]) -> int:
    """Take the nodes of a job away, and queue the job again, as PreemptMode=REQUEUE does."""
    return end(argv[0], requeue=True)


if __name__ == "__main__":
    sys.exit({**{name: globals()[name] for name in PROGRAMS}, "run": run}[sys.argv[1]](sys.argv[2:]))
