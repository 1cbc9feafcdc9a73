"""The file of a robot is found by its name, in a directory or with the package robot_descriptions."""

import subprocess
import sys
from pathlib import Path

import pytest

from mjlab_dist.errors import UserError
from mjlab_dist.new_task.lookup import find_robot

MENAGERIE = {"unitree_go2": "go2", "unitree_g1": "g1", "anybotics_anymal_c": "anymal_c"}


@pytest.fixture
def menagerie(tmp_path: Path) -> Path:
    """Return a directory with the same structure as MuJoCo Menagerie."""
    for folder, name in MENAGERIE.items():
        (tmp_path / folder).mkdir()
        for file in (name, "scene"):
            (tmp_path / folder / f"{file}.xml").write_text(f'<mujoco model="{file}"/>')
    return tmp_path


@pytest.mark.parametrize("name", ["anymal_c", "anymal-c", "ANYmal_C"])
def test_a_directory_has_the_file_of_a_robot(menagerie: Path, name: str) -> None:
    assert find_robot(name, menagerie) == menagerie / "anybotics_anymal_c" / "anymal_c.xml"


def test_an_mjcf_is_preferred_to_a_urdf(menagerie: Path) -> None:
    (menagerie / "a.urdf").write_text("<robot/>")
    assert find_robot("a", menagerie) == menagerie / "a.urdf"
    (menagerie / "a.xml").write_text("<mujoco/>")
    assert find_robot("a", menagerie) == menagerie / "a.xml"


@pytest.mark.parametrize(
    ("name", "part"),
    [("go3", "go2"), ("qqqqqq", "--mjcf"), ("scene", "3 files")],
)
def test_a_name_without_exactly_one_file_is_refused(menagerie: Path, name: str, part: str) -> None:
    with pytest.raises(UserError, match=part):
        find_robot(name, menagerie)


def test_a_directory_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--robots-dir"):
        find_robot("go2", tmp_path / "none")


def _commit(repository: Path) -> str:
    git = ["git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@t"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "robots"]):
        subprocess.run([*git, *command], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def test_robot_descriptions_finds_a_robot_in_its_cache(
    menagerie: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = _commit(menagerie)
    cache = tmp_path_factory.mktemp("cache")
    cached = cache / f"mujoco_menagerie-{commit}" / "mujoco_menagerie"
    cached.parent.mkdir()
    menagerie.rename(cached)
    monkeypatch.setenv("ROBOT_DESCRIPTIONS_CACHE", str(cache))
    monkeypatch.setenv("ROBOT_DESCRIPTION_COMMIT", commit)
    monkeypatch.delitem(sys.modules, "robot_descriptions.go2_mj_description", raising=False)
    assert find_robot("go2", None) == cached / "unitree_go2" / "go2.xml"
    monkeypatch.delitem(sys.modules, "robot_descriptions.go2_mj_description")


def test_a_robot_that_is_not_in_robot_descriptions_is_refused() -> None:
    with pytest.raises(UserError, match="go2"):
        find_robot("go22", None)


def test_a_failed_download_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBOT_DESCRIPTIONS_CACHE", str(tmp_path))
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "none")  # git refuses to use the network
    with pytest.raises(UserError, match="--robots-dir") as caught:
        find_robot("go1", None)
    assert "\n" not in str(caught.value)
