"""Quantities of a floating base are correct after each change of the state, and computed only once per change."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest
import torch
from legged import EVERYTHING, make, randomize_state

from mjlab_dist.config import ActionConfig, EnvConfig, RandomizationConfig, SimConfig, event, observation, reward
from mjlab_dist.config.dotted_names import replaced
from mjlab_dist.env import Env
from mjlab_dist.errors import UserError
from mjlab_dist.mdp import events, observations, rewards, rotation

NUM_ENVS = 8


@pytest.fixture(scope="module")
def shared(engine: str) -> Env:  # noqa: ARG001 (there are envs for each engine)
    return make(NUM_ENVS, config=EVERYTHING)


@pytest.fixture
def env(shared: Env) -> Iterator[Env]:
    before = shared.state()
    randomize_state(shared)
    yield shared
    shared.load_state(before)


def assert_is_up_to_date(env: Env) -> None:
    quat, velocity = env.sim.qpos[:, 3:7], env.sim.qvel[:, :3]
    base = env.base()
    down = torch.nn.functional.normalize(env.sim.field("gravity"))
    torch.testing.assert_close(base.gravity, rotation.rotate_inverse(quat, down))
    torch.testing.assert_close(base.linear_velocity, rotation.rotate_inverse(quat, velocity))
    torch.testing.assert_close(base.heading, rotation.heading(quat))
    zero = torch.zeros(env.num_envs)
    level = rotation.rotate_inverse(rotation.from_euler(zero, zero, rotation.heading(quat)), velocity)
    torch.testing.assert_close(base.level_velocity, level)


def _write_rows(env: Env) -> None:
    env.sim.qvel[:, :6].add_(1.0)


def _write_by_torch_in_inference_mode(env: Env) -> None:
    with torch.inference_mode():
        env.sim.qpos[:, 3:7].copy_(env.sim.qpos[:, 3:7].flip(1))


def _load(env: Env) -> None:
    state = env.state()
    env.load_state({**state, "sim.qpos": state["sim.qpos"].flip(0)})


CHANGES: dict[str, Callable[[Env], object]] = {
    "a step": lambda env: env.step(torch.ones(env.num_envs, env.num_actions)),
    "a reset of all": lambda env: env.reset(),
    "a reset of some envs by the physics": lambda env: env.sim.reset(torch.arange(env.num_envs) < 3),
    "an event": lambda env: env._events.reset(env, torch.ones(env.num_envs, dtype=torch.bool)),
    "a loaded state": _load,
    "a write by torch": _write_rows,
    "a write by torch in inference mode": _write_by_torch_in_inference_mode,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_of_the_state_is_detected(env: Env, change: Callable[[Env], object]) -> None:
    assert_is_up_to_date(env)
    before = env.base().gravity.clone()
    change(env)
    assert_is_up_to_date(env)
    if change is not _write_rows:
        assert not torch.equal(env.base().gravity, before)


def test_gravity_has_the_direction_that_each_env_draws() -> None:
    draws = RandomizationConfig(field="gravity", low=-9.0, high=9.0, operation="set")
    env = make(NUM_ENVS, config=dataclasses.replace(EVERYTHING, randomizations={"gravity": draws}))
    randomize_state(env)
    acceleration, quat = env.sim.field("gravity"), env.sim.qpos[:, 3:7]
    assert acceleration.std(dim=0).min() > 2.0
    turned = rotation.rotate_inverse(quat, torch.nn.functional.normalize(acceleration))
    torch.testing.assert_close(observations.projected_gravity(env), turned)
    # Changes that leave the rest of the state as it is
    acceleration.neg_()
    torch.testing.assert_close(observations.projected_gravity(env), -turned)
    acceleration.zero_()
    down = torch.tensor([0.0, 0.0, -1.0]).expand(NUM_ENVS, 3)
    torch.testing.assert_close(observations.projected_gravity(env), rotation.rotate_inverse(quat, down))


def test_values_are_computed_once_per_state(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    base, calls = env.base(), []
    measure = base._measure
    monkeypatch.setattr(base, "_measure", lambda: calls.append(measure()))
    for _ in range(3):
        _ = (base.gravity, base.linear_velocity, base.heading, base.level_velocity)
    env.actions.add_(1.0)
    _ = base.gravity
    assert len(calls) == 1


def test_an_env_built_in_inference_mode_computes_on_every_read() -> None:
    with torch.inference_mode():
        env = make(2, config=EVERYTHING)
        env.sim.qpos.copy_(env.sim.qpos.flip(0))
        assert env.sim.version is None
        assert_is_up_to_date(env)
        env.sim.qpos[0, 3:7] = torch.tensor([0.0, 1.0, 0.0, 0.0])
        assert_is_up_to_date(env)


def test_the_only_free_joint_needs_no_name() -> None:
    model = """
    <mujoco>
      <worldbody>{other}
        <body pos="0 0 1"><freejoint name="floating"/><geom size=".1"/>
          <body><joint name="hinge" axis="0 1 0"/><geom size=".1"/></body>
        </body>
      </worldbody>
      <actuator><motor name="hinge" joint="hinge"/></actuator>
    </mujoco>"""
    config = EnvConfig(
        sim=SimConfig(model=model.format(other=""), njmax=4, nconmax=4),
        episode_length_s=1.0,
        actions={"all": ActionConfig(actuators=(".*",))},
        observations={"actor": {"height": observation(observations.base_height)}},
        rewards={"tilt": reward(-1.0, rewards.tilt)},
        events={"start": event(events.DrawRoot), "push": event(events.Push).every(0.1, 0.1)},
    )
    env = Env(config, NUM_ENVS, "cpu")
    obs, *_ = env.step(torch.zeros(NUM_ENVS, 1))
    torch.testing.assert_close(obs["actor"], env.sim.qpos[:, 2:3])
    assert env.base() is env.base("floating")
    assert set(env.joints) == {"floating", "hinge"}
    # With a second free joint, the name is needed
    other = '<body pos="1 0 1"><freejoint name="cube"/><geom size=".1"/></body>'
    with pytest.raises(UserError, match="joint root: does not exist; the model has cube, floating, hinge"):
        Env(replaced(config, ["sim", "model"], model.format(other=other)), NUM_ENVS, "cpu")


def test_a_joint_that_is_not_free_is_refused(env: Env) -> None:
    with pytest.raises(UserError, match=r"^free joint tail: .*\broot$"):
        env.base("tail")
