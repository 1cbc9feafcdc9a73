"""References to functions in configs: lazy imports, checks of types, and functions that are refused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mjlab_dist.config import ObservationConfig, event, observation, reward, term
from mjlab_dist.config.serialization import to_plain
from mjlab_dist.config.terms import LazyModule, Reference, lazy_modules, name_of, resolve
from mjlab_dist.errors import UserError

HEAD = """from mjlab_dist.config import event, observation, reward, term
from mjlab_dist.mdp import commands, curricula, events, observations, rewards, sensors, terminations

"""

GOOD = """terms = [
    reward(-1.0, rewards.tilt),
    reward(0.5, rewards.feet_air_time, sensor="feet", command="velocity"),
    reward(-1e-7, rewards.JointAcceleration, joints=(".*",)),
    observation(observations.JointPositions, joints=(".*",)).processed(uniform_noise=0.01, history=3),
    event(events.Push, linear_m_s=(-0.5, 0.5)).every(8.0, 15.0),
    term(terminations.tilted, max_rad=1.0),
    term(commands.Velocity, forward_m_s=(-1.0, 1.0), left_m_s=(0.0, 0.0), yaw_rad_s=(0.0, 0.0)),
    term(sensors.Contact, sensors=("trunk",)),
    term(curricula.TerrainLevels),
]
"""

WRONG = {
    "a misspelled function": ("reward(-1.0, rewards.tillt)", "tillt"),
    "a missing parameter": ('reward(-1.0, rewards.feet_air_time, sensor="feet")', "command"),
    "an unknown parameter": ("reward(-1.0, rewards.tilt, height_m=1.0)", "height_m"),
    "a parameter of another type": ('reward(0.5, rewards.contacts, sensor="feet", min_n="much")', "min_n"),
}


@pytest.mark.slow
def test_the_type_checker_accepts_good_terms_and_reports_each_wrong_one(tmp_path: Path) -> None:
    file = tmp_path / "config.py"
    lines = [*(HEAD + GOOD).splitlines(), *(line for line, _ in WRONG.values())]
    file.write_text("\n".join(lines) + "\n")
    checker = Path(sys.executable).parent / "basedpyright"
    done = subprocess.run([str(checker), "--level", "error", str(file)], capture_output=True, text=True, check=False)
    errors = [line for line in done.stdout.splitlines() if " - error: " in line]
    assert len(errors) == len(WRONG), done.stdout
    first = len(lines) - len(WRONG) + 1
    for i, (what, (_, name)) in enumerate(WRONG.items()):
        (error,) = (line for line in errors if f"config.py:{first + i}:" in line)
        assert name in error, what


def test_a_config_that_names_real_functions_imports_no_torch() -> None:
    code = HEAD + GOOD + "import sys; print(terms[0].func, type(rewards).__name__, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["mjlab_dist.mdp.rewards:tilt", "LazyModule", "False"]


def test_real_functions_and_lazy_references_make_the_same_terms() -> None:
    from mjlab_dist.mdp.rewards import feet_air_time

    lazy = LazyModule("mjlab_dist.mdp.rewards")
    named = reward(0.5, lazy.feet_air_time, sensor="feet", command="velocity")
    assert reward(0.5, feet_air_time, sensor="feet", command="velocity") == named
    assert resolve(lazy.feet_air_time) is feet_air_time


def test_calling_a_reference_calls_the_named_function() -> None:
    assert LazyModule("math").sqrt(9.0) == 3.0


def test_a_package_exposes_only_its_listed_modules() -> None:
    get = lazy_modules("my_robot", "terms")
    assert get("terms").knees == "my_robot.terms:knees"
    with pytest.raises(AttributeError, match="other"):
        get("other")


class Nested:
    def method(self) -> None:
        """Do nothing. The qualified name of this method contains a dot."""


def test_a_function_that_cannot_be_imported_by_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def inner() -> None:
        pass

    def of_a_script() -> None:
        pass

    monkeypatch.setattr(of_a_script, "__module__", "__main__")
    for nameless in (inner, lambda: None, of_a_script):
        with pytest.raises(UserError):
            name_of(nameless)
    assert resolve(name_of(Nested.method)) is Nested.method


def test_constants_and_positional_arguments_are_refused() -> None:
    lazy = LazyModule("my_robot.terms")
    with pytest.raises(UserError, match=" limit="):
        reward(1.0, lazy.knees, limit=lazy.LIMIT_RAD)
    with pytest.raises(UserError, match=f"^{re.escape(lazy.knees)} 3: "):
        term(lazy.knees, 3)


def test_options_of_terms() -> None:
    lazy = LazyModule("my_robot.terms")
    seen = observation(lazy.knees, joint="knee").processed(scale=2.0, clip=(-1.0, 1.0), delay=(0, 2))
    assert seen == ObservationConfig(
        func="my_robot.terms:knees", params={"joint": "knee"}, scale=2.0, clip=(-1.0, 1.0), delay=(0, 2)
    )
    push = event(lazy.push)
    assert push.when == "reset"
    assert (push.every(1.0, 2.0).when, push.every(1.0, 2.0).interval_s) == ("interval", (1.0, 2.0))
    assert push.at_startup().when == "startup"


def test_plain_data_names_functions() -> None:
    assert to_plain({"func": resolve, "lazy": Reference("a:b")}) == {
        "func": "mjlab_dist.config.terms:resolve",
        "lazy": "a:b",
    }
