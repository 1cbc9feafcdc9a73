"""From our config to the dictionary that rsl_rl reads."""

from __future__ import annotations

from typing import Any

from mjlab_dist.config import AgentConfig, TrainConfig
from mjlab_dist.distributed.synchronizer import Synchronizer


def rsl_rl_config(config: TrainConfig, synchronizer: Synchronizer) -> dict[str, Any]:
    """The configuration of rsl_rl's OnPolicyRunner, as of rsl-rl-lib 5.5.

    Args:
        config: The run's config.
        synchronizer: What :class:`~mjlab_dist.learn.ppo.PPO` reduces gradients with.
    """
    agent = config.agent
    critic_group = "critic" if "critic" in config.env.observations else "actor"
    return {
        "num_steps_per_env": agent.num_steps_per_env,
        "obs_groups": {"actor": ["actor"], "critic": [critic_group]},
        "algorithm": {
            "class_name": "mjlab_dist.learn.ppo:PPO",
            "num_learning_epochs": agent.num_learning_epochs,
            "num_mini_batches": agent.num_mini_batches,
            "learning_rate": agent.learning_rate,
            "schedule": agent.schedule,
            "desired_kl": agent.desired_kl,
            "gamma": agent.gamma,
            "lam": agent.lam,
            "clip_param": agent.clip_param,
            "entropy_coef": agent.entropy_coef,
            "value_loss_coef": agent.value_loss_coef,
            "use_clipped_value_loss": agent.use_clipped_value_loss,
            "max_grad_norm": agent.max_grad_norm,
            "use_mixed_precision": agent.precision == "bf16",
            "advantage_normalization": agent.advantage_normalization,
            "reward_normalization": agent.reward_normalization,
            "orthogonal_init": agent.orthogonal_init,
            "obs_clip": agent.obs_clip,
            "synchronizer": synchronizer,
            "capture": agent.capture,
            "fsdp_devices": config.fsdp_devices,
            "fsdp_min_size_mb": config.fsdp_min_size_mb,
            "compression": config.sync.compression,
        },
        "actor": {
            **_model(agent, agent.actor_hidden_dims),
            "distribution_cfg": {
                "class_name": "mjlab_dist.learn.distribution:BoundedGaussian",
                "init_std": agent.init_std,
                "min_std": agent.min_std,
                "std_type": agent.std_type,
            },
        },
        "critic": _model(agent, agent.critic_hidden_dims),
    }


def _model(agent: AgentConfig, hidden_dims: tuple[int, ...]) -> dict[str, Any]:
    mlp = {
        "hidden_dims": list(hidden_dims),
        "activation": agent.activation,
        "obs_normalization": agent.obs_normalization,
    }
    if agent.rnn == "none":
        return {"class_name": "rsl_rl.models:MLPModel", **mlp}
    return {
        "class_name": "rsl_rl.models:RNNModel",
        "rnn_type": agent.rnn,
        "rnn_hidden_dim": agent.rnn_hidden_dim,
        "rnn_num_layers": agent.rnn_num_layers,
        **mlp,
    }
