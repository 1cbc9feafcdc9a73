"""The devices that ranks use, on simulated machines."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import fake_nvml
import pynvml
import pytest
import torch
from fake_nvml import FakeGpu

from mjlab_dist import registry
from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import Rank, RankDevice
from mjlab_dist.errors import UserError
from mjlab_dist.machine import devices
from mjlab_dist.machine.devices import Gpu, find_gpus, in_this_process, plan_devices, plan_own_device, shared_cores

A, B, C, D = (f"GPU-{letter}1-22" for letter in "abcd")

GPUS = [Gpu(index=i, card=i, uuid=uuid, card_uuid=uuid, name=f"Model {i}") for i, uuid in enumerate((A, B, C, D))]

NUM_CORES = 12


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "cores", lambda: NUM_CORES)


def chosen(gpu_ids: Any = "auto", cpu_ranks: int | None = None) -> TrainConfig:
    return dataclasses.replace(registry.task_config("cartpole-balance"), gpu_ids=gpu_ids, cpu_ranks=cpu_ranks)


class Planned(list[RankDevice]):
    """The devices of a machine's ranks. Each property lists one field of all ranks."""

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(each.device for each in self)

    @property
    def visible(self) -> tuple[str | None, ...]:
        return tuple(each.visible for each in self)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self)

    @property
    def gpu_ids(self) -> tuple[int | None, ...]:
        return tuple(each.gpu_id for each in self)

    @property
    def backend(self) -> str:
        (same,) = {each.backend for each in self}
        return same

    @property
    def torch_threads(self) -> int:
        (same,) = {each.torch_threads for each in self}
        return same


def planned(config: TrainConfig, environ: dict[str, str], gpus: list[Gpu]) -> Planned:
    return Planned(plan_devices(config, environ, gpus))


def plan(gpu_ids: Any = "auto", visible: str | None = None, gpus: list[Gpu] = GPUS) -> Planned:
    return planned(chosen(gpu_ids), {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}, gpus)


def refusal_of(gpu_ids: Any, visible: str | None = None, gpus: list[Gpu] = GPUS, cpu_ranks: int | None = None) -> str:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    with pytest.raises(UserError) as caught:
        plan_devices(chosen(gpu_ids, cpu_ranks), environ, gpus)
    message = str(caught.value)
    assert "\n" not in message
    return message


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_by_default_the_first_gpu_trains(caplog: pytest.LogCaptureFixture):
    made = plan()
    assert made.devices == ("cuda:0",)
    assert made.visible == (A,)
    assert made.names == ("Model 0 (GPU 0)",)
    assert not warnings_in(caplog)


def test_by_default_the_first_visible_gpu_trains():
    made = plan(visible="2,3")
    assert (made.devices, made.visible) == (("cuda:0",), (C,))


def test_without_a_gpu_the_cpu_trains_with_a_warning(caplog: pytest.LogCaptureFixture):
    made = plan(gpus=[])
    assert made.devices == made.names == ("cpu",)
    assert made.visible == (None,)
    (warning,) = warnings_in(caplog)
    assert "--gpu-ids None" in warning


@pytest.mark.parametrize("gpus", [[], GPUS])
def test_hidden_gpus_cause_no_warning_and_the_cpu_trains(gpus: list[Gpu], caplog: pytest.LogCaptureFixture):
    assert plan(visible="", gpus=gpus).devices == ("cpu",)
    assert not warnings_in(caplog)


@pytest.mark.parametrize("gpus", [[], GPUS])
def test_none_means_the_cpu(gpus: list[Gpu], caplog: pytest.LogCaptureFixture):
    made = plan(None, gpus=gpus)
    assert made.devices == ("cpu",)
    assert made.visible == (None,)
    assert not warnings_in(caplog)


def test_every_rank_sees_only_its_own_gpu():
    made = plan((1, 3))
    assert made.devices == ("cuda:0", "cuda:0")
    assert made.visible == (B, D)
    assert made.names == ("Model 1 (GPU 1)", "Model 3 (GPU 3)")


def test_ids_index_the_visible_gpus():
    made = plan((0, 1), visible="2,3")
    assert made.visible == (C, D)
    assert plan((1,), visible="2,3").visible == (D,)


def test_order_of_ids_is_kept():
    made = plan((1, 0), visible="2, 3")
    assert made.visible == (D, C)
    assert made.names == ("Model 3 (GPU 3)", "Model 2 (GPU 2)")


def test_all_means_all_visible_gpus():
    assert plan("all").visible == (A, B, C, D)
    assert plan("all", visible="3,1").visible == (D, B)


@pytest.mark.parametrize("uuid", [B, "GPU-b"])
def test_a_uuid_or_its_prefix_names_a_gpu(uuid: str):
    made = plan("all", visible=f"{uuid},0")
    assert made.visible == (B, A)
    assert made.names[0] == "Model 1 (GPU 1)"


@pytest.mark.parametrize("stop", ["-1", "junk", "4", "", "NoDevFiles", "GPU-", "MIG"])
def test_an_invalid_entry_truncates_the_list_as_in_cuda(stop: str):
    assert plan("all", visible=f"2,{stop},3").visible == (C,)
    assert f"CUDA_VISIBLE_DEVICES=2,{stop},3 " in refusal_of((1,), visible=f"2,{stop},3")


@pytest.mark.parametrize("repeated", ["1,2,1", f"1,{B}"])
def test_a_list_that_repeats_a_gpu_hides_all_gpus_as_in_cuda(repeated: str):
    assert f"CUDA_VISIBLE_DEVICES={repeated} " in refusal_of("all", visible=repeated)


def test_a_uuid_of_another_machine_truncates_the_list_as_in_cuda():
    assert plan("all", visible="2,GPU-elsewhere,3").visible == (C,)


def test_a_list_that_starts_with_an_invalid_entry_hides_all_gpus():
    assert plan(visible="-1").devices == ("cpu",)
    message = refusal_of("all", visible="-1")
    assert message.startswith("--gpu-ids all:")
    assert "CUDA_VISIBLE_DEVICES=-1 " in message
    assert "--gpu-ids None" in message


def test_all_without_a_gpu_is_refused():
    message = refusal_of("all", gpus=[])
    assert message.startswith("--gpu-ids all:")
    assert "CUDA_VISIBLE_DEVICES" not in message
    assert "--gpu-ids None" in message


def test_an_id_out_of_range_is_refused_with_the_range():
    message = refusal_of((0, 4))
    assert message.startswith("--gpu-ids 0 4:")
    assert re.search(r"\bGPU 4\b", message)
    assert message.endswith(" 3")


def test_an_id_out_of_the_visible_range_is_refused_with_the_variable():
    message = refusal_of((2,), visible="2,3")
    assert message.startswith("--gpu-ids 2:")
    assert "CUDA_VISIBLE_DEVICES=2,3 " in message
    assert message.endswith(" 1")


def test_an_id_without_any_gpu_is_refused_with_the_flag_for_the_cpu():
    message = refusal_of((0,), gpus=[])
    assert message.startswith("--gpu-ids 0:")
    assert "--gpu-ids None" in message


def test_a_negative_id_is_refused():
    message = refusal_of((0, -1))
    assert message.startswith("--gpu-ids 0 -1:")
    assert message.startswith("--gpu-ids 0 -1: -1 ")


def test_a_repeated_id_is_refused():
    message = refusal_of((2, 1, 2))
    assert message.startswith("--gpu-ids 2 1 2:")
    assert message.startswith("--gpu-ids 2 1 2: GPU 2 ")


def test_an_empty_list_of_ids_is_refused():
    message = refusal_of(())
    assert message.startswith("--gpu-ids:")
    assert " None " in message


@pytest.mark.parametrize("gpu_ids", ["auto", None])
def test_cpu_ranks_train_on_the_cpu_although_there_are_gpus(gpu_ids: Any, caplog: pytest.LogCaptureFixture):
    made = planned(chosen(gpu_ids, cpu_ranks=3), {}, GPUS)
    assert made.devices == ("cpu",) * 3
    assert len(made.names) == 3
    assert made.visible == (None,) * 3
    assert not warnings_in(caplog)


@pytest.mark.parametrize("gpu_ids", ["all", (0, 1)])
def test_cpu_ranks_and_gpus_exclude_each_other(gpu_ids: Any):
    message = refusal_of(gpu_ids, cpu_ranks=2)
    assert message.startswith("--cpu-ranks 2:")
    assert f"--gpu-ids {'all' if gpu_ids == 'all' else '0 1'}" in message


@pytest.mark.parametrize("cpu_ranks", [0, -2])
def test_less_than_one_cpu_rank_is_refused(cpu_ranks: int):
    assert refusal_of("auto", cpu_ranks=cpu_ranks).startswith(f"--cpu-ranks {cpu_ranks}: ")


@pytest.mark.parametrize(("ranks", "threads"), [(1, 12), (4, 3), (5, 2), (12, 1), (40, 1)])
def test_cpu_ranks_share_the_cores(ranks: int, threads: int):
    assert planned(chosen(cpu_ranks=ranks), {}, []).torch_threads == threads


def test_more_cpu_ranks_than_cores_are_warned_about():
    assert not shared_cores(plan_devices(chosen(cpu_ranks=NUM_CORES), {}, []))
    assert not shared_cores(plan("all"))
    assert len(planned(chosen(cpu_ranks=NUM_CORES + 1), {}, [])) == NUM_CORES + 1
    (warning,) = shared_cores(plan_devices(chosen(cpu_ranks=NUM_CORES + 1), {}, []))
    assert warning.startswith(f"--cpu-ranks {NUM_CORES + 1}: ")
    assert f" {NUM_CORES} cores" in warning


def test_far_more_cpu_ranks_than_cores_are_refused_unless_asked_for():
    limit = 4 * NUM_CORES
    assert len(planned(chosen(cpu_ranks=limit), {}, [])) == limit
    message = refusal_of("auto", cpu_ranks=limit + 1)
    assert message.startswith(f"--cpu-ranks {limit + 1}: ")
    assert f" {limit}, " in message
    asked = dataclasses.replace(chosen(cpu_ranks=limit + 1), oversubscribe=True)
    assert len(planned(asked, {}, [])) == limit + 1


def test_gpu_ranks_share_the_cores():
    assert plan("all").torch_threads == NUM_CORES // 4


def test_backend():
    assert plan("all").backend == "nccl"
    assert plan((1,)).backend == "nccl"
    assert plan(None).backend == "gloo"
    assert planned(chosen(cpu_ranks=2), {}, GPUS).backend == "gloo"


def own(
    local_rank: int, environ: dict[str, str], gpus: list[Gpu] = GPUS, config: TrainConfig | None = None
) -> RankDevice:
    rank = Rank(rank=local_rank + 10, local_rank=local_rank, world_size=20)
    return plan_own_device(config or chosen(), rank, environ, gpus)


@pytest.mark.parametrize("local_rank", range(4))
def test_a_rank_of_another_launcher_takes_the_gpu_of_its_local_rank(local_rank: int):
    made = own(local_rank, {})
    assert made.device == "cuda:0"
    assert made.visible == (A, B, C, D)[local_rank]
    assert f"Model {local_rank}" in made.name
    assert made.backend == "nccl"


def test_a_rank_of_another_launcher_takes_the_visible_gpu_of_its_local_rank():
    made = own(1, {"CUDA_VISIBLE_DEVICES": "3,2"})
    assert made.visible == C


SLURM = {"SLURM_STEP_NUM_TASKS": "20", "SLURM_PROCID": "12"}


@pytest.mark.parametrize("local_rank", [0, 2])
def test_slurm_may_show_each_task_only_its_own_gpu(local_rank: int):
    made = own(local_rank, {"CUDA_VISIBLE_DEVICES": "3", **SLURM})
    assert (made.device, made.visible) == ("cuda:0", D)
    assert made.backend == "nccl", "every rank must choose the same backend, whatever its local rank"
    assert made.torch_threads == NUM_CORES


def test_torchrun_with_fewer_gpus_than_ranks_is_refused():
    with pytest.raises(UserError, match=r"^LOCAL_RANK 1: CUDA_VISIBLE_DEVICES=0 "):
        own(1, {"CUDA_VISIBLE_DEVICES": "0"})


def test_more_ranks_than_gpus_are_refused():
    with pytest.raises(UserError, match=r"^LOCAL_RANK 2: CUDA_VISIBLE_DEVICES=0,1 "):
        own(2, {"CUDA_VISIBLE_DEVICES": "0,1"})


@pytest.mark.parametrize(
    ("config", "gpus", "environ"),
    [
        (chosen(None), GPUS, {}),
        (chosen(cpu_ranks=2), GPUS, {}),
        (chosen(), [], {}),
        (chosen(), GPUS, {"CUDA_VISIBLE_DEVICES": ""}),
    ],
    ids=["None", "cpu ranks", "no GPU", "hidden"],
)
def test_a_rank_of_another_launcher_trains_on_the_cpu(config: TrainConfig, gpus: list[Gpu], environ: dict[str, str]):
    made = own(3, environ, gpus, config)
    assert made.device == "cpu"
    assert made.visible is None
    assert made.backend == "gloo"
    assert made.torch_threads == NUM_CORES


def test_a_cpu_rank_of_another_launcher_takes_the_threads_it_was_given():
    assert own(1, {"OMP_NUM_THREADS": "3"}, []).torch_threads == 3


@pytest.fixture
def shown_by_cuda(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Function that makes torch report devices with given UUIDs. Torch omits the prefix of a UUID."""

    def show(*uuids: str) -> None:
        properties = [SimpleNamespace(uuid=uuid.removeprefix("GPU-")) for uuid in uuids]
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(properties))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: properties[i])

    return show


def test_a_rank_in_an_existing_process_uses_the_cuda_index_of_its_gpu(shown_by_cuda: Callable[..., None]):
    shown_by_cuda(C, A, D)
    made = in_this_process(plan((2,))[0], {}, GPUS)
    assert made is not None
    assert (made.device, made.visible) == ("cuda:0", None)
    made = in_this_process(plan((3,))[0], {}, GPUS)
    assert made is not None
    assert made.device == "cuda:2"
    made = in_this_process(own(2, {}), {}, GPUS)
    assert made is not None
    assert made.device == "cuda:0"


def test_a_gpu_that_this_process_does_not_see_is_not_used_in_it(shown_by_cuda: Callable[..., None]):
    shown_by_cuda(A)
    assert in_this_process(plan((1,))[0], {}, GPUS) is None
    # CUDA has started with a list of GPUs that differs from the present value of the variable.
    assert in_this_process(plan(visible="1")[0], {"CUDA_VISIBLE_DEVICES": "1"}, GPUS) is None


def test_a_cpu_rank_in_this_process_needs_no_change():
    assert in_this_process(plan(None)[0], {}, GPUS) == plan(None)[0]


LOST = {"nvmlDeviceGetHandleByIndex": pynvml.NVML_ERROR_GPU_IS_LOST}
FORBIDDEN = {"nvmlDeviceGetHandleByIndex": pynvml.NVML_ERROR_NO_PERMISSION}


def machine(monkeypatch: pytest.MonkeyPatch, **faults: dict[str, int]) -> list[Gpu]:
    """Simulate GPUs a, b and c, some of which raise errors."""
    fake_nvml.install(
        monkeypatch, [FakeGpu(uuid=f"GPU-{x}", name=f"Model {x}", fails=faults.get(x, {})) for x in "abc"]
    )
    return find_gpus()


def test_gpus_are_listed_in_the_order_of_the_driver(monkeypatch: pytest.MonkeyPatch):
    found = machine(monkeypatch)
    assert [(gpu.index, gpu.uuid, gpu.name, gpu.fault) for gpu in found] == [
        (i, f"GPU-{x}", f"Model {x}", "") for i, x in enumerate("abc")
    ]


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetCount"])
def test_a_failing_driver_shows_no_gpu(monkeypatch: pytest.MonkeyPatch, function: str):
    fake_nvml.install(monkeypatch, [FakeGpu(uuid="GPU-a")], {function: pynvml.NVML_ERROR_UNKNOWN})
    assert find_gpus() == []


@pytest.mark.parametrize(
    ("fails", "reason"),
    [
        (LOST, "lost"),
        (FORBIDDEN, "Permissions"),
        ({"nvmlDeviceGetUUID": pynvml.NVML_ERROR_GPU_IS_LOST}, "lost"),
    ],
)
def test_an_unusable_gpu_keeps_its_index(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: dict[str, int], reason: str
):
    gpus = machine(monkeypatch, b=fails)
    assert [reason in gpu.fault for gpu in gpus] == [False, True, False]
    assert plan((2,), gpus=gpus).names[0].startswith("Model c")
    message = refusal_of((0, 1), gpus=gpus)
    assert message.startswith("--gpu-ids 0 1: GPU 1 ")
    assert reason in message
    assert plan(None, gpus=gpus).devices == ("cpu",)
    assert planned(chosen(cpu_ranks=2), {}, gpus).devices == ("cpu", "cpu")
    assert not warnings_in(caplog)


def test_all_skips_an_unusable_gpu_with_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    made = plan("all", gpus=machine(monkeypatch, b=LOST))
    assert [name.split(" (")[0] for name in made.names] == ["Model a", "Model c"]
    (warning,) = warnings_in(caplog)
    assert "GPU 1" in warning
    assert "lost" in warning


def test_by_default_the_first_usable_gpu_trains(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    assert plan(gpus=machine(monkeypatch, a=FORBIDDEN)).names[0].startswith("Model b")
    assert any("GPU 0" in warning for warning in warnings_in(caplog))


def test_without_a_usable_gpu_all_is_refused_and_the_default_is_the_cpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    gpus = machine(monkeypatch, a=LOST, b=LOST, c=FORBIDDEN)
    assert refusal_of("all", gpus=gpus).startswith("--gpu-ids all:")
    caplog.clear()
    assert plan(gpus=gpus).devices == ("cpu",)
    assert [f"GPU {i}" in warning for i, warning in enumerate(warnings_in(caplog)[:3])] == [True] * 3


@pytest.mark.parametrize(
    "error", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_NO_PERMISSION]
)
@pytest.mark.parametrize("function", ["nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetMigMode"])
def test_a_failed_optional_query_does_not_make_a_gpu_unusable(
    monkeypatch: pytest.MonkeyPatch, function: str, error: int
):
    gpus = machine(monkeypatch, b={function: error})
    assert not gpus[1].fault
    assert plan((1,), gpus=gpus).devices == ("cuda:0",)


def test_a_rank_of_another_launcher_refuses_a_lost_gpu(monkeypatch: pytest.MonkeyPatch):
    gpus = machine(monkeypatch, b=LOST)
    assert own(0, {}, gpus).device == "cuda:0"
    with pytest.raises(UserError, match=r"^LOCAL_RANK 1: GPU 1 .*lost"):
        own(1, {}, gpus)


def mig_machine(monkeypatch: pytest.MonkeyPatch) -> list[Gpu]:
    """Simulate a GPU with two MIG instances, and a GPU without MIG."""
    instances = [FakeGpu("MIG-a0", "Slice"), None, FakeGpu("MIG-a2", "Slice")]
    fake_nvml.install(monkeypatch, [FakeGpu("GPU-a", instances=instances), FakeGpu("GPU-b", "Whole")])
    return find_gpus()


def test_mig_instances_are_listed_instead_of_their_gpu(monkeypatch: pytest.MonkeyPatch):
    found = mig_machine(monkeypatch)
    assert [(gpu.index, gpu.card, gpu.uuid, gpu.name) for gpu in found] == [
        (0, 0, "MIG-a0", "Slice"),
        (1, 0, "MIG-a2", "Slice"),
        (2, 1, "GPU-b", "Whole"),
    ]


def test_every_rank_sees_only_its_own_mig_instance_and_uses_gloo(monkeypatch: pytest.MonkeyPatch):
    gpus = mig_machine(monkeypatch)
    made = plan("all", gpus=gpus)
    assert made.devices == ("cuda:0",) * 3
    assert made.visible == ("MIG-a0", "MIG-a2", "GPU-b")
    assert made.backend == "gloo"
    assert plan((1,), gpus=gpus).visible == ("MIG-a2",)
    assert plan((2,), gpus=gpus).backend == "nccl"


@pytest.mark.parametrize(
    ("listed", "visible"),
    [
        ("MIG-a2,MIG-a0", ("MIG-a2", "MIG-a0")),
        ("MIG-a2,MIG-a", ("MIG-a2",)),
        ("MIG-elsewhere,1", ()),
        ("1,0", ("GPU-b", "MIG-a0")),
        ("GPU-a", ("MIG-a0",)),
    ],
    ids=["UUIDs", "ambiguous beginning", "unknown", "indices", "the GPU in MIG mode"],
)
def test_a_list_with_mig_instances_is_read_as_cuda_reads_it(
    monkeypatch: pytest.MonkeyPatch, listed: str, visible: tuple[str, ...]
):
    gpus = mig_machine(monkeypatch)
    if visible:
        assert plan("all", listed, gpus).visible == visible
    else:
        assert f"CUDA_VISIBLE_DEVICES={listed} " in refusal_of("all", listed, gpus)


def test_a_mig_instance_that_the_driver_does_not_list_is_used_by_name():
    made = plan("all", visible="MIG-5c89a1f4-0d3e")
    assert made.visible == ("MIG-5c89a1f4-0d3e",)
    assert "MIG-5c89a1f4-0d3e" in made.names[0]


def test_a_gpu_in_mig_mode_without_instances_cannot_be_used(monkeypatch: pytest.MonkeyPatch):
    fake_nvml.install(monkeypatch, [FakeGpu("GPU-a", instances=[None, None]), FakeGpu("GPU-b")])
    gpus = find_gpus()
    assert "MIG" in refusal_of((0,), gpus=gpus)
    assert plan((1,), gpus=gpus).visible == ("GPU-b",)


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND])
def test_a_gpu_or_driver_without_mig_is_a_whole_gpu(monkeypatch: pytest.MonkeyPatch, code: int):
    fake_nvml.install(monkeypatch, [FakeGpu("GPU-a", fails={"nvmlDeviceGetMigMode": code})])
    assert [(gpu.uuid, gpu.fault) for gpu in find_gpus()] == [("GPU-a", "")]


def test_a_mig_instance_without_permission_is_skipped(monkeypatch: pytest.MonkeyPatch):
    forbidden = FakeGpu("MIG-a0", fails={"nvmlDeviceGetUUID": pynvml.NVML_ERROR_NO_PERMISSION})
    fake_nvml.install(monkeypatch, [FakeGpu("GPU-a", instances=[forbidden, FakeGpu("MIG-a1")])])
    assert [gpu.uuid for gpu in find_gpus()] == ["MIG-a1"]


def test_an_existing_process_uses_a_mig_instance_if_it_is_the_only_visible_device(monkeypatch: pytest.MonkeyPatch):
    gpus = mig_machine(monkeypatch)
    environ = {"CUDA_VISIBLE_DEVICES": "MIG-a2"}
    made = in_this_process(plan((0,), "MIG-a2", gpus)[0], environ, gpus)
    assert made is not None
    assert (made.device, made.visible) == ("cuda:0", None)
    assert in_this_process(plan((1,), gpus=gpus)[0], {}, gpus) is None


@pytest.mark.parametrize("local_rank", [0, 1])
def test_ranks_of_another_launcher_on_mig_instances_agree_on_gloo(monkeypatch: pytest.MonkeyPatch, local_rank: int):
    gpus = mig_machine(monkeypatch)
    made = own(local_rank, {"CUDA_VISIBLE_DEVICES": f"MIG-a{2 * local_rank}", **SLURM}, gpus)
    assert made.visible == f"MIG-a{2 * local_rank}"
    assert made.backend == "gloo"
    made = own(local_rank, {"CUDA_VISIBLE_DEVICES": "MIG-a0,MIG-a2"}, gpus)
    assert made.visible == f"MIG-a{2 * local_rank}"
    assert made.backend == "gloo"


FASTEST_FIRST = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}


@pytest.mark.parametrize("order", [{}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, FASTEST_FIRST])
def test_gpu_ids_follow_the_driver_for_every_cuda_device_order(order: dict[str, str]):
    assert planned(chosen((1,)), order, GPUS).visible == (B,)
    assert planned(chosen((1,)), {**order, "CUDA_VISIBLE_DEVICES": f"{D},{C}"}, GPUS).visible == (C,)


def test_indices_with_a_device_order_of_the_user_are_resolved_by_cuda():
    environ = {**FASTEST_FIRST, "CUDA_VISIBLE_DEVICES": "3,1,9"}
    made = planned(chosen("all"), environ, GPUS)
    assert made.visible == ("3", "1")
    assert made.gpu_ids == (None, None), "an id might select the wrong GPU for the checks before training"
    assert not any("Model" in name for name in made.names)
    here = in_this_process(planned(chosen((1,)), environ, GPUS)[0], environ, GPUS)
    assert here is not None
    assert here.device == "cuda:1"
    assert planned(chosen("all"), {**FASTEST_FIRST, "CUDA_VISIBLE_DEVICES": "0"}, GPUS[:1]).visible == (A,)


def first(num_ranks: int, gpu_ids: Any, gpus: list[Gpu] = GPUS, cpu_ranks: int | None = None) -> Planned:
    return Planned(plan_devices(chosen(gpu_ids, cpu_ranks), {}, gpus, num_ranks))


def test_a_number_of_ranks_takes_the_first_of_the_chosen_gpus():
    assert first(2, "all").visible == first(2, "auto").visible == (A, B)
    assert first(2, (3, 1, 0)).visible == (D, B)
    broken = [dataclasses.replace(GPUS[0], fault="GPU is lost"), *GPUS[1:]]
    assert first(2, "all", broken).visible == (B, C)


@pytest.mark.parametrize(("gpu_ids", "number"), [((0, 2), 3), ("all", 5), ("auto", 5)])
def test_more_ranks_than_chosen_gpus_are_refused(gpu_ids: Any, number: int):
    with pytest.raises(UserError, match=rf"^--hosts: {number} ranks .* --gpu-ids"):
        first(number, gpu_ids)


@pytest.mark.parametrize(("gpu_ids", "gpus", "cpu_ranks"), [(None, GPUS, None), ("auto", [], None), (None, GPUS, 6)])
def test_a_number_of_ranks_on_the_cpu_shares_its_cores(gpu_ids: Any, gpus: list[Gpu], cpu_ranks: int | None):
    made = first(3, gpu_ids, gpus, cpu_ranks)
    assert made.devices == ("cpu",) * 3
    assert made.torch_threads == NUM_CORES // 3
    with pytest.raises(UserError, match=f"^--cpu-ranks {4 * NUM_CORES + 1}: "):
        first(4 * NUM_CORES + 1, gpu_ids, gpus, cpu_ranks)
