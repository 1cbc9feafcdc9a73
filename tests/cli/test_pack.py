"""Commands give the same results with a pack as with its run. A pack contains no names or paths of the machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import zipfile
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
import yaml
from conftest import Command

import mjlab_dist
from mjlab_dist.config import ExportConfig, PlayConfig
from mjlab_dist.errors import Exit
from mjlab_dist.learn import checkpoint
from mjlab_dist.policies import play, resolve
from mjlab_dist.policies.export import export
from mjlab_dist.runs.pack_file import CARD, CHECKPOINT, ONNX, read_manifest, read_part
from mjlab_dist.runs.run_dir import CONFIG_FILE, METRICS_FILE, PROVENANCE_FILE, read_config_file, read_metrics

TASK = "cartpole-balance"

SMALL: dict[str, Any] = {"num_envs": 8, "gpu_ids": None, "agent.num_steps_per_env": 8, "env.episode_length_s": 0.1}
FLAGS = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a run of three checkpoints, and ``walk.zip``, a pack of the second checkpoint."""
    place = tmp_path_factory.mktemp("pack")
    command = Command("pack", place)
    done = command.here(
        "train", TASK, *FLAGS, "--checkpoint.interval", "1", "--run-name", "run", "--max-iterations", "3",
        "--evaluate-interval", "1", "--evaluate-episodes", "4", f"--log-root={place / 'logs'}",
    )  # fmt: skip
    assert done.code == 0, done.err
    done = command.here("mjlab-dist", "pack", str(run_dir(place)), "--checkpoint", "model_2.pt", "--output", "walk.zip")
    assert done.code == 0, done.err + done.out
    assert "walk.zip" in done.out
    return place


def run_dir(place: Path) -> Path:
    (found,) = (place / "logs" / TASK).iterdir()
    return found


def test_a_pack_has_the_files_of_the_run_but_names_nothing_of_the_machine(place: Path):
    run, pack = run_dir(place), place / "walk.zip"
    assert read_manifest(pack)["checkpoint"] == "model_2"
    assert read_metrics(pack) == read_metrics(run)
    content = checkpoint.load(run / "checkpoints" / "model_2.pt", "cpu")
    packed = checkpoint.load(pack, "cpu")
    assert packed.keys() == {"iter", "actor_state_dict", "critic_state_dict"}
    for network in ("actor_state_dict", "critic_state_dict"):
        assert all(torch.equal(packed[network][name], value) for name, value in content[network].items())
    # The config in the run contains a path of the machine; the config in the pack does not
    config, expected = (read_config_file(one, uses_ssh=False) for one in (pack, run))
    assert (config.log_root, expected.log_root) == ("logs", str(place / "logs"))
    assert config.env == expected.env
    assert config.agent == expected.agent
    with zipfile.ZipFile(pack) as archive:
        for name in set(archive.namelist()) - {CHECKPOINT}:
            data = archive.read(name)
            for secret in (str(place), socket.gethostname(), str(Path.home()), str(Path(__file__).parents[2])):
                assert len(secret) < 6 or secret.encode() not in data, (name, secret)


def test_the_card_describes_the_policy(place: Path):
    text = read_part(place / "walk.zip", CARD).decode()
    head, front, body = text.split("---\n", 2)
    assert not head
    assert "reinforcement-learning" in yaml.safe_load(front)["tags"]
    evaluated = read_metrics(run_dir(place))[1]["evaluation/return"]
    assert f"| mean return by evaluation | {evaluated:.4g}, over 4 whole episodes" in body
    rows = dict(re.findall(r"^\| (.*?) \| (.*) \|$", body, re.MULTILINE))
    assert rows["actions"] == "1: `force`"
    assert rows["`learning_rate`"] == "`0.001`"
    assert rows["torch"] == torch.__version__.partition("+")[0] or torch.__version__.startswith(rows["torch"])
    # Every row of every table has two cells
    assert all(line.count(" | ") == 1 for line in body.splitlines() if line.startswith("| "))
    # The card has a command line with the task and the pack for each command that accepts a pack
    commands = re.findall(r"^mjlab-dist (\S+) (\S+) .*walk\.zip", body, re.MULTILINE)
    assert commands == [(name, TASK) for name in ("play", "evaluate", "export", "train")]


def test_other_commands_give_the_same_results_with_the_pack_as_with_the_run(place: Path):
    pack, newest = place / "walk.zip", run_dir(place) / "checkpoints" / "model_2.pt"
    for chosen in (PlayConfig(run=str(pack)), PlayConfig(checkpoint=str(pack))):
        config, path = resolve(TASK, chosen)
        _, expected = resolve(TASK, PlayConfig(checkpoint=str(newest)))
        assert play(config, path, chosen).returns == play(config, expected, chosen).returns
    # A new export equals the policy in the pack
    exported = export(config, path, ExportConfig(num_checked=16))
    assert {file.parent for file in exported.files} == {place / "walk_exported"}
    (own,) = (file for file in exported.files if file.name == ONNX)
    metadata = [
        onnxruntime.InferenceSession(data).get_modelmeta().custom_metadata_map
        for data in (read_part(pack, ONNX), own.read_bytes())
    ]
    assert metadata[0] == metadata[1]
    assert json.loads(metadata[0]["checkpoint"]) == "model_2"
    obs = torch.ones(3, 5)
    assert torch.equal(
        mjlab_dist.load_policy(pack)(obs), mjlab_dist.load_policy(newest.parents[1], checkpoint="model_2.pt")(obs)
    )


def test_a_new_run_starts_from_a_pack(place: Path, tmp_path: Path):
    options = SMALL | {"agent.schedule": "fixed", "agent.learning_rate": 1e-12}
    result = mjlab_dist.train(
        TASK, quiet=True, log_root=str(tmp_path), init_from=str(place / "walk.zip"), max_iterations=1, **options
    )
    packed, trained = (checkpoint.load(file, "cpu") for file in (place / "walk.zip", result.checkpoint))
    for network in ("actor_state_dict", "critic_state_dict"):
        for name, value in packed[network].items():
            torch.testing.assert_close(trained[network][name], value)


def test_what_a_pack_cannot_do_is_refused_in_one_line(place: Path, command: Command):
    command.cwd = place
    (place / "taken.zip").touch()
    run, before = str(run_dir(place)), sorted(place.iterdir())
    for words, named in (
        (("mjlab-dist", "pack"), "RUN"),
        (("mjlab-dist", "pack", "missing"), "missing"),
        (("mjlab-dist", "pack", "walk.zip"), "walk.zip"),
        (("mjlab-dist", "pack", run, "--checkpoint", "model_9.pt"), "model_9.pt"),
        (("mjlab-dist", "pack", run, "--output", "taken.zip"), "taken.zip"),
        (("mjlab-dist", "pack", run, "--output", "pack.tar"), "pack.tar"),
        (("mjlab-dist", "pack", run, "--output", "nowhere/pack.zip"), "nowhere"),
        (("mjlab-dist", "pack", run, "--no-onnx", "--output", "/proc/pack.zip"), "/proc/pack.zip"),
        (("mjlab-dist", "watch", "walk.zip"), "--viewer web"),
        (("train", TASK, "--resume", "walk.zip"), "--init-from"),
        (("play", "gym-ant", "--run", "walk.zip"), TASK),
        (("play", TASK, "--run", "taken.zip"), "taken.zip"),
        (("play", TASK, "--run", "walk.zip", "--checkpoint", "best"), "--checkpoint best"),
        (("train", TASK, "--init-from", "taken.zip"), "taken.zip"),
    ):
        done = command.here(*words)
        assert done.code == Exit.USAGE, (words, done.err)
        (line,) = done.err.splitlines()
        assert named in line
    assert sorted(place.iterdir()) == before


def test_a_pack_from_someone_else_runs_no_code(place: Path, command: Command, tmp_path: Path):
    with zipfile.ZipFile(place / "walk.zip") as good, zipfile.ZipFile(tmp_path / "evil.zip", "w") as evil:
        for name in good.namelist():
            data = good.read(name)
            if name == CONFIG_FILE:
                plain = yaml.safe_load(data)
                plain["env"]["sim"] |= {
                    "model": "pydoc:pipepager", "model_params": {"text": "", "cmd": f"touch {tmp_path}/ran"}
                }  # fmt: skip
                data = yaml.safe_dump(plain).encode()
            evil.writestr(name, data)
    for words in (
        ("play", TASK, "--run", "evil.zip"),
        ("mjlab-dist", "evaluate", TASK, "--run", "evil.zip"),
        ("mjlab-dist", "export", TASK, "--run", "evil.zip"),
        ("train", "--config", "evil.zip"),
    ):
        done = command.here(*words)
        assert done.code == Exit.USAGE
        (line,) = done.err.splitlines()
        assert "pydoc:pipepager" in line
        assert "--trust" in line
    assert not (tmp_path / "ran").exists()
    command.here("play", TASK, "--run", "evil.zip", "--trust")
    assert (tmp_path / "ran").exists()


def test_a_run_without_metrics_and_onnx_is_packed_too(place: Path, command: Command):
    copy = command.cwd / "copy"
    shutil.copytree(run_dir(place), copy, symlinks=True)
    for name in (METRICS_FILE, PROVENANCE_FILE):
        os.remove(copy / name)  # noqa: PTH107
    done = command("mjlab-dist", "pack", "copy", "--no-onnx", "--checkpoint", "best")
    assert done.code == 0, done.err
    (pack,) = command.cwd.glob("*.zip")
    assert pack.name.startswith(f"{TASK}_copy_model_")
    assert read_metrics(run_dir(place))
    with zipfile.ZipFile(pack) as archive:
        assert METRICS_FILE not in archive.namelist()
        assert ONNX not in archive.namelist()
    assert mjlab_dist.load_policy(pack).num_actions == 1
    done = command.here("mjlab-dist", "compare", pack.name)
    assert done.code == Exit.USAGE
    assert METRICS_FILE in done.err
