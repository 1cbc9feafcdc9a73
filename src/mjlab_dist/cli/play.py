"""play: what a trained policy does."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from mjlab_dist import registry
from mjlab_dist.cli.parsing import parse, split_task
from mjlab_dist.config import PlayConfig
from mjlab_dist.errors import UserError


def main(argv: Sequence[str], prog: str) -> None:
    """Play a policy, print its returns, write a video if asked to.

    Raises:
        UserError: If there is no such run, or it cannot be played.
    """
    names = registry.task_names()
    task, flags = split_task(
        argv, f"usage: {prog} TASK [flags]\n\nPlay a trained policy. Its flags: {prog} {names[0]} --help"
    )
    if task is None:
        raise UserError(f"no task is named; type {prog} TASK, with one of {', '.join(names)}")
    registry.task_config(task)  # refuses an unknown task
    config = parse(PlayConfig, PlayConfig(), flags, f"{prog} {task}")

    from mjlab_dist import play  # noqa: PLC0415 (--help needs none of it)
    from mjlab_dist.worker import COMPILING  # noqa: PLC0415

    train_config, checkpoint = play.resolve(task, config)
    print(f"Playing {checkpoint}")
    result = play.play(train_config, checkpoint, config, lambda: print(COMPILING))
    spread = f" (from {min(result.returns):.1f} to {max(result.returns):.1f})" if len(result.returns) > 1 else ""
    print(
        f"{len(result.returns)} episodes: mean return {statistics.mean(result.returns):.1f}{spread}, "
        f"mean length {statistics.mean(result.lengths):.0f} steps"
    )
    if config.video:
        print(f"Video: {config.video}")
