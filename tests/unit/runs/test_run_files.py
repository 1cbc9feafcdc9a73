"""Files of a run directory that somebody else laid out."""

from __future__ import annotations

import errno
import os
import pickle
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from run_files import write_checkpoint

from mjlab_dist.errors import DiskFullError, UserError
from mjlab_dist.runs.run_files import explaining, open_file, problem_of, refuse_links


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run directory with links that stay inside."""
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "model_1.pt").touch()
    (run / "checkpoints" / "latest.pt").symlink_to("model_1.pt")
    (run / "checkpoints" / "best.pt").symlink_to("model_0.pt")  # the file is gone
    (run / "latest-run").symlink_to(run / "checkpoints")
    (run / "wandb" / "run-1" / "logs").mkdir(parents=True)
    (run / "wandb" / "run-1" / "logs" / "debug-core.log").symlink_to("/elsewhere/core.log")  # as wandb does
    (run / "wandb" / "debug.log").symlink_to("run-1/logs/debug.log")
    (tmp_path / "other").mkdir()
    return run


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"actor_state_dict": {}}, ""),
        ({"model_state_dict": {}, "iter": 3}, "rsl_rl below version 5 wrote it"),
        ({"weights": torch.zeros(3)}, "it has no actor_state_dict"),
    ],
)
def test_a_checkpoint_of_another_program_is_found_without_loading_it(
    tmp_path: Path, content: dict[str, object], problem: str
):
    write_checkpoint(tmp_path / "it.pt", **content)
    assert problem_of(tmp_path / "it.pt") == problem


def test_a_damaged_checkpoint_is_found_without_loading_it(tmp_path: Path):
    file = tmp_path / "it.pt"
    write_checkpoint(file, actor_state_dict={"weight": torch.zeros(1000)})
    data = file.read_bytes()
    for damaged in (b"", pickle.dumps({"actor_state_dict": {}})):
        file.write_bytes(damaged)
        assert problem_of(file) == "it does not begin like a file of torch.save"
    file.write_bytes(data[: len(data) // 2])
    assert "zip" in problem_of(file)
    file.unlink()
    assert problem_of(file) == "No such file or directory"


def test_links_that_stay_inside_are_allowed(run_dir: Path):
    refuse_links("--resume", run_dir)
    linked = run_dir.with_name("linked")
    linked.symlink_to(run_dir)
    refuse_links("--resume", linked)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("git.diff", "../other/file"),  # no such file yet
        ("checkpoints/model_2.pt", "../../other"),
        ("videos", "../other"),
        ("latest-run/x", "/"),
        ("errors", "checkpoints/../../other"),
        ("same", "../run-2"),
        ("up", ".."),
        ("wandb/run-2", "../../other"),
    ],
)
def test_a_link_that_leads_out_is_refused(run_dir: Path, name: str, target: str):
    (run_dir / name).symlink_to(target)
    with pytest.raises(UserError, match=rf"^--resume x: .*/{Path(name).name} is a link "):
        refuse_links("--resume x", run_dir)


def test_a_link_over_two_links_is_refused(run_dir: Path):
    (run_dir / "errors").symlink_to("videos")
    (run_dir / "videos").symlink_to("../other")
    with pytest.raises(UserError):
        refuse_links("--resume", run_dir)


def bind(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path is limited to 107 characters
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.parametrize("make", [os.mkfifo, bind])
def test_special_files_are_refused(run_dir: Path, make: Callable[[Path], None]):
    make(run_dir / "metrics.jsonl")
    with pytest.raises(UserError, match=r"metrics\.jsonl is neither"):
        refuse_links("--resume", run_dir)
    with pytest.raises(OSError, match=r"regular file|No such device"):
        open_file(run_dir / "metrics.jsonl")


def raise_from(cause: Exception, error: Exception) -> None:
    raise error from cause


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_whichever_code_writes(code: int):
    run_dir, full = Path("logs", "task", "run"), OSError(code, os.strerror(code), "/data/x")
    with pytest.raises(DiskFullError, match=r"^--log-root logs: no space left for /data/x; "), explaining(run_dir):
        raise_from(full, RuntimeError("failed writing file"))
    own = explaining(run_dir, run_dir / "a")
    with pytest.raises(DiskFullError, match=r"no space left for logs/task/run/a; "), explaining(run_dir), own:
        raise full
    with pytest.raises(UserError, match="own words"), explaining(run_dir):
        raise_from(full, UserError("own words"))


def test_other_errors_stay_as_they_are():
    with pytest.raises(PermissionError, match="/data/x"), explaining(Path("run")):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/data/x")
