"""size-buffers: measure how large njmax and nconmax must be."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from mjlab_dist.cli.console import EventPrinter, make_console
from mjlab_dist.cli.run_flags import EVERYDAY, CommandLine, RunFlags, config_of, read_flags
from mjlab_dist.config import TrainConfig, registry
from mjlab_dist.config.limits import PositiveInt
from mjlab_dist.errors import UserError, listed
from mjlab_dist.imports import import_learner
from mjlab_dist.messages import listening
from mjlab_dist.runs.run_dir import find_checkpoint, find_run
from mjlab_dist.runs.run_files import readable

if TYPE_CHECKING:
    from mjlab_dist.authoring.buffer_sizes import Attempt

# Number of envs if --num-envs is not given
NUM_ENVS = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class SizeFlags(RunFlags):
    """Step a task with random actions or a run's policy, and print how large the physics' buffers must be."""

    steps: PositiveInt = 1000
    """Control steps."""
    run: str | None = None
    """Run whose newest policy acts: a run directory, or latest."""


def main(argv: Sequence[str], prog: str) -> None:
    """Measure how full the buffers get, and print a table with recommended sizes."""
    # Flags, and the config
    line, checkpoint = read_flags(argv, prog, SizeFlags(), ("steps", "run", *EVERYDAY)), None
    if line.own.run is not None and line.page is None:
        if line.own.config is not None:
            raise UserError(f"--run {line.own.run}: takes the run's own config, not --config; drop one of the two")
        run_dir = _find_run(line, line.own.run)
        checkpoint = readable(find_checkpoint(run_dir))
        line = dataclasses.replace(line, own=dataclasses.replace(line.own, config=str(run_dir)))
    config = config_of(line, num_envs=NUM_ENVS, total_num_envs=None, total_timesteps=None)

    from mjlab_dist.authoring.buffer_sizes import measure
    from mjlab_dist.config.checks import validate
    from mjlab_dist.launch.budget import total_num_envs  # --help needs none of it
    from mjlab_dist.machine.devices import find_gpus, plan_devices

    # Number of envs, and the device
    validate(config)
    num_envs = total_num_envs(config, 1)
    device = plan_devices(config, os.environ, find_gpus())[0]
    # Measurement
    if config.env.sim.engine == "mujoco":
        print("With --env.sim.engine mujoco, the sizes do not apply: MuJoCo's C code makes room as it needs it.")
    actions = "random actions" if checkpoint is None else f"the policy of {checkpoint}"
    print(f"Stepping {config.task} {line.own.steps} times with {num_envs} envs and {actions}, on {device.name}.")
    import_learner()
    with EventPrinter(make_console(soft_wrap=True)) as printer, listening(printer.listen):
        attempts = measure(config, device, num_envs=num_envs, num_steps=line.own.steps, checkpoint=checkpoint)
    _show(attempts)


def _find_run(line: CommandLine[SizeFlags], run: str) -> Path:
    if line.task is None:
        raise UserError(f"--run {run}: no task is named; type {line.prog} TASK --run {shlex.quote(run)}")
    registry.task_config(line.task)  # refuses an unknown task
    return find_run(line.values.get("log_root", TrainConfig.log_root), line.task, run)


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
