"""The exported policy computes the same actions as the policy, and the same actuator inputs as the env.

Depending on the config, the exported policy's state contains histories of observations, the last action, and
recurrent states.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mujoco
import pytest
import torch

from mjlab_dist.config import TrainConfig, registry
from mjlab_dist.config.dotted_names import with_values
from mjlab_dist.config.task import without_disturbances
from mjlab_dist.distributed.rank import seed_generators
from mjlab_dist.env import Env
from mjlab_dist.errors import CheckError, UserError
from mjlab_dist.learn.networks import make_policy
from mjlab_dist.policies.export import TOLERANCE, largest_difference
from mjlab_dist.policies.export_description import actuator, describe
from mjlab_dist.policies.export_network import ExportedPolicy, run_onnx, run_torchscript, to_onnx, to_torchscript
from mjlab_dist.sim import build_model

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.load` is deprecated")

NUM_ENVS = 3
SHORT = {"env.episode_length_s": 0.2}
"""Episodes of ten steps. Tests take more steps, so they include the reset of the state in a new episode."""


def config_of(task: str, **fields: Any) -> TrainConfig:
    config = with_values(registry.task_config(task), fields)
    return dataclasses.replace(config, env=without_disturbances(config.env))


def made(config: TrainConfig) -> tuple[Env, Any, ExportedPolicy]:
    """Return envs, a policy with large random weights, and the same policy exported."""
    seed_generators(3)
    env = Env(config.env, NUM_ENVS, "cpu")
    policy = make_policy(config.agent, env.get_observations(), env.num_actions, "cpu")
    for parameter in policy.mlp.parameters():
        torch.nn.init.uniform_(parameter, -0.15, 0.15)
    policy.eval()
    return env, policy, ExportedPolicy(policy, env)


def runner_of(exported: ExportedPolicy) -> Callable[..., list[torch.Tensor]]:
    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        with torch.inference_mode():
            return list(exported(*inputs))

    return run


def runners_of(exported: ExportedPolicy) -> dict[str, Any]:
    """Return functions that run the policy: as a module, and from each of the two exported files."""
    return {
        "module": runner_of(exported),
        "policy.onnx": run_onnx(to_onnx(exported, {})),
        "policy.pt": run_torchscript(to_torchscript(exported, {})),
    }


GRIPPER = {
    "env.actions.gripper.func": "mjlab_dist.mdp.actions:Binary",
    "env.actions.gripper.params": {"opened": 0.1, "closed": -0.02},
    "env.actions.gripper.scale": 1.0,
    "env.actions.gripper.offset": 0.0,
}


@pytest.mark.slow
@pytest.mark.parametrize(("config", "num_states"), [
    (config_of("cartpole-balance", **SHORT), 0),
    (config_of("cartpole-balance", **SHORT, **{"env.observations.actor.pole_direction.history": 4}), 1 + 8),
    (config_of("cartpole-balance", **SHORT, **{"agent.rnn": "gru", "agent.rnn_hidden_dim": 8}), 1 + 8),
    (config_of("cartpole-balance", **SHORT, **{
        "agent.rnn": "lstm", "agent.rnn_hidden_dim": 8, "agent.rnn_num_layers": 2,
        "env.observations.actor.cart_velocity.clip": (-0.01, 0.02),
        "env.observations.actor.cart_velocity.scale": 3.0,
        "env.observations.actor.cart_velocity.history": 2,
    }), 1 + 2 + 2 * 2 * 8),
    # The last action with a history, and action blocks with scales, offsets and clips
    (config_of("arm-lift-cube", **SHORT, **{"env.observations.actor.last_action.history": 2}), 1 + 8 + 2 * 8),
    (config_of("arm-lift-cube", **SHORT, **GRIPPER), 1 + 8),
])  # fmt: skip
def test_actions_and_targets_are_those_of_the_policy_in_its_env(config: TrainConfig, num_states: int) -> None:
    env, policy, exported = made(config)
    assert exported.num_states == num_states
    assert largest_difference(env, policy, runners_of(exported), num_states, 25) <= TOLERANCE


def test_a_difference_is_refused() -> None:
    env, policy, exported = made(config_of("cartpole-balance", **SHORT))
    run = runner_of(exported)

    def off(index: int) -> Callable[..., list[torch.Tensor]]:
        return lambda *inputs: [one + 1e-4 * (i == index) for i, one in enumerate(run(*inputs))]

    for index, what in enumerate(("actions", "targets")):
        with pytest.raises(CheckError, match=rf"^policy\.onnx: its {what} "):
            largest_difference(env, policy, {"policy.onnx": off(index)}, 0, 1)


def test_a_scale_that_changes_cannot_be_exported() -> None:
    path = "observations.actor.cart_velocity.scale"
    schedule = {"func": "mjlab_dist.mdp.curricula:Schedule", "params": {"parameter": path, "points": ((0, 1), (9, 2))}}
    config = config_of("cartpole-balance", **{"env.curricula": {"scale": schedule}})
    with pytest.raises(UserError, match=path):
        made(config)


@pytest.mark.slow
def test_targets_that_are_not_inputs_are_marked() -> None:
    relative = {"env.actions.force.func": "mjlab_dist.mdp.actions:RelativeJointPosition"}
    env, policy, exported = made(config_of("cartpole-balance", **SHORT, **relative))
    assert [target._asdict() for target in exported.targets] == [{"name": "force", "block": "force", "actuator": None}]
    assert largest_difference(env, policy, {"module": runner_of(exported)}, 0, 5) <= TOLERANCE


def test_inputs_are_within_the_control_ranges() -> None:
    env, _, exported = made(config_of("cartpole-balance"))
    (low, high), *_ = env.sim.model.actuator_ctrlrange
    for obs in (-1e3, 1e3):
        actions, targets = exported(torch.full((2, exported.num_inputs), obs))
        assert not ((low <= actions) & (actions <= high)).any()
        assert ((low <= targets) & (targets <= high)).all()


def test_the_whole_policy_moves_with_its_file() -> None:
    _, _, exported = made(config_of("arm-lift-cube", **GRIPPER))
    module = torch.jit.load(io.BytesIO(to_torchscript(exported, {}))).double()
    obs, state = torch.zeros(1, exported.num_inputs).double(), torch.zeros(1, exported.num_states).double()
    assert all(output.dtype == torch.float64 for output in module(obs, state))
    assert not any(parameter.requires_grad for parameter in module.parameters())


@pytest.mark.slow
def test_the_description_is_strict_json(tmp_path: Path) -> None:
    config = config_of("cartpole-balance", **{"env.actions.force.clip": (-math.inf, 1.0)})
    env, _, exported = made(config)
    about = describe(env, config, tmp_path / "checkpoints" / "model_1.pt", exported)
    assert about["actions"][0]["clip"] == [None, 1.0]
    json.dumps(about, allow_nan=False)
    # The file contains no directories of this machine
    file = to_onnx(exported, about)
    assert b".py" not in file
    assert str(Path(__file__).parents[3]).encode() not in file


ACTUATORS = {
    '<position joint="a" kp="5" kv="0.5"/>': ("position", 5.0, 0.5),
    '<position joint="a" kp="5" kv="0.5" gear="2"/>': ("position", 20.0, 2.0),
    '<position jointinparent="a" kp="5"/>': ("position", 5.0, 0.0),
    '<velocity joint="a" kv="3"/>': ("velocity", 0.0, 3.0),
    '<motor joint="a" gear="10"/>': ("effort", None, None),
    '<general joint="a" gainprm="4" biasprm="1 -9 -8"/>': ("effort", None, None),
    '<general joint="a" gainprm="4" biastype="affine" biasprm="1 -4 -8"/>': ("other", None, None),
    '<intvelocity joint="a" kp="7" actrange="-1 1"/>': ("other", None, None),
    '<damper joint="a" kv="4" ctrlrange="0 1"/>': ("other", None, None),
    '<muscle joint="a"/>': ("other", None, None),
}


@pytest.mark.parametrize(("mjcf", "law"), ACTUATORS.items(), ids=str)
def test_actuators_are_described_by_their_law(mjcf: str, law: tuple[str, float | None, float | None]) -> None:
    body = '<body><joint name="a" range="-1 1"/><geom size="0.1"/></body>'
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{body}</worldbody><actuator>{mjcf}</actuator></mujoco>")
    one = actuator(model, 0)
    assert (one["kind"], one["stiffness"], one["damping"]) == law
    assert one["joint"] == "a"
    # The force that MuJoCo computes is linear in the position, so its slope is the stiffness
    if law[0] == "position":
        data = mujoco.MjData(model)
        forces = []
        for data.qpos[0] in (0.0, 0.1):
            mujoco.mj_forward(model, data)
            forces.append(data.qfrc_actuator[0])
        assert (forces[0] - forces[1]) / 0.1 == pytest.approx(one["stiffness"])


def test_motors_of_the_config_are_described_with_their_numbers() -> None:
    model = build_model(config_of("arm-reach").env.sim)
    one = actuator(model, model.actuator("joint6").id)
    assert (one["kind"], one["stiffness"], one["damping"]) == ("position", 150.0, 25.0)
    assert one["velocity_limit"] == pytest.approx(2.61)
    assert one["force_range"] == [-12.0, 12.0]
