"""Warnings of MuJoCo become events, without output on stderr or MUJOCO_LOG.TXT. Other warnings are unchanged."""

from __future__ import annotations

import warnings
from pathlib import Path

import mujoco
import pytest

from mjlab_dist.config import EntityConfig, SimConfig
from mjlab_dist.messages import Event, listening
from mjlab_dist.sim import build_model
from mjlab_dist.sim.quiet import quiet

BALL = '<mujoco><option timestep="{}"/><worldbody><body><freejoint/><geom size=".1"/></body></worldbody></mujoco>'


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    monkeypatch.chdir(tmp_path)
    return []


def test_a_warning_of_the_c_code_is_an_event(events: list[Event], tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    model = mujoco.MjModel.from_xml_string(BALL.format(0.01))
    data = mujoco.MjData(model)
    data.qvel[:] = 1e20
    before = mujoco.get_mju_user_warning()
    with listening(events.append), quiet():
        mujoco.mj_step(model, data)
    assert [event["kind"] for event in events] == ["debug"]
    assert events[0]["text"].startswith("MuJoCo: Nan, Inf or huge value in QVEL at DOF 0.")
    assert mujoco.get_mju_user_warning() is before
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_a_conflict_between_entities_is_an_event(
    events: list[Event], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ball = EntityConfig(model=BALL.format(0.02))
    with listening(events.append), warnings.catch_warnings(action="error"):
        build_model(SimConfig(model=BALL.format(0.01), entities={"ball": ball}, njmax=4, nconmax=4))
    assert any("timestep: parent has 0.01, child has 0.02" in event["text"] for event in events)
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_warnings_of_other_code_are_issued() -> None:
    with pytest.warns(UserWarning, match="my own") as found, quiet():
        warnings.warn("my own", stacklevel=1)
    assert Path(found[0].filename) == Path(__file__)
