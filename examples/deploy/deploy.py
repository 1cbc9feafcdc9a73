"""Run an exported policy in plain MuJoCo as a program on a robot would: with onnxruntime, and without torch.

    python deploy.py logs/cartpole-balance/RUN/exported
    python deploy.py logs/quadruped-velocity-flat/RUN/exported --command velocity=0.5,0,0

Everything that depends on the policy is read from the description in policy.onnx. On a robot, replace `measure` by the
robot's sensors and `data.ctrl` by its motors.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import onnxruntime


class Policy:
    """An exported policy and its state; call reset when a new episode starts."""

    def __init__(self, file: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # the network is small: more threads would only wait for each other
        self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        metadata = self.session.get_modelmeta().custom_metadata_map
        self.about: dict[str, Any] = {name: json.loads(value) for name, value in metadata.items()}
        self.reset()

    def reset(self) -> None:
        """Start a new episode."""
        self.state: Any = np.zeros((1, self.about["state_size"]), np.float32)

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        """Return the targets of a control step, in the order of about["targets"]."""
        inputs = {"obs": obs[None].astype(np.float32)}
        if self.about["state_size"]:
            inputs["state"] = self.state
        outputs: list[Any] = self.session.run(None, inputs)  # pyright: ignore[reportAssignmentType]
        if self.about["state_size"]:
            self.state = outputs[2]
        return outputs[1][0]


def measure(term: dict[str, Any], data: mujoco.MjData, commands: dict[str, np.ndarray]) -> np.ndarray:
    """Return the values of an observation term; the policy itself applies clip, scale and history."""
    if term["term"] == COMMAND:
        return commands[term["params"]["name"]]
    if term["term"] == GAIT_CLOCK:
        return gait_clock(data.time, term["sensor"]["params"], commands)
    if term["term"] not in TERMS:
        raise NotImplementedError(f"{term['name']}: {term['term']} is not in TERMS; add a function that measures it")
    return TERMS[term["term"]](data, term["params"], term)


def gait_clock(time_s: float, params: dict[str, Any], commands: dict[str, np.ndarray]) -> np.ndarray:
    """Return sine and cosine of the clock of a Gait sensor; 0 while the robot should stand."""
    walks = np.linalg.norm(commands[params["command"]]) > params.get("moving_m_s", 0.1)
    if not walks or time_s < params.get("rest_s", 0.25) - 1e-6:
        return np.zeros(2)
    phase = 2.0 * np.pi * params["frequency_hz"] * time_s
    return np.array([np.sin(phase), np.cos(phase)])


def in_base(vector: Any, data: mujoco.MjData, params: dict[str, Any]) -> np.ndarray:
    """Convert a vector from the world frame to the frame of a floating base."""
    rotation = np.zeros(9)
    mujoco.mju_quat2Mat(rotation, base(data, params).qpos[3:])
    return rotation.reshape(3, 3).T @ vector


def base(data: mujoco.MjData, params: dict[str, Any]) -> Any:
    """Return the free joint of a floating base."""
    return data.joint(params.get("joint", "root"))


def joints(data: mujoco.MjData, term: dict[str, Any], name: str) -> np.ndarray:
    """Return qpos or qvel of the joints that a term names."""
    return np.concatenate([getattr(data.joint(joint), name) for joint in term["joints"]])


MDP = "mjlab_dist.mdp.observations:"

COMMAND = f"{MDP}command"
GAIT_CLOCK = f"{MDP}gait_clock"

TERMS: dict[str, Callable[[mujoco.MjData, dict[str, Any], dict[str, Any]], Any]] = {
    f"{MDP}joint_position": lambda data, params, _: data.joint(params["joint"]).qpos,
    f"{MDP}joint_velocity": lambda data, params, _: data.joint(params["joint"]).qvel,
    f"{MDP}JointPositions": lambda data, _, term: joints(data, term, "qpos") - term["joint_start"],
    f"{MDP}JointVelocities": lambda data, _, term: joints(data, term, "qvel"),
    f"{MDP}base_linear_velocity": lambda data, params, _: in_base(base(data, params).qvel[:3], data, params),
    f"{MDP}base_angular_velocity": lambda data, params, _: base(data, params).qvel[3:],
    f"{MDP}projected_gravity": lambda data, params, _: in_base([0.0, 0.0, -1.0], data, params),
    f"{MDP}sensor": lambda data, params, _: data.sensor(params["name"]).data,
    # Terms of the cartpole and of Gymnasium's tasks
    "mjlab_dist_tasks.cartpole.terms:pole_direction": lambda data, *_: [
        np.cos(data.joint("hinge").qpos[0]),
        np.sin(data.joint("hinge").qpos[0]),
    ],
    "mjlab_dist_tasks.gym.terms:positions": lambda data, params, _: data.qpos[params.get("skip", 0) :],
    "mjlab_dist_tasks.gym.terms:velocities": lambda data, *_: data.qvel,
}
"""Functions that measure observation terms, by the name of the term. Add functions for the terms of your own task."""


def run(
    directory: Path,
    seconds: float,
    commands: dict[str, np.ndarray],
    qpos: np.ndarray | None = None,
    qvel: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Simulate the model with the policy.

    Return positions (steps + 1, nq), velocities (steps + 1, nv), actuator inputs (steps, nu), and the median time
    in s that a step spends on measuring the observations and running the policy.
    """
    policy = Policy(directory / "policy.onnx")
    model = mujoco.MjModel.from_binary_path(str(directory / "model.mjb"))
    data = mujoco.MjData(model)
    data.qpos = policy.about["start"]["qpos"] if qpos is None else qpos
    data.qvel = policy.about["start"]["qvel"] if qvel is None else qvel
    mujoco.mj_forward(model, data)
    for target in policy.about["targets"]:
        if target["actuator"] is None:
            raise NotImplementedError(
                f"{target['name']}: this target is not an actuator input; compute the actuator inputs from it as the "
                f"class of the action {target['block']} does"
            )
    terms = [term for term in policy.about["observations"] if term["columns"] is not None]
    num_substeps = round(policy.about["control_step_s"] / policy.about["physics_step_s"])
    positions, velocities, inputs, took_s = [data.qpos.copy()], [data.qvel.copy()], [], []
    for _ in range(round(seconds / policy.about["control_step_s"])):
        start = time.perf_counter()
        targets = policy(np.concatenate([measure(term, data, commands) for term in terms]))
        took_s.append(time.perf_counter() - start)
        for target, value in zip(policy.about["targets"], targets, strict=True):
            data.actuator(target["actuator"]).ctrl = value
        mujoco.mj_step(model, data, nstep=num_substeps)
        positions.append(data.qpos.copy())
        velocities.append(data.qvel.copy())
        inputs.append(data.ctrl.copy())
    return np.array(positions), np.array(velocities), np.array(inputs), float(np.median(took_s))


def main() -> None:
    """Simulate, and print the time per step for measuring observations and running the policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="directory that mjlab-dist export wrote")
    parser.add_argument("--seconds", type=float, default=10.0, help="simulated time")
    parser.add_argument("--command", action="append", default=[], metavar="NAME=VALUE,...", help="value of a command")
    parser.add_argument("--output", type=Path, help="npz file to which the states are written")
    args = parser.parse_args()
    pairs = [text.partition("=")[::2] for text in args.command]
    commands = {name: np.array([float(value) for value in values.split(",")]) for name, values in pairs}
    known = Policy(args.directory / "policy.onnx").about["commands"]
    if commands.keys() != known.keys():
        parser.error(
            f"the policy takes these commands: {', '.join(known) or 'none'}; give --command NAME=VALUE,... for each of "
            "them, and for no other"
        )
    positions, velocities, inputs, took_s = run(args.directory, args.seconds, commands)
    print(
        f"{len(inputs)} control steps; measuring observations and running the policy took {1e6 * took_s:.0f} µs per "
        "step (median)"
    )
    print("Last positions:", np.array2string(positions[-1], precision=3, suppress_small=True))
    if args.output is not None:
        np.savez(args.output, qpos=positions, qvel=velocities, ctrl=inputs)


if __name__ == "__main__":
    main()
