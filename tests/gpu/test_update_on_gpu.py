"""The recorded update on a GPU equals the eager one, and neither of them waits for the device."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from rollouts import AGENT, collect, difference, fix_order, make_data, make_learner, state_of, train_config

from mjlab_dist.config import RndConfig, SymmetryConfig
from mjlab_dist.learn.capture import CapturedStep

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

DEVICE = "cuda:0"
NUM_ENVS = 64


def learner(capture: bool, **fields: Any) -> Any:
    torch.manual_seed(0)
    config = train_config(dataclasses.replace(AGENT, capture=capture, **fields))
    return make_learner(config, NUM_ENVS, device=DEVICE)


def learn(made: Any, seed: int) -> dict[str, torch.Tensor]:
    collect(made, make_data(NUM_ENVS, seed).to(DEVICE))
    torch.manual_seed(seed)
    return made.update()


EXTENDED = {
    "symmetry": SymmetryConfig(func="rollouts:mirrored", use_data_augmentation=True, mirror_loss_coef=1.0),
    "rnd": RndConfig(weight=1.0, state_normalization=True, reward_normalization=True),
}
"""Fields of an agent with rsl_rl's extensions."""


@pytest.mark.parametrize("fields", [{}, {"precision": "bf16"}, EXTENDED], ids=["fp32", "bf16", "extended"])
def test_a_recorded_update_gives_the_results_of_an_eager_one(fields: dict[str, Any]) -> None:
    recorded, eager = learner(True, **fields), learner(False, **fields)
    for seed in range(4):
        losses = [learn(made, seed) for made in (recorded, eager)]
        largest, where = difference(state_of(recorded), state_of(eager))
        assert largest < (5e-2 if "precision" in fields else 1e-4), where
        torch.testing.assert_close(losses[0]["kl"], losses[1]["kl"], rtol=1e-2, atol=1e-4)
    assert isinstance(recorded._step, CapturedStep)
    assert recorded._step._batch is not None, "nothing was recorded"
    assert not isinstance(eager._step, CapturedStep)


@pytest.mark.parametrize("capture", [True, False])
def test_an_update_never_waits_for_the_device(capture: bool) -> None:
    made = learner(capture)
    learn(made, 0)  # records the update
    collect(made, make_data(NUM_ENVS, 1).to(DEVICE))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        made.update()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_gpu_learns_the_same_as_the_cpu() -> None:
    torch.manual_seed(0)
    on_cpu = make_learner(train_config(AGENT), NUM_ENVS)
    on_gpu = learner(True)
    on_gpu.load(on_cpu.save(), None, True)
    order = torch.randperm(NUM_ENVS * AGENT.num_steps_per_env)
    for made, device in ((on_cpu, "cpu"), (on_gpu, DEVICE)):
        fix_order(made, order)
        collect(made, make_data(NUM_ENVS, 0).to(device))
        made.update()
    here, there = (torch.cat([p.detach().flatten().cpu() for p in m.actor.parameters()]) for m in (on_cpu, on_gpu))
    assert (here - there).norm() < 0.01 * here.norm()
