"""size-buffers: measure how large njmax and nconmax must be."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from mjlab_dist import registry
from mjlab_dist.cli.console import EventPrinter, make_console
from mjlab_dist.cli.help import Flag, Page
from mjlab_dist.cli.parsing import positive_number, split_task, take_flag
from mjlab_dist.cli.train import read_config
from mjlab_dist.config import TrainConfig
from mjlab_dist.errors import UserError
from mjlab_dist.imports import import_learner
from mjlab_dist.messages import listening
from mjlab_dist.run_dir import find_checkpoint, find_run
from mjlab_dist.run_files import readable
from mjlab_dist.wording import listed

if TYPE_CHECKING:
    from mjlab_dist.buffer_sizes import Attempt

# Number of envs if --num-envs is not given
NUM_ENVS = 256

# Number of control steps if --steps is not given
NUM_STEPS = 1000

HELP = Page(
    summary="Step a task with random actions or a run's policy, and print how large the physics' buffers must be.",
    own=(
        Flag(path="steps", metavar="INT", default=str(NUM_STEPS), text="Control steps."),
        Flag(path="run", metavar="STR", text="Run whose newest policy acts: a run directory, or latest."),
    ),
    groups={
        "Run": ("steps", "num_envs", "seed", "gpu_ids", "env.sim.njmax", "env.sim.nconmax"),
        "Config and policy": ("config", "run", "log_root"),
    },
)


def main(argv: Sequence[str], prog: str) -> None:
    """Measure how full the buffers get, and print a table with recommended sizes."""
    # Flags, and the config
    steps, rest = take_flag(argv, "--steps")
    num_steps = positive_number("--steps", steps) if steps is not None else NUM_STEPS
    run, rest = take_flag(rest, "--run")
    checkpoint, rest = _of_run(run, rest) if run is not None else (None, rest)
    config = read_config(
        rest,
        prog,
        HELP,
        num_envs=NUM_ENVS,
        total_num_envs=None,
        total_timesteps=None,
    )

    from mjlab_dist.budget import plan_budget  # --help needs none of it
    from mjlab_dist.buffer_sizes import measure
    from mjlab_dist.config.checks import validate
    from mjlab_dist.machine.devices import find_gpus, plan_devices

    # Number of envs, and the device
    validate(config)
    budget = plan_budget(config, 1)
    if budget is None:
        raise UserError(f"--num-envs auto: this command does not support auto; give a number, such as {NUM_ENVS}")
    device = plan_devices(config, os.environ, find_gpus())[0]
    # Measurement
    if config.env.sim.engine == "mujoco":
        print("With --env.sim.engine mujoco, the sizes do not apply: MuJoCo's C code makes room as it needs it.")
    actions = "random actions" if checkpoint is None else f"the policy of {checkpoint}"
    print(f"Stepping {config.task} {num_steps} times with {budget.num_envs} envs and {actions}, on {device.name}.")
    import_learner()
    with EventPrinter(make_console(soft_wrap=True)) as printer, listening(printer.listen):
        attempts = measure(config, device, num_envs=budget.num_envs, num_steps=num_steps, checkpoint=checkpoint)
    _show(attempts)


def _of_run(run: str, argv: Sequence[str]) -> tuple[Path, list[str]]:
    """Return the newest checkpoint of a run, and the flags, preceded by ``--config`` with the run directory."""
    task, flags = split_task(argv)
    if task is None:
        raise UserError(f"--run {run}: no task is named; type mjlab-dist size-buffers TASK --run {shlex.quote(run)}")
    registry.task_config(task)  # refuses an unknown task
    run_dir = find_run(take_flag(flags, "--log-root")[0] or TrainConfig.log_root, task, run)
    return readable(find_checkpoint(run_dir)), ["--config", str(run_dir), *flags]


def _show(attempts: Sequence[Attempt]) -> None:
    console = make_console()
    first, last = attempts[0], attempts[-1]
    usage = last.usage
    # Table
    table = Table("", "in one env", "per env", f"in all {usage.num_envs}", "now", "recommended")
    table.add_row("constraints", str(usage.rows), "", "", f"njmax {first.njmax}", str(usage.njmax))
    table.add_row(
        "contacts",
        str(usage.contacts),
        f"{usage.contacts_of_few:.1f}",
        str(usage.contacts_of_all),
        f"nconmax {first.nconmax}",
        str(usage.nconmax),
    )
    table.add_row("near pairs", "", f"{usage.pairs_of_all / usage.num_envs:.1f}", str(usage.pairs_of_all), "", "")
    console.print(table)
    # Overflows, and the sizes to set
    if last.overflows:
        console.print(f"Overflow of {listed(last.overflows)} even with njmax {last.njmax} and nconmax {last.nconmax}.")
    elif first.overflows:
        console.print(
            f"Overflow of {listed(first.overflows)} with the current sizes: contacts or constraints were dropped."
        )
    else:
        console.print("No overflow.")
    console.print(f"Set njmax={usage.njmax}, nconmax={usage.nconmax} in the task's SimConfig, or use the flags")
    console.print(f"--env.sim.njmax {usage.njmax} --env.sim.nconmax {usage.nconmax}")
