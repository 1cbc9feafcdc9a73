"""Sizes of the buffers for contacts and constraint rows. Imports the standard library only."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from mjlab_dist.config import TrainConfig

# Size of the buffer for constraint rows, divided by the maximum number of rows measured; both are per env
MARGIN = 1.25

# The same ratio for the list of contacts that all envs share. The size of the list is based on the mean over envs,
# which depends more on the policy than the maximum over envs does. The ratio is therefore larger.
SHARED_MARGIN = 1.5

# Overflows that a larger njmax fixes, named as in mujoco_warp.OverflowType
ROW_OVERFLOWS = frozenset({"NEFC", "NJMAX_NNZ"})

# Overflows that a larger nconmax fixes
CONTACT_OVERFLOWS = frozenset({"BROADPHASE", "NARROWPHASE", "CCD"})

# Minimum size of a buffer, in rows or contacts per env, for a model that can have any
MIN_SIZE = 4

# Maximum size that a run chooses automatically, in rows or contacts per env. A run that needs more probably has
# unstable physics.
MAX_SIZE = 10_000

# Minimum factor by which a buffer that was too small grows, before the margin is applied.
#
# The factor is needed because the measured count may be too low: it does not include the rows of dropped contacts.
MIN_GROWTH = 1.25


def with_sizes(config: TrainConfig, sizes: Mapping[str, int]) -> TrainConfig:
    """Return a config with different buffer sizes."""
    sim = dataclasses.replace(config.env.sim, **sizes)
    return dataclasses.replace(config, env=dataclasses.replace(config.env, sim=sim))


def larger_size(size: int, needed: int, margin: float) -> int:
    """Return a larger size for a buffer that was too small."""
    return size_for(margin * max(needed, MIN_GROWTH * size), is_possible=True)


def size_for(number: float, is_possible: bool) -> int:
    """Return a buffer size per env.

    Sizes are rounded up so that few different sizes occur, because each new size requires kernels to be compiled.
    """
    step = MIN_SIZE if number <= 32 else 8 if number <= 64 else 16
    return max(math.ceil(number / step) * step, MIN_SIZE if is_possible else 0)
