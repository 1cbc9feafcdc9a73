"""Fields that exclude each other: envs per rank or in total; length in iterations or in control steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from mjlab_dist.config.run import TrainConfig
from mjlab_dist.errors import UserError

# Alternative fields: envs per rank (also on GPUs only) or in total, and length in iterations or in steps
ALTERNATIVES = ("num_envs", "gpu_num_envs", "total_num_envs", "max_iterations", "total_timesteps")


def drop_replaced(config: TrainConfig, given: Collection[str]) -> TrainConfig:
    """If the user gave a field, drop the value that the task or the config file sets for an alternative field.

    Args:
        config: The config, with the values that the user gave.
        given: Names of the fields that the user gave; those outside :data:`ALTERNATIVES` are ignored.
    """
    if {"num_envs", "total_num_envs"} & {*given} and "gpu_num_envs" not in given:
        config = dataclasses.replace(config, gpu_num_envs=None)
    if "num_envs" in given and config.total_num_envs is not None:
        if "total_num_envs" in given:
            raise UserError(
                f"--num-envs {config.num_envs} and --total-num-envs {config.total_num_envs}: exclude each "
                "other, because one is per rank and the other is over all ranks; drop one"
            )
        config = dataclasses.replace(config, total_num_envs=None)
    elif "total_num_envs" in given and config.total_num_envs is not None and config.num_envs == "auto":
        config = dataclasses.replace(config, num_envs=TrainConfig.num_envs)
    if "max_iterations" in given and config.total_timesteps is not None:
        if "total_timesteps" in given:
            raise UserError(
                f"--max-iterations {config.max_iterations} and --total-timesteps {config.total_timesteps}: exclude "
                "each other, because each sets the length of training; drop one"
            )
        config = dataclasses.replace(config, total_timesteps=None)
    return config
