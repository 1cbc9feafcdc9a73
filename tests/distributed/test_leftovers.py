"""A launch leaves no files in directories that all programs of a machine share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Command, Done

from mjlab_dist.errors import Exit

TRAIN = """
train() {
    program=$1
    shift
    "$program" cartpole-balance --gpu-ids None --cpu-ranks 2 --num-envs 32 --agent.num-steps-per-env 8 \\
        --max-iterations 3 "$@"
}
# Ranks are spawned, because this path is long
export TMPDIR=$PWD/shared
train "$1" || exit 1
# Ranks are forked
export TMPDIR=/var/tmp
MJLAB_DIST_FAULT=1:2:sigkill train "$1" --max-restarts 1 || exit 1
echo left:
ls -A /dev/shm /var/tmp shared
"""


FULL = """
head -c 4096 /dev/zero > /dev/shm/full
"$1" cartpole-balance --gpu-ids None --cpu-ranks 2 --num-envs 32 --max-iterations 3
"""


def test_full_shared_memory_is_found_before_the_start(command: Command, with_mounts: Callable[..., Done]) -> None:
    done = with_mounts("mount -t tmpfs -o size=4k none /dev/shm", FULL, command.program("train"))
    assert done.code == Exit.PREFLIGHT
    assert "/dev/shm" in done.err
    assert not (command.cwd / "logs").exists()


@pytest.mark.slow
def test_runs_and_restarts_leave_no_semaphore_and_no_temporary_file(
    command: Command, with_mounts: Callable[..., Done]
) -> None:
    mounts = " && ".join(
        ["mkdir shared", *(f"mount -t tmpfs none {each}" for each in ("/dev/shm", "/var/tmp", "shared"))]
    )
    done = with_mounts(mounts, TRAIN, command.program("train"))
    assert done.code == 0, done.out + done.err
    assert "Restarting" in done.out
    assert done.out.rpartition("left:")[2].split() == ["/dev/shm:", "/var/tmp:", "shared:"]
