"""Check of the physics of a task: speeds, depths of contacts, and a comparison of steps with MuJoCo's C code."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import mujoco
import torch
import warp as wp

from mjlab_dist.authoring.check.task_checks import Check, failed, passed
from mjlab_dist.authoring.check.watched_env import WatchedEnv
from mjlab_dist.sim import Simulation
from mjlab_dist.sim.quiet import quiet

# Maximum angular velocity of a stable simulation, in rad/s
MAX_RAD_S = 1000.0

# Maximum linear velocity of a stable simulation, in m/s
MAX_M_S = 100.0

# Maximum plausible speed, as a share of the two limits above. Fast electric motors reach a third of this speed.
PLAUSIBLE = 0.3

# Maximum depth of a contact that lasts, as a share of the size of the model (`mujoco.MjStatistic.extent`)
MAX_DEPTH = 0.1

# Number of consecutive control steps after which a contact counts as lasting
LASTING_STEPS = 25

# Number of control steps from one comparison with MuJoCo's C code to the next
COMPARED_EVERY = 20

# Number of envs that each comparison covers
NUM_COMPARED = 4

# Maximum difference between the velocities after a step and those of MuJoCo's C code, relative to the change of the
# velocities in this step.
#
# The limit holds for the median over the compared steps. The median ignores the few steps that differ more because of
# float32 or different contact points.
MAX_DIFFERENCE = 0.05

# Change of the velocities, in rad/s or m/s, that counts as small.
#
# Differences are divided by the sum of the actual change, 1% of the speed, and this number. If an object is at rest,
# its velocities change only by rounding errors of float32. Without this number, such errors would be a large relative
# difference.
NEGLIGIBLE = 0.1

# Warnings after which MuJoCo's C code resets the state to the reference positions
_BREAKS = (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL, mujoco.mjtWarning.mjWARN_BADQACC)

_FIX = "use smaller gains, forces or action scales in the config, or add armature or damping to the joint in the MJCF"


class PhysicsProbe:
    """Observes the physics of envs until :meth:`remove` is called."""

    def __init__(self, env: WatchedEnv) -> None:
        """Observe the next steps."""
        self._env, self._sim_step, self._num_steps = env, env.sim.step, 0
        # Reason why steps cannot be repeated in MuJoCo's C code; empty if they can
        self._reason = ""
        if env.sim.fields:
            self._reason = "the model differs between envs"
        elif env.sim.num_substep_programs:
            self._reason = "an action runs a Warp kernel before every physics step"
        elif env.cfg.sim.terrain.parts:
            self._reason = "a kernel of this package computes the contacts with the terrain"
        # Results. The texts describe the first step that breaks the physics, and the first deep contact that lasts.
        self._broken = self._overlap = ""
        self._max_speeds = torch.zeros(env.sim.model.nv)
        self._num_deep = torch.zeros(env.num_envs, dtype=torch.int64)
        self._differences: list[float] = []
        # Limits of the speeds of all degrees of freedom
        angular = _is_angular(env.sim.model)
        self._limits = torch.where(angular, MAX_RAD_S, MAX_M_S)
        self._units = ["rad/s" if one else "m/s" for one in angular.tolist()]
        self._max_depth_m = MAX_DEPTH * float(env.sim.model.stat.extent)
        env.sim.step = self._step

    def remove(self) -> None:
        """Stop observing."""
        self._env.sim.step = self._sim_step

    @quiet()
    def _step(self) -> None:
        """Run the physics of a control step, and observe it."""
        sim = self._env.sim
        before = {name: tensor.clone() for name, tensor in sim.physics.items()}
        was_finite = _is_finite(sim)
        self._sim_step()
        self._num_steps += 1
        speeds, is_finite = sim.qvel.abs(), _is_finite(sim)
        fine = is_finite & (speeds <= self._limits).all(dim=1)
        # Ignore states that were not finite before the step, because another check finds the terms that wrote them.
        # With nan_policy "reset", also ignore states that are not finite after the step: the env itself resets them.
        ignored = ~was_finite
        if self._env.cfg.nan_policy == "reset":
            ignored |= ~is_finite
        fine |= ignored
        speeds = torch.where(ignored[:, None], 0.0, speeds)
        if not self._broken and not fine.all():
            self._broken = self._break_of(before, int((~fine).nonzero()[0]))
        if not self._broken:
            self._max_speeds = torch.maximum(self._max_speeds, speeds.amax(dim=0)) if speeds.numel() else speeds
            self._measure_depths()
            if self._num_steps % COMPARED_EVERY == 1 and not self._reason:
                for env in range(min(NUM_COMPARED, self._env.num_envs)):
                    self._compare(before, env)

    def _break_of(self, before: Mapping[str, torch.Tensor], env: int) -> str:
        """Describe a step after which a position or velocity is not finite, or a speed is above its limit."""
        sim = self._env.sim
        after = sim.qvel[env]
        is_finite = bool(after.isfinite().all() and sim.qpos[env].isfinite().all())
        # The fastest joint; if the speeds after the step are not finite, the fastest one before the step
        speeds = (after if is_finite else before["qvel"][env]).abs()
        dof = int((speeds / self._limits).argmax())
        also = ""
        if not self._reason:
            data = self._step_in_c(before, env)
            is_fast = not bool((torch.from_numpy(data.qvel).abs() <= self._limits).all())
            if is_fast or any(data.warning[bit].number for bit in _BREAKS):
                also = ", in MuJoCo's C code too"
        joint = self._speed(dof, speeds)
        if is_finite:
            return f"too fast: {joint} in step {self._num_steps}{also}; {_FIX}"
        what = f"positions or velocities are not finite after step {self._num_steps}{also}"
        return f"{what} (fastest before this step: {joint}); {_FIX}, or use a smaller timestep"

    def _speed(self, dof: int, speeds: torch.Tensor) -> str:
        model = self._env.sim.model
        name = model.joint(int(model.dof_jntid[dof])).name
        return f"joint {name} at {float(speeds[dof]):,.0f} {self._units[dof]}"

    def _measure_depths(self) -> None:
        """Count the consecutive steps in which each env has a deep contact."""
        sim = self._env.sim
        contact, num_contacts = sim._data.contact, int(sim.view("nacon")[0])
        depths = -wp.to_torch(contact.dist)[:num_contacts]
        envs = wp.to_torch(contact.worldid)[:num_contacts].long()
        deep = depths > self._max_depth_m
        is_deep = torch.zeros_like(self._num_deep).index_add_(0, envs, deep.long()) > 0
        self._num_deep = torch.where(is_deep, self._num_deep + 1, 0)
        lasting = deep & (self._num_deep[envs] >= LASTING_STEPS)
        if not self._overlap and lasting.any():
            worst = int(torch.where(lasting, depths, -1.0).argmax())
            geoms = [geom for geom in wp.to_torch(contact.geom)[worst].tolist() if geom >= 0]  # -1 stands for a flex
            names = " and ".join(_geom_name(sim.model, geom) for geom in geoms)
            self._overlap = (
                f"{names} overlap by {float(depths[worst]):.2g} m in {LASTING_STEPS} consecutive steps; move them "
                "apart in the start state, or exclude the pair in the MJCF"
            )

    def _step_in_c(self, before: Mapping[str, torch.Tensor], env: int) -> mujoco.MjData:
        """Return the result of a control step of one env in MuJoCo's C code."""
        model = self._env.sim.model
        data = mujoco.MjData(model)
        for name, tensor in before.items():
            value = tensor[env].double().numpy()
            if name == "time":
                data.time = float(value)
            elif hasattr(data, name) and getattr(data, name).size == value.size:
                getattr(data, name)[:] = value.reshape(getattr(data, name).shape)
        data.ctrl[:] = self._env.sim.ctrl[env].double().numpy()
        for _ in range(self._env.cfg.sim.decimation):
            mujoco.mj_step(model, data)
        return data

    def _compare(self, before: Mapping[str, torch.Tensor], env: int) -> None:
        start = before["qvel"][env].double()
        mine, theirs = self._env.sim.qvel[env].double(), torch.from_numpy(self._step_in_c(before, env).qvel)
        if len(start):
            change = float((theirs - start).abs().max()) + 0.01 * float(theirs.abs().max()) + NEGLIGIBLE
            self._differences.append(float((mine - theirs).abs().max()) / change)

    def warning(self) -> str:
        """Return a warning about a speed that is stable, but not plausible; empty if there is none."""
        if self._broken or not len(self._max_speeds):
            return ""
        dof = int((self._max_speeds / self._limits).argmax())
        if self._max_speeds[dof] <= PLAUSIBLE * self._limits[dof]:
            return ""
        return f"unusually fast: {self._speed(dof, self._max_speeds)} with random actions; {_FIX}"

    def check(self) -> Check:
        """Check the observed physics."""
        if problem := self._broken or self._overlap:
            return failed("physics", problem)
        difference = statistics.median(self._differences) if self._differences else 0.0
        if difference > MAX_DIFFERENCE:
            return failed(
                "physics",
                f"the change of velocities in a control step differs by {difference:.0%} from MuJoCo's C code; use "
                "more solver iterations or a smaller timestep",
            )
        fastest = "no joint"
        if len(self._max_speeds):
            dof = int((self._max_speeds / self._limits).argmax())
            fastest = f"the fastest joint reaches {float(self._max_speeds[dof]):.2g} {self._units[dof]}"
        compared = f"not compared with MuJoCo's C code, because {self._reason}"
        if not self._reason:
            compared = "relative difference from MuJoCo's C code in the change of velocities per step: "
            compared += f"{max(difference, 1e-6):.1g}"
        return passed("physics", f"{fastest}; {compared}")


def _is_finite(sim: Simulation) -> torch.Tensor:
    """Return whether the state of each env is finite, (num_envs,)."""
    return sim.qvel.isfinite().all(dim=1) & sim.qpos.isfinite().all(dim=1)


def _is_angular(model: mujoco.MjModel) -> torch.Tensor:
    """Return which degrees of freedom are rotations, (nv,)."""
    types = torch.from_numpy(model.jnt_type)[torch.from_numpy(model.dof_jntid).long()]
    within = torch.arange(model.nv) - torch.from_numpy(model.jnt_dofadr)[torch.from_numpy(model.dof_jntid).long()]
    is_free = types == int(mujoco.mjtJoint.mjJNT_FREE)
    return torch.where(is_free, within >= 3, types != int(mujoco.mjtJoint.mjJNT_SLIDE))


def _geom_name(model: mujoco.MjModel, geom: int) -> str:
    name = model.geom(geom).name
    return f"geom {name}" if name else f"a geom of body {model.body(int(model.geom_bodyid[geom])).name or 'world'}"
