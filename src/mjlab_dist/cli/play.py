"""play: show what a trained policy does."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from mjlab_dist import registry
from mjlab_dist.cli.console import EventPrinter
from mjlab_dist.cli.parsing import parse, split_task, take_group
from mjlab_dist.cli.term_flags import parse_config
from mjlab_dist.config import PlayConfig
from mjlab_dist.config.checks import validate
from mjlab_dist.errors import UserError
from mjlab_dist.messages import listening
from mjlab_dist.wording import listed

if TYPE_CHECKING:
    from mjlab_dist.play import Replayed

SHOWN = 4
"""Maximum number of envs of a dump to print."""


def main(argv: Sequence[str], prog: str) -> None:
    """Play a policy, print its returns, and write a video if asked to.

    Raises:
        UserError: If the command line is wrong, or the run does not exist or cannot be played.
    """
    task, flags = split_task(argv)
    changes, flags = take_group(flags, "--env.")
    if task is None:
        parse(PlayConfig, PlayConfig(), flags, f"{prog} TASK")  # prints help and exits if asked to
        names = registry.task_names()
        raise UserError(f"no task is named; type {prog} TASK, with one of {listed(names, 'or')}")
    registry.task_config(task)  # refuses an unknown task
    config = parse(PlayConfig, PlayConfig(), flags, f"{prog} {task}")

    from mjlab_dist import play  # noqa: PLC0415 (--help does not need it)

    printer = EventPrinter(Console(highlight=False, soft_wrap=True))
    train_config, checkpoint = play.resolve(
        task, config, lambda text: printer.listen({"kind": "warning", "text": text})
    )
    if changes:
        train_config = parse_config(train_config, changes, f"{prog} {task}")
        validate(train_config)
    if not config.disturbances:
        calm = play.without_disturbances(train_config.env)
        train_config = dataclasses.replace(train_config, env=calm)
    if config.nan_dump is not None:
        with printer, listening(printer.listen):
            replayed = play.replay(train_config, checkpoint, config)
        _print_replayed(checkpoint, replayed)
        return
    print(f"Playing {checkpoint}")
    with printer, listening(printer.listen):
        result = play.play(train_config, checkpoint, config)
    spread = f" (from {min(result.returns):.1f} to {max(result.returns):.1f})" if len(result.returns) > 1 else ""
    print(
        f"{len(result.returns)} episodes: mean return {statistics.mean(result.returns):.1f}{spread}, "
        f"mean length {statistics.mean(result.lengths):.0f} steps"
    )
    width = max(map(len, result.outcomes))
    for name, value in result.outcomes.items():
        print(f"  {name:<{width}}  {value:.4g}")
    if config.video:
        print(f"Video: {config.video}")


def _print_replayed(dump: Path, envs: Sequence[Replayed]) -> None:
    print(f"{dump}: every env repeats the step in which a number was first not finite")
    for env in envs[:SHOWN]:
        when = f"step {env.step} of the rollout" if env.step else "before the first step of the rollout"
        print(f"\nenv {env.env_id}, {when}")
        for kind, names in env.names.items():
            print(f"  not finite: {kind} ({', '.join(names)})")
        for actuator, value in env.action.items():
            print(f"  {f'action {actuator}':<24}{value:>14.6g}")
        print(f"  {'':<24}{'before':>14}{'after':>14}{'repeated':>14}")
        for label, values in env.state.items():
            print(f"  {label:<24}{''.join(f'{value:>14.6g}' for value in values)}")
        print(f"  {_verdict(env)}")
    if len(envs) > SHOWN:
        print(
            f"\n{len(envs) - SHOWN} more envs: {sum(env.reproduced for env in envs)} of all {len(envs)} are reproduced"
        )


def _verdict(env: Replayed) -> str:
    if env.step == 0:
        return "it did not come from a step: the episode started with it, or other code wrote into the env"
    if env.reproduced:
        return "reproduced: the same state and action led to it again"
    if env.ended:
        return "not reproduced: the step ended an episode; look at what starts the next one (env.events)"
    return "not reproduced: it came from the policy or the value function, or other code wrote into the env"
