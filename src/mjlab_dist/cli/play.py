"""play: show what a trained policy does."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from mjlab_dist.cli.console import EventPrinter, make_console
from mjlab_dist.cli.flags import Group, by_flag, known_task, parse, split_task, take_env
from mjlab_dist.cli.run_flags import flag_values
from mjlab_dist.config import PlayConfig, TrainConfig
from mjlab_dist.errors import Exit
from mjlab_dist.imports import import_learner
from mjlab_dist.messages import listening
from mjlab_dist.policies.choice import choose_viewer

if TYPE_CHECKING:
    from mjlab_dist.policies import PlayResult, Replayed

# Maximum number of envs of a NaN dump whose states are printed
SHOWN = 4


def main(argv: Sequence[str], prog: str) -> None:
    """Play a policy, print its returns, and write a video or a strip of frames if requested."""
    task, flags = split_task(argv)
    changes, flags = take_env(by_flag(flags))
    if task is None:
        parse(PlayConfig(), flags, f"{prog} TASK")  # prints help and exits, if --help is given
    task = known_task(task, prog)
    show(task, parse(PlayConfig(), flags, f"{prog} {task}"), prog, changes)


def show(task: str, config: PlayConfig, prog: str, changes: Sequence[Group] = ()) -> None:
    """Play a policy and print its returns; or show it in a viewer until Ctrl-C, and then end this process."""
    from mjlab_dist import policies  # --help does not need it

    viewer = choose_viewer(config, os.environ)

    with EventPrinter(make_console(soft_wrap=True)) as printer, listening(printer.listen):
        train_config, checkpoint = chosen_run(task, config, prog, changes)
        import_learner()
        if viewer is not None:
            _view(train_config, checkpoint, config)
        if config.nan_dump is not None:
            _print_replayed(checkpoint, policies.replay(train_config, checkpoint, config))
            return
        print(f"Playing {checkpoint}")
        result = policies.play(train_config, checkpoint, config)
    _print_result(result)
    if config.video:
        print(f"Video: {config.video}")
    if config.frames:
        print(f"Frames, one every {result.frame_interval_s:.3g} s: {config.frames}")


def chosen_run(task: str, config: PlayConfig, prog: str, changes: Sequence[Group]) -> tuple[TrainConfig, Path]:
    """Return the run's config, whose env is changed by the flags, and the path of the checkpoint or NaN dump."""
    from mjlab_dist import policies  # --help does not need it

    train_config, path = policies.resolve(task, config)
    values = flag_values(train_config, changes, f"{prog} {task}", {}) if changes else {}
    return policies.with_changes(train_config, config, values), path


def _view(train_config: TrainConfig, path: Path, config: PlayConfig) -> NoReturn:
    """Show a checkpoint or a dump in a viewer, and end the process without waiting for open pages to close."""
    from mjlab_dist.policies.view.show import view, view_dump  # --help does not need it

    print(f"Playing {path}", flush=True)
    start = view if config.nan_dump is None else view_dump
    start(train_config, path, config)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(Exit.DONE)


def _print_result(result: PlayResult) -> None:
    if not result.returns:
        print("No episode ended in this time; raise --seconds for a mean return.")
        return
    spread = f" (from {min(result.returns):.1f} to {max(result.returns):.1f})" if len(result.returns) > 1 else ""
    print(
        f"{len(result.returns)} episode{'s' if len(result.returns) > 1 else ''}: mean return "
        f"{statistics.mean(result.returns):.1f}{spread}, mean length {statistics.mean(result.lengths):.0f} steps"
    )
    width = max(map(len, result.outcomes))
    for name, value in result.outcomes.items():
        print(f"  {name:<{width}}  {value:.4g}")


def _print_replayed(dump: Path, envs: Sequence[Replayed]) -> None:
    print(f"{dump}: every env repeats its first step that led to NaN or infinity")
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
        num_reproduced = sum(env.reproduced for env in envs)
        print(f"\n{len(envs) - SHOWN} more envs are not shown. {num_reproduced} of {len(envs)} steps were reproduced")


def _verdict(env: Replayed) -> str:
    if env.step == 0:
        return "no step led to NaN or infinity: the episode started with it, or other code wrote it into the env"
    if env.reproduced:
        return "reproduced: the same state and action again led to NaN or infinity"
    if env.ended:
        return (
            "not reproduced: the step ended an episode, so the start of the next one may be the cause; see env.events"
        )
    return "not reproduced: NaN or infinity came from the policy, the value function or code that writes into the env"
