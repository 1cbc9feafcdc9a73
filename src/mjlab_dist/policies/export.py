"""Export a policy: make its files, check that they give the same actions as the policy, and write them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjlab_dist.config import ExportConfig, TrainConfig
from mjlab_dist.config.limits import validate_limits
from mjlab_dist.config.task import without_disturbances
from mjlab_dist.errors import CheckError, UserError
from mjlab_dist.imports import require_extra, start_up
from mjlab_dist.runs.outputs import write_atomically
from mjlab_dist.runs.run_dir import CONFIG_FILE
from mjlab_dist.runs.run_files import refuse_links, run_of

if TYPE_CHECKING:
    import torch
    from rsl_rl.models import MLPModel

    from mjlab_dist.env import Env
    from mjlab_dist.policies.export_network import Runner

# Maximum number of envs that provide the checked observations
MAX_ENVS = 16

# Maximum difference between a number that a file computes and the policy's number. The difference is relative to the
# magnitude of the policy's number, or absolute if this magnitude is below 1.
TOLERANCE = 1e-5


@dataclass(frozen=True, kw_only=True)
class Made:
    """A policy's files, checked but not written yet."""

    # Contents of the files, by name
    contents: Mapping[str, bytes]
    # Description of the policy, as in the files
    description: dict[str, Any]
    # Number of observations that were checked
    num_checked: int
    # Largest difference between the actions or targets of a file and those of the policy in its env, relative or
    # absolute as for TOLERANCE.
    max_difference: float


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Result of an export."""

    files: tuple[Path, ...]
    # Their contents
    made: Made


def check(config: ExportConfig) -> None:
    """Raise if a number is out of range, or a package is missing."""
    validate_limits(config)
    require_extra("export", "policy.onnx")


def export(train_config: TrainConfig, checkpoint: Path, config: ExportConfig) -> Exported:
    """Export a policy. If a file gives different results from the policy, raise, and write no file."""
    # Directory first, so that an error occurs early
    directory = _default_directory(checkpoint) if config.output is None else Path(config.output)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(directory, error) from error

    made = make(train_config, checkpoint, config)
    try:
        for name, data in made.contents.items():
            write_atomically(directory / name, data)
    except OSError as error:
        raise _unwritable(directory, error) from error
    return Exported(files=tuple(directory / name for name in made.contents), made=made)


def make(train_config: TrainConfig, checkpoint: Path, config: ExportConfig) -> Made:
    """Make and check the files of a policy, without writing them."""
    # Env and policy
    from mjlab_dist.policies import load_env_and_policy  # imports torch

    num_envs = min(MAX_ENVS, config.num_checked)
    calm = dataclasses.replace(train_config, env=without_disturbances(train_config.env))
    env, policy = load_env_and_policy(calm, checkpoint, num_envs, config.seed)
    with start_up():
        from mjlab_dist.policies import export_network  # imports torch
        from mjlab_dist.policies.export_description import describe  # imports torch
        from mjlab_dist.policies.export_network import ExportedPolicy  # imports torch
    # Contents of the files
    exported = ExportedPolicy(policy, env)
    description = describe(env, train_config, checkpoint, exported)
    contents = {
        "policy.onnx": export_network.to_onnx(exported, description),
        "policy.pt": export_network.to_torchscript(exported, description),
        "model.mjb": export_network.to_mjb(env.sim.model),
    }
    # Check
    runners = {
        "policy.onnx": export_network.run_onnx(contents["policy.onnx"]),
        "policy.pt": export_network.run_torchscript(contents["policy.pt"]),
    }
    num_steps = -(-config.num_checked // num_envs)
    max_difference = largest_difference(env, policy, runners, exported.num_states, num_steps)
    return Made(
        contents=contents,
        description=description,
        num_checked=num_steps * num_envs,
        max_difference=max_difference,
    )


def _default_directory(checkpoint: Path) -> Path:
    run = run_of(checkpoint)
    if run.is_file():
        return run.with_name(f"{run.stem}_exported")
    named = Path(os.path.abspath(checkpoint)).parent.parent  # noqa: PTH100 (resolve() follows links)
    if (named / CONFIG_FILE).is_file():
        run = named
    refuse_links(f"--run {run}", run)
    return run / "exported"


def _unwritable(directory: Path, error: OSError) -> UserError:
    return UserError(f"--output {directory}: cannot be written ({error.strerror}); name another directory")


def largest_difference(
    env: Env, policy: MLPModel, runners: Mapping[str, Runner], num_states: int, num_steps: int
) -> float:
    """Play the policy, compute the same steps with exported policies, and return the largest difference.

    Actions are compared with those of the policy. Targets that are inputs of actuators are compared with the inputs in
    the env.
    """
    import torch

    from mjlab_dist.policies.export_network import measured  # imports torch

    states = {name: torch.zeros(env.num_envs, num_states) for name in runners}
    max_difference = 0.0
    obs = env.reset()
    for step in range(num_steps):
        # Start new episodes halfway, so that the check includes a reset even if it is shorter than an episode
        if step == num_steps // 2:
            obs = env.reset()
            policy.reset()
            states = {name: torch.zeros_like(state) for name, state in states.items()}
        # A step of the policy in its env
        row = measured(env).clone()
        with torch.inference_mode():
            actions = policy(obs)
            obs, _, dones, _ = env.step(actions)
            policy.reset(dones)
        # The same step with the exported policies
        for name, run in runners.items():
            outputs = run(row, states[name]) if num_states else run(row)
            pairs = {"actions": (outputs[0], actions), "targets": _inputs(env, outputs[1], dones)}
            for what, (given, expected) in pairs.items():
                relative = (given - expected).abs() / expected.abs().clamp(min=1.0)
                difference = float(relative.max()) if relative.numel() else 0.0
                if not difference <= TOLERANCE:  # also true for NaN
                    raise CheckError(
                        f"{name}: its {what} differ from those of the policy by {difference:.3g} of their magnitude, "
                        f"but the maximum is {TOLERANCE:g}; no file has been written"
                    )
                max_difference = max(max_difference, difference)
            if num_states:
                states[name] = torch.where(dones.unsqueeze(1), 0.0, outputs[2])
    return max_difference


def _inputs(env: Env, targets: torch.Tensor, dones: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For envs whose episode continues, return the actuator inputs from a file, and those of the env."""
    import torch

    from mjlab_dist.policies.export_network import control_limits  # imports torch

    given: list[torch.Tensor] = []
    expected: list[torch.Tensor] = []
    start = 0
    for block in env.action_terms:
        ids = list(block.block.ids)
        is_input = block.to_inputs() is not None
        width = len(ids) if is_input else len(block.names)
        if is_input:
            low, high = control_limits(env.sim.model, ids)
            given.append(targets[:, start : start + width])
            expected.append(torch.maximum(torch.minimum(env.sim.ctrl[:, ids], high), low))
        start += width
    none = targets[:, :0]
    return torch.cat([none, *given], dim=1)[~dones], torch.cat([none, *expected], dim=1)[~dones]
