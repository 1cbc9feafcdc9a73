"""Function for the ranks of test_rank_environment.py: set up the rank's process, and report its environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from unittest import mock

import torch

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import RankPlan, rank_from_environment
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.launch import worker

NAMES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "MUJOCO_EGL_DEVICE_ID")


@dataclass(frozen=True)
class Report:
    """The environment of one rank."""

    variables: dict[str, str | None]
    cuda_had_started: bool


def report(config: TrainConfig, plan: RankPlan, control: Control) -> Report:  # noqa: ARG001
    rank = rank_from_environment(os.environ)
    started = torch.cuda.is_initialized()
    with mock.patch.object(torch.cuda, "set_device"):  # this machine lacks these GPUs
        worker.prepare_process(plan.device, rank, config.seed)
    return Report({name: os.environ.get(name) for name in NAMES}, started)
