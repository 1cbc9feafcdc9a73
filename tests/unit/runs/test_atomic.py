from pathlib import Path

import pytest

from mjlab_dist.runs.outputs import write_atomically


def test_a_file_is_created_and_replaced(tmp_path: Path):
    path = tmp_path / "file.txt"
    for text in ("first\n", "second, in UTF-8: µ\n"):
        write_atomically(path, text)
        assert path.read_bytes() == text.encode()
    assert [file.name for file in tmp_path.iterdir()] == ["file.txt"]


def test_a_link_under_the_temporary_name_is_not_followed(tmp_path: Path):
    (tmp_path / "other.txt").write_text("other")
    (tmp_path / ".file.txt.tmp").symlink_to("other.txt")
    write_atomically(tmp_path / "file.txt", "text")
    assert (tmp_path / "other.txt").read_text() == "other"
    assert (tmp_path / "file.txt").read_text() == "text"
    assert len(list(tmp_path.iterdir())) == 2


def test_the_old_text_stays_if_the_new_one_cannot_be_written(tmp_path: Path):
    path = tmp_path / "file.txt"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new, but no text: \ud800")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file.txt"]
