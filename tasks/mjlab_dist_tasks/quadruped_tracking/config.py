"""The quadruped imitates reference motions, after Peng et al. 2020, "Learning Agile Robotic Locomotion Skills by Imitating Animals".

Rewards and their weights are the paper's (arXiv:2004.00784, on motion imitation); episodes start anywhere in a motion (Peng et al. 2018, "DeepMimic",
arXiv:1804.02717). Robot, motors and what is randomized are those of quadruped-velocity-flat. Weights are per second here: an episode that does
as its motion to the letter earns 10.
"""

from __future__ import annotations

import dataclasses

from mjlab_dist.config import EventConfig, ObservationConfig, ParamValue, RewardConfig, TermConfig, TrainConfig
from mjlab_dist_tasks.quadruped.config import flat

_MOTION = "mjlab_dist.mdp.motion"

_STEP_S = 0.02

_PLAYED: dict[str, ParamValue] = {"command": "motion"}


def tracking() -> TrainConfig:
    """Imitate a trot, a bound and a turn with a quadruped."""
    velocity = flat()
    env = velocity.env
    return dataclasses.replace(
        velocity,
        task="quadruped-tracking",
        env=dataclasses.replace(
            env,
            episode_length_s=10.0,
            observations={
                group: {**{name: term for name, term in terms.items() if name != "command"}, **_targets()}
                for group, terms in env.observations.items()
            },
            rewards={
                **{
                    name: RewardConfig(func=f"{_MOTION}:imitate_{name}", weight=weight * _STEP_S, params=_PLAYED)
                    for name, weight in (
                        ("joints", 0.5),
                        ("joint_velocities", 0.05),
                        ("sites", 0.2),
                        ("root_pose", 0.15),
                        ("root_velocity", 0.1),
                    )
                },
                **{name: env.rewards[name] for name in ("action_rate", "joint_limits")},
            },
            terminations={
                **env.terminations,
                "lost": TermConfig(func=f"{_MOTION}:lost", params={**_PLAYED, "most_m": 0.5, "most_rad": 1.0}),
            },
            events={
                "start": EventConfig(func=f"{_MOTION}:start_in_motion", params=_PLAYED),
                "push": env.events["push"],
            },
            commands={
                "motion": TermConfig(
                    func=f"{_MOTION}:Motion",
                    params={"file": "mjlab_dist_tasks.quadruped_tracking:motions.npz", "sites": (".*_foot",)},
                )
            },
        ),
    )


def _targets() -> dict[str, ObservationConfig]:
    """What is to be after the next step; scales bring every number near 1."""
    return {
        name: ObservationConfig(func=f"{_MOTION}:{name}", params=_PLAYED, scale=scale)
        for name, scale in (
            ("joint_targets", 1.0),
            ("joint_target_velocities", 0.05),
            ("root_target_velocity", 1.0),
            ("root_error", 5.0),
        )
    }
