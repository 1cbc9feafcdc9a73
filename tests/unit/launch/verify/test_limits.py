"""What the speeds of ranks say in words, and what limits them."""

from __future__ import annotations

import dataclasses

import pytest

from mjlab_dist.config import PpoConfig, TrainConfig, registry
from mjlab_dist.distributed import RankDevice
from mjlab_dist.launch.verify.speeds import Round, Row, Shares, find_limits, verdict
from mjlab_dist.machine.control_groups import cores

CPUS = (RankDevice(device="cpu", name="cpu", torch_threads=1, backend="gloo"),) * 4
CALM = Shares(physics=0.4, env=0.1, policy=0.1, update=0.3, communication=0.05, waiting=0.05, other=0.0)


@pytest.fixture
def config() -> TrainConfig:
    return registry.task_config("cartpole-balance")


def row(
    num_ranks: int,
    computing_s: list[list[float]],
    shares: Shares = CALM,
    num_envs: int = 64,
    memory: float = 0.2,
    speed: float = 100.0,
) -> Row:
    rounds = [
        Round(
            num_envs=num_envs, steps_per_s=speed, shares=shares, computing_s=one, memory_share=memory, reached=None
        )
        for one in computing_s
    ]  # fmt: skip
    speed_up = speed / 100.0
    return Row(
        num_ranks=num_ranks,
        num_envs=num_envs,
        steps_per_s=speed,
        speed_up=speed_up,
        efficiency=speed_up / num_ranks,
        shares=shares,
        rounds=rounds,
    )


ALONE = row(1, [[1.0], [1.0]])
EVEN = [[1.0] * 4] * 2


def names(limits: list[str]) -> list[str]:
    return [limit.partition(":")[0] for limit in limits]


@pytest.mark.parametrize(
    ("speed", "word"),
    [(500.0, "--rounds 3"), (380.0, "good"), (300.0, "limited"), (100.0, "no gain")],
)
def test_a_speed_is_judged_in_words(speed: float, word: str) -> None:
    assert verdict([ALONE, row(4, EVEN, speed=speed)]).endswith(f" {word}")


def test_ranks_that_scale_have_no_limit(config: TrainConfig) -> None:
    assert not find_limits("weak", [ALONE, row(4, EVEN, speed=380)], config, CPUS)
    assert names(find_limits("weak", [ALONE, row(4, EVEN, speed=300)], config, CPUS)) == ["no single part"]


def test_a_rank_that_is_always_the_slowest_is_named(config: TrainConfig) -> None:
    shares = dataclasses.replace(CALM, waiting=0.14, physics=0.31)
    (limit,) = find_limits("weak", [ALONE, row(4, [[1.0, 1.0, 1.4, 1.0]] * 2, shares)], config, CPUS)
    assert limit.startswith("slowest rank: rank 2 computes 1.40 times")
    # If different ranks are the slowest in different rounds, no rank is named
    turns = row(4, [[1.0, 1.0, 1.4, 1.0], [1.4, 1.0, 1.0, 1.0]], dataclasses.replace(shares, waiting=0.16))
    assert names(find_limits("weak", [ALONE, turns], config, CPUS)) == ["waiting"]
    # Nor after a single round, in which any rank may have been slowed by another program
    assert not find_limits("weak", [row(1, [[1.0]]), row(4, [[1.0, 1.0, 1.4, 1.0]], shares, speed=380)], config, CPUS)


@pytest.mark.parametrize(("period", "flag"), [(1, "--sync.period 4"), (8, "raise --sync.period (now 8)")])
def test_a_slow_network_needs_fewer_collectives(config: TrainConfig, period: int, flag: str) -> None:
    config = dataclasses.replace(config, sync=dataclasses.replace(config.sync, period=period))
    shares = dataclasses.replace(CALM, communication=0.2, physics=0.25)
    (limit,) = find_limits("weak", [ALONE, row(4, EVEN, shares)], config, CPUS)
    assert limit.startswith("network: collectives take 20% of the time")
    assert flag in limit
    assert ("--sync.compression bf16" in limit) == (period == 1)


def test_compressed_gradients_need_no_compression(config: TrainConfig) -> None:
    config = dataclasses.replace(config, sync=dataclasses.replace(config.sync, compression="fp16"))
    shares = dataclasses.replace(CALM, communication=0.2, physics=0.25)
    (limit,) = find_limits("weak", [ALONE, row(4, EVEN, shares)], config, CPUS)
    assert "--sync.compression" not in limit


def test_ranks_that_slow_each_other_down_share_cores(config: TrainConfig) -> None:
    slowed = [ALONE, row(4, [[1.5] * 4] * 2)]
    (few,) = find_limits("weak", slowed, config, CPUS[:1])
    (many,) = find_limits("weak", slowed, config, CPUS[:1] * (cores() + 1))
    assert few.startswith("CPU cores: the median rank computes 1.50 times as long as a single rank")
    assert f"--cpu-ranks (now {cores() + 1})" in many


def test_a_rank_with_few_envs_does_not_get_faster(config: TrainConfig) -> None:
    # A quarter of the envs should take a quarter of the time
    (limit,) = find_limits("strong", [ALONE, row(4, [[0.5] * 4] * 2, num_envs=16)], config, CPUS)
    assert limit.startswith("too few envs per rank: the computing time per env is 2.00 times as long with 16 envs")
    assert not find_limits("strong", [ALONE, row(4, [[0.26] * 4] * 2, num_envs=16, speed=390)], config, CPUS)


def test_updates_and_memory_can_limit_a_single_rank(config: TrainConfig) -> None:
    shares = dataclasses.replace(CALM, update=0.6, physics=0.1)
    found = find_limits("weak", [row(1, [[1.0]], shares, memory=0.95)], config, CPUS)
    assert names(found) == ["update", "memory"]
    assert f"--agent.num-learning-epochs (now {PpoConfig.num_learning_epochs})" in found[0]
    assert "--num-envs (now 64)" in found[1]
