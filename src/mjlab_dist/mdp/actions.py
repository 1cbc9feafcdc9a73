"""Action terms: they turn a block of the policy's output into actuator inputs.

For every block, values = offset + scale * clip(action), delayed by the latency of the block. Whether an actuator input
is a position, a velocity, a torque or an activation depends on the actuator, and not on the class of the action.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import mujoco_warp as mjw
import torch
import warp as wp

from mjlab_dist.env.actions import Action, ActionBlock, per_name
from mjlab_dist.errors import UserError
from mjlab_dist.mdp import action_kernels

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env

_POSE = ("x", "y", "z", "rx", "ry", "rz")
"""Names of the actions of :class:`DifferentialIK`."""


class ActuatorInput(Action):
    """The default class: values are the inputs of the actuators, one per actuator.

    The unit depends on the actuator: a target position in rad or m for a position motor, a target velocity for a
    velocity motor, a torque or force for an effort motor, an excitation for a muscle.
    """

    is_direct = True
    has_joint_positions = True


class ToLimits(Action):
    """Values from -1 to 1 are mapped linearly to the ``ctrlrange`` of each actuator, such as [0, 1] for a muscle."""

    is_direct = True

    def __init__(self, env: Env, block: ActionBlock) -> None:
        """Read the limits.

        Args:
            env: The envs.
            block: The block.

        Raises:
            UserError: If an actuator has no ``ctrlrange``.
        """
        super().__init__(env, block)
        model = env.sim.model
        for name, actuator in zip(block.actuators, block.ids, strict=True):
            if not model.actuator_ctrllimited[actuator]:
                raise UserError(
                    f"{block.flag}.actuators {name}: has no ctrlrange, which ToLimits needs; set it in the MJCF, or "
                    "use ActuatorInput"
                )
        limits = torch.tensor(model.actuator_ctrlrange[list(block.ids)], dtype=torch.float32, device=env.device)
        low, high = limits.unbind(dim=1)
        half = 0.5 * (high - low)
        self.scale *= half
        self.offset.mul_(half).add_(0.5 * (high + low))


class RelativeJointPosition(Action):
    """Values are added to the joints' current positions, in rad or m. The sums are the targets of position motors."""

    def __init__(self, env: Env, block: ActionBlock) -> None:
        """Look up the joints.

        Args:
            env: The envs.
            block: The block; its actuators drive hinge or slide joints.

        Raises:
            UserError: If an actuator drives something else.
        """
        super().__init__(env, block)
        self._positions = self.joints(env).qpos

    def apply(self, env: Env) -> None:
        self.send(self._positions.of(env.sim.qpos) + self.values)


class Smoothed(Action):
    """Values are smoothed by an exponential moving average, and become the inputs of the actuators.

    input = (1 - alpha) * previous input + alpha * value. At the start of an episode, the previous input is ``offset``.
    """

    has_joint_positions = True

    def __init__(self, env: Env, block: ActionBlock, alpha: float) -> None:
        """Allocate the averages.

        Args:
            env: The envs.
            block: The block.
            alpha: Weight of the newest value, above 0 and at most 1; 1 does not smooth.

        Raises:
            UserError: If alpha is outside this range.
        """
        super().__init__(env, block)
        if not 0.0 < alpha <= 1.0:
            raise UserError(f"{block.flag}.params.alpha {alpha}: must be above 0 and at most 1")
        self._alpha = alpha
        # Average of (values - offset), set to 0 at the start of an episode: see cleared().
        self._mean = torch.zeros_like(self.values)

    def apply(self, env: Env) -> None:  # noqa: ARG002 (every action takes the env)
        self._mean.lerp_(self.values - self.offset, self._alpha)
        self.send(self._mean + self.offset)

    def cleared(self) -> list[torch.Tensor]:
        return [self._mean]

    def state(self) -> dict[str, torch.Tensor]:
        return {"mean": self._mean}


class Binary(Action):
    """One action that opens or closes all actuators of the block, such as the fingers of a gripper.

    A value of 0 or more opens, a value below 0 closes.
    """

    def __init__(
        self, env: Env, block: ActionBlock, opened: float | dict[str, float], closed: float | dict[str, float]
    ) -> None:
        """Allocate the inputs for "open" and for "closed".

        Args:
            env: The envs.
            block: The block.
            opened: Inputs of the actuators when open: one number, or a mapping of regular expressions to numbers.
            closed: Inputs of the actuators when closed, in the same form.

        Raises:
            UserError: If an expression matches no actuator, or an actuator matches no expression.
        """
        super().__init__(env, block)
        self._choice = _Choice(
            *(
                torch.tensor(per_name(f"{block.flag}.params.{name}", value, block.actuators), device=env.device)
                for name, value in (("opened", opened), ("closed", closed))
            )
        )

    def action_names(self) -> tuple[str, ...]:
        return ("open",)

    def apply(self, env: Env) -> None:  # noqa: ARG002 (every action takes the env)
        self.send(self._choice(self.values))

    def to_inputs(self) -> torch.nn.Module:
        return self._choice


class _Choice(torch.nn.Module):
    """Chooses between two rows of inputs by the sign of a value, (n, 1)."""

    opened: torch.Tensor
    closed: torch.Tensor

    def __init__(self, opened: torch.Tensor, closed: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("opened", opened)
        self.register_buffer("closed", closed)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return torch.where(values >= 0.0, self.opened, self.closed)


class DifferentialIK(Action):
    """Moves a site or body in task space with differential inverse kinematics (damped least squares).

    The inputs of the position motors are q + J^T (J J^T + damping^2 I)^-1 e. Here, q are the positions of the motors'
    joints, J is the Jacobian of the site or body with respect to these joints, and e is the difference between the
    target pose and the current pose of the site or body. The inputs are computed once per control step, from the state
    at the start of the step.

    The actions are the coordinates ``x``, ``y``, ``z`` in m and the rotation vector ``rx``, ``ry``, ``rz`` in rad, both
    in the world frame.
    Regular expressions for scales match these names: ``scale={"[xyz]": 0.05, "r.": 0.2}``.
    """

    def __init__(
        self,
        env: Env,
        block: ActionBlock,
        *,
        site: str | None = None,
        body: str | None = None,
        mode: Literal["relative", "absolute"] = "relative",
        rotation: bool = True,
        damping: float = 0.05,
    ) -> None:
        """Look up the site or body, and record the kernels.

        Args:
            env: The envs.
            block: The block; its actuators are position motors of hinge or slide joints.
            site: Site to move. Give either a site or a body.
            body: Body to move. Its pose is the pose of the body's frame. The origin of this frame is usually not the
                center of mass.
            mode: relative: the values are a change of the current pose. absolute: the values are the pose itself.
            rotation: Whether the block controls the rotation. Without it, the actions are only x, y and z.
            damping: Damping, in m and rad. It limits joint motion near singular poses, but makes all other motion
                smaller, too.

        Raises:
            UserError: If there is no such site or body, or an actuator does not drive a hinge or slide joint.
        """
        self._num = 6 if rotation else 3
        super().__init__(env, block)
        if not damping > 0.0:
            raise UserError(f"{block.flag}.params.damping {damping}: must be positive")
        # Frame, joints and buffers
        kind, frame, body_id = self._find(env, site, body)
        joints, sim, num = self.joints(env), env.sim, self._num
        point = wp.from_torch(sim.view("site_xpos" if kind == "site" else "xpos")[:, frame], dtype=wp.vec3)
        turned = wp.from_torch(sim.view("site_xmat" if kind == "site" else "xmat")[:, frame])
        self._jacobian = torch.zeros(env.num_envs, 6, sim.model.nv, device=env.device)
        whole, moves, turns = (
            wp.from_torch(part) for part in (self._jacobian, self._jacobian[:, :3], self._jacobian[:, 3:])
        )
        values, qpos, ctrl = (wp.from_torch(tensor) for tensor in (self.values, sim.qpos, sim.ctrl))
        with wp.ScopedDevice(env.device):
            bodies = wp.full(env.num_envs, body_id, dtype=int)
            ids = [wp.array(one, dtype=int) for one in (joints.qpos.ids, joints.qvel.ids, block.ids)]
        inputs: list[Any] = [whole, values, point, turned, qpos, *ids, num, mode == "absolute", damping * damping]

        # Recorded program: the Jacobian, and one step of damped least squares
        def solve(model: mjw.Model, data: mjw.Data) -> None:
            # Update the poses first: those in the data belong to an earlier state.
            mjw.kinematics(model, data)
            mjw.com_pos(model, data)
            mjw.jac(model, data, moves, turns, point, bodies)
            wp.launch(action_kernels.solve_ik, env.num_envs, inputs, [ctrl])

        self._solve = sim.record(solve, changes_state=False)

    def action_names(self) -> tuple[str, ...]:
        return _POSE[: self._num]

    def apply(self, env: Env) -> None:  # noqa: ARG002 (every action takes the env)
        self._solve()

    def _find(self, env: Env, site: str | None, body: str | None) -> tuple[str, int, int]:
        """Return the kind of the frame (site or body), its id, and the id of the body that it belongs to."""
        model, flag = env.sim.model, f"{self.block.flag}.params"
        if (site is None) == (body is None):
            raise UserError(f"{flag}.site {site}, {flag}.body {body}: give either a site or a body")
        if site is not None:
            sites = [model.site(i).name for i in range(model.nsite)]
            if site not in sites:
                has = ", ".join(filter(None, sites)) or "none"
                raise UserError(f"{flag}.site {site}: there is no such site; the model has {has}")
            found = sites.index(site)
            return "site", found, int(model.site_bodyid[found])
        names = [model.body(i).name for i in range(model.nbody)]
        if body not in names:
            has = ", ".join(filter(None, names))
            raise UserError(f"{flag}.body {body}: there is no such body; the model has {has}")
        return "body", names.index(body), names.index(body)
