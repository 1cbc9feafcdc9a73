"""A quadruped that imitates reference motions.

Rewards and their weights are those of Peng et al. 2020, "Learning Agile Robotic Locomotion Skills by Imitating Animals"
(arXiv:2004.00784, section on motion imitation). Episodes start at random frames of a motion, as in Peng et al. 2018,
"DeepMimic" (arXiv:1804.02717). The robot, its motors and the randomizations are those of quadruped-velocity-flat.
Weights are per second and add up to 1, so a robot that follows its motion exactly for an episode of 10 s has a return
of 10.
"""

from __future__ import annotations

import dataclasses

from mjlab_dist.config import (
    ObservationConfig,
    RewardConfig,
    SymmetryConfig,
    TrainConfig,
    event,
    observation,
    reward,
    term,
    termination,
)
from mjlab_dist.mdp import motion
from mjlab_dist_tasks.quadruped.config import flat


def tracking() -> TrainConfig:
    """Imitate a trot, a bound and a turn with a quadruped."""
    velocity = flat()
    env = velocity.env
    return dataclasses.replace(
        velocity,
        task="quadruped-tracking",
        max_iterations=400,
        agent=dataclasses.replace(velocity.agent, symmetry=SymmetryConfig()),
        env=dataclasses.replace(
            env,
            observations={
                group: {**{name: seen for name, seen in terms.items() if name not in ("command", "gait")}, **_targets()}
                for group, terms in env.observations.items()
            },
            rewards={**_imitation(), **{name: env.rewards[name] for name in ("action_rate", "joint_limits")}},
            terminations={
                **env.terminations,
                "lost": termination(motion.lost, command="motion", max_m=0.5, max_rad=1.0),
            },
            sensors={name: sensor for name, sensor in env.sensors.items() if name != "gait"},
            events={"start": event(motion.start_in_motion, command="motion"), "push": env.events["push"]},
            commands={
                "motion": term(
                    motion.Motion,
                    file="mjlab_dist_tasks.quadruped_tracking:motions.npz",
                    motions=(".*",),
                    sites=(".*_foot",),
                )
            },
        ),
    )


def _targets() -> dict[str, ObservationConfig]:
    """Return observations of the target state after the next step, scaled to about 1."""
    return {
        "joint_targets": observation(motion.joint_targets, command="motion"),
        "joint_target_velocities": observation(motion.joint_target_velocities, command="motion").processed(scale=0.05),
        "root_target_velocity": observation(motion.root_target_velocity, command="motion"),
        "root_error": observation(motion.root_error, command="motion").processed(scale=5.0),
    }


def _imitation() -> dict[str, RewardConfig]:
    return {
        "joints": reward(0.5, motion.imitate_joints, command="motion"),
        "joint_velocities": reward(0.05, motion.imitate_joint_velocities, command="motion"),
        "sites": reward(0.2, motion.imitate_sites, command="motion"),
        "root_pose": reward(0.15, motion.imitate_root_pose, command="motion"),
        "root_velocity": reward(0.1, motion.imitate_root_velocity, command="motion"),
    }
