"""Properties of ranks: a rank is read from the variables of a launcher, and lists of ranks are written as text."""

from __future__ import annotations

import itertools
import re

from hypothesis import given
from hypothesis import strategies as st

from mjlab_dist.distributed.rank import LOOPBACK, Rank, in_words, outside_launcher, rank_from_environment

hosts = st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True) | st.ip_addresses(v=4).map(str)


@st.composite
def places(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """Draw the number of machines, the number of ranks per machine, and the machine and local rank of one rank."""
    machines, per_machine = draw(st.integers(1, 16)), draw(st.integers(1, 16))
    return machines, per_machine, draw(st.integers(0, machines - 1)), draw(st.integers(0, per_machine - 1))


@given(place=places(), host=hosts, port=st.integers(1, 65535))
def test_the_variables_of_torchrun_are_read_back(place: tuple[int, int, int, int], host: str, port: int):
    machines, per_machine, machine, local_rank = place
    environ = {
        "RANK": str(machine * per_machine + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(machines * per_machine),
        "LOCAL_WORLD_SIZE": str(per_machine),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
    }
    assert outside_launcher(environ) == "torchrun"
    assert rank_from_environment(environ) == Rank(
        rank=machine * per_machine + local_rank,
        local_rank=local_rank,
        world_size=machines * per_machine,
        on_one_machine=machines == 1,
        master_address=LOOPBACK if machines == 1 else host,
        master_port=port,
    )


@given(place=places(), host=hosts, job=st.integers(1, 2**32))
def test_the_variables_of_slurm_are_read_back(place: tuple[int, int, int, int], host: str, job: int):
    machines, per_machine, machine, local_rank = place
    environ = {
        "SLURM_PROCID": str(machine * per_machine + local_rank),
        "SLURM_LOCALID": str(local_rank),
        "SLURM_STEP_NUM_TASKS": str(machines * per_machine),
        "SLURM_STEP_NUM_NODES": str(machines),
        "SLURM_JOB_ID": str(job),
        "MASTER_ADDR": host,
    }
    rank = rank_from_environment(environ)
    if machines * per_machine == 1:
        assert outside_launcher(environ) is None
        assert rank == Rank()
        return
    assert outside_launcher(environ) == "slurm"
    assert (rank.rank, rank.local_rank) == (machine * per_machine + local_rank, local_rank)
    assert (rank.world_size, rank.on_one_machine) == (machines * per_machine, machines == 1)
    assert rank.master_address == host
    assert 1024 <= rank.master_port < 2**16, "a port that needs no privileges"


@given(ranks=st.sets(st.integers(0, 40), min_size=1))
def test_a_list_of_ranks_in_words_names_every_rank(ranks: set[int]):
    word, _, spans = in_words(sorted(ranks)).partition(" ")
    assert word == ("rank" if len(ranks) == 1 else "ranks")
    ends = [[int(end) for end in span.split("-")] for span in spans.split(", ")]
    assert [rank for span in ends for rank in range(span[0], span[-1] + 1)] == sorted(ranks)
    # No two spans are adjacent, because adjacent spans would form one span.
    assert all(after[0] > before[-1] + 1 for before, after in itertools.pairwise(ends))
    assert re.fullmatch(r"[\d, -]+", spans)
