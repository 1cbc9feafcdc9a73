"""Choose the engine that computes the physics. The launcher uses it: it imports no torch, and on GPUs no MuJoCo."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

from mjlab_dist.config import SimConfig, TerrainConfig
from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    import mujoco

# Degrees of freedom from which MuJoCo's C code is faster on a CPU (docs/decisions/0023)
ON_C = 4


def choose_engine(config: SimConfig, device: str, model: mujoco.MjModel | None = None) -> Literal["warp", "mujoco"]:
    """Return the engine for a config: its own, or for ``auto`` the faster one."""
    if device != "cpu":
        if config.engine == "mujoco":
            raise UserError(
                "--env.sim.engine mujoco: computes on CPUs only; use --gpu-ids None, or --env.sim.engine warp"
            )
        return "warp"
    if config.engine == "warp":
        return "warp"
    import mujoco  # not needed on GPUs

    if model is None:
        from mjlab_dist.sim.scene import build_model  # not needed on GPUs

        # The terrain has no degrees of freedom, and takes longer than everything else
        found: mujoco.MjModel = build_model(dataclasses.replace(config, terrain=TerrainConfig()))
    else:
        found = model
    sleeps = bool(found.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP)
    if config.engine == "mujoco" and sleeps:
        raise UserError(
            "--env.sim.engine mujoco: bodies of this model may sleep, and MuJoCo's batches cannot restore which do; "
            "use --env.sim.engine warp"
        )
    return "warp" if sleeps or (config.engine == "auto" and found.nv < ON_C) else "mujoco"
