"""Output files that cannot be written are refused in one line, if possible before a command does its work."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mjlab_dist.errors import UserError
from mjlab_dist.runs.outputs import check_output, save_png, write_output


def test_a_file_that_can_be_written_is_accepted(tmp_path: Path):
    file = str(tmp_path / "a.png")
    check_output("--plot", file, [".png", ".html"])
    write_output("--plot", file, b"old")
    check_output("--plot", file)  # an existing file is replaced
    write_output("--plot", file, "new")
    assert Path(file).read_text() == "new"


@pytest.mark.parametrize(("name", "problem"), [
    ("a.jpg", r"\.png or \.html"),
    ("missing/a.png", "no directory"),
    ("directory.png", "is a directory"),
    ("file/a.png", "no directory"),
])  # fmt: skip
def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path, name: str, problem: str):
    (tmp_path / "directory.png").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=problem) as caught:
        check_output("--plot", str(tmp_path / name), [".png", ".html"])
    assert str(caught.value).startswith(f"--plot {tmp_path / name}: ")


def test_a_directory_without_the_right_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)  # for root, the real function returns True
    with pytest.raises(UserError, match="cannot be written to"):
        check_output("--plot", str(tmp_path / "a.png"))


def test_a_disk_that_is_full_leaves_no_part_of_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from matplotlib.figure import Figure

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match="No space left"):
        save_png(Figure(), "--plot", str(tmp_path / "a.png"))
    assert not list(tmp_path.iterdir())
