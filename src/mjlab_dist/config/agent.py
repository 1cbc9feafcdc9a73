"""Config of the learner: networks and PPO. Field docstrings are the help of flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal[
    "elu", "selu", "relu", "crelu", "lrelu", "tanh", "sigmoid", "softplus", "gelu", "swish", "mish", "identity"
]
"""Activations that rsl_rl knows by name."""


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
