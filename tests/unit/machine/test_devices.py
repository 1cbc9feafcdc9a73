"""The devices that ranks use, on simulated machines. test_devices_properties.py tests which GPUs indices choose."""

from __future__ import annotations

import dataclasses
import logging
import re
from types import SimpleNamespace
from typing import Any

import fake_nvml
import pynvml
import pytest
import torch
from fake_nvml import FakeGpu

from mjlab_dist.config import TrainConfig, registry
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


def plan(
    gpu_ids: Any = "auto",
    visible: str | None = None,
    gpus: list[Gpu] = GPUS,
    cpu_ranks: int | None = None,
    num_ranks: int | None = None,
    **environ: str,
) -> tuple[RankDevice, ...]:
    if visible is not None:
        environ["CUDA_VISIBLE_DEVICES"] = visible
    return plan_devices(chosen(gpu_ids, cpu_ranks), environ, gpus, num_ranks)


def seen(*args: Any, **options: Any) -> list[str | None]:
    """Return the values of CUDA_VISIBLE_DEVICES of the planned ranks."""
    return [each.visible for each in plan(*args, **options)]


def kinds(*args: Any, **options: Any) -> list[str]:
    return [each.device for each in plan(*args, **options)]


def refusal_of(*args: Any, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        plan(*args, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_names_are_those_of_the_gpus_in_the_order_of_the_ids(caplog: pytest.LogCaptureFixture):
    assert [each.name for each in plan((1, 0), "2, 3")] == ["Model 3 (GPU 3)", "Model 2 (GPU 2)"]
    assert [each.name for each in plan()] == ["Model 0 (GPU 0)"]
    assert not warnings_in(caplog)


def test_without_a_gpu_the_cpu_trains_with_a_warning(caplog: pytest.LogCaptureFixture):
    (made,) = plan(gpus=[])
    assert (made.device, made.name, made.visible) == ("cpu", "cpu", None)
    (warning,) = warnings_in(caplog)
    assert "--gpu-ids None" in warning


@pytest.mark.parametrize("gpus", [[], GPUS])
@pytest.mark.parametrize(
    "choice", [{"visible": ""}, {"gpu_ids": None}, {"cpu_ranks": 3}, {"gpu_ids": None, "cpu_ranks": 3}]
)
def test_the_cpu_trains_without_a_warning_if_gpus_are_hidden_or_not_wanted(
    gpus: list[Gpu], choice: dict[str, Any], caplog: pytest.LogCaptureFixture
):
    made = plan(gpus=gpus, **choice)
    assert [(each.device, each.visible, each.backend) for each in made] == [("cpu", None, "gloo")] * len(made)
    assert len(made) == choice.get("cpu_ranks", 1)
    assert not warnings_in(caplog)


@pytest.mark.parametrize("stop", ["junk", "", "GPU-", "MIG"])
def test_an_invalid_entry_truncates_the_list_as_in_cuda(stop: str):
    assert seen("all", f"2,{stop},3") == [C]
    assert f"CUDA_VISIBLE_DEVICES=2,{stop},3 " in refusal_of((1,), f"2,{stop},3")


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        ({"gpu_ids": "all", "visible": "-1"}, r"--gpu-ids all:.*CUDA_VISIBLE_DEVICES=-1 .*--gpu-ids None"),
        ({"gpu_ids": "all", "visible": f"1,{B}"}, f"--gpu-ids all:.*CUDA_VISIBLE_DEVICES=1,{B} "),
        ({"gpu_ids": "all", "gpus": []}, r"--gpu-ids all:((?!CUDA_VISIBLE_DEVICES).)*--gpu-ids None"),
        ({"gpu_ids": (0, 4)}, r"--gpu-ids 0 4:.*\bGPU 4\b.* 3$"),
        ({"gpu_ids": (2,), "visible": "2,3"}, r"--gpu-ids 2:.*CUDA_VISIBLE_DEVICES=2,3 .* 1$"),
        ({"gpu_ids": (0,), "gpus": []}, r"--gpu-ids 0:.*--gpu-ids None"),
        ({"gpu_ids": (0, -1)}, r"--gpu-ids 0 -1: -1 "),
        ({"gpu_ids": (2, 1, 2)}, r"--gpu-ids 2 1 2: GPU 2 "),
        ({"gpu_ids": ()}, r"--gpu-ids:.* None "),
        ({"gpu_ids": "all", "cpu_ranks": 2}, r"--cpu-ranks 2:.*--gpu-ids all"),
        ({"gpu_ids": (0, 1), "cpu_ranks": 2}, r"--cpu-ranks 2:.*--gpu-ids 0 1"),
        ({"gpu_ids": (0, 2), "num_ranks": 3}, r"--hosts: 3 ranks .* --gpu-ids"),
        ({"gpu_ids": "auto", "num_ranks": 5}, r"--hosts: 5 ranks .* --gpu-ids"),
    ],
)  # fmt: skip
def test_a_wrong_choice_is_refused_by_the_name_of_its_flag(refused: dict[str, Any], message: str):
    assert re.match(message, refusal_of(**refused))


@pytest.mark.parametrize(("ranks", "threads"), [(1, 12), (5, 2), (12, 1), (40, 1)])
def test_cpu_ranks_share_the_cores(ranks: int, threads: int):
    assert {each.torch_threads for each in plan(cpu_ranks=ranks)} == {threads}


def test_more_cpu_ranks_than_cores_are_warned_about():
    assert not shared_cores(plan(cpu_ranks=NUM_CORES))
    assert not shared_cores(plan("all"))
    (warning,) = shared_cores(plan(cpu_ranks=NUM_CORES + 1))
    assert warning.startswith(f"--cpu-ranks {NUM_CORES + 1}: ")
    assert f" {NUM_CORES} cores" in warning


def test_far_more_cpu_ranks_than_cores_are_refused_unless_asked_for():
    limit = 4 * NUM_CORES
    assert len(plan(cpu_ranks=limit)) == limit
    message = refusal_of(cpu_ranks=limit + 1)
    assert message.startswith(f"--cpu-ranks {limit + 1}: ")
    assert f" {limit}, " in message
    asked = dataclasses.replace(chosen(cpu_ranks=limit + 1), oversubscribe=True)
    assert len(plan_devices(asked, {}, [])) == limit + 1


def test_gpu_ranks_share_the_cores_and_use_nccl():
    assert {(each.torch_threads, each.backend) for each in plan("all")} == {(NUM_CORES // 4, "nccl")}


def own(
    local_rank: int, environ: dict[str, str], gpus: list[Gpu] = GPUS, config: TrainConfig | None = None
) -> RankDevice:
    rank = Rank(rank=local_rank + 10, local_rank=local_rank, world_size=20)
    return plan_own_device(config or chosen(), rank, environ, gpus)


def test_a_rank_of_another_launcher_takes_the_visible_gpu_of_its_local_rank():
    made = own(1, {"CUDA_VISIBLE_DEVICES": "3,2"})
    assert (made.device, made.visible, made.name, made.backend) == ("cuda:0", C, "Model 2 (GPU 2)", "nccl")


SLURM = {"SLURM_STEP_NUM_TASKS": "20", "SLURM_PROCID": "12"}


@pytest.mark.parametrize("local_rank", [0, 2])
def test_slurm_may_show_each_task_only_its_own_gpu(local_rank: int):
    made = own(local_rank, {"CUDA_VISIBLE_DEVICES": "3", **SLURM})
    assert (made.device, made.visible) == ("cuda:0", D)
    assert made.backend == "nccl", "every rank must choose the same backend, whatever its local rank"
    assert made.torch_threads == NUM_CORES


@pytest.mark.parametrize(("local_rank", "visible"), [(1, "0"), (2, "0,1")])
def test_torchrun_with_fewer_gpus_than_ranks_is_refused(local_rank: int, visible: str):
    with pytest.raises(UserError, match=rf"^LOCAL_RANK {local_rank}: CUDA_VISIBLE_DEVICES={visible} "):
        own(local_rank, {"CUDA_VISIBLE_DEVICES": visible})


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
    assert (made.device, made.visible, made.backend, made.torch_threads) == ("cpu", None, "gloo", NUM_CORES)


def test_a_cpu_rank_of_another_launcher_takes_the_threads_it_was_given():
    assert own(1, {"OMP_NUM_THREADS": "3"}, []).torch_threads == 3


def show_in_cuda(monkeypatch: pytest.MonkeyPatch, *uuids: str) -> None:
    """Let torch report devices with these UUIDs. Torch omits the prefix of a UUID."""
    properties = [SimpleNamespace(uuid=uuid.removeprefix("GPU-")) for uuid in uuids]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(properties))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: properties[i])


def place_here(device: RankDevice, environ: dict[str, str], gpus: list[Gpu] = GPUS) -> str | None:
    """Return the device of a rank in this process; None if this process does not see it."""
    made = in_this_process(device, environ, gpus)
    assert made is None or made.visible is None
    return None if made is None else made.device


def test_a_rank_in_an_existing_process_uses_the_cuda_index_of_its_gpu(monkeypatch: pytest.MonkeyPatch):
    show_in_cuda(monkeypatch, C, A, D)
    assert place_here(plan((2,))[0], {}) == "cuda:0"
    assert place_here(plan((3,))[0], {}) == "cuda:2"
    assert place_here(own(2, {}), {}) == "cuda:0"
    assert in_this_process(plan(None)[0], {}, GPUS) == plan(None)[0], "a CPU rank needs no change"


def test_a_gpu_that_this_process_does_not_see_is_not_used_in_it(monkeypatch: pytest.MonkeyPatch):
    show_in_cuda(monkeypatch, A)
    assert place_here(plan((1,))[0], {}) is None
    # CUDA has started with a list of GPUs that differs from the present value of the variable.
    assert place_here(plan(visible="1")[0], {"CUDA_VISIBLE_DEVICES": "1"}) is None


LOST = {"nvmlDeviceGetHandleByIndex": pynvml.NVML_ERROR_GPU_IS_LOST}
FORBIDDEN = {"nvmlDeviceGetHandleByIndex": pynvml.NVML_ERROR_NO_PERMISSION}


def machine(monkeypatch: pytest.MonkeyPatch, **faults: dict[str, int]) -> list[Gpu]:
    """Simulate GPUs a, b and c, some of which raise errors."""
    fake_nvml.install(
        monkeypatch, [FakeGpu(uuid=f"GPU-{x}", name=f"Model {x}", fails=faults.get(x, {})) for x in "abc"]
    )
    return find_gpus()


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetCount"])
def test_a_failing_driver_shows_no_gpu(monkeypatch: pytest.MonkeyPatch, function: str):
    fake_nvml.install(monkeypatch, [FakeGpu(uuid="GPU-a")], {function: pynvml.NVML_ERROR_UNKNOWN})
    assert find_gpus() == []


@pytest.mark.parametrize(
    ("fails", "reason"),
    [(FORBIDDEN, "Permissions"), ({"nvmlDeviceGetUUID": pynvml.NVML_ERROR_GPU_IS_LOST}, "lost")],
)
def test_an_unusable_gpu_keeps_its_index(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: dict[str, int], reason: str
):
    gpus = machine(monkeypatch, b=fails)
    assert [(gpu.index, gpu.card, reason in gpu.fault) for gpu in gpus] == [(0, 0, False), (1, 1, True), (2, 2, False)]
    assert plan((2,), gpus=gpus)[0].name.startswith("Model c")
    message = refusal_of((0, 1), gpus=gpus)
    assert message.startswith("--gpu-ids 0 1: GPU 1 ")
    assert reason in message
    assert kinds(None, gpus=gpus) == ["cpu"]
    assert not warnings_in(caplog)


def test_unusable_gpus_are_skipped_with_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    assert seen("all", gpus=machine(monkeypatch, b=LOST)) == ["GPU-a", "GPU-c"]
    (warning,) = warnings_in(caplog)
    assert "GPU 1" in warning
    assert "lost" in warning
    caplog.clear()
    assert seen(gpus=machine(monkeypatch, a=FORBIDDEN)) == ["GPU-b"]
    assert any("GPU 0" in warning for warning in warnings_in(caplog))


def test_without_a_usable_gpu_all_is_refused_and_the_default_is_the_cpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    gpus = machine(monkeypatch, a=LOST, b=LOST, c=FORBIDDEN)
    assert refusal_of("all", gpus=gpus).startswith("--gpu-ids all:")
    caplog.clear()
    assert kinds(gpus=gpus) == ["cpu"]
    assert [f"GPU {i}" in warning for i, warning in enumerate(warnings_in(caplog)[:3])] == [True] * 3


@pytest.mark.parametrize("function", ["nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetMigMode"])
def test_a_failed_optional_query_does_not_make_a_gpu_unusable(monkeypatch: pytest.MonkeyPatch, function: str):
    gpus = machine(monkeypatch, b={function: pynvml.NVML_ERROR_NOT_SUPPORTED})
    assert not gpus[1].fault
    assert kinds((1,), gpus=gpus) == ["cuda:0"]


def test_a_rank_of_another_launcher_refuses_a_lost_gpu(monkeypatch: pytest.MonkeyPatch):
    gpus = machine(monkeypatch, b=LOST)
    assert own(0, {}, gpus).device == "cuda:0"
    with pytest.raises(UserError, match=r"^LOCAL_RANK 1: GPU 1 .*lost"):
        own(1, {}, gpus)


@pytest.fixture
def mig(monkeypatch: pytest.MonkeyPatch) -> list[Gpu]:
    """Simulate a GPU with two MIG instances, and a GPU without MIG."""
    instances = [FakeGpu("MIG-a0", "Slice"), None, FakeGpu("MIG-a2", "Slice")]
    fake_nvml.install(monkeypatch, [FakeGpu("GPU-a", instances=instances), FakeGpu("GPU-b", "Whole")])
    return find_gpus()


def test_mig_instances_are_listed_instead_of_their_gpu(mig: list[Gpu]):
    assert [(gpu.index, gpu.card, gpu.uuid, gpu.name) for gpu in mig] == [
        (0, 0, "MIG-a0", "Slice"),
        (1, 0, "MIG-a2", "Slice"),
        (2, 1, "GPU-b", "Whole"),
    ]


def test_every_rank_sees_only_its_own_mig_instance_and_uses_gloo(mig: list[Gpu]):
    assert [(each.device, each.visible, each.backend) for each in plan("all", gpus=mig)] == [
        ("cuda:0", visible, "gloo") for visible in ("MIG-a0", "MIG-a2", "GPU-b")
    ]
    assert seen((1,), gpus=mig) == ["MIG-a2"]
    assert plan((2,), gpus=mig)[0].backend == "nccl"


@pytest.mark.parametrize(
    ("listed", "visible"),
    [
        ("MIG-a2,MIG-a0", ["MIG-a2", "MIG-a0"]),
        ("MIG-a2,MIG-a", ["MIG-a2"]),
        ("1,0", ["GPU-b", "MIG-a0"]),
        ("GPU-a", ["MIG-a0"]),
    ],
    ids=["UUIDs", "ambiguous beginning", "indices", "the GPU in MIG mode"],
)
def test_a_list_with_mig_instances_is_read_as_cuda_reads_it(mig: list[Gpu], listed: str, visible: list[str]):
    assert seen("all", listed, mig) == visible
    assert "CUDA_VISIBLE_DEVICES=MIG-elsewhere,1 " in refusal_of("all", "MIG-elsewhere,1", mig)


def test_a_mig_instance_that_the_driver_does_not_list_is_used_by_name():
    (made,) = plan("all", "MIG-5c89a1f4-0d3e")
    assert made.visible == "MIG-5c89a1f4-0d3e"
    assert "MIG-5c89a1f4-0d3e" in made.name


def test_a_gpu_in_mig_mode_without_instances_cannot_be_used(monkeypatch: pytest.MonkeyPatch):
    fake_nvml.install(monkeypatch, [FakeGpu("GPU-a", instances=[None, None]), FakeGpu("GPU-b")])
    gpus = find_gpus()
    assert "MIG" in refusal_of((0,), gpus=gpus)
    assert seen((1,), gpus=gpus) == ["GPU-b"]


def test_a_mig_instance_without_permission_is_skipped(monkeypatch: pytest.MonkeyPatch):
    forbidden = FakeGpu("MIG-a0", fails={"nvmlDeviceGetUUID": pynvml.NVML_ERROR_NO_PERMISSION})
    fake_nvml.install(monkeypatch, [FakeGpu("GPU-a", instances=[forbidden, FakeGpu("MIG-a1")])])
    assert [gpu.uuid for gpu in find_gpus()] == ["MIG-a1"]


def test_an_existing_process_uses_a_mig_instance_if_it_is_the_only_visible_device(mig: list[Gpu]):
    assert place_here(plan((0,), "MIG-a2", mig)[0], {"CUDA_VISIBLE_DEVICES": "MIG-a2"}, mig) == "cuda:0"
    assert place_here(plan((1,), gpus=mig)[0], {}, mig) is None


@pytest.mark.parametrize("local_rank", [0, 1])
def test_ranks_of_another_launcher_on_mig_instances_agree_on_gloo(mig: list[Gpu], local_rank: int):
    shown_one = {"CUDA_VISIBLE_DEVICES": f"MIG-a{2 * local_rank}", **SLURM}
    for environ in (shown_one, {"CUDA_VISIBLE_DEVICES": "MIG-a0,MIG-a2"}):
        made = own(local_rank, environ, mig)
        assert (made.visible, made.backend) == (f"MIG-a{2 * local_rank}", "gloo")


FASTEST_FIRST = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}


@pytest.mark.parametrize("order", [{}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, FASTEST_FIRST])
def test_gpu_ids_follow_the_driver_for_every_cuda_device_order(order: dict[str, str]):
    assert seen((1,), **order) == [B]
    assert seen((1,), f"{D},{C}", **order) == [C]


def test_indices_with_a_device_order_of_the_user_are_resolved_by_cuda():
    environ = {**FASTEST_FIRST, "CUDA_VISIBLE_DEVICES": "3,1,9"}
    made = plan_devices(chosen("all"), environ, GPUS)
    # An id might select the wrong GPU for the checks before training
    assert [(each.visible, each.gpu_id) for each in made] == [("3", None), ("1", None)]
    assert not any("Model" in each.name for each in made)
    assert place_here(plan_devices(chosen((1,)), environ, GPUS)[0], environ) == "cuda:1"
    assert seen("all", "0", GPUS[:1], **FASTEST_FIRST) == [A]


def test_a_number_of_ranks_takes_the_first_of_the_chosen_gpus():
    assert seen("all", num_ranks=2) == seen("auto", num_ranks=2) == [A, B]
    assert seen((3, 1, 0), num_ranks=2) == [D, B]
    broken = [dataclasses.replace(GPUS[0], fault="GPU is lost"), *GPUS[1:]]
    assert seen("all", gpus=broken, num_ranks=2) == [B, C]


@pytest.mark.parametrize(
    "choice", [{"gpu_ids": None}, {"gpus": []}, {"gpu_ids": None, "cpu_ranks": 6}], ids=["None", "no GPU", "cpu ranks"]
)
def test_a_number_of_ranks_on_the_cpu_shares_its_cores(choice: dict[str, Any]):
    made = plan(num_ranks=3, **choice)
    assert [(each.device, each.torch_threads) for each in made] == [("cpu", NUM_CORES // 3)] * 3
    number = 4 * NUM_CORES + 1
    assert refusal_of(num_ranks=number, **choice).startswith(f"--cpu-ranks {number}: ")
