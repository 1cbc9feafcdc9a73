"""The file of a robot is found by its name, in a directory or with a package that downloads it."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from mjlab_dist.authoring.new_task.robot_files import find_robot
from mjlab_dist.errors import UserError

MENAGERIE = {"unitree_go2": "go2", "unitree_g1": "g1", "anybotics_anymal_c": "anymal_c"}


@pytest.fixture
def menagerie(tmp_path: Path) -> Path:
    """Return a directory with the same structure as MuJoCo Menagerie."""
    for folder, name in MENAGERIE.items():
        (tmp_path / folder).mkdir()
        for file in (name, "scene"):
            (tmp_path / folder / f"{file}.xml").write_text(f'<mujoco model="{file}"/>')
    return tmp_path


@pytest.mark.parametrize("name", ["anymal_c", "anymal-c", "ANYmal_C", "anybotics_anymal_c"])
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


@pytest.mark.parametrize("name", ["unitree_go2", "go2", "Unitree-Go2"])
def test_a_robot_of_menagerie_has_several_names(menagerie: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("MENAGERIE_ROOT", str(menagerie))
    assert find_robot(name, None) == menagerie / "unitree_go2" / "go2.xml"


def test_a_name_of_several_robots_of_menagerie_is_refused() -> None:
    with pytest.raises(UserError, match="choose anybotics_anymal_b or anybotics_anymal_c"):
        find_robot("anybotics", None)


def test_robot_descriptions_has_urdfs_of_other_robots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the module of a robot, because it would be downloaded when it is imported."""
    module = ModuleType("robot_descriptions.double_pendulum_description")
    module.__dict__["URDF_PATH"] = str(tmp_path / "double_pendulum.urdf")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert find_robot("double_pendulum", None) == tmp_path / "double_pendulum.urdf"


def test_an_unknown_robot_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match=r"mujoco-menagerie or robot_descriptions; .*go2"):
        find_robot("go22", None)


@pytest.mark.parametrize("name", ["unitree_go1", "double_pendulum"])
def test_a_failed_download_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("MENAGERIE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("MENAGERIE_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("ROBOT_DESCRIPTIONS_CACHE", str(tmp_path))
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "none")  # git refuses to use the network
    with pytest.raises(UserError, match=r"cannot be downloaded: .*--robots-dir") as caught:
        find_robot(name, None)
    assert "\n" not in str(caught.value)
