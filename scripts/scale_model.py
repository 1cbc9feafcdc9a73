"""Write docs/scaling.md, which contains a model of training on many GPUs.

With --check, the script writes nothing, and ends with exit code 1 if the page is out of date.

uv run python scripts/scale_model.py
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from generated_page import write_or_check
from measured_scaling import (
    LINK_ENVS,
    LINK_RANKS,
    LINK_RUNS,
    LINK_STEPS,
    LINK_SUMS,
    OVERLAPS,
    REAL_RANKS,
    SIMULATED_RANKS,
    LinkSums,
)
from published_scaling import (
    G1,
    G1_ACTIONS,
    G1_BODIES,
    G1_ENV_STEPS,
    G1_ENVS,
    G1_HIDDEN,
    G1_INFERENCE,
    G1_MEMORY_BYTES,
    G1_MINI_BATCHES,
    G1_OBSERVATIONS,
    G1_STEPS,
    G1_SUBSTEPS,
    ISAAC,
    MJLAB,
    PUBLISHED,
    SOURCES,
    Published,
)
from scaling_formulas import Network, expected_maximum, parameters, ring_s, tree_s

ROOT = Path(__file__).parents[1]

PAGE = ROOT / "docs" / "scaling.md"

TEMPLATE = Path(__file__).with_name("scaling_page.md")
"""The page, with placeholders for the tables and numbers that this script computes."""

FP32_BYTES = 4

# Networks

PCIE = Network("PCIe in one machine", 10e-6, 12e9)
ETHERNET = Network("100 Gbit/s Ethernet", 20e-6, 10e9)
INFINIBAND = Network("400 Gbit/s InfiniBand", 5e-6, 40e9)
SLOW = Network("10 Gbit/s Ethernet", 50e-6, 1e9)

# Model


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Times and sizes of one iteration of a rank that trains alone."""

    rollout_s: float
    """Time of physics, env and policy."""
    update_s: float
    """Time of returns, advantages and mini-batches."""
    num_parameters: int
    """Number of parameters of policy and value function together."""
    mini_batches: int
    """Mini-batches of an iteration."""
    samples: int
    """Control steps of an iteration."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Predicted times and speed of an iteration of many ranks."""

    straggling_s: float
    """Mean time that a rank waits for the slowest rank."""
    communication_s: float
    """Time of the collectives."""
    total_s: float
    """Time of the whole iteration."""
    steps_per_s: float
    """Control steps of all ranks per second."""
    efficiency: float
    """Speed divided by the speed of as many ranks that never wait and never communicate."""


def predict(
    work: Workload, ranks: int, network: Network, spread: float, *, ring: bool = True, period: int = 1
) -> Prediction:
    """Predict an iteration.

    Args:
        work: Iteration of one rank.
        ranks: Number of ranks.
        network: The slowest connection of the ring or the tree.
        spread: Standard deviation of a rank's computing time between two collectives, relative to its mean.
        ring: Whether the ranks sum in a ring. If not, they sum in a tree.
        period: --sync.period.
    """
    alone_s = work.rollout_s + work.update_s
    reduce_s = ring_s if ring else tree_s
    small_s = 2 * reduce_s(1e3, ranks, network)  # two small sums: means and variances, and metrics
    if period == 1:
        large_s = work.mini_batches * reduce_s(FP32_BYTES * work.num_parameters, ranks, network)
    else:  # sum the parameters and the two moments of Adam once per period
        large_s = reduce_s(3 * FP32_BYTES * work.num_parameters, ranks, network) / period
    communication_s = small_s + large_s if ranks > 1 else 0.0
    straggling_s = spread * expected_maximum(ranks) * alone_s
    total_s = alone_s + straggling_s + communication_s
    return Prediction(
        straggling_s=straggling_s,
        communication_s=communication_s,
        total_s=total_s,
        steps_per_s=ranks * work.samples / total_s,
        efficiency=alone_s / total_s,
    )


def g1() -> Workload:
    """Return the workload of Isaac Lab's rough-terrain G1 task, from published figures for one L40."""
    samples = G1_ENVS * G1_STEPS
    rollout_s = samples / G1_INFERENCE
    return Workload(
        rollout_s=rollout_s,
        update_s=samples / G1.steps_per_s[1] - rollout_s,
        num_parameters=parameters(G1_OBSERVATIONS, G1_HIDDEN, G1_ACTIONS),
        mini_batches=G1_MINI_BATCHES,
        samples=samples,
    )


def fitted_spread() -> float:
    """Return the value of `spread` with which :func:`predict` gives the published speed of 16 L40 GPUs."""
    work, ranks = g1(), 16
    without = predict(work, ranks, ETHERNET, 0.0)
    total_s = ranks * work.samples / G1.steps_per_s[ranks]
    return (total_s - without.total_s) / expected_maximum(ranks) / (work.rollout_s + work.update_s)


def predicted_speed(published: Published, ranks: int, spread: float) -> float:
    """Return the predicted speed of several GPUs from the published speed of one GPU.

    An iteration has as many samples and mini-batches as in :func:`g1`. The iteration time of :func:`g1` is scaled so
    that the predicted speed of one GPU is the published one.
    """
    scale = G1.steps_per_s[1] / published.steps_per_s[1]
    work = g1()
    own = Workload(
        rollout_s=work.rollout_s * scale,
        update_s=work.update_s * scale,
        num_parameters=work.num_parameters,
        mini_batches=work.mini_batches,
        samples=work.samples,
    )
    return predict(own, ranks, PCIE if ranks <= 4 else ETHERNET, spread).steps_per_s


# Training over slow links

CARTPOLE_OBSERVATIONS, CARTPOLE_HIDDEN, CARTPOLE_ACTIONS = 5, (64, 64), 1

CARTPOLE_COMPUTE_S = 0.13
"""Computing time of an iteration of cartpole-balance with 256 envs per rank on an idle machine, in s.

It is half of the time for 512 envs per rank, which follows from the 125,630 steps/s that docs/performance.md gives for
two ranks of 512 envs.
"""

SETTINGS = {"default": (1, FP32_BYTES), "bf16": (1, 2), "period 4": (4, FP32_BYTES), "period 16": (16, FP32_BYTES)}
"""For each setting in :data:`LINK_RUNS`, the value of --sync.period, and the bytes per value of a gradient."""


def link_network(link: LinkSums) -> Network:
    """Return a link as a network. Its latency is a round trip, because each step of gloo's ring takes a round trip."""
    return Network("", link.round_trip_s, link.bytes_per_s)


def cartpole_communication_s(link: LinkSums, setting: str) -> float:
    """Return the time of the collectives in an iteration of cartpole-balance, for two ranks connected by a link."""
    period, value_bytes = SETTINGS[setting]
    number = parameters(CARTPOLE_OBSERVATIONS, CARTPOLE_HIDDEN, CARTPOLE_ACTIONS)
    network = link_network(link)
    small_s = 2 * ring_s(1e3, LINK_RANKS, network)
    if period == 1:
        return small_s + G1_MINI_BATCHES * ring_s(value_bytes * number, LINK_RANKS, network)
    return small_s + ring_s(3 * FP32_BYTES * number, LINK_RANKS, network) / period


# One world on many GPUs


@dataclass(frozen=True, kw_only=True)
class Partition:
    """One world of many bodies, cut into one cube per GPU. All cubes contain the same number of bodies."""

    bodies: float
    """Number of bodies on one GPU."""
    halo: float
    """Bodies at the six faces of a cube. The neighbors need the states of these bodies."""
    exchange_s: float
    """Time to send the velocities of the halo to all neighbors once."""
    exchanges_s: float
    """Time of all exchanges of a physics step, including those of the solver's iterations."""
    reductions_s: float
    """Time of the solver's sums over all GPUs in a physics step."""
    compute_s: float
    """Computing time of a physics step."""
    memory_bytes: float
    """Memory that the bodies of one GPU need."""

    @property
    def moving_share(self) -> float:
        """Share of the time of a physics step that exchanges and sums take."""
        moving_s = self.exchanges_s + self.reductions_s
        return moving_s / (moving_s + self.compute_s)


SOLVER_ITERATIONS = 50
"""Iterations of an iterative contact solver in a physics step. In each iteration, GPUs send velocities, and sum two
numbers."""

VELOCITY_BYTES = 6 * FP32_BYTES


def partition(bodies: float, gpus: int, network: Network) -> Partition:
    """Return the times and sizes of a world of many bodies that is cut into one cube per GPU.

    Args:
        bodies: Bodies of the world.
        gpus: Number of GPUs.
        network: Connection between the GPUs.
    """
    own = bodies / gpus
    halo = 6 * own ** (2 / 3)
    exchange_s = 6 * network.latency_s + halo * VELOCITY_BYTES / network.bytes_per_s
    return Partition(
        bodies=own,
        halo=halo,
        exchange_s=exchange_s,
        exchanges_s=(SOLVER_ITERATIONS + 1) * exchange_s,
        reductions_s=SOLVER_ITERATIONS * tree_s(8, gpus, network),
        compute_s=own / (G1_ENV_STEPS * G1_SUBSTEPS * G1_BODIES),
        memory_bytes=own * memory_per_body(),
    )


def memory_per_body() -> float:
    """Return the memory of a body in bytes, from the published memory of 4,096 robots."""
    return G1_MEMORY_BYTES / (G1_ENVS * G1_BODIES)


# Page


def page() -> str:
    """Return the page as Markdown."""
    work, spread = g1(), fitted_spread()
    world = partition(3e8, 1024, INFINIBAND)
    return TEMPLATE.read_text().format(
        sums=_sums_table(),
        overlaps=_overlaps_table(),
        bf16_numbers=f"{_bf16_numbers():,.0f}",
        share_10_ms=f"{_communication_share('100 Mbit/s, 10 ms'):.0%}",
        links=_links_table(),
        cartpole=f"{parameters(CARTPOLE_OBSERVATIONS, CARTPOLE_HIDDEN, CARTPOLE_ACTIONS):,}",
        spread=f"{spread:.1%}",
        parameters=f"{work.num_parameters:,}",
        rollout_s=f"{work.rollout_s:.2f}",
        update_s=f"{work.update_s:.2f}",
        published=_published_table(spread),
        predictions=_predictions_table(spread),
        period_4=f"{predict(work, 1024, ETHERNET, spread, period=4).efficiency:.0%}",
        ring=f"{predict(work, 1024, ETHERNET, spread).efficiency:.0%}",
        tree=f"{predict(work, 1024, ETHERNET, spread, ring=False).efficiency:.0%}",
        real=_real_table(),
        simulated=_simulated_table(),
        per_rank_us=f"{_per_rank_us():.0f}",
        partitions=_partitions_table(),
        body_kb=f"{memory_per_body() / 1e3:.0f}",
        world_tb=f"{3e8 * memory_per_body() / 1e12:.0f}",
        min_gpus=f"{math.ceil(3e8 * memory_per_body() / 48e9):,}",
        solver=SOLVER_ITERATIONS,
        halo=f"{world.halo:,.0f}",
        share_fast=f"{world.moving_share:.0%}",
        share_slow=f"{partition(3e8, 1024, ETHERNET).moving_share:.0%}",
        metrics_share=f"{1024 * 1e-6 * _per_rank_us() / predict(work, 1024, INFINIBAND, spread).total_s:.1%}",
        independent=f"{1024 * G1_ENVS * G1_BODIES / 1e6:.0f}",
        **{f"source_{name}": SOURCES[source] for name, source in (("isaac", ISAAC), ("mjlab", MJLAB))},
    )


def _communication_share(link: str) -> float:
    communication_s = cartpole_communication_s(LINK_SUMS[link], "default")
    return communication_s / (communication_s + CARTPOLE_COMPUTE_S)


def _bf16_numbers() -> float:
    """Return how many fp32 numbers a link sends in the time of two round trips, averaged over the two slower links."""
    slower = [link_network(link) for name, link in LINK_SUMS.items() if name != "10 Gbit/s, 0.1 ms"]
    numbers = [2 * one.latency_s * one.bytes_per_s / FP32_BYTES for one in slower]
    return round(sum(numbers) / len(numbers), -4)


def _sums_table() -> str:
    rows: list[str] = []
    for name, link in LINK_SUMS.items():
        for number in (1, 10_000, 1_000_000):
            cells = [f"{number:,}"]
            for value_bytes in (FP32_BYTES, 2):
                model_s = ring_s(value_bytes * number, LINK_RANKS, link_network(link))
                cells += [f"{1e3 * link.seconds[number, value_bytes]:.1f}", f"{1e3 * model_s:.1f}"]
            rows.append(f"{name} | {1e3 * link.round_trip_s:.2f} | {' | '.join(cells)}")
    return _table("link | round trip, ms | numbers | fp32, ms | model | bf16, ms | model", rows)


def _overlaps_table() -> str:
    rows = (f"{link} | {one['cartpole']:.2f} | {one['humanoid']:.2f}" for link, one in OVERLAPS.items())
    return _table("link | cartpole | humanoid", rows)


def _links_table() -> str:
    rows: list[str] = []
    samples = LINK_RANKS * LINK_ENVS * LINK_STEPS
    for one in LINK_RUNS:
        communication_s = cartpole_communication_s(LINK_SUMS[one.link], one.setting)
        speeds = ", ".join(f"{speed:,.0f}" for speed in one.steps_per_s)
        waits = ", ".join(f"{share:.0%}" for share in one.waiting)
        rows.append(
            f"{one.link} | {one.setting} | {1e3 * communication_s:.0f} ms | "
            f"{samples / (CARTPOLE_COMPUTE_S + communication_s):,.0f} | {speeds} | {waits} | "
            f"{', '.join(f'{seconds:.0f}' for seconds in one.seconds)}"
        )
    columns = (
        "link | setting | communication, model | steps/s, model | steps/s, measured | share of time in collectives, "
        "measured | s to a return of 900"
    )
    return _table(columns, rows)


def _published_table(spread: float) -> str:
    rows: list[str] = []
    for one in PUBLISHED:
        for ranks, speed in one.steps_per_s.items():
            efficiency = f"{speed / ranks / one.steps_per_s[1]:.0%}"
            model = predicted_speed(one, ranks, spread)
            difference = (
                "given" if ranks == 1 else "fitted" if (one, ranks) == (G1, 16) else f"{model / speed - 1:+.0%}"
            )
            rows.append(f"{one.name} | {ranks} | {speed:,.0f} | {efficiency} | {model:,.0f} | {difference}")
    return _table("task | GPUs | published steps/s | efficiency | model | difference", rows)


def _predictions_table(spread: float) -> str:
    rows: list[str] = []
    for ranks, network in itertools.product((8, 64, 1024), (SLOW, ETHERNET, INFINIBAND)):
        for name, ring, period in (("ring", True, 1), ("tree", False, 1), ("ring, period 4", True, 4)):
            one = predict(g1(), ranks, network, spread, ring=ring, period=period)
            rows.append(
                f"{ranks:,} | {network.name} | {name} | {one.steps_per_s / 1e6:.2f} million | {one.efficiency:.0%} | "
                f"{one.straggling_s / one.total_s:.1%} | {one.communication_s / one.total_s:.1%}"
            )
    columns = "GPUs | network | sum | steps/s | efficiency | waiting for the slowest | communication"
    return _table(columns, rows)


def _table(columns: str, rows: Iterable[str]) -> str:
    return "\n".join([f"| {columns} |", "|---" * (columns.count("|") + 1) + "|", *(f"| {row} |" for row in rows)])


def _real_table() -> str:
    rows = (
        f"{one.ranks} | {one.total_s:.1f} | {one.joined_s:.2f} | {one.metrics_ms:.1f} | {one.checkpoint_ms:.0f}"
        for one in REAL_RANKS
    )
    return _table("processes | start to end, s | joining, s | metrics of an iteration, ms | checkpoint, ms", rows)


def _simulated_table() -> str:
    rows = (
        f"{one.ranks:,} | {one.events_ms:.2f} | {one.metrics_ms:.1f} | {one.checkpoint_ms:.0f}"
        for one in SIMULATED_RANKS
    )
    return _table("simulated ranks | events, ms | metrics of an iteration, ms | checkpoint, ms", rows)


def _per_rank_us() -> float:
    """Return the time that each additional simulated rank adds to the metrics of an iteration, in µs."""
    first, last = SIMULATED_RANKS[0], SIMULATED_RANKS[-1]
    return 1e3 * (last.metrics_ms - first.metrics_ms) / (last.ranks - first.ranks)


def _partitions_table() -> str:
    rows: list[str] = []
    for gpus, network in itertools.product((64, 1024), (ETHERNET, INFINIBAND)):
        one = partition(3e8, gpus, network)
        rows.append(
            f"{gpus:,}, {network.name} | {one.bodies / 1e6:.2f} million | {one.memory_bytes / 1e9:.0f} GB | "
            f"{1e3 * one.compute_s:.0f} ms | {1e3 * one.exchanges_s:.1f} ms | {1e3 * one.reductions_s:.1f} ms | "
            f"{one.moving_share:.0%}"
        )
    columns = (
        "GPUs | bodies per GPU | memory per GPU | computing | exchanges | sums over all GPUs | "
        "share of exchanges and sums"
    )
    return _table(columns, rows)


if __name__ == "__main__":
    write_or_check(PAGE, page())
