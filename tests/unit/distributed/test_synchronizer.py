"""Compression of gradients, on a single rank."""

from __future__ import annotations

import pytest
import torch

from mjlab_dist.distributed.synchronizer import FORMATS, AllReduce


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_rounding_errors_of_gradients_do_not_add_up(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(1000, generator=generator)
    gradients[:100] *= 1e-8  # fp16 rounds these to 0
    synchronizer = AllReduce(name)
    total, kl, num_steps = torch.zeros(1000, dtype=torch.float64), [], 64
    for _ in range(num_steps):
        buffer = torch.cat([gradients, torch.full((1,), 0.0123)])
        synchronizer.reduce(buffer)
        total += buffer[:-1]
        kl.append(buffer[-1].item())
    # The sum is off by at most the rounding error of one step, not by the errors of all 64 steps.
    bits = torch.finfo(FORMATS[name])
    one_error = bits.eps * gradients.abs() + bits.smallest_normal * bits.eps
    assert (total - num_steps * gradients.double()).abs().le(one_error).all()
    assert len(set(kl)) == 1, "the rounding error of the KL divergence must not be carried over to the next step"
