"""Provenance of a run: command, machine, versions, commit and uncommitted changes, without passwords."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mjlab_dist.config import TrainConfig, registry
from mjlab_dist.errors import UserError
from mjlab_dist.messages import Event, listening
from mjlab_dist.runs.provenance import read_provenance, write_origin
from mjlab_dist.runs.run_dir import PROVENANCE_FILE


@pytest.fixture
def config() -> TrainConfig:
    return registry.task_config("cartpole-balance")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    directory.mkdir()
    return directory


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository with one commit. It is the working directory."""
    directory = tmp_path / "repository"
    directory.mkdir()
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "test")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "test@localhost")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    monkeypatch.chdir(directory)
    git("init", "--quiet")
    Path("code.py").write_text("one\ntwo\n")
    Path("mesh.stl").write_bytes(bytes(range(256)))
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    return directory


def git(*args: str) -> str:
    return subprocess.run(["git", *args], check=True, capture_output=True, text=True).stdout.strip()


def provenance_of(run_dir: Path, config: TrainConfig) -> dict[str, Any]:
    write_origin(run_dir, config, ["train", "cartpole-balance", "--seed", "3"], ["cpu", "cpu"])
    return json.loads((run_dir / PROVENANCE_FILE).read_text())


@pytest.mark.parametrize(
    "damaged",
    [
        *(b"", bytes(400), b'{"command": ["tra', b"[]", b'{"resumed": 3}', b"\xff", b"[" * 100_000, b"9" * 5000),
        *(b'{"command": [1]}', b'{"devices": 5}', b'{"git_commit": 7}', b'{"versions": ["torch"]}'),
        *(b'{"versions": {"torch": []}}', b'{"resumed": [{"devices": "cpu"}]}', b'{"grown": [1]}', b'{"python": {}}'),
    ],
)
def test_a_damaged_provenance_is_set_aside_with_a_warning(config: TrainConfig, run_dir: Path, damaged: bytes):
    path = run_dir / PROVENANCE_FILE
    path.write_bytes(damaged)
    events: list[Event] = []
    with listening(events.append):
        write_origin(run_dir, config, ["train"], ["cpu"])
    assert json.loads(path.read_text())["command"] == ["train"]
    (warning,) = events
    assert warning["text"].startswith(f"{path}: ")
    assert len(warning["text"].splitlines()) == 1
    assert (run_dir / "provenance.json.unreadable").read_bytes() == damaged
    with listening(events.append):
        write_origin(run_dir, config, ["again"], ["cpu"])
    assert [one["command"] for one in json.loads(path.read_text())["resumed"]] == [["again"]]
    assert len(events) == 1


def test_a_provenance_that_is_not_a_file_is_named(run_dir: Path):
    os.mkfifo(run_dir / PROVENANCE_FILE)
    with pytest.raises(UserError, match=rf"^{run_dir / PROVENANCE_FILE}: is not a regular file"):
        read_provenance(run_dir)


@pytest.mark.usefixtures("repository")
def test_the_diff_replaces_a_link(config: TrainConfig, run_dir: Path, tmp_path: Path):
    Path("code.py").write_text("three\n")
    (tmp_path / "own.txt").write_text("own")
    (run_dir / "git.diff").symlink_to(tmp_path / "own.txt")
    provenance_of(run_dir, config)
    assert (tmp_path / "own.txt").read_text() == "own"
    assert "+three" in (run_dir / "git.diff").read_text()


@pytest.mark.usefixtures("repository")
def test_origin_of_a_clean_checkout(config: TrainConfig, run_dir: Path):
    provenance = provenance_of(run_dir, config)
    assert provenance["git_commit"] == git("rev-parse", "HEAD")
    assert provenance["git_dirty"] is False
    assert not (run_dir / "git.diff").exists()


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize(
    ("file", "content", "setting"),
    [
        ("mesh.stl", bytes(reversed(range(256))), None),
        ("code.py", b"one\nthree\n", None),
        ("code.py", b"one\r\nthree\r\n", None),
        ("code.py", b"one\nthree\n", "color.ui=always"),
        ("code.py", b"one\nthree\n", "diff.external=true"),
    ],
    ids=["binary", "text", "crlf", "colour", "external"],
)
def test_the_diff_restores_the_checkout_for_all_changes_and_git_settings(
    config: TrainConfig, run_dir: Path, file: str, content: bytes, setting: str | None
):
    if setting:
        git("config", *setting.split("="))
    Path(file).write_bytes(content)
    provenance = provenance_of(run_dir, config)
    assert provenance["git_commit"] == git("rev-parse", "HEAD")
    assert provenance["git_dirty"] is True
    git("checkout", "--quiet", ".")
    git("apply", str(run_dir / "git.diff"))
    assert Path(file).read_bytes() == content


def test_origin_outside_of_git(config: TrainConfig, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    provenance = provenance_of(run_dir, config)
    assert provenance["git_commit"] is None
    assert provenance["git_dirty"] is False
    assert not (run_dir / "git.diff").exists()


@pytest.mark.usefixtures("repository")
def test_origin_where_git_is_not_installed(config: TrainConfig, run_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(run_dir))
    assert provenance_of(run_dir, config)["git_commit"] is None


def test_origin_records_command_machine_and_versions(config: TrainConfig, run_dir: Path):
    before = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    provenance = provenance_of(run_dir, config)
    assert provenance["command"] == ["train", "cartpole-balance", "--seed", "3"]
    assert provenance["devices"] == ["cpu", "cpu"]
    assert before <= datetime.datetime.fromisoformat(provenance["started"]) <= datetime.datetime.now(datetime.UTC)
    assert provenance["cpu_cores"] == len(os.sched_getaffinity(0))
    assert {"mjlab-dist", "torch", "torchrunx", "warp-lang", "mujoco", "rsl-rl-lib"} <= provenance["versions"].keys()
    assert None not in provenance["versions"].values()


@pytest.mark.parametrize(
    ("given", "recorded"),
    [
        ("--db postgres://me:p@ss:word@host/x", "--db postgres://me:***@host/x"),
        ("https://ghp_a1@host/x.git https://host:8080/a@b", "https://***@host/x.git https://host:8080/a@b"),
        ("--log.password hunter2 --seed 3", "--log.password *** --seed 3"),
        ("--wandb-api-key=hunter2 --apiKey hunter2 -v", "--wandb-api-key=*** --apiKey *** ***"),
        ("DB_TOKEN=hunter2 GITHUB_TOKEN= seed=3", "DB_TOKEN=*** GITHUB_TOKEN=*** seed=3"),
        ("token key --keyframe home --secretary me --bypass 1", "token key --keyframe home --secretary me --bypass 1"),
    ],
)
def test_passwords_of_the_command_line_are_not_recorded(config: TrainConfig, run_dir: Path, given: str, recorded: str):
    for _ in range(2):  # a resumed run adds an entry
        write_origin(run_dir, config, ["train", *given.split()], ["cpu"])
    provenance = json.loads((run_dir / PROVENANCE_FILE).read_text())
    assert provenance["command"] == provenance["resumed"][0]["command"] == ["train", *recorded.split()]
