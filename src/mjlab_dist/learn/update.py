"""The parts of an update: mini-batches, all gradients in one buffer, Adam, and the schedules of its learning rate."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from mjlab_dist.config import AgentConfig

# Range of the adaptive learning rate, as in rsl_rl
MIN_LEARNING_RATE, MAX_LEARNING_RATE = 1e-5, 1e-2

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


class FlatGradients:
    """A flat buffer whose views are the ``.grad`` of the parameters, with a slot for one more number.

    Attributes:
        buffer: (number of parameters + 1,) in fp32. The last slot is reduced with the gradients.
        groups: For each group of parameters, the part of the buffer with its gradients.
    """

    def __init__(self, groups: Sequence[Sequence[torch.nn.Parameter]], device: str) -> None:
        """Allocate the buffer, and set every parameter's ``.grad`` to a view of it."""
        sizes = [sum(p.numel() for p in group) for group in groups]
        self.buffer = torch.zeros(sum(sizes) + 1, device=device)
        self.groups = self.buffer[:-1].split(sizes)
        for group, part in zip(groups, self.groups, strict=True):
            for parameter, gradient in zip(group, part.split([p.numel() for p in group]), strict=True):
                parameter.grad = gradient.view_as(parameter)

    @property
    def extra(self) -> torch.Tensor:
        """The number that is reduced with the gradients, a scalar view."""
        return self.buffer[-1]


@torch.no_grad()
def flattened(parameters: Sequence[torch.nn.Parameter]) -> torch.Tensor:
    """Move parameters into one vector, (elements,), whose views they become, so that one operation changes them all."""
    flat = torch.cat([p.flatten() for p in parameters])
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.data = part.view_as(parameter)
    return flat


class Adam(torch.optim.Adam):
    """Torch's Adam without the wrappers of its methods, because they would import all of torch's compiler.

    Its learning rate is a tensor, which loading a state does not replace. In a state, the learning rate is a number.
    """

    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))
    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of torch's Adam with its defaults, as a stock rsl_rl checkpoint contains it."""
        state = inspect.unwrap(torch.optim.Optimizer.state_dict)(self)
        for group in state["param_groups"]:
            group.update(lr=float(group["lr"]), fused=None, capturable=False)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of :meth:`state_dict`."""
        (own,) = self.param_groups
        (group,) = state_dict["param_groups"]
        rate: torch.Tensor = own["lr"]
        rate.fill_(float(group["lr"]))
        group = {**group, "lr": rate, "fused": own["fused"], "capturable": own["capturable"]}
        inspect.unwrap(torch.optim.Optimizer.load_state_dict)(self, {**state_dict, "param_groups": [group]})
        # Loading replaces tensors by copies, but the learning rate must stay the tensor that the update writes to.
        self.param_groups[0]["lr"] = rate


def make_adam(parameters: Iterable[torch.Tensor], rate: torch.Tensor) -> Adam:
    """Return Adam with a learning rate that stays a tensor, so that nothing waits for the device."""
    return Adam(parameters, lr=rate, fused=True, capturable=rate.device.type != "cpu")


def adapt_rate(rate: torch.Tensor, kl: torch.Tensor, desired_kl: float) -> None:
    """Update the learning rate by rsl_rl's adaptive schedule, without waiting for the device."""
    slower = (rate / 1.5).clamp(min=MIN_LEARNING_RATE)
    faster = (rate * 1.5).clamp(max=MAX_LEARNING_RATE)
    too_near = (kl < desired_kl / 2.0) & (kl > 0.0)
    rate.copy_(torch.where(kl > desired_kl * 2.0, slower, torch.where(too_near, faster, rate)))


def linear(initial: float, final: float, iteration: int, num_iterations: int) -> float:
    """Return the value of a linear schedule in an iteration. The final value is reached after the last iteration."""
    return final + (num_iterations - iteration + 1) / num_iterations * (initial - final)


def scheduled_rate(agent: AgentConfig, iteration: int, num_iterations: int) -> float:
    """Return the learning rate of an iteration whose schedule is fixed or linear."""
    initial = agent.learning_rate
    return linear(initial, 0.0, iteration, num_iterations) if agent.schedule == "linear" else initial


@contextlib.contextmanager
def precision(device: str, *, is_bf16: bool) -> Iterator[None]:
    """Compute networks in bf16, as far as torch supports it, or in fp32. Parameters and gradients are in fp32."""
    kind = torch.device(device).type
    with contextlib.ExitStack() as stack:
        if is_bf16 and kind == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            # On a processor without bf16, an LSTM in bf16 fails in oneDNN. Without oneDNN, torch computes it in fp32.
            stack.callback(setattr, torch.backends.mkldnn, "enabled", torch.backends.mkldnn.enabled)
            torch.backends.mkldnn.enabled = False
        stack.enter_context(torch.autocast(kind, torch.bfloat16, enabled=is_bf16))
        yield
