"""Configs of a task: physics, observations, actions, rewards and the other parts of an env.

The docstrings of the fields are also the help texts of the flags.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from mjlab_dist.config.limits import (
    Fraction,
    Interval,
    NonNegativeFloat,
    NonNegativeInt,
    NonNegativeIntRange,
    NonNegativeRange,
    PositiveFloat,
    PositiveInt,
    Range,
)
from mjlab_dist.config.physics import ContactConfig, DistanceConfig, OptionsConfig

Scalar = bool | int | str | float

ParamValue = (
    Scalar | tuple[Scalar | tuple[Scalar, ...] | None, ...] | dict[str, Scalar | tuple[Scalar, ...] | None] | None
)
"""Type of a term's parameter: plain data, so that it can be stored in a file and given on the command line."""


@dataclass(frozen=True, kw_only=True)
class TermConfig:
    """A term: a function of the env, and its arguments."""

    func: str
    """Function or class, as package.module:name."""
    params: dict[str, ParamValue] = field(default_factory=dict)
    """Keyword arguments of the function."""


@dataclass(frozen=True, kw_only=True)
class TerminationConfig(TermConfig):
    """A term that ends episodes where it returns True."""

    time_out: bool = False
    """Whether the term cuts episodes off, as the time limit does. PPO then adds gamma * V(s_t) to the reward, as rsl_rl
    does: the value of the state before the step, in place of the state after it."""

    def as_time_out(self) -> TerminationConfig:
        """Return a copy of this termination that ends episodes as the time limit does."""
        return dataclasses.replace(self, time_out=True)


Reduction = Literal["mean", "sum", "max", "min", "last"]
"""How a metric is reduced over the control steps of an episode."""


@dataclass(frozen=True, kw_only=True)
class MetricConfig(TermConfig):
    """A quantity to log, such as success. It is reduced over the steps of each episode, then averaged over episodes."""

    reduce: Reduction = "mean"
    """Value of an episode: the mean, sum, maximum or minimum over its control steps, or the value of the last step."""


@dataclass(frozen=True, kw_only=True)
class ActionConfig:
    """A block of actions and the actuators that it drives.

    Every block computes value = offset + scale * clip(action), delayed by latency. The class of the block turns values
    into actuator inputs; by default, the values are the inputs.
    """

    func: str = "mjlab_dist.mdp.actions:ActuatorInput"
    """Class that turns values into actuator inputs, as package.module:name."""
    params: dict[str, ParamValue] = field(default_factory=dict)
    """Keyword arguments of the class."""
    actuators: tuple[str, ...]
    """Names of actuators, or regular expressions. By default, there is one action per actuator. Actuators that match
    the same expression are in the model's order."""
    scale: float | dict[str, float] = 1.0
    """Units of the value per unit of action; or one number per regular expression, for the actions whose names match
    it. If several match, the first one applies. By default, actions have the names of their actuators."""
    offset: float | Literal["home"] | dict[str, float] = 0.0
    """Value at action 0: one number, or one number per regular expression, as in scale. home: the joint's position in
    the start state (sim.keyframe)."""
    clip: Range | None = None
    """Range that actions are clipped to before they reach the actuators. Terms read the unclipped actions."""
    latency: NonNegativeIntRange = (0, 0)
    """Minimum and maximum delay of the actions, in control steps. Each env samples its delay at the start of an
    episode."""
    latency_jitter: Fraction = 0.0
    """Probability per control step that an env samples its delay again. Actions arrive in order. The delay
    increases by at most one step per control step, and meanwhile the last action stays in effect. If the delay
    decreases, late actions are skipped."""

    def processed(
        self,
        *,
        scale: float | dict[str, float] | None = None,
        offset: float | Literal["home"] | dict[str, float] | None = None,
        clip: tuple[float, float] | None = None,
        latency: tuple[int, int] | None = None,
        latency_jitter: float | None = None,
    ) -> ActionConfig:
        """Return a copy of this block in which the given fields are replaced."""
        given = {
            "scale": scale,
            "offset": offset,
            "clip": clip,
            "latency": latency,
            "latency_jitter": latency_jitter,
        }
        return dataclasses.replace(self, **{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True, kw_only=True)
class ObservationConfig:
    """A term of an observation group. Noise is added first, followed by clip, scale, delay and history."""

    func: str
    """Function or class, as package.module:name; returns one row per env."""
    params: dict[str, ParamValue] = field(default_factory=dict)
    """Keyword arguments of the function."""
    scale: float = 1.0
    """Factor that the value is multiplied by."""
    clip: Range | None = None
    """Range that the value is clipped to, in the function's units."""
    uniform_noise: NonNegativeFloat | tuple[NonNegativeFloat, ...] = 0.0
    """Maximum magnitude of uniform noise, in the function's units; or one number per column of the function."""
    gaussian_noise: NonNegativeFloat | tuple[NonNegativeFloat, ...] = 0.0
    """Standard deviation of Gaussian noise, in the function's units; or one number per column of the function."""
    delay: NonNegativeIntRange = (0, 0)
    """Minimum and maximum delay of the value, in control steps. Each env samples its delay at the start of an
    episode."""
    delay_jitter: Fraction = 0.0
    """Probability per control step that an env samples its delay again. Values arrive in order. The delay
    increases by at most one step per control step, and meanwhile the last value is observed again. If the delay
    decreases, late values are skipped."""
    history: PositiveInt = 1
    """Number of control steps whose values are observed, oldest first. At the start of an episode, all of them are
    copies of the first value."""

    def processed(
        self,
        *,
        scale: float | None = None,
        clip: tuple[float, float] | None = None,
        uniform_noise: float | tuple[float, ...] | None = None,
        gaussian_noise: float | tuple[float, ...] | None = None,
        delay: tuple[int, int] | None = None,
        delay_jitter: float | None = None,
        history: int | None = None,
    ) -> ObservationConfig:
        """Return a copy of this observation in which the given fields are replaced."""
        given = {
            "scale": scale,
            "clip": clip,
            "uniform_noise": uniform_noise,
            "gaussian_noise": gaussian_noise,
            "delay": delay,
            "delay_jitter": delay_jitter,
            "history": history,
        }
        return dataclasses.replace(self, **{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """A reward term. The reward of a control step is the sum of weight * func(env) over all terms."""

    func: str
    """Function, as package.module:name; returns one value per env."""
    weight: float
    """Weight of the term in the sum; negative for a cost."""
    params: dict[str, ParamValue] = field(default_factory=dict)
    """Keyword arguments of the function."""


@dataclass(frozen=True, kw_only=True)
class EventConfig:
    """An event: a change of the state of some envs, such as a new start state or a push."""

    func: str
    """Function or class, as package.module:name; it changes the envs that a mask selects."""
    params: dict[str, ParamValue] = field(default_factory=dict)
    """Keyword arguments of the function."""
    when: Literal["startup", "reset", "interval"] = "reset"
    """startup: once, before the first episode. reset: at the start of each episode. interval: at intervals."""
    interval_s: NonNegativeRange = (5.0, 10.0)
    """Range of the simulated time between two events, in s, sampled per env; only for interval events."""
    model_fields: tuple[str, ...] = ()
    """Fields of mujoco_warp.Model that the event writes to, such as body_mass. They have one value per env, and
    constants that depend on them are recomputed. Each episode starts with their values after the startup events."""

    def every(self, low_s: float, high_s: float) -> EventConfig:
        """Return a copy of this event that happens repeatedly, at intervals that each env samples uniformly.

        Args:
            low_s: Minimum time between two events, in simulated seconds.
            high_s: Maximum time between two events, in simulated seconds.
        """
        return dataclasses.replace(self, when="interval", interval_s=(low_s, high_s))

    def at_startup(self) -> EventConfig:
        """Return a copy of this event that happens once, before the first episode."""
        return dataclasses.replace(self, when="startup")

    def writing(self, *model_fields: str) -> EventConfig:
        """Return a copy of this event that may write to these fields of the model, such as ``body_mass``."""
        return dataclasses.replace(self, model_fields=model_fields)


@dataclass(frozen=True, kw_only=True)
class RandomizationConfig:
    """A model field whose values differ between envs. Constants that depend on the field are recomputed."""

    field: str
    """Field of mujoco_warp.Model: geom_friction, body_mass, dof_damping, actuator_gainprm, gravity, ..."""
    names: tuple[str, ...] = (".*",)
    """Regular expressions that match the names of the bodies, joints, geoms, ... to randomize."""
    entity: str | None = None
    """Entity of these bodies, joints, geoms, ...; names are then written without its prefix. Empty for sim.model. None:
    the whole scene."""
    columns: tuple[int, ...] = ()
    """Indices of the values to randomize, such as 0 for the sliding friction of geom_friction; empty for all."""
    low: float = -math.inf
    """Minimum of the sampled value; optional for normal."""
    high: float = math.inf
    """Maximum of the sampled value; optional for normal."""
    mean: float | None = None
    """Mean of the sampled value; for normal."""
    std: float | None = None
    """Standard deviation of the sampled value; for normal."""
    operation: Literal["scale", "add", "set"] = "scale"
    """How the sampled value is combined with the model's own value."""
    distribution: Literal["uniform", "log-uniform", "normal"] = "uniform"
    """uniform, log-uniform: between low and high. normal: with mean and std, clipped to low and high."""
    shared: bool = False
    """Sample one value per env, and use it for all selected names and columns."""
    when: Literal["startup", "reset", "interval"] = "startup"
    """startup: sample once. reset: sample again for every episode. interval: sample again at intervals; at the start of
    an episode, the field gets back the value that it had after the startup events. If constants depend on the field,
    reset and interval recompute them in every step."""
    interval_s: NonNegativeRange = (5.0, 10.0)
    """Range of the simulated time between two samples, in s, sampled per env; only for sampling at intervals."""


@dataclass(frozen=True, kw_only=True)
class TerrainPartConfig:
    """A kind of terrain. Fields with two numbers give the value at the easiest level and the one at the hardest."""

    kind: Literal["flat", "rough", "slope_up", "slope_down", "stairs_up", "stairs_down", "boxes", "gaps"]
    """rough: random heights. slope, stairs: up or down from the middle of a tile to all four sides. boxes: boxes on
    flat ground. gaps: rings around the middle of a tile."""
    share: PositiveFloat = 1.0
    """Share of the columns, relative to the shares of the other parts."""
    height_m: Annotated[tuple[float, float], Interval(0)] = (0.0, 0.1)
    """Height in m. rough: maximum height and depth. stairs: height of a step. boxes: maximum height of a box. gaps:
    depth."""
    width_m: Annotated[tuple[float, float], Interval(0)] = (0.4, 0.4)
    """Width in m. rough: distance between random heights, which are interpolated linearly. stairs: depth of a step.
    boxes: side of a box. gaps: width of a gap."""
    slope: Annotated[tuple[float, float], Interval(0)] = (0.0, 0.4)
    """Slope, as height over distance, for slope_up and slope_down."""


@dataclass(frozen=True, kw_only=True)
class TerrainConfig:
    """Terrain that replaces the scene's geom floor: a grid of tiles. Difficulty varies along x, and kind along y."""

    parts: dict[str, TerrainPartConfig] = field(default_factory=dict)
    """Kinds of terrain by name; without any, the scene keeps its own floor."""
    num_levels: PositiveInt = 10
    """Number of levels of difficulty, from the easiest to the hardest value of each range."""
    num_columns: PositiveInt = 10
    """Number of columns, divided among the parts in their order."""
    tile_size_m: PositiveFloat = 8.0
    """Side of a tile in m. The edge of a tile is at height 0."""
    platform_m: PositiveFloat = 2.0
    """Side of the square in the middle of a tile where episodes start, in m. It is flat, except for kind rough."""
    border_m: PositiveFloat = 5.0
    """Width of the flat ground around the grid, in m. There is no ground outside of this border."""
    resolution_m: PositiveFloat = 0.05
    """Distance between the points of the height field, in m. Widths are rounded to multiples of this distance, and
    vertical faces become slopes that are as wide as this distance."""
    seed: NonNegativeInt = 1
    """Seed of the terrain. All ranks have the same terrain."""

    def column_parts(self) -> list[str]:
        """Return the name of the part of each column.

        The parts divide the width of the grid in proportion to their shares. A column gets the part at its middle.
        """
        total = sum(part.share for part in self.parts.values())
        ends = itertools.accumulate(part.share * self.num_columns / total for part in self.parts.values())
        limits = dict(zip(self.parts, ends, strict=True))
        return [next(name for name in limits if column + 0.5 <= limits[name]) for column in range(self.num_columns)]


@dataclass(frozen=True, kw_only=True)
class EntityConfig:
    """An additional MJCF in the scene. Its elements are named <entity>/<name>."""

    model: str
    """MJCF, in any form that sim.model accepts."""
    model_params: dict[str, ParamValue] = field(default_factory=dict)
    """Keyword arguments of the function, if model names one."""
    pos: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Position of the MJCF's origin in the scene, in m."""
    quat: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)
    """Orientation of the MJCF in the scene, as a quaternion w x y z."""


@dataclass(frozen=True, kw_only=True)
class ActuatorConfig:
    """Motors that replace the MJCF's actuators on some joints. Each motor drives one joint and has the joint's name.

    The motors are MuJoCo's dcmotor, with torque = stiffness * (target position - position) + damping * (target velocity
    - velocity), or with the commanded torque, within the limits. For randomizations, stiffness and damping are columns
    4 and 6 of actuator_gainprm.
    """

    joints: tuple[str, ...]
    """Names of hinge and slide joints, or regular expressions."""
    kind: Literal["position", "velocity", "effort"] = "position"
    """Quantity that an action sets: a target position (with target velocity 0), a target velocity, or the torque (slide
    joints: force)."""
    stiffness: NonNegativeFloat = 0.0
    """Stiffness in N m/rad (slide joints: N/m); position motors only."""
    damping: NonNegativeFloat = 0.0
    """Damping in N m s/rad (slide joints: N s/m); position and velocity motors only."""
    effort_limit: PositiveFloat | None = None
    """Maximum torque at rest, in N m (slide joints: force in N). Default: no limit."""
    velocity_limit: PositiveFloat | None = None
    """No-load speed in rad/s (slide joints: m/s). The maximum torque in the direction of motion falls linearly, from
    effort-limit at rest to 0 at this speed."""
    armature: NonNegativeFloat | None = None
    """Inertia of the rotor, as reflected through the gear, in kg m² (slide joints: kg). Default: the MJCF's."""
    frictionloss: NonNegativeFloat | None = None
    """Dry friction in N m (slide joints: N). Default: the MJCF's."""


EngineName = Literal["auto", "warp", "mujoco"]
"""Program that computes the physics."""

CaptureMode = Literal["off", "physics", "step"]
"""Part of a control step that is recorded once and then replayed."""


@dataclass(frozen=True, kw_only=True)
class SimConfig:
    """The physics of a task."""

    model: str
    """MJCF: path of a file; package.module:file for a file in a Python package; package.module:function for a function
    that returns a mujoco.MjSpec; or the XML itself."""
    model_params: dict[str, ParamValue] = field(default_factory=dict)
    """Keyword arguments of the function, if model names one."""
    entities: dict[str, EntityConfig] = field(default_factory=dict)
    """Additional MJCFs in the scene, by name."""
    actuators: dict[str, ActuatorConfig] = field(default_factory=dict)
    """Groups of motors on joints, by name."""
    contacts: dict[str, ContactConfig] = field(default_factory=dict)
    """Contact sensors in addition to those of the MJCF, by name."""
    distances: dict[str, DistanceConfig] = field(default_factory=dict)
    """Distances between geoms, by name."""
    options: OptionsConfig = field(default_factory=OptionsConfig)
    """Solver and integrator."""
    keyframe: str | None = None
    """Keyframe of the MJCF that episodes start from. Default: the reference positions of the joints."""
    terrain: TerrainConfig = field(default_factory=TerrainConfig)
    """Terrain that replaces the scene's floor."""
    decimation: PositiveInt = 1
    """Physics steps per control step."""
    njmax: NonNegativeInt
    """Constraint rows that MuJoCo Warp allocates per env. More rows than necessary cost time."""
    nconmax: NonNegativeInt
    """Contacts that MuJoCo Warp allocates per env. All envs of a rank share one buffer of nconmax * num_envs contacts.
    More contacts than necessary cost time."""
    on_overflow: Literal["warn", "grow", "stop"] = "grow"
    """What to do during training if contacts or constraint rows do not fit into their buffers, so that some are
    dropped and the physics may become NaN. grow: restart from the newest checkpoint with larger buffers, and write
    their sizes to config.yaml. stop: write a checkpoint and end the run. warn: print one warning, and count affected
    envs."""
    forward_before_observation: bool = True
    """Recompute poses and sensors before observing. Observations of joint positions and velocities alone do not need
    this."""
    engine: EngineName = "auto"
    """Program that computes the physics. warp: MuJoCo Warp, on a GPU or on the CPU. mujoco: MuJoCo's C code, on the
    CPU, with a thread per core of the rank. auto: the faster one for this model on this device."""
    capture: CaptureMode = "physics"
    """Part of a control step that is recorded once and then replayed. physics: the physics (CUDA graphs on a GPU).
    step: on a GPU, also all other operations (policy, terms and storage). Curricula must then change tensors, not
    Python numbers. off: nothing, which is slower and easier to debug."""
    deterministic: bool = False
    """On a GPU, compute the physics in a fixed order, so that the same start state and actions always lead to the same
    state, bit for bit, unless a buffer overflows. This is slower and needs more memory. On the CPU, the order is always
    fixed."""


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """A task: physics, actions, observations, rewards, terminations and the other terms."""

    sim: SimConfig
    """Physics."""
    episode_length_s: PositiveFloat
    """Time limit of an episode, in simulated seconds."""
    actions: dict[str, ActionConfig]
    """Action blocks by name. The policy's output is their concatenation."""
    observations: dict[str, dict[str, ObservationConfig]]
    """Observation groups by name. A group is the concatenation of its terms. The policy reads the group actor; the
    value function reads the group critic, or actor if there is no critic."""
    rewards: dict[str, RewardConfig]
    """Reward terms by name."""
    reward_scale: Literal["none", "dt"] = "none"
    """Unit of the reward weights. none: weights are per control step. dt: weights are per simulated second, as
    in Isaac Lab and mjlab; they are multiplied by the length of a control step."""
    terminations: dict[str, TerminationConfig] = field(default_factory=dict)
    """Terms that end an episode, by name. The time limit is not one of these terms; PPO handles it like terms with
    time_out."""
    metrics: dict[str, MetricConfig] = field(default_factory=dict)
    """Quantities to log, by name, such as success. They are the columns metric/<name> of metrics.jsonl."""
    events: dict[str, EventConfig] = field(default_factory=dict)
    """Events at startup, at the start of an episode or at intervals, by name, in the order in which they happen."""
    randomizations: dict[str, RandomizationConfig] = field(default_factory=dict)
    """Model fields that differ between envs, by name, in the order in which they are randomized."""
    commands: dict[str, TermConfig] = field(default_factory=dict)
    """Commands to the policy, by name, resampled at intervals."""
    sensors: dict[str, TermConfig] = field(default_factory=dict)
    """Measurements after every control step, such as contacts and air times, by name."""
    curricula: dict[str, TermConfig] = field(default_factory=dict)
    """Curricula by name. They make the task harder when the policy succeeds."""
    nan_policy: Literal["stop", "reset"] = "stop"
    """What to do if physics, observations or rewards are not finite. stop: training ends in that iteration, and the
    state is saved for play --nan-dump. reset: the affected envs start a new episode, and are counted; in observations,
    numbers that are not finite are replaced by 0."""


def without_disturbances(env: EnvConfig) -> EnvConfig:
    """Return a task without noise, delays, interval events, randomizations and curricula that change them."""
    removed = ("randomizations.", *(f"events.{name}." for name, one in env.events.items() if one.when == "interval"))
    noise = (".uniform_noise", ".gaussian_noise")
    return dataclasses.replace(
        env,
        actions={
            name: dataclasses.replace(action, latency=(0, 0), latency_jitter=0.0)
            for name, action in env.actions.items()
        },
        observations={
            group: {
                name: dataclasses.replace(term, uniform_noise=0.0, gaussian_noise=0.0, delay=(0, 0), delay_jitter=0.0)
                for name, term in terms.items()
            }
            for group, terms in env.observations.items()
        },
        events={name: event for name, event in env.events.items() if event.when != "interval"},
        randomizations={},
        curricula={
            name: term
            for name, term in env.curricula.items()
            if not any(
                isinstance(v, str) and (v.startswith(removed) or v.endswith(noise)) for v in term.params.values()
            )
        },
    )
