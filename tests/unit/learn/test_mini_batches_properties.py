"""Properties of mini-batches: each sample of a rollout is in exactly one mini-batch, with all of its values."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from mjlab_dist.learn.update import copy_batch, recurrent_mini_batches, shuffled_mini_batches, tensors_of


def rollout(steps: int, envs: int, kind: str) -> RolloutStorage:
    """Return a rollout in which every value is the index of its sample: step * envs + env."""
    storage = RolloutStorage(kind, envs, steps, TensorDict({"actor": torch.zeros(envs, 2)}, [envs]), [1], "cpu")
    numbers = torch.arange(float(steps * envs)).view(steps, envs, 1)
    for step in range(steps):
        transition = RolloutStorage.Transition()
        transition.observations = TensorDict({"actor": numbers[step].expand(-1, 2)}, [envs])
        transition.actions = transition.values = numbers[step]
        transition.rewards = transition.dones = torch.zeros(envs)
        transition.actions_log_prob = numbers[step, :, 0]
        transition.distribution_params = (numbers[step], numbers[step])
        storage.add_transition(transition)
    storage.returns.copy_(numbers)
    storage.advantages.copy_(numbers)
    return storage


@given(steps=st.integers(1, 6), envs=st.integers(1, 6), data=st.data())
def test_shuffled_mini_batches_hold_every_sample_once(steps: int, envs: int, data: st.DataObject):
    samples = steps * envs
    count = data.draw(st.sampled_from([n for n in range(1, samples + 1) if samples % n == 0]))
    order = torch.tensor(data.draw(st.permutations(range(samples))))
    storage = rollout(steps, envs, "rl")
    batches = shuffled_mini_batches(storage, order, order.float().view(count, -1))
    assert len(batches) == count
    for batch in batches:
        # All values of a sample are in the same row, and copies are equal.
        assert batch.actions is not None
        numbers = batch.actions.flatten()
        assert numbers.numel() == samples // count
        for tensor, copy in zip(tensors_of(batch), tensors_of(copy_batch(batch)), strict=True):
            assert torch.equal(tensor, numbers.view(-1, 1).expand_as(tensor))
            assert torch.equal(tensor, copy)
            assert tensor.data_ptr() != copy.data_ptr()
    gathered = torch.cat([batch.actions.flatten() for batch in batches if batch.actions is not None])
    assert torch.equal(gathered, order.float()), "samples are in the requested order"


@given(steps=st.integers(1, 6), per_batch=st.integers(1, 4), count=st.integers(1, 4))
def test_recurrent_mini_batches_hold_every_env_once_with_all_its_steps(steps: int, per_batch: int, count: int):
    envs = per_batch * count
    storage = rollout(steps, envs, "rl")
    seen: list[torch.Tensor] = []

    def normalize(advantages: torch.Tensor) -> torch.Tensor:
        seen.append(advantages.clone())
        return advantages + 0.5

    batches = recurrent_mini_batches(storage, count, normalize)
    numbers = torch.arange(float(steps * envs)).view(steps, envs)
    assert len(batches) == count
    assert torch.equal(storage.advantages[..., 0], numbers + 0.5), "each sample keeps its own advantage"
    for i, batch in enumerate(batches):
        own = numbers[:, i * per_batch : (i + 1) * per_batch]
        assert batch.actions is not None
        assert batch.advantages is not None
        assert torch.equal(batch.actions[..., 0], own)
        assert torch.equal(batch.advantages[..., 0], own + 0.5)
        assert sorted(seen[0][i].tolist()) == sorted(own.flatten().tolist()), "each mini-batch is normalized on its own"
