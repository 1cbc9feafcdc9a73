"""What a run is: frozen dataclasses, their validation and their plain-data form. Imports the standard library only.

Field docstrings are the command line's help. Terms name their functions as ``"package.module:function"``, so that a
config can be listed, shown and written to a file without importing torch, and reads back as the same run.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mjlab_dist.errors import UserError

ParamValue = bool | int | str | float | tuple[float, ...] | tuple[str, ...]
"""What a term's parameter may be: plain data that a file and the command line can hold."""


_MOST_POINTS = 4e7
"""Points of a terrain."""

Activation = Literal[
    "elu", "selu", "relu", "crelu", "lrelu", "tanh", "sigmoid", "softplus", "gelu", "swish", "mish", "identity"
]
"""Activations that rsl_rl knows by name."""

COMPRESSIONS = ("none", "bf16", "fp16")
"""Formats that gradients can travel in."""


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
    """startup: once. reset: anew for every episode; not where constants derive from the field."""


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

    def validate(self) -> None:
        """Refuse what cannot be built.

        Raises:
            UserError: One line that names the flag, its value and the mend.
        """
        if not self.parts:
            return
        self._validate_grid()
        for name, part in self.parts.items():
            self._validate_part(f"--env.sim.terrain.parts.{name}", part)
        columns = self.column_parts()
        for name, part in self.parts.items():
            if name not in columns:
                raise UserError(
                    f"--env.sim.terrain.num-columns {self.num_columns}: leaves none to --env.sim.terrain.parts.{name}.share "
                    f"{part.share:g} of {sum(each.share for each in self.parts.values()):g}; use more columns or a larger share"
                )

    def _validate_grid(self) -> None:
        flag = "--env.sim.terrain"
        for name, count, least in (
            ("num-levels", self.num_levels, 1),
            ("num-columns", self.num_columns, 1),
            ("seed", self.seed, 0),
        ):
            if count < least:
                raise UserError(f"{flag}.{name} {count}: must be at least {least}")
        if not 0 < self.resolution_m < math.inf:
            raise UserError(f"{flag}.resolution-m {self.resolution_m}: must be positive and finite")
        for name, length in (
            ("tile-size-m", self.tile_size_m),
            ("platform-m", self.platform_m),
            ("border-m", self.border_m),
        ):
            points = length / self.resolution_m
            if not 0 < length < math.inf or abs(points - round(points)) > 1e-6 * points:
                raise UserError(
                    f"{flag}.{name} {length}: must be a positive, whole multiple of {flag}.resolution-m {self.resolution_m}"
                )
        if self.platform_m >= self.tile_size_m:
            raise UserError(
                f"{flag}.platform-m {self.platform_m}: must be less than {flag}.tile-size-m {self.tile_size_m}"
            )
        sides = [2 * self.border_m + self.tile_size_m * n for n in (self.num_levels, self.num_columns)]
        num_points = sides[0] * sides[1] / self.resolution_m**2
        if num_points > _MOST_POINTS:
            raise UserError(
                f"{flag}.resolution-m {self.resolution_m}: makes {num_points:.2g} points of {sides[0]:g} m by {sides[1]:g} m; more "
                f"than {_MOST_POINTS:.2g} take gigabytes: use a coarser one, or fewer tiles"
            )

    def _validate_part(self, flag: str, part: TerrainPartConfig) -> None:
        if not 0 < part.share < math.inf:
            raise UserError(f"{flag}.share {part.share}: must be positive and finite")
        for name, ends in (("height-m", part.height_m), ("width-m", part.width_m), ("slope", part.slope)):
            if not all(0 <= end < math.inf for end in ends):
                raise UserError(f"{flag}.{name} {ends[0]} {ends[1]}: must be 0 or more, and finite")
        least, most = 2 * self.resolution_m, (self.tile_size_m - self.platform_m) / 2
        if part.kind in {"rough", "stairs_up", "stairs_down", "boxes", "gaps"} and not all(
            least * (1 - 1e-6) <= end <= most for end in part.width_m
        ):
            raise UserError(
                f"{flag}.width-m {part.width_m[0]} {part.width_m[1]}: must lie between {least:g}, two points of "
                f"--env.sim.terrain.resolution-m, and {most:g}, the ground from a platform to the edge of its tile"
            )


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
    """What the policy is told to do, by name; drawn anew now and then."""
    sensors: dict[str, TermConfig] = field(default_factory=dict)
    """What is measured after every step and remembered, such as contacts and the time in the air, by name."""
    curricula: dict[str, TermConfig] = field(default_factory=dict)
    """What becomes harder as the policy succeeds, by name."""
    nan_policy: Literal["stop", "reset"] = "stop"
    """What happens where physics, an observation or a reward is not finite. stop: training ends in that iteration, and the state is kept for play --nan-dump. reset: those envs start a new episode, and are counted."""


MIN_STD = 1e-6
"""Smallest standard deviation that rsl_rl's distributions take."""


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """PPO (Schulman et al. 2017, arXiv:1707.06347), as rsl_rl implements it."""

    num_steps_per_env: int = 32
    """Control steps per env in one rollout."""
    num_learning_epochs: int = 5
    """Passes over each rollout."""
    num_mini_batches: int = 4
    """Mini-batches per pass."""
    learning_rate: float = 1e-3
    """Adam's step size; the first where the schedule is adaptive or linear."""
    schedule: Literal["adaptive", "fixed", "linear"] = "adaptive"
    """adaptive: the learning rate follows the measured KL divergence towards desired-kl. linear: it falls on a line, to 0 after the run's last iteration."""
    desired_kl: float = 0.01
    """KL divergence per update that the adaptive schedule aims at."""
    gamma: float = 0.99
    """Discount per control step."""
    lam: float = 0.95
    """Lambda of the generalized advantage estimate."""
    clip_param: float = 0.2
    """Clip range of the probability ratio, and of the value where use-clipped-value-loss is set."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    value_loss_coef: float = 1.0
    """Weight of the value loss."""
    use_clipped_value_loss: bool = True
    """Clip the value's change as the policy's."""
    max_grad_norm: float = 1.0
    """Norm that the actor's and the critic's gradients are each clipped to."""
    actor_hidden_dims: tuple[int, ...] = (64, 64)
    """Widths of the policy's hidden layers."""
    critic_hidden_dims: tuple[int, ...] = (64, 64)
    """Widths of the value's hidden layers."""
    activation: Activation = "elu"
    """Activation of the hidden layers, by rsl_rl's name."""
    obs_normalization: bool = False
    """Normalize observations by their running mean and deviation, over all ranks."""
    obs_clip: float | None = None
    """Largest size of a normalized observation, in deviations, beyond which it is clipped; None clips nothing. Published results on Gymnasium's tasks use 10 (CleanRL's ppo_continuous_action.py): contact forces reach 60."""
    reward_normalization: bool = False
    """Divide rewards, as the learner sees them, by the running deviation of their discounted sum, over all ranks; returns are reported as they are."""
    init_std: float = 1.0
    """Standard deviation of the actions at the start."""
    min_std: float = 1e-3
    """Smallest standard deviation of the actions. At the bound it still has a gradient, so it can grow again."""
    std_type: Literal["scalar", "log"] = "scalar"
    """Parameter of the standard deviation: scalar, the value itself; log, its logarithm, so that updates are relative to it."""
    orthogonal_init: bool = False
    """Start from orthogonal weights of gain sqrt(2), 0.01 in the policy's last layer and 1 in the value's, and biases of 0 (Andrychowicz et al. 2021, arXiv:2006.05990, section 3.2: actions that hardly depend on the observation at first); off starts from torch's."""
    rnn: Literal["none", "lstm", "gru"] = "none"
    """Recurrent layers in front of policy and value; mini-batches are then of whole envs."""
    rnn_hidden_dim: int = 256
    """Width of the recurrent layers."""
    rnn_num_layers: int = 1
    """Recurrent layers."""
    advantage_normalization: Literal["global", "rank", "mini-batch"] = "global"
    """Over what advantages get mean 0 and deviation 1: the rollout of all ranks (the same policy comes out at any world size), each rank's own rollout, or each mini-batch over all ranks."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of the networks' products in the update; bf16 keeps parameters, gradients and Adam in fp32 (torch.autocast)."""
    capture: bool = True
    """On a GPU, record the update of a mini-batch once and replay it as CUDA graphs; off is slower and easier to debug."""


@dataclass(frozen=True, kw_only=True)
class SyncConfig:
    """How ranks keep one policy. docs/distributed.md has the formulas and what each costs."""

    period: int = 1
    """Iterations between averagings of the ranks' parameters and Adam moments. 1 averages the gradients of every mini-batch instead, and ranks never differ."""
    compression: str = "none"
    """Number format that gradients travel in: none (fp32), bf16 or fp16. They are divided by the world size before, and kept in fp32 after."""
    check_interval: int = 100
    """Iterations between comparisons of all ranks' parameters, optimizer state and normalizers; a difference ends the run. Checkpoints are checked too."""
    synchronizer: str | None = None
    """A synchronizer of your own, as package.module:Class; see docs/distributed.md."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are written, and which are kept."""

    interval: int | str = 50
    """Iterations between checkpoints, as 50, or seconds, as 600s; one more is written at the end."""
    keep_last: int = 5
    """Newest checkpoints to keep; 0 keeps all."""
    keep_best: int = 1
    """Checkpoints to keep besides, those of the highest mean return; 0 keeps none."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run."""

    task: str
    """Name of the task, as list-tasks prints it; set by the first argument, not by this flag."""
    num_envs: int | Literal["auto"] = 1024
    """Envs per rank. auto: the largest power of two that every rank's memory holds."""
    total_num_envs: int | None = None
    """Envs over all ranks, in place of num-envs; the ranks must divide it."""
    max_iterations: int = 300
    """Iterations to train: each is one rollout and one policy update."""
    total_timesteps: int | None = None
    """Control steps to train, over all envs of all ranks, in place of max-iterations; rounded down to whole iterations."""
    seed: int = 1
    """Rank r seeds itself with seed + r."""
    gpu_ids: tuple[int, ...] | Literal["auto", "all"] | None = "auto"
    """GPUs or MIG instances to train on, one rank each: nvidia-smi's indices, or indices into CUDA_VISIBLE_DEVICES where that is set; all, which leaves out GPUs that cannot be used, with a warning; or None for the CPU. auto: the first GPU that can be used, else the CPU."""
    cpu_ranks: int | None = None
    """Train on the CPU with this many processes, each on its share of the cores."""
    hosts: tuple[str, ...] = ()
    """Machines to train on, by name or address, each with the ranks that gpu-ids or cpu-ranks asks for; by default this one. This one comes first, the others are reached by SSH. The same environment must lie under the same path on all."""
    ssh_config: str | None = None
    """SSH's config file for hosts; by default ~/.ssh/config, then /etc/ssh/ssh_config."""
    require_same_devices: bool = False
    """Refuse to train on ranks whose devices differ in model, memory or compute capability; otherwise that is only reported."""
    fsdp_devices: int = 1
    """Ranks that share one copy of each large parameter and its Adam moments (FSDP2); must divide the world size. 1 keeps a copy on every rank."""
    fsdp_min_size_mb: float = 4.0
    """Size from which a parameter of two or more dimensions is sharded, in MiB of fp32."""
    run_name: str = ""
    """Put into the run directory's name."""
    log_root: str = "logs"
    """Directory that holds all runs, as <log-root>/<task>/<time>_<run-name>."""
    resume: str | None = None
    """Go on with an earlier run, in its directory: a run directory, latest for the task's newest, or a W&B run's path. Its own config is taken, further flags change it; max-iterations is the total."""
    init_from: str | None = None
    """Checkpoint file whose policy and value (and normalizers) a new run starts from."""
    max_restarts: int = 0
    """How often a run whose ranks were killed, hung or failed is started again from its newest checkpoint; an attempt that got no further ends the run."""
    hang_timeout: float = 300.0
    """Seconds without an iteration after which a rank is taken to hang, and the run ends or is started again."""
    logger: Literal["tensorboard", "wandb"] = "tensorboard"
    """Where curves go, besides metrics.jsonl. wandb works offline with WANDB_MODE=offline."""
    wandb_project: str = "mjlab_dist"
    """Weights & Biases project."""
    torchrunx_log_dir: str | None = None
    """Log files of the ranks; the variable TORCHRUNX_LOG_DIR beats this flag. Default: <run directory>/torchrunx. An empty string turns the files off."""
    env: EnvConfig
    """The task's env."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    """The learner."""
    sync: SyncConfig = field(default_factory=SyncConfig)
    """Synchronisation of ranks."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Checkpoints."""


@dataclass(frozen=True, kw_only=True)
class PlayConfig:
    """Show what a trained policy does: its returns over whole episodes, and a video of one.

    Any --env flag of train besides changes the run's env, as in --env.commands.velocity.params.forward-m-s 1 1.
    """

    run: str = "latest"
    """Run directory, or latest for the task's newest run."""
    checkpoint: str | None = None
    """Checkpoint to play: latest or best (of the highest mean return) of the run, or a file, which names its run itself. Default: latest."""
    nan_dump: str | None = None
    """Play no policy, but step once more what a run that stopped at a number that is not finite left in errors/nan_rank<N>.pt."""
    video: str | None = None
    """Video file to write, such as balance.mp4; by default none is."""
    num_envs: int = 16
    """Episodes to play, side by side."""
    seed: int = 1
    """Seed of the start states."""
    log_root: str = "logs"
    """Directory that holds all runs."""


def validate(config: TrainConfig) -> None:
    """Refuse what cannot train, before anything starts.

    Raises:
        UserError: One line that names the flag, its value and the mend.
    """
    _validate_numbers(config)
    if config.num_envs == "auto" and config.total_num_envs is not None:
        raise UserError(
            f"--num-envs auto: excludes --total-num-envs {config.total_num_envs}, which fixes the envs; drop one of the two"
        )
    if config.total_num_envs is None:
        validate_rollout(config)
    _validate_sync(config)
    _validate_hosts(config.hosts)
    parse_interval(config.checkpoint.interval)
    if config.resume is not None and config.init_from is not None:
        raise UserError(
            f"--init-from {config.init_from}: excludes --resume {config.resume}, which goes on from that run's own checkpoint; "
            "drop one of the two"
        )
    if "/" in config.run_name or config.run_name.startswith("."):
        raise UserError(f"--run-name {config.run_name}: must be a plain name, without / and not starting with a dot")
    _validate_env(config.env)


def validate_rollout(config: TrainConfig) -> None:
    """Refuse mini-batches that the rollout of one rank cannot be cut into; where ``num_envs`` is auto, nothing is known yet.

    Args:
        config: A config whose ``num_envs`` is what ranks will have: :func:`mjlab_dist.budget.resolve` settles that.

    Raises:
        UserError: One line that names the flag, its value and the mend.
    """
    if config.num_envs == "auto":
        return
    agent = config.agent
    if agent.rnn != "none":
        if config.num_envs % agent.num_mini_batches:
            raise UserError(
                f"--agent.num-mini-batches {agent.num_mini_batches}: does not divide --num-envs {config.num_envs}, and with "
                f"--agent.rnn {agent.rnn} mini-batches are of whole envs; "
                f"use {_nearest_divisor(config.num_envs, agent.num_mini_batches)}"
            )
        return
    rollout = config.num_envs * agent.num_steps_per_env
    if rollout % agent.num_mini_batches:
        raise UserError(
            f"--agent.num-mini-batches {agent.num_mini_batches}: does not divide the rollout of --num-envs "
            f"{config.num_envs} x --agent.num-steps-per-env {agent.num_steps_per_env} = {rollout} samples; "
            f"use {_nearest_divisor(rollout, agent.num_mini_batches)}"
        )


def parse_interval(interval: int | str) -> tuple[int | None, float | None]:
    """Read ``--checkpoint.interval``.

    Args:
        interval: A number of iterations, or seconds with an s behind them.

    Returns:
        Iterations or None, seconds or None; one of the two.

    Raises:
        UserError: If it is neither.
    """
    match = re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?)s", str(interval))
    if not match or float(match[1] or match[2]) <= 0:
        raise UserError(
            f"--checkpoint.interval {interval}: must be iterations, at least 1, such as 50, or seconds, such as 600s"
        )
    return (int(match[1]), None) if match[1] else (None, float(match[2]))


def _nearest_divisor(number: int, wish: int) -> int:
    divisors = [n for n in range(1, min(number, 64) + 1) if number % n == 0]
    return min(divisors, key=lambda n: abs(n - wish))


def _validate_sync(config: TrainConfig) -> None:
    sync = config.sync
    if sync.compression not in COMPRESSIONS:
        raise UserError(
            f"--sync.compression {sync.compression}: use {', '.join(COMPRESSIONS[:-1])} or {COMPRESSIONS[-1]}; an all-reduce "
            "adds numbers: what travels must be a number format, and bytes packed by a general compressor cannot be added"
        )
    own = f"--sync.synchronizer {sync.synchronizer}"
    for excluded, flag, reason in (
        (
            sync.synchronizer and sync.period > 1,
            f"{own}: excludes --sync.period {sync.period}",
            "a synchronizer of your own decides when ranks meet",
        ),
        (
            sync.synchronizer and sync.compression != "none",
            f"{own}: excludes --sync.compression {sync.compression}",
            "a synchronizer of your own decides what travels",
        ),
        (
            sync.synchronizer and config.fsdp_devices > 1,
            f"--fsdp-devices {config.fsdp_devices}: excludes {own}",
            "sharded gradients are averaged by FSDP2",
        ),
        (
            sync.period > 1 and config.fsdp_devices > 1,
            f"--fsdp-devices {config.fsdp_devices}: excludes --sync.period {sync.period}",
            "ranks that share parameters cannot differ",
        ),
    ):
        if excluded:
            raise UserError(f"{flag}, since {reason}; drop one of the two")


def _validate_hosts(hosts: tuple[str, ...]) -> None:
    shown = " ".join(hosts)
    for host in hosts:
        # One colon would be a port, which SSH's library takes and a look-up of the name does not; an IPv6 address has more.
        if not re.fullmatch(r"[\w.:-]+", host) or host.count(":") == 1:
            raise UserError(
                f"--hosts {shown}: {host!r} is no machine's name or address; separate hosts by spaces, and name users and ports "
                "in SSH's config file"
            )
        if hosts.count(host) > 1:
            raise UserError(f"--hosts {shown}: {host} is repeated; name each once")


def _validate_numbers(config: TrainConfig) -> None:
    agent, sim = config.agent, config.env.sim
    for least, flag, value in (
        (1, "--num-envs", config.num_envs),
        (1, "--total-num-envs", config.total_num_envs),
        (1, "--max-iterations", config.max_iterations),
        (1, "--total-timesteps", config.total_timesteps),
        (1, "--fsdp-devices", config.fsdp_devices),
        (1, "--sync.period", config.sync.period),
        (1, "--sync.check-interval", config.sync.check_interval),
        (0, "--checkpoint.keep-last", config.checkpoint.keep_last),
        (0, "--checkpoint.keep-best", config.checkpoint.keep_best),
        (0, "--max-restarts", config.max_restarts),
        (0, "--seed", config.seed),
        (1, "--env.sim.decimation", sim.decimation),
        (0, "--env.sim.njmax", sim.njmax),
        (0, "--env.sim.nconmax", sim.nconmax),
        (1, "--agent.num-steps-per-env", agent.num_steps_per_env),
        (1, "--agent.num-learning-epochs", agent.num_learning_epochs),
        (1, "--agent.num-mini-batches", agent.num_mini_batches),
        *((1, "--agent.actor-hidden-dims", width) for width in agent.actor_hidden_dims),
        *((1, "--agent.critic-hidden-dims", width) for width in agent.critic_hidden_dims),
        (1, "--agent.rnn-hidden-dim", agent.rnn_hidden_dim),
        (1, "--agent.rnn-num-layers", agent.rnn_num_layers),
    ):
        if isinstance(value, int) and value < least:
            raise UserError(f"{flag} {value}: must be at least {least}")
    for flag, value in (
        ("--env.episode-length-s", config.env.episode_length_s),
        ("--agent.learning-rate", agent.learning_rate),
        ("--agent.desired-kl", agent.desired_kl),
        ("--agent.clip-param", agent.clip_param),
        ("--agent.init-std", agent.init_std),
        ("--agent.min-std", agent.min_std),
        ("--agent.max-grad-norm", agent.max_grad_norm),
        ("--hang-timeout", config.hang_timeout),
    ):
        if not 0 < value < math.inf:
            raise UserError(f"{flag} {value}: must be positive and finite")
    _validate_obs_clip(agent)
    _validate_std(agent)
    for flag, value in (
        ("--agent.entropy-coef", agent.entropy_coef),
        ("--agent.value-loss-coef", agent.value_loss_coef),
        ("--fsdp-min-size-mb", config.fsdp_min_size_mb),
    ):
        if not 0 <= value < math.inf:
            raise UserError(f"{flag} {value}: must be 0 or more, and finite")
    for flag, value in (("--agent.gamma", agent.gamma), ("--agent.lam", agent.lam)):
        if not 0 <= value <= 1:
            raise UserError(f"{flag} {value}: must lie between 0 and 1")


def _validate_std(agent: AgentConfig) -> None:
    if agent.min_std < MIN_STD:
        raise UserError(f"--agent.min-std {agent.min_std}: must be at least {MIN_STD}, as in rsl_rl")
    if agent.init_std < agent.min_std:
        raise UserError(
            f"--agent.init-std {agent.init_std}: is below --agent.min-std {agent.min_std}; raise it, or lower the minimum"
        )


def _validate_obs_clip(agent: AgentConfig) -> None:
    if agent.obs_clip is None:
        return
    if not 0 < agent.obs_clip < math.inf:
        raise UserError(f"--agent.obs-clip {agent.obs_clip}: must be positive and finite, or None")
    if not agent.obs_normalization:
        raise UserError(
            f"--agent.obs-clip {agent.obs_clip}: clips normalized observations; add --agent.obs-normalization"
        )


def _validate_env(env: EnvConfig) -> None:
    if not env.observations.get("actor"):
        raise UserError("env.observations: has no group actor; the task must define what the policy sees")
    if not env.actions:
        raise UserError("env.actions: is empty; the task must name the actuators that the policy drives")
    if not env.rewards:
        raise UserError("env.rewards: is empty; the task must define at least one term")
    for name, action in env.actions.items():
        _validate_range(f"--env.actions.{name}.latency", action.latency, least=0)
        _validate_range(f"--env.actions.{name}.clip", action.clip)
    for group, terms in env.observations.items():
        for name, term in terms.items():
            _validate_observation(f"--env.observations.{group}.{name}", term)
    env.sim.terrain.validate()
    for name, event in env.events.items():
        _validate_range(f"--env.events.{name}.interval-s", event.interval_s, least=0)


def _validate_observation(flag: str, term: ObservationConfig) -> None:
    _validate_range(f"{flag}.delay", term.delay, least=0)
    _validate_range(f"{flag}.clip", term.clip)
    if term.history < 1:
        raise UserError(f"{flag}.history {term.history}: must be at least 1")
    for noise, value in (("uniform", term.uniform_noise), ("gaussian", term.gaussian_noise)):
        if not 0 <= value < math.inf:
            raise UserError(f"{flag}.{noise}-noise {value}: must be 0 or more, and finite")


def _validate_range(flag: str, bounds: tuple[float, float] | None, least: float = -math.inf) -> None:
    low, high = bounds or (least, math.inf)
    if low < least:
        raise UserError(f"{flag} {low} {high}: must be at least {least}")
    if not low <= high:
        raise UserError(f"{flag} {low} {high}: is the wrong way round; swap the two")


def to_plain(config: Any) -> Any:
    """Turn a config into dicts, lists and scalars, for a file.

    Args:
        config: A config dataclass, or anything that one holds.

    Returns:
        The same as plain data: dataclasses and mappings as dicts, tuples as lists, paths as text.
    """
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: to_plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        return {key: to_plain(value) for key, value in config.items()}
    if isinstance(config, tuple | list):
        return [to_plain(value) for value in config]
    if isinstance(config, Path):
        return str(config)
    return config


def paths(plain: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names of all that a config holds.

    Args:
        plain: What :func:`to_plain` made of it.
        prefix: Put before every name.

    Yields:
        Name and value; what holds others comes before them.
    """
    for name, value in plain.items():
        yield prefix + name, value
        if isinstance(value, Mapping):
            yield from paths(value, f"{prefix}{name}.")
