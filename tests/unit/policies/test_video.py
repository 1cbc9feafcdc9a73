"""Pictures of envs that move to another place on a terrain, and the choice of the OpenGL library."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import mujoco  # noqa: F401 (a test needs it to be imported already)
import numpy as np
import pytest
import torch

from mjlab_dist.policies.policy_episodes import choose_opengl
from mjlab_dist.policies.video import _View


def test_the_terrain_around_a_new_place_is_drawn() -> None:
    places: list[tuple[float, float]] = []

    class Renderers:
        def at(self, origin: tuple[float, float]) -> Any:
            places.append(origin)
            return lambda poses: np.array([*origin, poses["qpos"].item()])

    qpos = torch.tensor([[1.0], [2.0]])
    env: Any = SimpleNamespace(origins=torch.zeros(2, 3), sim=SimpleNamespace(physics={"qpos": qpos}))
    renderers: Any = Renderers()
    view = _View(env, 1, renderers)
    assert view.picture().tolist() == [0, 0, 2]
    qpos[1] = 3.0
    assert view.picture().tolist() == [0, 0, 3]
    assert places == [(0, 0)], "the renderer is kept while the env stays"
    # Move the env, as a curriculum may do
    env.origins[1] = torch.tensor([8.0, -8.0, 0.5])
    assert view.picture().tolist() == [8, -8, 3]
    assert view.picture().tolist() == [8, -8, 3]
    assert places == [(0, 0), (8, -8)]


def test_a_variable_that_mujoco_has_already_read_is_not_set() -> None:
    environ: dict[str, str] = {}
    choose_opengl(environ)
    assert environ == {}, "otherwise the renderer would consider it the user's choice, and use GLFW"


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="torch has no Triton on this platform")
def test_triton_can_be_imported_after_rendering() -> None:
    code = """
import mujoco
from mjlab_dist.sim.render import _renderer
model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='.1'/></worldbody></mujoco>")
_renderer(model, (8, 8), -1)({})
import triton
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
