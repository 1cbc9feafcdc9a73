"""Action terms that tests name in their configs."""

# No type checker understands Warp's kernels.
# pyright: reportAssignmentType=false, reportGeneralTypeIssues=false, reportIndexIssue=false

from __future__ import annotations

import mujoco_warp as mjw
import torch
import warp as wp

from mjlab_dist.env import Env
from mjlab_dist.env.actions import Action, ActionBlock


@wp.kernel
def _count(numbers: wp.array2d[float]):
    env, i = wp.tid()
    numbers[env, i] = numbers[env, i] + 1.0


class Counter(Action):
    """Action term that adds two numbers of the policy's action and sends the sum to every actuator.

    The term also counts the physics steps of each episode.

    Attributes:
        substeps: Number of physics steps in this episode, (num_envs, 1).
    """

    def __init__(self, env: Env, block: ActionBlock) -> None:
        super().__init__(env, block)
        self.substeps = torch.zeros(env.num_envs, 1, device=env.device)
        self._substeps = wp.from_torch(self.substeps)

    def action_names(self) -> tuple[str, ...]:
        return ("first", "second")

    def apply(self, env: Env) -> None:  # noqa: ARG002 (every action takes the env)
        self.send(self.values.sum(dim=1, keepdim=True))

    def substep(self, model: mjw.Model, data: mjw.Data) -> None:  # noqa: ARG002 (every program takes them)
        wp.launch(_count, self.substeps.shape, [self._substeps])

    def metrics(self) -> dict[str, torch.Tensor]:
        return {"substeps": self.substeps[:, 0]}

    def cleared(self) -> list[torch.Tensor]:
        return [self.substeps]

    def state(self) -> dict[str, torch.Tensor]:
        return {"substeps": self.substeps}


class CounterOutside(Counter):
    """:class:`Counter`, kept out of CUDA graphs."""

    capturable = False
