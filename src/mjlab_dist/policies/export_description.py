"""Description of the inputs and outputs of an exported policy, for programs that run it on a robot."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mujoco
import torch

from mjlab_dist.config import EnvConfig, ObservationConfig, TrainConfig
from mjlab_dist.config.serialization import to_plain
from mjlab_dist.config.terms import resolve
from mjlab_dist.env import Env
from mjlab_dist.policies.export_network import ACTOR, ExportedPolicy, observed_terms
from mjlab_dist.runs.provenance import read_provenance, versions
from mjlab_dist.runs.run_files import checkpoint_name, run_of
from mjlab_dist.sim.scene import DC_DAMPING, DC_SPEED, DC_STIFFNESS


def describe(env: Env, config: TrainConfig, checkpoint: Path, exported: ExportedPolicy) -> dict[str, Any]:
    """Describe a policy as plain data; docs/after-training.md explains every entry."""
    provenance = read_provenance(run_of(checkpoint))
    return _finite(
        {
            "task": config.task,
            "checkpoint": checkpoint_name(checkpoint),
            "control_step_s": env.step_dt_s,
            "physics_step_s": float(env.sim.model.opt.timestep),
            "state_size": exported.num_states,
            "observations": _observations(env, config.env),
            "actions": _actions(env, config.env),
            "targets": [target._asdict() for target in exported.targets],
            "actuators": [actuator(env.sim.model, i) for i in range(env.sim.model.nu)],
            "joints": [
                {
                    "name": name,
                    "qpos": [joint.qpos.start, joint.qpos.stop],
                    "qvel": [joint.qvel.start, joint.qvel.stop],
                    "start": _numbers(env.reference.qpos[0, joint.qpos]),
                }
                for name, joint in env.joints.items()
            ],
            "start": {"qpos": _numbers(env.reference.qpos[0]), "qvel": _numbers(env.reference.qvel[0])},
            "commands": {name: to_plain(term) for name, term in config.env.commands.items()},
            "trained": {"git_commit": provenance.get("git_commit"), "versions": provenance.get("versions")},
            "exported": versions(),
        }
    )


def _observations(env: Env, trained: EnvConfig) -> list[dict[str, Any]]:
    described: list[dict[str, Any]] = []
    for term in observed_terms(env):
        config = trained.observations[ACTOR][term.name]
        sensor = trained.sensors.get(str(config.params.get("sensor")))
        described.append(
            {
                "name": term.name,
                "term": config.func,
                "params": to_plain(config.params),
                **_joints_of(env, config),
                **({} if sensor is None else {"sensor": to_plain(sensor)}),
                "columns": None if term.columns is None else [term.columns.start, term.columns.stop],
                "width": term.width,
                "clip": config.clip,
                "scale": config.scale,
                "history": config.history,
                "delay_steps": config.delay,
                "uniform_noise": config.uniform_noise,
                "gaussian_noise": config.gaussian_noise,
            }
        )
    return described


def _joints_of(env: Env, config: ObservationConfig) -> dict[str, Any]:
    """Return the names and the start positions of the joints that a term reads; empty if it does not name joints."""
    parameters = inspect.signature(resolve(config.func)).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    params: dict[str, Any] = {**defaults, **config.params}
    joints = params.get("joints")
    patterns = (joints,) if isinstance(joints, str) else joints
    if not isinstance(patterns, tuple | list) or not all(isinstance(one, str) for one in patterns):
        return {}
    found = env.find_joints(tuple(patterns), params.get("entity"))
    return {"joints": list(found.names), "joint_start": _numbers(found.qpos.of(env.reference.qpos)[0])}


def _actions(env: Env, trained: EnvConfig) -> list[dict[str, Any]]:
    described: list[dict[str, Any]] = []
    for block in env.action_terms:
        config = trained.actions[block.block.name]
        for name, scale, offset in zip(block.names, _numbers(block.scale), _numbers(block.offset), strict=True):
            described.append(
                {
                    "name": name,
                    "block": block.block.name,
                    "class": config.func,
                    "params": to_plain(config.params),
                    "clip": config.clip,
                    "scale": scale,
                    "offset": offset,
                    "latency_steps": config.latency,
                }
            )
    return described


def actuator(model: mujoco.MjModel, i: int) -> dict[str, Any]:
    """Describe an actuator.

    Returns:
        Name, kind of the input, joint, gear, gain, stiffness and damping at the joint, and limits. A number is None if
        the actuator does not have it, or if its force does not follow the formula of a position, velocity or effort
        actuator.
    """
    one = model.actuator(i)
    on_joint = int(model.actuator_trntype[i]) in (mujoco.mjtTrn.mjTRN_JOINT, mujoco.mjtTrn.mjTRN_JOINTINPARENT)
    gear = float(one.gear[0])
    kind, stiffness, damping = _law(model, i)
    is_dc_motor = model.actuator_gaintype[i] == mujoco.mjtGain.mjGAIN_DCMOTOR
    speed = float(one.gainprm[DC_SPEED]) if is_dc_motor else 0.0
    return {
        "name": one.name,
        "kind": kind,
        "joint": model.joint(int(model.actuator_trnid[i, 0])).name if on_joint else None,
        "gear": gear,
        "gain": float(one.gainprm[0]) if kind == "effort" and not is_dc_motor else None,
        "stiffness": None if stiffness is None else stiffness * gear**2,
        "damping": None if damping is None else damping * gear**2,
        "control_range": _limits(one.ctrllimited, one.ctrlrange),
        "force_range": _limits(one.forcelimited, one.forcerange),
        "velocity_limit": speed or None,
    }


def _law(model: mujoco.MjModel, i: int) -> tuple[str, float | None, float | None]:
    """Return the kind of an actuator's input, and its stiffness and damping on the motor's side of the gear."""
    gain, bias = model.actuator_gainprm[i], model.actuator_biasprm[i]
    if model.actuator_gaintype[i] == mujoco.mjtGain.mjGAIN_DCMOTOR:
        kinds = {int(mujoco.mjtCtrlInput.mjINPUT_POS): "position", int(mujoco.mjtCtrlInput.mjINPUT_VEL): "velocity"}
        kind = kinds.get(int(model.actuator_ctrlspec[i]), "effort")
        if kind == "effort":
            return kind, None, None
        return kind, float(gain[DC_STIFFNESS]), float(gain[DC_DAMPING])
    is_plain = model.actuator_gaintype[i] == mujoco.mjtGain.mjGAIN_FIXED
    if is_plain and model.actuator_dyntype[i] == mujoco.mjtDyn.mjDYN_NONE:
        match int(model.actuator_biastype[i]):
            case mujoco.mjtBias.mjBIAS_NONE:
                return "effort", None, None
            case mujoco.mjtBias.mjBIAS_AFFINE if bias[0] == 0.0 and gain[0] == -bias[1]:
                return "position", float(gain[0]), abs(float(bias[2]))
            case mujoco.mjtBias.mjBIAS_AFFINE if bias[0] == bias[1] == 0.0 and gain[0] == -bias[2]:
                return "velocity", 0.0, float(gain[0])
    return "other", None, None


def _limits(is_limited: Any, limits: Any) -> list[float] | None:
    return limits.tolist() if is_limited else None


def _finite(value: Any) -> Any:
    """Return plain data with None in place of numbers that JSON does not support, such as an infinite bound."""
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _numbers(tensor: torch.Tensor) -> list[float]:
    """Return numbers rounded to the precision of float32, such as 0.9 for 0.8999999761581421."""
    return [float(f"{number:.7g}") for number in tensor.tolist()]
