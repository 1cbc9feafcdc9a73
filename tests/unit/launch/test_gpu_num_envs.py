"""Tasks have a number of envs for a CPU and one for GPUs: which one a run uses, and what it tells the user."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fake_nvml
import pytest

import mjlab_dist.launch.verify.verification
import mjlab_dist.simulate.make
from mjlab_dist.config import TrainConfig, registry
from mjlab_dist.config.dotted_names import with_values
from mjlab_dist.distributed import RankDevice, RankPlan, group
from mjlab_dist.errors import UserError
from mjlab_dist.launch import plan, train, worker
from mjlab_dist.launch.budget import plan_budget
from mjlab_dist.launch.hosts.ssh import Host
from mjlab_dist.launch.plan import RunPlan, notes, settled
from mjlab_dist.messages import Event
from mjlab_dist.runs.run_dir import read_config_file

CPU = RankDevice(device="cpu", name="cpu", torch_threads=1, backend="gloo")
GPU = RankDevice(device="cuda:0", visible="GPU-1", name="Model", torch_threads=1, backend="nccl")


class _LaunchedError(Exception):
    """Raised in place of starting ranks."""


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    base = registry.task_config("quadruped-velocity-flat")
    assert (base.total_num_envs, base.gpu_num_envs) == (256, 4096)
    return dataclasses.replace(base, log_root=str(tmp_path))


def num_envs_of(config: TrainConfig, devices: Sequence[RankDevice]) -> int:
    budget = plan_budget(settled(config, devices), len(devices))
    assert budget is not None
    return budget.num_envs


def note_of(config: TrainConfig, devices: Sequence[RankDevice]) -> list[str]:
    found = notes(config, devices, plan_budget(settled(config, devices), len(devices)))
    return [note for note in found if note.startswith("Envs per rank")]


def test_tasks_have_thousands_of_envs_on_a_gpu_except_gymnasiums() -> None:
    totals = {"gym-half-cheetah": 256, "gym-hopper": 32, "gym-walker2d": 64}
    for name in registry.task_names():
        expected = totals.get(name, 128) if name.startswith("gym-") else 4096
        assert num_envs_of(registry.task_config(name), [GPU]) == expected


@pytest.mark.parametrize(
    ("devices", "num_envs"), [([GPU], 4096), ([GPU, GPU], 4096), ([CPU], 256), ([GPU, CPU], 128), ([CPU, GPU], 128)]
)
def test_the_number_for_gpus_is_used_if_all_ranks_are_on_gpus(
    config: TrainConfig, devices: list[RankDevice], num_envs: int
) -> None:
    assert num_envs_of(config, devices) == num_envs
    assert settled(config, devices).gpu_num_envs is None


def test_a_total_of_the_user_takes_precedence_over_the_number_for_gpus(config: TrainConfig) -> None:
    assert num_envs_of(with_values(config, {"total_num_envs": 32}), [GPU]) == 32


def test_a_number_for_gpus_that_mini_batches_do_not_divide_is_refused(config: TrainConfig) -> None:
    odd = dataclasses.replace(config, gpu_num_envs=4097, agent=dataclasses.replace(config.agent, num_mini_batches=64))
    assert num_envs_of(odd, [CPU]) == 256
    with pytest.raises(UserError, match=r"--agent\.num-mini-batches 64: .* 4097 "):
        num_envs_of(odd, [GPU])


def test_a_note_names_the_number_for_gpus_or_one_that_is_small_for_a_gpu_and_the_flag(config: TrainConfig) -> None:
    hopper, own = registry.task_config("gym-hopper"), dataclasses.replace(config, gpu_num_envs=None)
    total = dataclasses.replace(own, num_envs="auto", total_num_envs=8)
    few = ((hopper, ("32", "few")), (own, ("256", "few")), (total, ("8", "few")))
    for chosen, texts in ((config, ("4096", "256", "GPU")), *few):
        (note,) = note_of(chosen, [GPU])
        assert all(text in note for text in (*texts, "--num-envs"))
        assert note_of(chosen, [CPU]) == []
    assert note_of(with_values(own, {"num_envs": 1024}), [GPU]) == []
    auto = with_values(own, {"num_envs": "auto"})
    assert notes(auto, [GPU], plan_budget(own, 1)) == [], "auto prints its own line"


def test_train_on_a_gpu_launches_records_and_reports_the_number_for_gpus(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvml.install(monkeypatch, [fake_nvml.FakeGpu("GPU-1")])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(plan, "check_machine", lambda *_: [])
    launched: list[tuple[TrainConfig, RunPlan]] = []

    def launch(config: TrainConfig, plan: RunPlan, *_: Any) -> None:
        launched.append((config, plan))
        raise _LaunchedError

    monkeypatch.setattr(train, "run_with_restarts", launch)
    events: list[Event] = []

    def start(config: TrainConfig) -> tuple[TrainConfig, RunPlan]:
        with pytest.raises(_LaunchedError):
            train.train(dataclasses.replace(config, max_restarts=1), events.append, lambda *_: None)
        return launched[-1]

    ran, planned = start(config)
    assert (ran.num_envs, ran.gpu_num_envs, ran.total_num_envs) == (4096, None, None)
    assert planned.budget is not None
    assert planned.budget.num_envs == 4096
    assert any("4096" in event["text"] for event in events if event["kind"] == "status")
    # What the run was trained with is used again on a CPU
    recorded = read_config_file(planned.run_dir)
    again, on_cpu = start(dataclasses.replace(recorded, gpu_ids=None))
    assert on_cpu.devices[0].device == "cpu"
    assert again.num_envs == 4096


@pytest.mark.parametrize("others", ["Model", "cpu"])
def test_a_rank_of_torchrun_on_a_gpu_uses_the_number_for_gpus_unless_others_are_on_a_cpu(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch, others: str
) -> None:
    world = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    for name, value in {**world, "MASTER_PORT": "1", "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    answers = {"plan_own_device": GPU, "in_this_process": GPU, "require_kernel_cache": None, "_prepare_process": None}
    for name, answer in answers.items():
        monkeypatch.setattr(train, name, lambda *_, answer=answer, **__: answer)
    monkeypatch.setattr(group, "meet", lambda _: None)
    monkeypatch.setattr(train, "exchange", lambda *args: [args[-1], others if args[-2] == "name" else args[-1]])
    ran: list[tuple[TrainConfig, RankPlan]] = []

    def run(config: TrainConfig, plan: RankPlan, *_: Any) -> None:
        ran.append((config, plan))
        raise _LaunchedError

    monkeypatch.setattr(worker, "run", run)
    events: list[Event] = []
    refused, reason = (UserError, "--num-envs: ") if others == "cpu" else (_LaunchedError, None)
    with pytest.raises(refused, match=reason):
        train.train(config, events.append, lambda *_: None)
    if others != "cpu":
        ((rank_config, rank_plan),) = ran
        assert (rank_config.num_envs, rank_config.gpu_num_envs) == (4096, None)
        assert rank_plan.num_envs == 4096
        assert any("4096" in event["text"] for event in events if event["kind"] == "status")


def verify(config: TrainConfig) -> object:
    return mjlab_dist.launch.verify.verification.verify(config, scaling=False, rounds=1, until_return=None)


def make(config: TrainConfig) -> object:
    return mjlab_dist.simulate.make.make(config, [config], "torch", print, final_observations=False)


@pytest.mark.parametrize(
    ("module", "start"),
    [(mjlab_dist.launch.verify.verification, verify), (mjlab_dist.simulate.make, make)],
    ids=["verify", "make"],
)
def test_other_commands_on_gpus_use_the_number_for_gpus(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch, module: Any, start: Callable[[TrainConfig], object]
) -> None:
    def check_memory(_: TrainConfig, num_envs: int, *__: Any) -> None:
        assert num_envs == 4096
        raise _LaunchedError

    monkeypatch.setattr(module, "plan_hosts", lambda *_: (Host(devices=(GPU, GPU)),))
    monkeypatch.setattr(module, "check_memory", check_memory)
    with pytest.raises(_LaunchedError):
        start(config)
