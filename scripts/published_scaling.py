"""Published speeds that Isaac Lab and mjlab reach with several GPUs. scale_model.py compares its model with them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Published:
    """Published speeds of one task with different numbers of GPUs. Each GPU has the same number of envs."""

    name: str
    """Task, program and GPU."""
    source: str
    """Key of :data:`SOURCES`."""
    steps_per_s: dict[int, float]
    """For each number of GPUs, the speed of training: steps of all GPUs per second."""


ISAAC, MJLAB = "Isaac Lab", "mjlab"

SOURCES = {
    ISAAC: "https://isaac-sim.github.io/IsaacLab/v1.4.1/source/overview/reinforcement-learning/performance_benchmarks.html",
    MJLAB: "https://github.com/mujocolab/mjlab/pull/330",
}
"""Pages with the published figures, read in November 2026."""

G1 = Published(name="G1 on rough terrain, L40", source=ISAAC, steps_per_s={1: 62e3, 4: 250e3, 16: 960e3})

PUBLISHED = (
    G1,
    Published(name="G1 imitates a motion, RTX 5090", source=MJLAB, steps_per_s={1: 125e3, 2: 245e3}),
    Published(name="cartpole, L40", source=ISAAC, steps_per_s={1: 260e3, 4: 950e3, 16: 3500e3}),
    Published(name="Shadow Hand, L40", source=ISAAC, steps_per_s={1: 120e3, 4: 390e3, 16: 1800e3}),
)
"""Published speeds by task. Isaac Lab measured with up to 4 machines of 4 GPUs each."""

G1_ENVS, G1_STEPS = 4096, 24
"""Envs per GPU, and steps of a rollout, of Isaac Lab's task."""

G1_INFERENCE = 64e3
"""Published steps/s of Isaac Lab's task on one GPU, with a policy but without updates."""

G1_ENV_STEPS = 72e3
"""Published steps/s of Isaac Lab's task on one GPU, without a policy and updates."""

G1_MEMORY_BYTES = 6.1e9
"""Published GPU memory that 4,096 envs of Isaac Lab's task need."""

G1_OBSERVATIONS, G1_ACTIONS, G1_HIDDEN = 310, 37, (512, 256, 128)
"""Sizes of the networks. Observations: 123 numbers of the robot and 187 heights. Actions: 37 joints."""

G1_MINI_BATCHES = 20
"""Mini-batches of an iteration: 4 in each of 5 epochs."""

G1_BODIES, G1_SUBSTEPS = 38, 4
"""Bodies of the robot (one per joint, and the base), and physics steps per control step."""
