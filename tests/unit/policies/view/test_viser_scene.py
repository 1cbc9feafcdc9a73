"""Pages of various tasks show a scene with the model, controls for commands, and charts of observations and actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from mjlab_dist.env import Env
from mjlab_dist.policies.view.gate import Server, open_server
from mjlab_dist.policies.view.page import Page
from mjlab_dist.policies.view.player import Player, Robot
from mjlab_dist.policies.view.viser_scene import Scene

TASKS = ("arm-lift-cube", "gym-reacher", "quadruped-tracking", "quadruped-velocity-rough", "everything")
"""Tasks with meshes and objects, a fixed robot, a reference motion, terrain, and every kind of term."""


class Nothing:
    """A policy whose actions are zero."""

    def __init__(self, env: Env) -> None:
        self._action = torch.zeros(env.num_envs, env.num_actions)

    def __call__(self, *_: object) -> torch.Tensor:
        return self._action

    def reset(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = open_server("127.0.0.1", None)
    yield server
    server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_a_page(task: str, server: Server, build_env: Callable[[str], Env]) -> None:
    env = build_env(task)
    player = Player(env, Nothing(env))
    page = Page(server, player, list)
    player.push()
    for name in env.cfg.commands:
        if len(ranges := env.find_command(name).ranges):
            player.hold_command(name, ranges.mean(dim=1).tolist())
    frame = [player.step() for _ in range(3)][-1]
    scene = page.scene
    for env_id in (0, env.num_envs - 1):
        scene.env_id, scene.shows_contacts, scene.shows_collision_geoms = env_id, True, True
        scene.show(frame.state, frame.origins, frame.commands)
        body = env.sim.model.body(Robot.of(env.sim.model).body).id
        assert np.allclose(scene.place_of(body, frame.state), 0.0, atol=1e-9), "the camera follows the robot"
    scene.hides_others = True
    broken = {name: np.full_like(value, np.nan) for name, value in frame.state.items()}
    scene.show(broken, frame.origins, frame.commands)
    page.update()
    for name in env.cfg.commands:
        player.hold_command(name, None)
    player.step()


def test_an_env_that_is_not_finite_keeps_its_own_pose(server: Server, build_env: Callable[[str], Env]) -> None:
    model = build_env("cartpole-balance").sim.model
    scene = Scene(server, model, 3)
    scene.follows_robot = False
    cart = model.body("cart").id
    qpos = np.array([[0.1, 0.0], [0.2, 0.0], [0.3, 0.0]])

    def shown() -> list[float]:
        places: list[float] = []
        for scene.env_id in range(3):
            places.append(scene.place_of(cart, {"qpos": qpos})[0])
        return places

    before = shown()
    assert np.allclose(np.diff(before), 0.1)
    qpos[1, 1] = np.nan
    qpos[2] += 1.0
    assert np.allclose(np.subtract(shown(), before), [0.0, 0.0, 1.0])


def test_the_robot_is_the_tree_that_actuators_move(build_env: Callable[[str], Env]) -> None:
    for task, is_floating in {
        "arm-lift-cube": False,
        "quadruped-velocity-flat": True,
        "cartpole-balance": False,
    }.items():
        model = build_env(task).sim.model
        robot = Robot.of(model)
        assert (robot.root is not None) == is_floating, task
        assert robot.joints, task
        assert model.body_dofnum[robot.body], task
