"""Make the small run that ``mjlab-dist demo`` plays, from a training run of the quadruped.

uv run train quadruped-velocity-flat --cpu-ranks 2
uv run python scripts/make_demo.py logs/quadruped-velocity-flat/<run>

The script keeps the config and the policy, and removes what only training needs: value function, optimizer and state of
the envs.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from mjlab_dist.config import TrainConfig
from mjlab_dist.learn import checkpoint
from mjlab_dist.runs.outputs import write_atomically
from mjlab_dist.runs.run_dir import (
    CONFIG_FILE,
    checkpoint_path,
    find_checkpoint,
    list_checkpoints,
    read_config_file,
    to_yaml,
)

OUTPUT = Path(__file__).parents[1] / "tasks" / "mjlab_dist_tasks" / "quadruped" / "demo"
"""Directory in which ``mjlab-dist demo`` looks for the run."""

MAX_BYTES = 1_000_000
"""Maximum size of the policy, which is part of the wheel."""


def main() -> None:
    """Write the run."""
    parser = argparse.ArgumentParser(description="Make the run that mjlab-dist demo plays", allow_abbrev=False)
    parser.add_argument("run", type=Path)
    parser.add_argument("--checkpoint", type=Path, help="default: the newest checkpoint of the run")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    args = parser.parse_args()
    source = args.checkpoint or find_checkpoint(args.run)
    content = checkpoint.load(source, "cpu")
    # Write the config, without directories of this machine
    config = dataclasses.replace(read_config_file(args.run), log_root=TrainConfig.log_root, resume=None)
    args.output.mkdir(parents=True, exist_ok=True)
    write_atomically(args.output / CONFIG_FILE, to_yaml(config))
    # Write a checkpoint that has only the policy
    for old in list_checkpoints(args.output).values():
        old.unlink()
    target = checkpoint_path(args.output, content["iter"])
    checkpoint.save(target, {"iter": content["iter"], "actor_state_dict": content["actor_state_dict"]})
    size = target.stat().st_size
    assert size < MAX_BYTES, f"{target} has {size} bytes"
    print(f"{target}: policy of iteration {content['iter']}, {size:,} bytes")


if __name__ == "__main__":
    main()
