"""Checks before a run starts: files and classes that the config names."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from configs import changed

from mjlab_dist.config import EntityConfig, SacConfig, SyncConfig, TrainConfig, registry
from mjlab_dist.config.dotted_names import replaced
from mjlab_dist.distributed import RankDevice
from mjlab_dist.errors import UserError
from mjlab_dist.launch import plan
from mjlab_dist.launch.hosts.device_answer import DeviceRequest
from mjlab_dist.launch.hosts.ssh import Host
from mjlab_dist.launch.plan import check_config, plan_run
from mjlab_dist.machine import devices
from mjlab_dist.messages import Event, listening
from mjlab_dist.runs.run_dir import CHECKPOINTS_DIR, CONFIG_FILE, to_yaml
from mjlab_dist.sim import build_model


@pytest.fixture
def config() -> TrainConfig:
    return registry.task_config("cartpole-balance")


@pytest.mark.parametrize("content", [{"model": {}}, {"actor_state_dict": {}, "critic_state_dict": 1}, [1.0], None])
def test_a_file_of_another_kind_or_a_damaged_one_is_refused_as_initial_policy(
    config: TrainConfig, tmp_path: Path, content: object
):
    file = tmp_path / "model.pt"
    file.write_text("not a checkpoint")
    if content is not None:
        torch.save(content, file)
    with pytest.raises(UserError, match=re.escape(str(file))) as caught:
        check_config(dataclasses.replace(config, init_from=str(file)))
    assert "\n" not in str(caught.value)


def test_a_policy_with_other_observations_is_refused_as_initial_policy(config: TrainConfig, tmp_path: Path):
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    file = run / "checkpoints" / "model_1.pt"
    torch.save({"actor_state_dict": {}, "critic_state_dict": {}}, file)
    for task, is_refused in (("gym-hopper", True), ("cartpole-swingup", False)):
        (run / CONFIG_FILE).write_text(to_yaml(registry.task_config(task)))
        with pytest.raises(UserError, match=task) if is_refused else contextlib.nullcontext():
            check_config(dataclasses.replace(config, init_from=str(file)))


@pytest.mark.parametrize("name", ["no_such_module:Average", "pathlib:NoSuchClass", "pathlib:Path", "no-colon"])
def test_a_synchronizer_that_cannot_be_made_is_refused(config: TrainConfig, name: str):
    with pytest.raises(UserError, match=rf"^--sync\.synchronizer {name}: "):
        check_config(dataclasses.replace(config, sync=SyncConfig(synchronizer=name)))


@pytest.mark.parametrize(("decimation", "is_refused"), [(2, False), (6, True)])
def test_an_episode_shorter_than_a_control_step_is_refused(config: TrainConfig, decimation: int, is_refused: bool):
    timestep_s = build_model(config.env.sim).opt.timestep
    config = changed(changed(config, "env.sim.decimation", decimation), "env.episode_length_s", 2 * timestep_s)
    refused = pytest.raises(UserError, match=r"^--env\.episode-length-s ") if is_refused else contextlib.nullcontext()
    with refused:
        check_config(config)


def test_devices_are_checked_before_hosts_are(config: TrainConfig, monkeypatch: pytest.MonkeyPatch):
    calls: list[str] = []
    monkeypatch.setattr(plan, "choose_hosts", lambda *_: calls.append("hosts"))
    config = dataclasses.replace(config, hosts=("slurm",), gpu_ids=(5,))

    def planned(**changes: Any) -> None:
        with listening(lambda event: calls.append(event["text"])):
            plan.plan_hosts(dataclasses.replace(config, **changes), {"SLURM_JOB_NODELIST": "a,b"}, [])

    with pytest.raises(UserError, match="--gpu-ids 5"):
        planned()
    assert not calls
    planned(gpu_ids=None, cpu_ranks=len(os.sched_getaffinity(0)) + 1)
    warning, hosts = calls
    assert hosts == "hosts"
    assert "share" in warning


@pytest.mark.parametrize(
    ("num_cores", "fields", "num_ranks"),
    [
        (6, {"total_num_envs": 256}, 6),
        (16, {"total_num_envs": 255}, 15),  # 16 envs each
        (16, {"total_num_envs": 31}, 1),
        (1, {"total_num_envs": 256}, 1),
        (6, {"total_num_envs": 256, "fsdp_devices": 4}, 4),
        (6, {"total_num_envs": 256, "agent": SacConfig(batch_size=80)}, 5),  # divides a batch
        (6, {"total_num_envs": 256, "cpu_ranks": 3}, 3),
        (6, {"total_num_envs": None, "num_envs": 256}, 1),
    ],
)
def test_a_total_of_envs_is_split_over_a_rank_per_core(
    config: TrainConfig,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    num_cores: int,
    fields: dict[str, Any],
    num_ranks: int,
) -> None:
    for module in (plan, devices):
        monkeypatch.setattr(module, "cores", lambda: num_cores)
    events: list[Event] = []
    with listening(events.append):
        planned, _ = plan_run(dataclasses.replace(config, **fields), {}, [], lambda _: tmp_path)
    assert planned.num_ranks == num_ranks
    assert planned.own_devices[0].torch_threads == num_cores // num_ranks
    ranks = "1 rank" if num_ranks == 1 else f"{num_ranks} ranks"
    assert plan.describe_ranks(planned).startswith(f"{ranks} on {num_cores} core")
    # Who gives envs per rank trains with one rank, and may not have meant it
    hints = [event["text"] for event in events if event["kind"] == "status"]
    assert ["--total-num-envs 256" in hint for hint in hints] == [True] * (fields["total_num_envs"] is None)


def test_other_machines_have_as_many_ranks_as_this_one_has_cores(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[DeviceRequest] = []

    def choose_hosts(config: TrainConfig, _: object, own: tuple[RankDevice, ...]) -> tuple[Host, ...]:
        asked.append(DeviceRequest.of(config, None, {}, own))
        return (Host(devices=own), Host(name="node7", devices=own))

    for module in (plan, devices):
        monkeypatch.setattr(module, "cores", lambda: 4)
    monkeypatch.setattr(plan, "choose_hosts", choose_hosts)
    monkeypatch.setattr(plan, "check_machine", lambda *_: [])
    hosts = dataclasses.replace(config, hosts=("localhost", "node7"), total_num_envs=96)
    planned, _ = plan_run(hosts, {}, [], lambda _: tmp_path)
    assert [(request.gpu_ids, request.cpu_ranks) for request in asked] == [(None, 3)]
    assert planned.budget is not None
    assert planned.budget.num_envs == 16
    assert plan.describe_ranks(planned) == "6 ranks on 2 machines"


def test_a_run_is_resumed_with_its_engine(config: TrainConfig, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    (run_dir / CHECKPOINTS_DIR).mkdir(parents=True)
    engine = ["env", "sim", "engine"]
    resumed = dataclasses.replace(config, gpu_ids=None, resume=str(run_dir))
    for trained, other in (("warp", "mujoco"), ("mujoco", "warp")):
        (run_dir / CONFIG_FILE).write_text(to_yaml(replaced(config, engine, trained)))
        _, settled = plan_run(replaced(resumed, engine, trained), {}, [], lambda _: tmp_path)
        assert settled.env.sim.engine == trained
        with pytest.raises(UserError, match=rf"^--env\.sim\.engine {other}: .* {trained}; .*--init-from"):
            plan_run(replaced(resumed, engine, other), {}, [], lambda _: tmp_path)


def test_options_of_an_entity_that_do_not_apply_are_warned_about(config: TrainConfig, tmp_path: Path) -> None:
    cube = '<mujoco><option impratio="10"/><worldbody><body><freejoint/><geom size=".1"/></body></worldbody></mujoco>'
    config = replaced(config, ["env", "sim", "entities"], {"cube": EntityConfig(model=cube)})
    chosen = dataclasses.replace(config, gpu_ids=None)
    events: list[Event] = []
    with listening(events.append):
        plan_run(chosen, {}, [], lambda _: tmp_path)
    (warning,) = (event for event in events if event["kind"] == "warning")
    assert warning["text"].startswith("--env.sim.entities.cube.model ")
    assert "impratio" in warning["text"]


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_deterministic_mode_is_refused_without_a_gpu(
    config: TrainConfig, deterministic: bool, tmp_path: Path
) -> None:
    config = changed(dataclasses.replace(config, gpu_ids=None), "env.sim.deterministic", deterministic)
    refused = pytest.raises(UserError, match=r"^--env\.sim\.deterministic: .*\bCPU\b.*repeatable")
    with refused if deterministic else contextlib.nullcontext():
        plan_run(config, {}, [], lambda _: tmp_path)
