"""Configs of the learners, with their networks. The docstrings of the fields are also the help texts of the flags."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from mjlab_dist.config.limits import Fraction, Interval, NonNegativeFloat, PositiveFloat, PositiveInt

Activation = Literal[
    "elu", "selu", "relu", "crelu", "lrelu", "tanh", "sigmoid", "softplus", "gelu", "swish", "mish", "identity"
]
"""Names of the activations that rsl_rl supports."""


@dataclass(frozen=True, kw_only=True)
class SymmetryConfig:
    """Learning from mirrored samples (Mittal et al. 2024, arXiv:2403.04359), as rsl_rl implements it."""

    func: str | None = "mjlab_dist.mdp.mirror:WithMirrored"
    """Function that mirrors samples, as package.module:function, with rsl_rl's parameters env, obs and actions; or a
    class, which is created as Class(env) and then called like the function. Default: a class that finds the mirror
    images of a robot's joints and feet by itself. See docs/task-reference.md."""
    use_data_augmentation: bool = False
    """Add the mirrored samples to every mini-batch."""
    mirror_loss_coef: NonNegativeFloat = 0.0
    """Weight of the mirror loss: the mean squared difference between the policy's mean actions in mirrored states and
    its mirrored mean actions. With 0, it is not part of the loss."""

    @property
    def is_used(self) -> bool:
        """Whether samples are mirrored."""
        return self.use_data_augmentation or self.mirror_loss_coef > 0


@dataclass(frozen=True, kw_only=True)
class RndConfig:
    """Random network distillation (Burda et al. 2018, arXiv:1810.12894), as rsl_rl implements it.

    The intrinsic reward of a state is the error with which a network, the predictor, predicts the output of a fixed
    random network, the target. States are the observations of the group rnd_state, or actor if there is none.
    """

    weight: NonNegativeFloat = 0.0
    """Weight of the intrinsic reward, in the unit of env.reward-scale; with 0, there is none."""
    final_weight: NonNegativeFloat | None = None
    """Weight after the last iteration, to which the weight changes linearly; None for a constant weight."""
    num_outputs: PositiveInt = 1
    """Number of outputs of predictor and target."""
    predictor_hidden_dims: tuple[PositiveInt, ...] = (64, 64)
    """Widths of the predictor's hidden layers."""
    target_hidden_dims: tuple[PositiveInt, ...] = (64, 64)
    """Widths of the target's hidden layers."""
    activation: Activation = "elu"
    """Activation function of the hidden layers, as rsl_rl names it."""
    state_normalization: bool = False
    """Normalize states by their running mean and standard deviation over all ranks."""
    reward_normalization: bool = False
    """Divide the intrinsic reward by the running standard deviation of its discounted sum over all ranks."""
    learning_rate: PositiveFloat = 1e-3
    """Learning rate of the predictor."""

    @property
    def is_used(self) -> bool:
        """Whether there is an intrinsic reward."""
        return self.weight > 0 or (self.final_weight or 0.0) > 0


@dataclass(frozen=True, kw_only=True)
class PpoConfig:
    """PPO (Schulman et al. 2017, arXiv:1707.06347), as rsl_rl implements it."""

    algorithm: ClassVar[Literal["ppo"]] = "ppo"

    num_steps_per_env: PositiveInt = 32
    """Control steps per env in a rollout."""
    num_learning_epochs: PositiveInt = 5
    """Epochs per update: passes over the rollout."""
    num_mini_batches: PositiveInt = 4
    """Mini-batches per epoch."""
    learning_rate: PositiveFloat = 1e-3
    """Learning rate of Adam; the initial one if the schedule is adaptive or linear."""
    schedule: Literal["adaptive", "fixed", "linear"] = "adaptive"
    """Schedule of the learning rate. adaptive: it is adjusted to keep the KL divergence near desired-kl. linear: it
    falls linearly, to 0 after the last iteration."""
    desired_kl: PositiveFloat = 0.01
    """Target KL divergence of the adaptive schedule."""
    gamma: Fraction = 0.99
    """Discount factor per control step."""
    lam: Fraction = 0.95
    """Lambda of generalized advantage estimation."""
    clip_param: PositiveFloat = 0.2
    """Clip range of the probability ratio, and of the value if use-clipped-value-loss is set."""
    entropy_coef: NonNegativeFloat = 0.01
    """Weight of the entropy bonus."""
    value_loss_coef: NonNegativeFloat = 1.0
    """Weight of the value loss."""
    use_clipped_value_loss: bool = True
    """In the value loss, clip the change of the value since the rollout to plus and minus clip-param."""
    max_grad_norm: PositiveFloat = 1.0
    """Maximum norm of the gradients; the actor's and the critic's are clipped separately."""
    actor_hidden_dims: tuple[PositiveInt, ...] = (64, 64)
    """Widths of the policy's hidden layers."""
    critic_hidden_dims: tuple[PositiveInt, ...] = (64, 64)
    """Widths of the value function's hidden layers."""
    activation: Activation = "elu"
    """Activation function of the hidden layers, as rsl_rl names it."""
    obs_normalization: bool = False
    """Normalize observations by their running mean and standard deviation over all ranks."""
    obs_clip: PositiveFloat | None = None
    """Clip normalized observations to plus and minus this number of standard deviations; None for no clipping.
    Published results on Gymnasium's tasks use 10 (CleanRL's ppo_continuous_action.py)."""
    reward_normalization: bool = False
    """Before PPO learns from rewards, divide them by the running standard deviation of their discounted sum. The
    standard deviation is computed over all ranks. Reported returns are not normalized."""
    init_std: PositiveFloat = 1.0
    """Initial standard deviation of the actions."""
    min_std: Annotated[float, Interval(1e-6)] = 1e-3  # rsl_rl's distributions accept no smaller one
    """Minimum standard deviation of the actions. At the minimum, the gradient is not cut off, so that updates
    can raise the standard deviation again."""
    std_type: Literal["scalar", "log"] = "scalar"
    """Parameter that is learned for the standard deviation. scalar: the standard deviation itself. log: its logarithm,
    so that each gradient step multiplies the standard deviation by a factor."""
    orthogonal_init: bool = False
    """Initialize the networks with orthogonal weights and zero biases, instead of torch's default. The gain is 0.01 in
    the policy's last layer, 1 in the value function's last layer, and sqrt(2) in all other layers (Andrychowicz
    et al. 2021, arXiv:2006.05990, section 3.2). With 0.01, initial actions hardly depend on the observation.
    Recurrent layers keep torch's default."""
    rnn: Literal["none", "lstm", "gru"] = "none"
    """Recurrent layers before the policy's and the value function's hidden layers. With recurrent layers, a mini-batch
    consists of all samples of some of the envs."""
    rnn_hidden_dim: PositiveInt = 256
    """Width of the recurrent layers."""
    rnn_num_layers: PositiveInt = 1
    """Number of recurrent layers."""
    advantage_normalization: Literal["global", "rank", "mini-batch"] = "global"
    """Samples over which advantages are normalized. global: the rollouts of all ranks, so that the update does not
    depend on the number of ranks. rank: each rank's own rollout. mini-batch: each mini-batch, over all ranks."""
    symmetry: SymmetryConfig = field(default_factory=SymmetryConfig)
    """Mirrored samples."""
    rnd: RndConfig = field(default_factory=RndConfig)
    """Intrinsic reward for unknown states."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of the networks in the update. bf16 uses torch.autocast: parameters, gradients and Adam stay in
    fp32."""
    capture: bool = True
    """On a GPU, record the gradient step of one mini-batch as CUDA graphs, and replay them for every mini-batch.
    Without capture, the update is slower and easier to debug. Recurrent and sharded policies are never captured."""


@dataclass(frozen=True, kw_only=True)
class SacConfig:
    """Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905) for many envs, as in FastSAC (arXiv:2512.01996)."""

    algorithm: ClassVar[Literal["sac"]] = "sac"

    num_steps_per_env: PositiveInt = 8
    """Control steps per env in an iteration, before its gradient steps."""
    updates_per_step: PositiveFloat = 8.0
    """Gradient steps per control step of all envs."""
    policy_period: PositiveInt = 2
    """The policy and the temperature change in every nth gradient step, the critics in all of them."""
    batch_size: PositiveInt = 512
    """Samples of a gradient step, over all ranks; must be divisible by the number of ranks."""
    replay_size: PositiveInt = 1_000_000
    """Newest transitions from which samples are drawn, over all ranks. Every rank keeps those of its own envs on its
    device."""
    warmup_steps: PositiveInt = 20
    """Control steps per env before the first gradient step."""
    learning_rate: PositiveFloat = 1e-3
    """Learning rate of Adam, for critics, policy and temperature; the initial one if the schedule is linear."""
    schedule: Literal["fixed", "linear"] = "fixed"
    """Schedule of the learning rate. linear: it falls linearly, to 0 after the last iteration."""
    gamma: Fraction = 0.99
    """Discount factor per control step."""
    n_step: PositiveInt = 1
    """Control steps whose rewards a sample contains, before the value of the state after them."""
    tau: Annotated[float, Interval(0, 1, is_open=True)] = 0.02
    """Share by which the target critics approach the critics after each gradient step (Polyak averaging)."""
    temperature: PositiveFloat = 0.1
    """Weight of the entropy; the initial one if it is learned."""
    learn_temperature: bool = True
    """Adjust the temperature so that the entropy of the actions stays near its target."""
    target_entropy_scale: NonNegativeFloat = 1.0
    """The target of the entropy is minus this number per action, in nats, for actions between -1 and 1."""
    actor_hidden_dims: tuple[PositiveInt, ...] = (256, 256)
    """Widths of the policy's hidden layers."""
    critic_hidden_dims: tuple[PositiveInt, ...] = (256, 256)
    """Widths of the hidden layers of each of the two critics."""
    num_quantiles: PositiveInt = 1
    """Quantiles of the return that each critic learns (Dabney et al. 2018, arXiv:1710.10044); 1 for the mean."""
    activation: Activation = "relu"
    """Activation function of the hidden layers, as rsl_rl names it."""
    layer_norm: bool = True
    """Normalize the numbers in each hidden layer (Ba et al. 2016, arXiv:1607.06450), before the activation."""
    obs_normalization: bool = False
    """Normalize observations by their running mean and standard deviation over all ranks."""

    @property
    def init_std(self) -> float:
        """Typical standard deviation of the first actions, before they are squashed."""
        return 1.0


AgentConfig = PpoConfig | SacConfig
"""Config of any learner."""

Algorithm = Literal["ppo", "sac"]
"""Name of an algorithm."""

ALGORITHMS: dict[str, type[AgentConfig]] = {kind.algorithm: kind for kind in (PpoConfig, SacConfig)}
"""Config classes of the learners by the name of the algorithm."""
