"""Ranges of the actions, which a squashed policy needs."""

from __future__ import annotations

import math
from collections.abc import Iterator

import mujoco
import torch

from mjlab_dist.env import Env
from mjlab_dist.env.actions import Action, joint_of
from mjlab_dist.errors import UserError


def action_ranges(env: Env) -> tuple[torch.Tensor, torch.Tensor]:
    """Return center and half of the range of each action, (num_actions,) each.

    For the target position of a joint, the range is the smallest one around 0 (in general the start pose) that reaches
    both limits of the joint; for other actuators, the ``ctrlrange``. The ``clip`` of the action's block narrows it.
    Without any limits, it is -1 to 1.
    """
    ranges = torch.tensor([one for term in env.action_terms for one in _of_block(env, term)], device=env.device)
    low, high = ranges.to(torch.get_default_dtype()).unbind(dim=1)
    return 0.5 * (low + high), 0.5 * (high - low)


def _of_block(env: Env, term: Action) -> Iterator[tuple[float, float]]:
    model, block = env.sim.model, term.block
    per_actuator = len(term.names) == len(block.ids)
    for i, (scale, offset) in enumerate(zip(term.scale.tolist(), term.offset.tolist(), strict=True)):
        joint = joint_of(model, block.ids[i]) if per_actuator and term.has_joint_positions else None
        # The class of direct actions does not say whether an actuator is a position motor.
        is_affine = per_actuator and model.actuator_biastype[block.ids[i]] == mujoco.mjtBias.mjBIAS_AFFINE
        is_servo = is_affine and model.actuator_biasprm[block.ids[i], 1] != 0
        holds = not term.is_direct or block.config.offset == "home" or is_servo
        low, high = -math.inf, math.inf
        if joint is not None and holds and model.jnt_limited[joint] and scale:
            high = max(abs(limit - offset) for limit in model.jnt_range[joint].tolist()) / abs(scale)
            low = -high
        elif per_actuator and term.is_direct and model.actuator_ctrllimited[block.ids[i]] and scale:
            low, high = sorted((limit - offset) / scale for limit in model.actuator_ctrlrange[block.ids[i]].tolist())
        if block.config.clip is not None:
            low, high = max(low, block.config.clip[0]), min(high, block.config.clip[1])
        if low >= high:
            raise UserError(f"{block.flag}.clip {low} {high}: leaves no range for {term.names[i]}; widen it")
        yield (low, high) if math.isfinite(high - low) else (-1.0, 1.0)
