"""Check that the ranks of a run have trained one policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mjlab_dist.config import TrainConfig
from mjlab_dist.launch.verify.evidence import Evidence

# Maximum allowed WatchedSynchronizer.difference, for each number format of --sync.compression
TOLERANCE = {"none": 1e-5, "bf16": 1e-2, "fp16": 1e-2}


# Maximum number of collectives (exchanges between all ranks) per iteration, in addition to one per mini-batch
MAX_COLLECTIVES = 3


@dataclass(frozen=True, kw_only=True)
class Check:
    """Result of one check."""

    name: str
    # Measured result
    figure: str
    passed: bool
    # Explanation of a failure; empty if the check passed
    why: str = ""


def judge(config: TrainConfig, evidence: Sequence[Evidence]) -> list[Check]:
    """Check the evidence of all ranks of a run, the most important things first."""
    return [
        _parameters_equal(evidence),
        _streams_different(evidence),
        _gradient_average(config, evidence),
        _files_of_rank_0(evidence),
        _collectives(config, evidence),
    ]


def _parameters_equal(evidence: Sequence[Evidence]) -> Check:
    name = "parameters equal"
    names = list(evidence[0].digests)
    differing = [n for n in names if len({one.digests[n] for one in evidence}) > 1]
    if not differing:
        return _check(name, f"{len(names)} tensors are equal bit for bit", True)
    return _check(name, f"{len(differing)} of {len(names)} tensors differ", False, f"the first one is {differing[0]}")


def _streams_different(evidence: Sequence[Evidence]) -> Check:
    rows = [row for one in evidence for row in one.first_observations]
    distinct = len(set(rows))
    return _check(
        "env streams different",
        f"{distinct:,} of {len(rows):,} first observations are different",
        distinct == len(rows),
        "envs start in equal states: ranks use the same random numbers, or the task's events use none",
    )


def _gradient_average(config: TrainConfig, evidence: Sequence[Evidence]) -> Check:
    name = "gradient average"
    differences = [one.difference for one in evidence if one.difference is not None]
    if not differences:
        how = f"period {config.sync.period}" if config.sync.synchronizer is None else config.sync.synchronizer
        return _check(name, f"not averaged: {how}", True)
    largest, allowed = max(differences), TOLERANCE[config.sync.compression]
    return _check(
        name,
        f"relative difference of {largest:.1e} from the mean over ranks",
        largest <= allowed,
        f"more than the allowed {allowed:g}",
    )


def _files_of_rank_0(evidence: Sequence[Evidence]) -> Check:
    others = [path for one in evidence[1:] for path in one.written]
    counts = ", ".join(f"rank {rank}: {len(one.written)}" for rank, one in enumerate(evidence))
    why = f"another rank wrote {others[0]}" if others else "rank 0 wrote no files"
    return _check("files by rank 0 alone", counts, bool(evidence[0].written) and not others, why)


def _collectives(config: TrainConfig, evidence: Sequence[Evidence]) -> Check:
    per_mini_batch = max(one.per_mini_batch for one in evidence)
    per_iteration = max(one.per_iteration for one in evidence)
    if len(evidence) == 1:
        passed = per_mini_batch == per_iteration == 0
    elif config.sync.period == 1 and config.sync.synchronizer is None and config.fsdp_devices == 1:
        passed = per_mini_batch == 1 and per_iteration <= MAX_COLLECTIVES
    else:
        passed = True  # any number passes, because it depends on the synchronizer and on sharding
    return _check(
        "collectives",
        f"{per_mini_batch:g} per mini-batch, {per_iteration:g} more per iteration",
        passed,
        f"1 per mini-batch and up to {MAX_COLLECTIVES} more per iteration are enough; one rank needs none",
    )


def _check(name: str, figure: str, passed: bool, why: str = "") -> Check:
    return Check(name=name, figure=figure, passed=passed, why="" if passed else why)
