"""A torch module with a policy and all computations between the measured observations and the actuators.

It is converted to the contents of files, and such files are run, to check them.
"""

from __future__ import annotations

import copy
import io
import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import mujoco
import numpy as np
import torch
from rsl_rl.models import MLPModel, RNNModel
from torch import nn

from mjlab_dist.config import ObservationConfig
from mjlab_dist.env import Env
from mjlab_dist.env.actions import Action
from mjlab_dist.errors import UserError
from mjlab_dist.imports import start_up

# The observation group that a policy reads
ACTOR = "actor"

# Observation term of the last action. An exported policy keeps this action in its state.
LAST_ACTION = "mjlab_dist.mdp.observations:last_action"

# Version of ONNX's set of operators, from December 2022
OPSET = 18

# Name of the description inside a TorchScript file
DESCRIPTION = "description.json"

# Function that computes one control step of n envs with an exported policy, from its inputs
Runner = Callable[..., list[torch.Tensor]]


@dataclass(frozen=True)
class ObservedTerm:
    """An observation term of the policy."""

    name: str
    config: ObservationConfig
    # Number of values that are measured in one step
    width: int
    # Columns of the exported policy's input; None if the values are in the policy's state
    columns: slice | None


def observed_terms(env: Env) -> list[ObservedTerm]:
    """Return the terms that the policy reads, in the order of the config."""
    widths, terms, start = env.observation_groups[ACTOR].widths, [], 0
    for name, config in env.cfg.observations[ACTOR].items():
        is_inside = config.func == LAST_ACTION
        columns = None if is_inside else slice(start, start + widths[name])
        start += 0 if is_inside else widths[name]
        terms.append(ObservedTerm(name, config, widths[name], columns))
    return terms


def measured(env: Env) -> torch.Tensor:
    """Return the exported policy's input for the env's latest observation, (num_envs, num_inputs)."""
    terms = observed_terms(env)
    parts = env.observation_groups[ACTOR].measured.split([term.width for term in terms], dim=1)
    return torch.cat([part for part, term in zip(parts, terms, strict=True) if term.columns is not None], dim=1)


class Target(NamedTuple):
    """Meaning of a target of an exported policy."""

    # Name of the actuator, or of the action if the target is not the input of an actuator
    name: str
    # Block of actions
    block: str
    # Actuator whose input is the target; None if the inputs of the block's actuators also depend on other values
    actuator: str | None


class ExportedPolicy(nn.Module):
    """Maps measured observations to actions and to inputs of the actuators, for one control step.

    It applies the clip, scale, history and normalization of the observations. One tensor, the state, holds the values
    that the next step needs: whether the episode has begun, the last action, histories, and hidden states of recurrent
    layers. At the start of an episode, the state must be 0.

    Attributes:
        num_inputs: Number of measured values.
        num_states: Number of values of the state; 0 if there is no state.
        targets: Meaning of each target.
    """

    def __init__(self, policy: MLPModel, env: Env) -> None:
        """Copy the policy and the constants of the env."""
        super().__init__()
        # Networks, without exploration
        self._normalizer = copy.deepcopy(policy.obs_normalizer)
        self._rnn = copy.deepcopy(policy.rnn.rnn) if isinstance(policy, RNNModel) else None
        self._mlp = copy.deepcopy(policy.mlp)
        assert policy.distribution is not None
        self._mean = policy.distribution.as_deterministic_output_module()
        # Observations
        self._terms = observed_terms(env)
        for term in self._terms:
            path = f"observations.{ACTOR}.{term.name}.scale"
            if env.parameters.numbers(path):
                raise UserError(
                    f"--env.{path}: a curriculum changes this scale, so its last value in training is not known; use a "
                    "constant scale (--agent.obs-normalization adapts to any scale)"
                )
        self._processing = nn.ModuleList(_Processing(term) for term in self._terms)
        self.num_inputs = sum(term.width for term in self._terms if term.columns is not None)
        # Actions
        self._actions = _Actions(env.action_terms, env.sim.model)
        self.targets = self._actions.targets
        # Layout of the state: whether the episode has begun, last actions, histories, recurrent layers
        keeps_actions = any(term.columns is None for term in self._terms)
        num_hidden = 2 if isinstance(self._rnn, nn.LSTM) else 1  # an LSTM has a cell state and a hidden state
        self._sizes = [
            1,
            env.num_actions if keeps_actions else 0,
            *(one.num_kept for one in self._processing),
            *([] if self._rnn is None else [self._rnn.num_layers * self._rnn.hidden_size] * num_hidden),
        ]
        self.num_states = sum(self._sizes) if sum(self._sizes) > 1 else 0
        self.eval().requires_grad_(requires_grad=False)

    def forward(self, obs: torch.Tensor, state: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        """Compute one control step of n envs.

        Args:
            obs: Measured values, (n, num_inputs).
            state: The state, (n, num_states); None if ``num_states`` is 0.

        Returns:
            Actions, (n, num_actions); targets, (n, len(targets)); and the next state if ``num_states`` is not 0.
        """
        if state is None:
            latent = self._normalizer(torch.cat(self._processed(obs, None, None, ()), dim=1))
            actions = self._mean(self._mlp(latent))
            return actions, self._actions(actions)
        # Observations
        begun, last_actions, *rest = state.split(self._sizes, dim=1)
        kept = self._processed(obs, begun, last_actions, rest)
        latent = self._normalizer(torch.cat(kept, dim=1))
        # Networks
        hidden = rest[len(self._terms) :]
        if self._rnn is not None:
            latent, hidden = self._recur(latent, hidden)
        actions = self._mean(self._mlp(latent))
        # Next state
        histories = [one for one, process in zip(kept, self._processing, strict=True) if process.num_kept]
        remembered = [actions] if self._sizes[1] else []
        next_state = torch.cat([torch.ones_like(begun), *remembered, *histories, *hidden], dim=1)
        return actions, self._actions(actions), next_state

    def _processed(
        self,
        obs: torch.Tensor,
        begun: torch.Tensor | None,
        last_actions: torch.Tensor | None,
        histories: Sequence[torch.Tensor],
    ) -> list[torch.Tensor]:
        parts: list[torch.Tensor] = []
        for i, (term, process) in enumerate(zip(self._terms, self._processing, strict=True)):
            value = last_actions if term.columns is None else obs[:, term.columns]
            parts.append(process(value, begun, histories[i] if histories else None))
        return parts

    def _recur(self, latent: torch.Tensor, hidden: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        assert self._rnn is not None
        shape = (self._rnn.num_layers, self._rnn.hidden_size)
        before = [one.unflatten(1, shape).transpose(0, 1).contiguous() for one in hidden]
        out, after = self._rnn(latent.unsqueeze(0), before[0] if len(before) == 1 else tuple(before))
        # In the export of an LSTM, torch before 2.12 adds a dimension to the states
        after = [one.reshape(before[0].shape) for one in (after if len(before) > 1 else [after])]
        flat = [one.transpose(0, 1).flatten(1) for one in after]
        return out.squeeze(0), flat


class _Processing(nn.Module):
    """Clip, scale and history of a term."""

    def __init__(self, term: ObservedTerm) -> None:
        super().__init__()
        self._clip = term.config.clip
        self._history, self._width = term.config.history, term.width
        self._scale = term.config.scale
        self.num_kept = self._history * self._width if self._history > 1 else 0

    def forward(self, value: torch.Tensor, begun: torch.Tensor | None, history: torch.Tensor | None) -> torch.Tensor:
        if self._clip is not None:
            value = value.clamp(*self._clip)
        if self._scale != 1.0:
            value = value * self._scale
        if not self.num_kept:
            return value
        assert history is not None
        assert begun is not None
        # Oldest first; the first value of an episode fills the whole history
        shifted = torch.cat([history[:, self._width :], value], dim=1)
        return torch.where(begun > 0.5, shifted, value.repeat(1, self._history))


class _Actions(nn.Module):
    """Clip, scale and offset of actions, and the actuators' inputs if they depend only on the scaled actions."""

    _low: torch.Tensor
    _high: torch.Tensor
    _scale: torch.Tensor
    _offset: torch.Tensor

    def __init__(self, blocks: Sequence[Action], model: mujoco.MjModel) -> None:
        super().__init__()
        self._widths = [len(block.names) for block in blocks]
        # Clip, scale and offset of each action
        configs = [block.block.config for block in blocks for _ in block.names]
        self._is_clipped = any(config.clip is not None for config in configs)
        clips = [config.clip or (-math.inf, math.inf) for config in configs]
        self.register_buffer("_low", torch.tensor([low for low, _ in clips]))
        self.register_buffer("_high", torch.tensor([high for _, high in clips]))
        self.register_buffer("_scale", torch.cat([block.scale for block in blocks]).clone())
        self.register_buffer("_offset", torch.cat([block.offset for block in blocks]).clone())
        # Inputs of actuators, within their limits
        self.targets: list[Target] = []
        self._inputs = nn.ModuleList()
        for block in blocks:
            to_inputs = block.to_inputs()
            if to_inputs is None:
                self.targets += [Target(name, block.block.name, None) for name in block.names]
                self._inputs.append(nn.Identity())
            else:
                self.targets += [Target(name, block.block.name, name) for name in block.block.actuators]
                self._inputs.append(nn.Sequential(copy.deepcopy(to_inputs), _Limits(model, block.block.ids)))

    def forward(self, actions: torch.Tensor) -> torch.Tensor:
        """Return the targets, (n, len(targets))."""
        if self._is_clipped:
            actions = torch.maximum(torch.minimum(actions, self._high), self._low)
        values = (actions * self._scale + self._offset).split(self._widths, dim=1)
        return torch.cat([to_inputs(own) for to_inputs, own in zip(self._inputs, values, strict=True)], dim=1)


class _Limits(nn.Module):
    """Limits the inputs of actuators to the control ranges of the actuators, as MuJoCo does."""

    _low: torch.Tensor
    _high: torch.Tensor

    def __init__(self, model: mujoco.MjModel, actuators: Sequence[int]) -> None:
        super().__init__()
        low, high = control_limits(model, actuators)
        self._is_limited = bool(low.isfinite().any() or high.isfinite().any())
        self.register_buffer("_low", low)
        self.register_buffer("_high", high)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.maximum(torch.minimum(inputs, self._high), self._low) if self._is_limited else inputs


def control_limits(model: mujoco.MjModel, actuators: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the lower and upper limits of inputs, (num_actuators,) each; infinite for inputs without limits."""
    limits = torch.tensor(model.actuator_ctrlrange[list(actuators)], dtype=torch.float32)
    is_limited = torch.tensor(model.actuator_ctrllimited[list(actuators)], dtype=torch.bool)
    if model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_CLAMPCTRL:
        is_limited.zero_()
    low, high = limits.unbind(dim=1)
    return torch.where(is_limited, low, -math.inf), torch.where(is_limited, high, math.inf)


def to_onnx(exported: ExportedPolicy, description: Mapping[str, Any]) -> bytes:
    """Return a policy as an ONNX file.

    The inputs are ``obs`` and ``state``, the outputs ``actions``, ``targets`` and ``next_state``. A policy without a
    state has neither ``state`` nor ``next_state``. Each row is one env, and any number of rows is allowed.
    """
    import onnx  # an extra

    has_state = exported.num_states > 0
    num_rows = torch.export.Dim("rows")
    with _quietly(), start_up():  # start_up speeds up the imports: this call imports many modules of torch
        program = torch.onnx.export(
            exported,
            _example(exported),
            dynamo=True,
            opset_version=OPSET,
            input_names=["obs", "state"][: 1 + has_state],
            output_names=["actions", "targets", "next_state"][: 2 + has_state],
            dynamic_shapes=({0: num_rows}, {0: num_rows})[: 1 + has_state],
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    # The oldest format with these operators, so that older runtimes can read the file
    model.ir_version = onnx.helper.find_min_ir_version_for(model.opset_import)
    texts = {name: json.dumps(value, allow_nan=False) for name, value in description.items()}
    onnx.helper.set_model_props(model, texts)
    # Remove the source lines that torch stores at every node, because they name directories of this machine
    graph = model.graph
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.ClearField("metadata_props")
    onnx.checker.check_model(model)
    return model.SerializeToString()


def run_onnx(contents: bytes) -> Runner:
    """Return a function that runs an ONNX file with ONNX Runtime, on one core."""
    import onnxruntime  # an extra

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(contents, options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]

    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        outputs = session.run(None, dict(zip(names, (one.numpy() for one in inputs), strict=True)))
        return [torch.from_numpy(np.asarray(one)) for one in outputs]

    return run


def to_torchscript(exported: ExportedPolicy, description: Mapping[str, Any]) -> bytes:
    """Return a policy as a TorchScript file, with the inputs and outputs of the ONNX file."""
    file = io.BytesIO()
    with _quietly(), torch.no_grad():
        traced = torch.jit.trace(exported, _example(exported), check_trace=False)
        torch.jit.save(traced, file, _extra_files={DESCRIPTION: json.dumps(description, allow_nan=False)})
    return file.getvalue()


def run_torchscript(contents: bytes) -> Runner:
    """Return a function that runs a TorchScript file with torch."""
    with _quietly():
        module = torch.jit.load(io.BytesIO(contents))

    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            return list(module(*inputs))

    return run


def to_mjb(model: mujoco.MjModel) -> bytes:
    """Return a model as the contents of an MJB file, with all meshes. Only the same version of MuJoCo can read it."""
    buffer = np.zeros(mujoco.mj_sizeModel(model), dtype=np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return buffer.tobytes()


def _example(exported: ExportedPolicy) -> tuple[torch.Tensor, ...]:
    """Return inputs with two rows, because with one row, torch would treat the number of rows as a constant."""
    obs = torch.zeros(2, exported.num_inputs)
    return (obs, torch.zeros(2, exported.num_states)) if exported.num_states else (obs,)


@contextmanager
def _quietly() -> Iterator[None]:
    """Hide torch's warnings about its own code and about the future of TorchScript."""
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)
