"""Copying the project to another machine overwrites no file whose content exists only there."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mjlab_dist.errors import UserError
from mjlab_dist.launch.sync_code import READ_GIT, There, _committed, _entries, _to_record, find_project, list_files


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository with a commit, and a file that is not in git."""
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    for name, text in {"committed.py": "1", "src/a b\n'.py": "2", ".gitignore": "data\n"}.items():
        (root / name).write_text(text)
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "--message", "one")
    (root / "new.py").write_text("3")
    (root / "data").write_text("ignored")
    return root


def git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=root, check=True)


def test_git_lists_committed_and_new_files(repository: Path) -> None:
    (repository / "committed.py").unlink()
    (repository / "link").symlink_to("/nowhere")
    (repository / "runs").mkdir()
    (repository / "runs" / "metrics.jsonl").touch()
    assert list_files(repository, repository / "runs") == [".gitignore", "link", "new.py", "src/a b\n'.py"]


def test_without_git_hidden_directories_and_secrets_are_left_out(tmp_path: Path) -> None:
    left_out = (".venv/bin/python", "src/__pycache__/task.pyc", "logs/run/model.pt", ".env", "src/.env.local")
    for name in ("pyproject.toml", "src/task.py", ".python-version", *left_out):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert list_files(tmp_path, tmp_path / "logs") == [".python-version", "pyproject.toml", "src/task.py"]


def test_large_projects_are_refused(tmp_path: Path) -> None:
    with (tmp_path / "motions.npz").open("wb") as file:
        os.truncate(file.fileno(), 2 * 10**9)
    with pytest.raises(UserError, match=r"2\.0 GB"):
        list_files(tmp_path, tmp_path / "logs")


def test_the_project_is_found_from_its_directories(repository: Path, tmp_path: Path) -> None:
    (repository / "src" / "pyproject.toml").touch()
    assert find_project(repository / "src") == repository
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "other" / "deep").mkdir(parents=True)
    assert find_project(tmp_path / "other" / "deep") == tmp_path


@pytest.mark.parametrize(
    ("there", "recorded", "is_committed", "expected"),
    [
        (None, set(), False, ("copied",)),
        ("new", set(), False, ()),
        ("copy", {"copy"}, False, ("copied",)),
        ("before", {"copy", "before"}, False, ("copied",)),
        ("commit", set(), True, ("copied",)),
        ("edited", set(), False, ("copied", "lost")),
        ("edited", {"copy"}, False, ("copied", "lost")),
    ],
    ids=["missing", "equal", "copied", "copy interrupted", "committed there", "edited there", "edited after a copy"],
)
def test_a_file_is_lost_if_only_the_other_machine_has_it(
    there: str | None, recorded: set[str], is_committed: bool, expected: tuple[str, ...]
) -> None:
    machine = There(
        recorded={"task.py": recorded},
        digests={} if there is None else {"task.py": there},
        committed={"task.py"} if is_committed else set(),
    )
    changes = machine.changes({"task.py": "new"})._asdict()
    assert [kind for kind, names in changes.items() if names] == list(expected)


def committed(root: Path) -> set[str]:
    """Return the files of a directory that the program READ_GIT reports as committed."""
    program = READ_GIT.format(root=shlex.quote(str(root)))
    return _committed(subprocess.run(["sh", "-c", program], capture_output=True, check=True).stdout)


def test_only_files_that_equal_the_last_commit_count_as_committed(repository: Path) -> None:
    assert committed(repository) == {".gitignore", "committed.py", "src/a b\n'.py"}
    (repository / "committed.py").write_text("edited")
    assert committed(repository) == {".gitignore", "src/a b\n'.py"}
    git(repository, "rm", "--quiet", "--cached", "-r", ".")
    assert committed(repository) == set()


def test_nothing_is_committed_without_a_commit(tmp_path: Path) -> None:
    assert committed(tmp_path / "nowhere") == committed(tmp_path) == set()
    git(tmp_path, "init", "--quiet")
    (tmp_path / "added.py").touch()
    git(tmp_path, "add", ".")
    assert committed(tmp_path) == set()


def test_only_copies_are_removed() -> None:
    machine = There(
        recorded={"old.py": {"copy"}, "edited.py": {"copy"}, "gone.py": {"copy"}},
        digests={"old.py": "copy", "edited.py": "edited"},
        committed=set(),
    )
    assert machine.changes({}).removed == ["old.py"]


NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


@given(st.dictionaries(NAMES, st.sets(st.sampled_from("abc"), min_size=1)))
def test_records_are_read_as_they_were_written(digests: dict[str, set[str]]) -> None:
    read: dict[str, set[str]] = {}
    for name, digest in _entries(_to_record(digests)):
        read.setdefault(name, set()).add(digest)
    assert read == digests
