"""The fields of a run's provenance that a pack keeps, and the flags and directories that it removes from commands."""

from __future__ import annotations

import pytest

from mjlab_dist.policies.pack import portable_provenance


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        ("/home/me/.venv/bin/train ant --num-envs 8", "train ant --num-envs 8"),
        ("train ant --hosts a b:2 --log-root /data --num-envs 8", "train ant --num-envs 8"),
        ("train ant --num-envs=8 --log_root=/data --ssh-config ~/.ssh/lab", "train ant --num-envs=8"),
        (
            "train ant --config /home/me/ant.yaml --env.sim.model=/home/me/ant.xml",
            "train ant --config ant.yaml --env.sim.model=ant.xml",
        ),
        ("train ant --env.rewards.x.weight -1 --gpu-ids 0 1", "train ant --env.rewards.x.weight -1 --gpu-ids 0 1"),
    ],
)
def test_the_command_names_no_directory_and_no_host(command: str, kept: str) -> None:
    provenance = {
        "host": "node7",
        "cpu_cores": 8,
        "command": command.split(),
        "resumed": [{"command": command.split()}],
    }
    assert portable_provenance(provenance) == {"command": kept.split(), "resumed": [{"command": kept.split()}]}
