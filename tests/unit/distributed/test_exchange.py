"""Ranks exchange descriptions of their devices and other values through the store of their process group."""

from __future__ import annotations

import dataclasses
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistStoreError

from mjlab_dist.distributed import Rank, group
from mjlab_dist.distributed.exchange import (
    DeviceInfo,
    RankInfo,
    compare_devices,
    describe_device,
    exchange,
    require_same,
)
from mjlab_dist.errors import UserError
from mjlab_dist.runs.run_dir import write_ranks

H100 = DeviceInfo(host="a", device="cuda:0", name="NVIDIA H100", memory_gb=85, capability="9.0", egl_device="0")
A100 = dataclasses.replace(H100, name="NVIDIA A100", capability="8.0")
CPU = DeviceInfo(host="a", device="cpu", name="EPYC", memory_gb=256, capability=None, egl_device=None)


def test_ranks_receive_all_values_in_rank_order():
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=20))

    def rank(i: int) -> list[object]:
        own = TCPStore("127.0.0.1", store.port, is_master=False, timeout=timedelta(seconds=20))
        first = exchange(own, i, 3, "first", {"rank": i, "none": None})
        return [first, exchange(own, i, 3, "second", [i, "x"])]

    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(rank, range(3)))
    expected = [[{"rank": i, "none": None} for i in range(3)], [[i, "x"] for i in range(3)]]
    assert answers == [expected] * 3


def test_rank_0_keeps_the_store_open_until_the_other_ranks_have_read():
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=1))
    store.set("device/1", "1")
    with pytest.raises(DistStoreError):
        exchange(store, 0, 2, "device", 0)
    assert exchange(store, 1, 2, "device", 1) == [0, 1]
    assert exchange(store, 0, 2, "device", 0) == [0, 1]


def test_waiting_for_a_rank_that_compiles_may_exceed_the_timeout_of_collectives(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(group, "TIMEOUT_S", 1)
    server = TCPStore("127.0.0.1", 0, is_master=True)
    ranks = [Rank(rank=i, world_size=2, master_port=server.port, joins_store=True) for i in range(2)]
    stores = [group.meet(rank) for rank in ranks]
    compiler = stores[1]
    assert compiler is not None

    def compile_beyond_timeout() -> list[int]:
        with pytest.raises(DistStoreError):
            compiler.wait(["never set"], timedelta(seconds=2))
        return exchange(compiler, 1, 2, "device", 1)

    with ThreadPoolExecutor(2) as pool:
        waiting, compiling = pool.submit(exchange, stores[0], 0, 2, "device", 0), pool.submit(compile_beyond_timeout)
        assert waiting.result() == compiling.result() == [0, 1]


def test_a_single_rank_receives_its_own_value():
    assert exchange(None, 0, 1, "key", {"a": 1}) == [{"a": 1}]


def test_the_cpu_of_this_machine():
    info = describe_device("cpu", None)
    assert (info.host, info.device, info.capability, info.egl_device) == (socket.gethostname(), "cpu", None, None)
    assert info.memory_gb * 1e9 == pytest.approx(psutil.virtual_memory().total, abs=0.5e9)
    assert info.name in Path("/proc/cpuinfo").read_text() or "model name" not in Path("/proc/cpuinfo").read_text()


@pytest.mark.parametrize("field", ["host", "device", "egl_device"])
def test_devices_that_differ_only_in_location_are_equal(field: str):
    other = dataclasses.replace(H100, **{field: "1"})
    assert compare_devices([H100, other]) is None
    require_same([H100, other])


@pytest.mark.parametrize(("field", "value"), [("name", "other"), ("memory_gb", 80), ("capability", "9.1")])
def test_devices_that_differ_in_model_memory_or_capability_are_not_equal(field: str, value: str | int):
    assert compare_devices([H100, dataclasses.replace(H100, **{field: value})])


def test_ranks_are_grouped_by_device_in_one_line():
    line = compare_devices([A100, H100, H100, H100, A100, CPU])
    assert line is not None
    parts = line.partition("(")[2].split("; ")
    assert [part.partition(":")[0] for part in parts] == ["ranks 0, 4", "ranks 1-3", "rank 5"]
    for part, shown in zip(parts, ["NVIDIA A100, 85 GB", "NVIDIA H100, 85 GB", "EPYC, 256 GB"], strict=True):
        assert f": {shown}" in part


def test_different_devices_are_refused_if_same_devices_are_required():
    with pytest.raises(UserError, match=r"^--require-same-devices: .*\(rank 0: .*; rank 1: "):
        require_same([H100, A100])


def test_ranks_are_written_as_text_and_json(tmp_path: Path):
    ranks = [
        RankInfo(rank=i, pid=100 + i, **dataclasses.asdict(device), first_env_id=64 * i, num_envs=64, seed=1 + i)
        for i, device in enumerate([H100, CPU])
    ]
    write_ranks(tmp_path, ranks)
    assert [RankInfo(**entry) for entry in json.loads((tmp_path / "ranks.json").read_text())] == ranks
