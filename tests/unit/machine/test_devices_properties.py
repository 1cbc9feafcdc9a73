"""Properties of the choice of GPUs: an index selects the right device, even if GPUs are hidden or reordered."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mjlab_dist.config import registry
from mjlab_dist.distributed import Rank
from mjlab_dist.errors import UserError
from mjlab_dist.machine.devices import Gpu, plan_devices, plan_own_device

CONFIG = registry.task_config("cartpole-balance")

BY_BUS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def machine(num_gpus: int) -> list[Gpu]:
    """Return the GPUs of a machine. No UUID is the beginning of another UUID."""
    uuids = [f"GPU-{i:02}-{i:02}" for i in range(num_gpus)]
    return [Gpu(index=i, card=i, uuid=uuid, card_uuid=uuid, name="H200") for i, uuid in enumerate(uuids)]


@st.composite
def shown(draw: st.DrawFn) -> tuple[list[Gpu], dict[str, str], list[int]]:
    """Draw the GPUs of a machine, environment variables, and the indices of the visible GPUs in CUDA's order."""
    gpus = machine(draw(st.integers(1, 8)))
    cards = draw(st.lists(st.sampled_from(range(len(gpus))), unique=True))
    if draw(st.booleans()):
        return gpus, BY_BUS, list(range(len(gpus)))
    names = [draw(st.sampled_from([str(card), gpus[card].uuid, gpus[card].uuid[:6]])) for card in cards]
    # CUDA ignores all entries after an invalid one.
    after = draw(st.sampled_from([[], ["-1", "0"], ["99"], ["GPU-none", "1"]]))
    separator = draw(st.sampled_from([",", ", "]))
    return gpus, {**BY_BUS, "CUDA_VISIBLE_DEVICES": separator.join([*names, *after])}, cards


@given(shown=shown(), data=st.data())
def test_indices_choose_devices_among_those_shown_in_their_order(
    shown: tuple[list[Gpu], dict[str, str], list[int]], data: st.DataObject
):
    gpus, environ, cards = shown
    indices = data.draw(st.lists(st.integers(-1, 9), max_size=6))
    config = dataclasses.replace(CONFIG, gpu_ids=tuple(indices))
    if indices and set(indices) <= set(range(len(cards))) and len(set(indices)) == len(indices):
        planned = plan_devices(config, environ, gpus)
        assert [device.visible for device in planned] == [gpus[cards[i]].uuid for i in indices]
        assert {device.device for device in planned} == {"cuda:0"}, "each rank sees only its own GPU"
        return
    with pytest.raises(UserError) as refusal:
        plan_devices(config, environ, gpus)
    assert str(refusal.value).startswith(f"--gpu-ids {' '.join(map(str, indices))}".rstrip() + ":")


@given(shown=shown(), faulty=st.sets(st.integers(0, 7)))
def test_all_selects_the_visible_gpus_that_can_be_used_and_auto_the_first_of_them(
    shown: tuple[list[Gpu], dict[str, str], list[int]], faulty: set[int]
):
    gpus, environ, cards = shown
    gpus = [dataclasses.replace(gpu, fault="is lost" if gpu.card in faulty else "") for gpu in gpus]
    usable = [gpus[card].uuid for card in cards if card not in faulty]
    planned = plan_devices(dataclasses.replace(CONFIG, gpu_ids="auto"), environ, gpus)
    assert [device.visible for device in planned] == (usable[:1] or [None])
    assert planned[0].device == ("cuda:0" if usable else "cpu")
    config = dataclasses.replace(CONFIG, gpu_ids="all")
    if usable:
        assert [device.visible for device in plan_devices(config, environ, gpus)] == usable
        return
    with pytest.raises(UserError) as refusal:
        plan_devices(config, environ, gpus)
    assert str(refusal.value).startswith("--gpu-ids all:")


@given(shown=shown())
def test_each_rank_of_another_launcher_takes_the_device_of_its_local_rank(
    shown: tuple[list[Gpu], dict[str, str], list[int]],
):
    gpus, environ, cards = shown
    ranks = [Rank(local_rank=i, rank=i, world_size=len(cards) + 1) for i in range(len(cards) + 1)]
    planned = [plan_own_device(CONFIG, rank, environ, gpus) for rank in ranks[: len(cards)]]
    assert [device.visible for device in planned] == [gpus[card].uuid for card in cards]
    if cards:
        with pytest.raises(UserError) as refusal:
            plan_own_device(CONFIG, ranks[-1], environ, gpus)
        assert str(refusal.value).startswith(f"LOCAL_RANK {len(cards)}:")
