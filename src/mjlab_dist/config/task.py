"""Configs of a task: physics, observations, actions, rewards and the other parts of an env. Field docstrings are the help of flags."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass, field
from typing import Literal

ParamValue = bool | int | str | float | tuple[float, ...] | tuple[str, ...]
"""What a term's parameter may be: plain data that a file and the command line can hold."""


@dataclass(frozen=True, kw_only=True)
class TermConfig:
    """A named function of the env and its arguments."""

    func: str
    """Function, as package.module:name."""
    params: dict[str, ParamValue] = field(default_factory=dict)
    """Keyword arguments of the function."""


@dataclass(frozen=True, kw_only=True)
class ActionConfig:
    """How one block of the policy's output drives actuators: ctrl = offset + scale * clip(action)."""

    actuators: tuple[str, ...]
    """Actuators, one action each: names, in this order, or regular expressions, whose actuators come in the model's order."""
    scale: float = 1.0
    """Actuator units per unit of action."""
    offset: float | Literal["home"] = 0.0
    """Actuator value at action 0, in actuator units. home: the position of its joint in the start state (sim.keyframe)."""
    clip: tuple[float, float] | None = None
    """Range that actions are clipped to on their way to the actuators; terms see them unclipped."""
    latency: tuple[int, int] = (0, 0)
    """Fewest and most control steps until an action reaches the actuators; drawn per env when an episode starts."""


@dataclass(frozen=True, kw_only=True)
class ObservationConfig:
    """One term of an observation group. Noise is added first; then come clip, scale, delay and history."""

    func: str
    """Function or class, as package.module:name; returns a row per env."""
    params: dict[str, ParamValue] = field(default_factory=dict)
    """Keyword arguments of the function."""
    scale: float = 1.0
    """Factor."""
    clip: tuple[float, float] | None = None
    """Range, in the function's units."""
    uniform_noise: float = 0.0
    """Half the width of uniform noise, in the function's units."""
    gaussian_noise: float = 0.0
    """Standard deviation of normal noise, in the function's units."""
    delay: tuple[int, int] = (0, 0)
    """Fewest and most control steps by which the value is late; drawn per env when an episode starts."""
    history: int = 1
    """Values of the last so many control steps, the oldest first; an episode starts with copies of its first."""

    def processed(
        self,
        *,
        scale: float | None = None,
        clip: tuple[float, float] | None = None,
        uniform_noise: float | None = None,
        gaussian_noise: float | None = None,
        delay: tuple[int, int] | None = None,
        history: int | None = None,
    ) -> ObservationConfig:
        """Return this observation with other values of the fields that are given; see the fields."""
        given = {
            "scale": scale,
            "clip": clip,
            "uniform_noise": uniform_noise,
            "gaussian_noise": gaussian_noise,
            "delay": delay,
            "history": history,
        }
        return dataclasses.replace(self, **{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """One term of the reward: weight * func(env), summed over terms at every control step."""

    func: str
    """Function, as package.module:name; returns one value per env."""
    weight: float
    """Factor of the term in the sum; may be negative."""
    params: dict[str, ParamValue] = field(default_factory=dict)
    """Keyword arguments of the function."""


@dataclass(frozen=True, kw_only=True)
class EventConfig:
    """Something that happens to some envs: a start state, a push."""

    func: str
    """Function or class, as package.module:name; changes the envs of a mask."""
    params: dict[str, ParamValue] = field(default_factory=dict)
    """Keyword arguments of the function."""
    when: Literal["startup", "reset", "interval"] = "reset"
    """startup: once, before the first episode. reset: when an episode starts. interval: every so often."""
    interval_s: tuple[float, float] = (5.0, 10.0)
    """Range of the simulated seconds between two, drawn per env; where when is interval."""

    def every(self, low_s: float, high_s: float) -> EventConfig:
        """Return this event at intervals, drawn per env between two bounds in simulated seconds."""
        return dataclasses.replace(self, when="interval", interval_s=(low_s, high_s))

    def at_startup(self) -> EventConfig:
        """Return this event once, before the first episode."""
        return dataclasses.replace(self, when="startup")


@dataclass(frozen=True, kw_only=True)
class RandomizationConfig:
    """A field of the model that differs between envs. Derived constants (such as those of mass and inertia) follow."""

    field: str
    """Field of mujoco_warp.Model with a value per env: geom_friction, body_mass, dof_damping, actuator_gainprm, gravity, ..."""
    names: tuple[str, ...] = (".*",)
    """Regular expressions of the bodies, joints, geoms, ... that the field belongs to."""
    columns: tuple[int, ...] = ()
    """Which of an object's numbers, such as 0 for the sliding friction of geom_friction; by default all."""
    low: float
    """Least value drawn."""
    high: float
    """Greatest value drawn."""
    operation: Literal["scale", "add", "set"] = "scale"
    """What is done with the model's own value."""
    distribution: Literal["uniform", "log-uniform"] = "uniform"
    """How values are drawn between low and high."""
    shared: bool = False
    """Draw one value per env for all that names and columns choose, in place of one each."""
    when: Literal["startup", "reset"] = "startup"
    """startup: once. reset: again for every episode; not where constants derive from the field."""


@dataclass(frozen=True, kw_only=True)
class TerrainPartConfig:
    """One kind of ground. Ranges go from the easiest to the hardest level; up and down are as seen from a tile's middle."""

    kind: Literal["flat", "rough", "slope_up", "slope_down", "stairs_up", "stairs_down", "boxes", "gaps"]
    """rough: random heights. slope_up, slope_down, stairs_up, stairs_down: on all four sides. boxes: standing about. gaps: rings of them."""
    share: float = 1.0
    """Share of the columns, relative to the other parts' shares."""
    height_m: tuple[float, float] = (0.0, 0.1)
    """rough: most that the ground rises or falls. stairs: of a step. boxes: of the highest box. gaps: depth. In m."""
    width_m: tuple[float, float] = (0.4, 0.4)
    """rough: distance of the heights drawn, between which the ground runs straight. stairs: of a step. boxes: of a box's sides. gaps: from edge to edge. In m."""
    slope: tuple[float, float] = (0.0, 0.4)
    """slope: metres up or down per metre forward."""


@dataclass(frozen=True, kw_only=True)
class TerrainConfig:
    """Ground in place of the scene's geom floor: a grid of tiles, levels (of difficulty) along x by columns (of kinds) along y."""

    parts: dict[str, TerrainPartConfig] = field(default_factory=dict)
    """Kinds of ground by name; none leaves the scene's own floor."""
    num_levels: int = 10
    """Levels: the first is the easy end of every range, the last the hard end."""
    num_columns: int = 10
    """Columns, shared out among the parts in their order."""
    tile_size_m: float = 8.0
    """Side of a tile; all around its edge the ground is at height 0."""
    platform_m: float = 2.0
    """Side of the square in the middle of a tile that episodes start in; flat, except where the part is rough."""
    border_m: float = 5.0
    """Width of the flat ground around the grid; there is nothing beyond."""
    resolution_m: float = 0.05
    """Distance of the points whose heights are known: widths are rounded to it, and the edge of a step is as wide."""
    seed: int = 1
    """Seed of what is random; all ranks have the same terrain."""

    def column_parts(self) -> list[str]:
        """Name of the part in each column: that in whose share of all columns the column's middle lies."""
        total = sum(part.share for part in self.parts.values())
        ends = itertools.accumulate(part.share * self.num_columns / total for part in self.parts.values())
        limits = dict(zip(self.parts, ends, strict=True))
        return [next(name for name in limits if column + 0.5 <= limits[name]) for column in range(self.num_columns)]


@dataclass(frozen=True, kw_only=True)
class EntityConfig:
    """A further MJCF in the scene. Its elements are named <entity>/<name>."""

    model: str
    """MJCF, in any form that sim.model takes."""
    pos: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Where its world's origin comes to lie in this one, in m."""
    quat: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)
    """How it is turned there, w x y z."""


@dataclass(frozen=True, kw_only=True)
class ActuatorConfig:
    """Motors, one for each joint and named like it, in place of those that the MJCF puts on these joints.

    They are MuJoCo's dcmotor: torque = stiffness * (target position - position) + damping * (target velocity - velocity), or
    the wanted torque itself, as far as the limits let it. A randomization finds stiffness and damping in columns 4 and 6 of
    actuator_gainprm.
    """

    joints: tuple[str, ...]
    """Hinge and slide joints: names or regular expressions."""
    kind: Literal["position", "velocity", "effort"] = "position"
    """What an action sets: a position to hold (target velocity 0), a velocity, or the torque (on slide joints the force)."""
    stiffness: float = 0.0
    """In N m/rad (slide: N/m); of position motors only."""
    damping: float = 0.0
    """In N m s/rad (slide: N s/m); not of effort motors."""
    effort_limit: float | None = None
    """Greatest torque in N m (slide: force in N), at rest; by default none."""
    velocity_limit: float | None = None
    """Speed in rad/s (slide: m/s) without load: the torque that can be had in the direction of motion falls on a line from effort-limit at rest to 0 there."""
    armature: float | None = None
    """Inertia of the rotor behind its gear, in kg m2 (slide: kg); by default the MJCF's."""
    frictionloss: float | None = None
    """Dry friction in N m (slide: N); by default the MJCF's."""


@dataclass(frozen=True, kw_only=True)
class OptionsConfig:
    """MuJoCo's options; what is not given stays as in the MJCF."""

    timestep_s: float | None = None
    """Length of a substep, in simulated seconds."""
    integrator: Literal["euler", "implicit", "implicitfast", "rk4"] | None = None
    """How a substep is integrated."""
    cone: Literal["pyramidal", "elliptic"] | None = None
    """Shape of the friction cone."""
    solver: Literal["newton", "cg"] | None = None
    """Constraint solver; MuJoCo Warp has no PGS."""
    iterations: int | None = None
    """Most iterations of the solver per substep."""
    ls_iterations: int | None = None
    """Most steps of the line search per iteration."""
    impratio: float | None = None
    """Ratio of the impedances of friction and normal force; above 1 slipping decreases."""
    tolerance: float | None = None
    """Improvement of the cost at which the solver stops; MuJoCo Warp takes at least 1e-6."""


CaptureMode = Literal["off", "physics", "step"]
"""What of a control step is recorded once and then replayed."""


@dataclass(frozen=True, kw_only=True)
class SimConfig:
    """The physics of one rank's envs."""

    model: str
    """MJCF: a file's path; package.module:file for one inside a Python package; package.module:function for a function without arguments that returns a mujoco.MjSpec; or the XML itself."""
    entities: dict[str, EntityConfig] = field(default_factory=dict)
    """Further MJCFs in the scene, by name."""
    actuators: dict[str, ActuatorConfig] = field(default_factory=dict)
    """Motors put on joints, by name of the group."""
    options: OptionsConfig = field(default_factory=OptionsConfig)
    """Solver and integrator."""
    keyframe: str | None = None
    """Keyframe of the MJCF that episodes start from; by default its joints' reference positions."""
    terrain: TerrainConfig = field(default_factory=TerrainConfig)
    """Ground in place of the scene's floor."""
    decimation: int = 1
    """Physics steps (substeps) per control step."""
    njmax: int
    """Constraint rows allocated per env; more than the model ever needs costs time."""
    nconmax: int
    """Contacts allocated per env; more than the model ever makes costs time."""
    forward_before_observation: bool = True
    """Recompute poses and sensors before observing; needless where observations read only joint positions and velocities."""
    capture: CaptureMode = "physics"
    """What is recorded once and then replayed. physics: the physics (CUDA graphs on a GPU). step: on a GPU also all other operations of a control step: policy, terms, storage; curricula must change tensors, not Python numbers. off: nothing, which is slower and easier to debug."""


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """A task: what is simulated, what the policy sees and does, what is rewarded and when an episode ends."""

    sim: SimConfig
    """Physics."""
    episode_length_s: float
    """Length of an episode until it times out, in simulated seconds."""
    actions: dict[str, ActionConfig]
    """Action blocks by name; the policy's output is their concatenation."""
    observations: dict[str, dict[str, ObservationConfig]]
    """Observation groups by name; each is the concatenation of its terms. The policy reads the group actor, the value critic if there is one, else actor."""
    rewards: dict[str, RewardConfig]
    """Reward terms by name."""
    terminations: dict[str, TermConfig] = field(default_factory=dict)
    """Conditions that end an episode for good, by name (the time limit is apart: it is bootstrapped)."""
    events: dict[str, EventConfig] = field(default_factory=dict)
    """What happens to envs at startup, when an episode starts or every so often, by name, in this order."""
    randomizations: dict[str, RandomizationConfig] = field(default_factory=dict)
    """What differs between the envs' models, by name, in this order."""
    commands: dict[str, TermConfig] = field(default_factory=dict)
    """Commands to the policy, by name; drawn again at intervals."""
    sensors: dict[str, TermConfig] = field(default_factory=dict)
    """What is measured after every step and remembered, such as contacts and the time in the air, by name."""
    curricula: dict[str, TermConfig] = field(default_factory=dict)
    """What becomes harder as the policy succeeds, by name."""
    nan_policy: Literal["stop", "reset"] = "stop"
    """What happens where physics, an observation or a reward is not finite. stop: training ends in that iteration, and the state is kept for play --nan-dump. reset: those envs start a new episode, and are counted."""
