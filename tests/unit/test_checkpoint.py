"""Checkpoints: whole or not at all, and read without running code."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from mjlab_dist.errors import UserError
from mjlab_dist.learn import checkpoint


class Unwritable:
    def __reduce__(self) -> Any:
        raise RuntimeError("cannot be written")


class Payload:
    """Makes a directory when it is unpickled by a reader that runs code."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def refusal_of(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        checkpoint.load(path, "cpu")
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints" / "model_3.pt"


def test_what_is_saved_is_loaded(path: Path):
    content = {
        "weights": {"layer": torch.arange(6.0).view(2, 3)},
        "iteration": 3,
        "names": ["a", "b"],
        "rate": 1e-3,
        "random": torch.get_rng_state(),
        "nothing": None,
    }
    checkpoint.save(path, content)
    read = checkpoint.load(path, "cpu")
    assert read.keys() == content.keys()
    torch.testing.assert_close(read["weights"], content["weights"], rtol=0, atol=0)
    assert torch.equal(read["random"], content["random"])
    plain = ("iteration", "names", "rate", "nothing")
    assert [read[key] for key in plain] == [content[key] for key in plain]


def test_saving_leaves_nothing_but_the_checkpoint(path: Path):
    checkpoint.save(path, {"iteration": 1})
    checkpoint.save(path, {"iteration": 2})
    assert [p.name for p in path.parent.iterdir()] == ["model_3.pt"]
    assert checkpoint.load(path, "cpu") == {"iteration": 2}


def test_a_save_that_fails_leaves_the_old_checkpoint_and_no_temporary(path: Path):
    checkpoint.save(path, {"iteration": 1})
    with pytest.raises(RuntimeError, match="cannot be written"):
        checkpoint.save(path, {"weights": torch.zeros(1000), "bad": Unwritable()})
    assert checkpoint.load(path, "cpu") == {"iteration": 1}
    assert [p.name for p in path.parent.iterdir()] == ["model_3.pt"]


def test_a_first_save_that_fails_leaves_nothing(path: Path):
    with pytest.raises(RuntimeError, match="cannot be written"):
        checkpoint.save(path, {"bad": Unwritable()})
    assert not list(path.parent.iterdir())


def test_half_of_a_checkpoint_is_never_seen(path: Path, monkeypatch: pytest.MonkeyPatch):
    checkpoint.save(path, {"iteration": 1})
    seen: list[Any] = []
    whole = torch.save

    def slow_save(content: Any, file: Any) -> None:
        file.write(b"half of it")
        file.flush()
        seen.append(checkpoint.load(path, "cpu"))
        seen.append([p.name for p in path.parent.glob("*.pt")])
        file.seek(0)
        file.truncate()
        whole(content, file)

    monkeypatch.setattr(torch, "save", slow_save)
    checkpoint.save(path, {"iteration": 2})
    assert seen == [{"iteration": 1}, ["model_3.pt"]]
    assert checkpoint.load(path, "cpu") == {"iteration": 2}


def test_the_file_is_synced_before_it_takes_its_name(path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[tuple[int, bool]] = []
    sync = os.fsync

    def watch(fd: int) -> None:
        synced.append((os.fstat(fd).st_size, path.exists()))
        sync(fd)

    monkeypatch.setattr(os, "fsync", watch)
    checkpoint.save(path, {"weights": torch.zeros(1000)})
    size, named = synced[0]
    assert size == path.stat().st_size
    assert not named
    assert synced[-1][1], "the directory is synced after the renaming"


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(path: Path, kept: float):
    checkpoint.save(path, {"weights": torch.zeros(1000)})
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    assert "cannot be read" in refusal_of(path)


def test_a_file_of_something_else_is_refused(tmp_path: Path):
    file = tmp_path / "model_1.pt"
    file.write_text("iteration: 1\n")
    refusal_of(file)


def test_a_missing_file_is_refused(tmp_path: Path):
    refusal_of(tmp_path / "model_1.pt")


@pytest.mark.parametrize("format_", ["zip", "legacy", "pickle"])
def test_code_in_a_file_does_not_run(tmp_path: Path, format_: str):
    file, marker = tmp_path / "model_1.pt", tmp_path / "marker"
    content = {"iteration": 1, "payload": Payload(marker)}
    if format_ == "pickle":
        file.write_bytes(pickle.dumps(content, protocol=2))
    else:
        torch.save(content, file, _use_new_zipfile_serialization=format_ == "zip")
    refusal_of(file)
    assert not marker.exists()


def test_the_payload_of_that_test_would_run_in_a_careless_reader(tmp_path: Path):
    marker = tmp_path / "marker"
    pickle.loads(pickle.dumps(Payload(marker)))
    assert marker.exists()
