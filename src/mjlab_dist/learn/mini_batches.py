"""Mini-batches of a rollout."""

from __future__ import annotations

from collections.abc import Callable

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

Batch = RolloutStorage.Batch

# Fields of a mini-batch that are single tensors
_TENSORS = ("actions", "values", "advantages", "returns", "old_actions_log_prob")


def shuffled_mini_batches(storage: RolloutStorage, order: torch.Tensor, advantages: torch.Tensor) -> list[Batch]:
    """Gather all samples of a rollout into mini-batches of equal size."""
    size = advantages.shape[1]

    def gather(samples: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return samples.flatten(0, 1)[order].split(size)

    # Shuffled samples, split into mini-batches
    assert storage.distribution_params is not None
    observations: list[TensorDict] = storage.observations.flatten(0, 1)[order].split(size)
    params = [gather(p) for p in storage.distribution_params]
    tensors = (storage.actions, storage.values, storage.returns, storage.actions_log_prob)
    return [
        Batch(
            observations=observations[i],
            actions=actions,
            values=values,
            advantages=advantages[i].unsqueeze(-1),
            returns=returns,
            old_actions_log_prob=log_prob,
            old_distribution_params=tuple(p[i] for p in params),
        )
        for i, (actions, values, returns, log_prob) in enumerate(zip(*map(gather, tensors), strict=True))
    ]


def recurrent_mini_batches(
    storage: RolloutStorage, count: int, normalize: Callable[[torch.Tensor], torch.Tensor]
) -> list[Batch]:
    """Split a rollout into mini-batches of whole envs, because a recurrent network reads every episode in order.

    The advantages of the storage are normalized in place.
    """
    steps, envs = storage.num_transitions_per_env, storage.num_envs
    rows = storage.advantages.view(steps, count, -1).transpose(0, 1)
    rows = normalize(rows.reshape(count, -1)).view(count, steps, -1)
    storage.advantages = rows.transpose(0, 1).reshape(steps, envs, 1)
    return list(storage.recurrent_mini_batch_generator(count, 1))


def copy_batch(batch: Batch) -> Batch:
    """Return a copy of a mini-batch in its own memory, from which CUDA graphs can read in every replay."""
    assert batch.observations is not None
    assert batch.old_distribution_params is not None
    return Batch(
        observations=batch.observations.clone(),
        old_distribution_params=tuple(p.clone() for p in batch.old_distribution_params),
        **{name: getattr(batch, name).clone() for name in _TENSORS},
    )


def tensors_of(batch: Batch) -> list[torch.Tensor]:
    """Return the tensors of a mini-batch, in a fixed order."""
    assert batch.observations is not None
    assert batch.old_distribution_params is not None
    tensors = [getattr(batch, name) for name in _TENSORS]
    return [*batch.observations.to_dict().values(), *tensors, *batch.old_distribution_params]
