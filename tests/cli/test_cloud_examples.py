"""The files in examples/ for SkyPilot, Kubernetes and containers are valid, and their commands work."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from conftest import BIN, Command

from mjlab_dist.errors import Exit

ROOT = Path(__file__).parents[2]
SKYPILOT = ROOT / "examples" / "skypilot" / "train.yaml"
KUBERNETES = ROOT / "examples" / "kubernetes" / "jobset.yaml"
CONTAINER = ROOT / "examples" / "container" / "Containerfile"
SCHEMAS = ROOT / "tests" / "data" / "schemas"


def read(file: Path) -> dict[str, Any]:
    return yaml.safe_load(file.read_text())


@pytest.mark.parametrize(("file", "schema"), [(SKYPILOT, "skypilot"), (KUBERNETES, "jobset")], ids=["sky", "jobset"])
def test_the_file_matches_its_schema(file: Path, schema: str):
    content, rules = read(file), json.loads((SCHEMAS / f"{schema}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(rules)
    jsonschema.validate(content, rules)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**content, "metdata": {}}, rules)


def pod(spec: dict[str, Any]) -> dict[str, Any]:
    return spec["template"]["spec"]


def test_the_pods_agree_with_each_other():
    jobset = read(KUBERNETES)
    (job,) = jobset["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    (container,) = pod(spec)["containers"]
    args = dict(arg.removeprefix("--").split("=", 1) for arg in container["args"] if "=" in arg)
    assert spec["parallelism"] == spec["completions"] == int(args["nnodes"])
    assert spec["completionMode"] == "Indexed", "in other modes, pods have no index and no host name"
    assert int(args["nproc-per-node"]) == container["resources"]["limits"]["nvidia.com/gpu"]
    assert args["master-addr"] == f"{jobset['metadata']['name']}-{job['name']}-0-0.{jobset['metadata']['name']}"
    assert container["ports"] == [{"containerPort": int(args["master-port"])}]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in pod(spec)["volumes"]}
    assert mounts["runs"] == args["log-root"]


@pytest.mark.slow
@pytest.mark.long
def test_an_evicted_pod_saves_a_checkpoint_and_the_next_start_resumes(
    command: Command, wait_for: Callable[[Callable[[], bool]], None]
):
    """Run the manifest's command on the CPU as if in a pod, and send SIGTERM, as Kubernetes does to evict a pod."""
    (container,) = pod(read(KUBERNETES)["spec"]["replicatedJobs"][0]["template"]["spec"])["containers"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    changes = {
        "nnodes": "1",
        "nproc-per-node": "2",
        "node-rank": "0",
        "master-addr": "127.0.0.1",
        "master-port": str(port),
        "log-root": str(command.cwd / "runs"),
    }
    args = [re.sub(r"^--([\w-]+)=.*", lambda m: f"--{m[1]}={changes.get(m[1], m[0].partition('=')[2])}", arg)
            for arg in container["args"]]  # fmt: skip
    small = ("--gpu-ids", "None", "--num-envs", "8", "--agent.num-steps-per-env", "4")
    environ = {"PATH": f"{BIN}:{os.environ['PATH']}"}
    process = command.start(*args, *small, "--max-iterations", "100000", env=environ)
    rows = command.cwd / "runs"
    wait_for(lambda: any(file.stat().st_size > 1000 for file in rows.rglob("metrics.jsonl")))
    process.send_signal(signal.SIGTERM)
    stopped = command.finish(process)
    assert stopped.code != Exit.DONE, "JobSet starts the pods again only if they fail"
    (metrics,) = rows.rglob("metrics.jsonl")
    done = metrics.read_text().count("\n")
    assert (metrics.parent / "checkpoints" / f"model_{done}.pt").is_file(), stopped.err
    again = command(*args, *small, "--max-iterations", str(done + 1), env=environ)
    assert again.code == Exit.DONE, again.err
    assert f" iteration {done}." in again.out
    assert [json.loads(line)["iteration"] for line in metrics.read_text().splitlines()] == list(range(1, done + 2))


def test_the_scripts_of_the_job_have_no_mistakes(tmp_path: Path):
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("needs shellcheck (Debian: apt-get install shellcheck)")
    task = read(SKYPILOT)
    for name in ("setup", "run"):
        script = tmp_path / name
        script.write_text(f"#!/bin/bash\n{task[name]}")
        done = subprocess.run([shellcheck, script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


UV = """#!/bin/sh
# Replaces uv: imitates a training that writes one checkpoint
shift 2
echo "$*" >>../commands
mkdir -p "logs/$2/run/checkpoints"
n=$(ls "logs/$2/run/checkpoints" | wc -l)
touch "logs/$2/run/checkpoints/model_$((n + 1)).pt" "logs/$2/run/.part" "logs/$2/run/lease.json"
exit 75
"""


def test_the_next_instance_has_the_files_of_the_last_one(tmp_path: Path):
    if shutil.which("rsync") is None:
        pytest.skip("needs rsync (Debian: apt-get install rsync)")
    task, bucket = read(SKYPILOT), tmp_path / "bucket"
    bucket.mkdir()
    (tmp_path / "uv").write_text(UV)
    (tmp_path / "uv").chmod(0o755)
    environ = {**os.environ, **task["envs"], "RUNS": str(bucket), "SKYPILOT_TASK_ID": "sky-managed-1_cartpole_1-0"}
    environ["PATH"] = f"{tmp_path}:{environ['PATH']}"
    for instance in ("first", "second"):
        (tmp_path / instance).mkdir()
        done = subprocess.run(["bash", "-c", task["run"]], cwd=tmp_path / instance, env=environ, check=False)
        assert done.returncode == Exit.RESUMABLE
        assert done.returncode in task["resources"]["job_recovery"]["recover_on_exit_codes"]
    saved = {file.name for file in bucket.rglob("*") if file.is_file()}
    assert saved == {"model_1.pt", "model_2.pt"}
    first, second = (tmp_path / "commands").read_text().splitlines()
    assert first == second
    assert " --resume auto --run-name sky-managed-1_cartpole_1-0" in first


def test_hadolint_accepts_the_container():
    done = subprocess.run([BIN / "hadolint", CONTAINER], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_container_runs_without_root_and_passes_signals_on():
    lines = CONTAINER.read_text().splitlines()
    assert 'ENTRYPOINT ["tini", "--"]' in lines
    assert re.search(r"^USER [1-9]\d*$", CONTAINER.read_text(), re.MULTILINE)
