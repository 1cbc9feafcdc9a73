"""Plan of a run, made before any rank starts: devices, hosts, envs, iterations, run directory."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.checks import HostEntry, episode_steps, parse_host, parse_interval
from mjlab_dist.config.dotted_names import replaced
from mjlab_dist.distributed import RankDevice, RankPlan, outside_launcher
from mjlab_dist.distributed.rank import named_hosts
from mjlab_dist.errors import UserError, counted, listed
from mjlab_dist.launch.budget import Budget, plan_budget, validate_training
from mjlab_dist.launch.hosts.host_checks import choose_hosts
from mjlab_dist.launch.hosts.ssh import Host
from mjlab_dist.learn.loggers import check_loggers
from mjlab_dist.machine.control_groups import cores
from mjlab_dist.machine.devices import Gpu, plan_devices, shared_cores, shared_cpu
from mjlab_dist.machine.memory import check_memory
from mjlab_dist.machine.preflight import check_machine
from mjlab_dist.messages import emit
from mjlab_dist.runs.lease import Lease, refuse_running
from mjlab_dist.runs.run_dir import (
    AUTO,
    CONFIG_FILE,
    METRICS_FILE,
    find_run_to_resume,
    list_checkpoints,
    read_config_file,
    read_metrics,
)
from mjlab_dist.runs.run_files import has_file, problem_of, readable, refuse_links, run_of
from mjlab_dist.sim.engine_choice import choose_engine

# Assumed maximum length of a physics step, in s. An episode must not be shorter than one control step. Most configs
# pass this check if their physics steps are assumed to have this length. Only for other configs, the model is built to
# read the actual length of its physics step.
MAX_TIMESTEP_S = 0.05

# Number of envs per rank that uses only a part of a GPU if a rank has fewer
FEW_ON_GPU = 1024

# Minimum number of envs of a CPU rank, if the user does not choose the number of ranks. With fewer, two ranks are not
# faster than one with two threads (docs/performance.md).
MIN_ENVS_PER_CPU_RANK = 16


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Devices, hosts, budget and directory of a run: the config with ``auto``, ``all`` and ``latest`` resolved."""

    # Machines, with the devices of their ranks; the first is the launcher's machine
    hosts: tuple[Host, ...]
    # Machines that --hosts names, including those that a restart leaves out; empty without the flag
    entries: tuple[HostEntry, ...] = ()
    # Envs per rank, and iterations; None if ranks measure first how many envs fit in memory, or do not train
    budget: Budget | None = None
    # The run directory, on the launcher's machine
    run_dir: Path
    # Whether the directory was created for this run; False for a run that is resumed
    is_new: bool = True
    # The lease of the run; None before it is acquired
    lease: Lease | None = None

    @property
    def host_names(self) -> tuple[str, ...]:
        """Names or addresses of the machines."""
        return tuple(host.name for host in self.hosts)

    @property
    def own_devices(self) -> tuple[RankDevice, ...]:
        """The device of each rank on the launcher's machine, in order of local rank."""
        return self.hosts[0].devices

    @property
    def devices(self) -> tuple[RankDevice, ...]:
        """The device of each rank, in order of rank."""
        return devices_of(self.hosts)

    @property
    def num_ranks(self) -> int:
        """Number of ranks, over all machines."""
        return sum(len(host.devices) for host in self.hosts)

    @property
    def rank_plans(self) -> tuple[RankPlan, ...]:
        """Plan of each rank, in order of rank."""
        # Absolute, because a term may change the working directory
        run_dir = self.run_dir.absolute()
        num_envs = None if self.budget is None else self.budget.num_envs
        return tuple(
            RankPlan(device=device, num_envs=num_envs, run_dir=run_dir, lease=self.lease) for device in self.devices
        )


def plan_run(
    config: TrainConfig,
    environ: Mapping[str, str],
    gpus: list[Gpu],
    new_run_dir: Callable[[TrainConfig], Path],
) -> tuple[RunPlan, TrainConfig]:
    """Plan a run: resolve ``auto``, ``all``, ``latest``, ``slurm`` and totals over ranks.

    Returns:
        The plan, and the config, :func:`settled`.
    """
    # Hosts and devices
    hosts = plan_hosts(config, environ, gpus, uses_all_cores=True)
    own = hosts[0].devices
    if config.env.sim.deterministic and all(device.device == "cpu" for device in devices_of(hosts)):
        raise UserError(
            "--env.sim.deterministic: is for GPUs; all ranks are on the CPU, where results are repeatable without it; "
            "use --env.sim.no-deterministic"
        )
    # Envs and iterations
    config, budget = plan_envs(config, devices_of(hosts), own, gpus, len(devices_of(hosts)))
    is_open = config.cpu_ranks is None and config.total_num_envs is None and own[0].torch_threads > 1
    is_alone = len(devices_of(hosts)) == 1 and own[0].device == "cpu"
    if is_open and is_alone and budget is not None and budget.num_envs >= 2 * MIN_ENVS_PER_CPU_RANK:
        flag = f"--total-num-envs {budget.num_envs}"
        emit("status", text=f"One rank uses all cores; {flag} instead of --num-envs starts a rank per core.")
    if config.env.sim.entities:
        from mjlab_dist.sim.scene import ignored_options  # imports MuJoCo

        for warning in ignored_options(config.env.sim):
            emit("warning", text=warning)
    # Run directory
    resumed = find_resumed(config)
    for warning in check_machine(config, own, environ, gpus, resumed):
        emit("warning", text=warning)
    plan = RunPlan(
        hosts=hosts,
        entries=tuple(map(parse_host, named_hosts(config.hosts, environ))),
        budget=budget,
        run_dir=resumed or new_run_dir(config),
        is_new=resumed is None,
    )
    return plan, config


def plan_hosts(
    config: TrainConfig, environ: Mapping[str, str], gpus: list[Gpu], *, uses_all_cores: bool = False
) -> tuple[Host, ...]:
    """Choose the machines and devices of all ranks. Every command that starts ranks calls this function.

    Args:
        config: What the user asked for.
        environ: Environment variables.
        gpus: GPUs of this machine.
        uses_all_cores: Whether a machine without GPUs has a rank per core, if the config leaves the number of ranks
            open, and says how many envs they have together.

    Returns:
        The machines, with the device of each of their ranks; the first is this machine.
    """
    config = dataclasses.replace(config, hosts=named_hosts(config.hosts, environ))
    num_ranks = parse_host(config.hosts[0]).num_ranks if config.hosts else None
    own = plan_devices(config, environ, gpus, num_ranks)
    if uses_all_cores and own[0].device == "cpu" and config.cpu_ranks is None and num_ranks is None:
        own = shared_cpu(_cpu_ranks(config))
    for warning in shared_cores(own):
        emit("warning", text=warning)
    return choose_hosts(config, environ, own)


def _cpu_ranks(config: TrainConfig) -> int:
    """Return the number of CPU ranks on each machine for a config that leaves it open."""
    if config.total_num_envs is None:
        return 1
    num_hosts = max(1, len(config.hosts))
    most = min(cores(), config.total_num_envs // (MIN_ENVS_PER_CPU_RANK * num_hosts))
    for num_ranks in range(most, 1, -1):
        with contextlib.suppress(UserError):  # SAC's batches, for example, cannot be split over any number of ranks
            plan_budget(config, num_ranks * num_hosts)
            return num_ranks
    return 1


def devices_of(hosts: Sequence[Host]) -> tuple[RankDevice, ...]:
    """Return the device of each rank, in order of rank."""
    return tuple(device for host in hosts for device in host.devices)


def plan_envs(
    config: TrainConfig,
    devices: Sequence[RankDevice],
    own: Sequence[RankDevice],
    gpus: Sequence[Gpu],
    world_size: int,
) -> tuple[TrainConfig, Budget | None]:
    """Plan the envs of each rank, and check that they can fit into the memory of this machine.

    Args:
        config: What the user asked for.
        devices: The device of each rank, or of this rank alone if another launcher has started it.
        own: Those of them that are on this machine.
        gpus: GPUs of this machine.
        world_size: Number of ranks.

    Returns:
        The config, :func:`settled`, and the budget; None for ``--num-envs auto``.
    """
    config = settled(config, devices)
    budget = plan_budget(config, world_size)
    if budget is not None:
        check_memory(config, budget.num_envs, own, gpus)
    return config, budget


def settled(config: TrainConfig, devices: Sequence[RankDevice]) -> TrainConfig:
    """Return the config with one number of envs per rank and one engine.

    On GPUs, ``gpu_num_envs`` replaces ``num_envs`` and ``total_num_envs``. The run's config.yaml contains this config,
    so that a resumed run keeps its number of envs and its engine on other devices.
    """
    if config.gpu_num_envs is not None and _on_gpus(devices):
        config = dataclasses.replace(config, num_envs=config.gpu_num_envs, total_num_envs=None)
    # If any rank has a GPU, all ranks use the engine for GPUs
    device = next((each.device for each in devices if each.device != "cpu"), "cpu")
    engine = choose_engine(config.env.sim, device)
    config = dataclasses.replace(config, gpu_num_envs=None)
    return replaced(config, ["env", "sim", "engine"], engine)


def notes(config: TrainConfig, devices: Sequence[RankDevice], budget: Budget | None) -> list[str]:
    """Return lines for the user: the number of envs on GPUs, rounded totals, and which iterations videos show."""
    envs = None
    total = config.total_num_envs
    if budget is not None and _on_gpus(devices):
        if config.gpu_num_envs is not None:
            on_cpu = f"{config.num_envs}" if total is None else f"{total} over all ranks"
            envs = f"the number for GPUs (on a CPU: {on_cpu}); --num-envs changes it"
        elif (config.num_envs != "auto" or total is not None) and budget.num_envs < FEW_ON_GPU:
            envs = "as the config says, few for a GPU; --num-envs changes the number"
        envs = envs and f"Envs per rank: {budget.num_envs}, {envs}."
    return [note for note in (envs, *(budget.notes if budget else ()), video_note(config)) if note]


def _on_gpus(devices: Sequence[RankDevice]) -> bool:
    return all(device.device != "cpu" for device in devices)


def check_config(config: TrainConfig) -> None:
    """Raise if a config is invalid, whatever devices the machines have."""
    validate_training(config)
    if config.env.episode_length_s < MAX_TIMESTEP_S * config.env.sim.decimation:
        from mjlab_dist.sim import build_model  # imports MuJoCo

        timestep_s = float(build_model(config.env.sim).opt.timestep)
        episode_steps(config.env, timestep_s * config.env.sim.decimation)
    if config.init_from is not None and config.resume in {None, AUTO}:
        _check_init_from(config, config.init_from)
    if config.sync.synchronizer is not None:
        from mjlab_dist.distributed.synchronizer import find_synchronizer  # imports torch

        find_synchronizer(config.sync.synchronizer)
    check_loggers(config.logger)
    launcher = outside_launcher(os.environ)
    if launcher and config.hosts:
        shown = " ".join(config.hosts)
        raise UserError(
            f"--hosts {shown}: {launcher} starts the ranks and chooses their machines; drop --hosts, or start the "
            f"command without {launcher}"
        )


def find_resumed(config: TrainConfig) -> Path | None:
    """Return the directory of the run to resume; None for a new run."""
    if config.resume in {None, AUTO}:
        return None
    assert config.resume is not None
    run_dir = find_run_to_resume(config.log_root, config.task, config.resume)
    refuse_links(f"--resume {run_dir}", run_dir)
    checkpoints = list_checkpoints(run_dir)
    newest = max(checkpoints, default=0)
    rows = read_metrics(run_dir) if (run_dir / METRICS_FILE).is_file() else []
    problems = [problem_of(path) for path in checkpoints.values()]
    if (rows and not newest) or (problems and all(problems)):
        refuse_running(run_dir)  # the run may be about to write its first checkpoint
    if rows and not newest:
        raise UserError(
            f"--resume {run_dir}: has metrics of {len(rows)} iterations but no checkpoint, so the resumed run would "
            "overwrite the metrics; restore a checkpoint from a backup, or start a new run"
        )
    if problems and all(problems):
        raise UserError(
            f"--resume {run_dir}: none of its {len(problems)} checkpoints can be read ({checkpoints[newest].name}: "
            f"{problems[-1]}); restore one from a backup, or start a new run"
        )
    if newest >= config.max_iterations and config.total_timesteps is None:
        raise UserError(
            f"--max-iterations {config.max_iterations}: this is the run's total, and {run_dir} has already done "
            f"{newest} iterations; use a number above {newest}"
        )
    trained, engine = read_config_file(run_dir, trust=True, uses_ssh=False).env.sim.engine, config.env.sim.engine
    if engine != trained:
        raise UserError(
            f"--env.sim.engine {engine}: {run_dir} was trained with {trained}; resume it with that engine, or start a "
            "new run with --init-from and one of its checkpoints"
        )
    return run_dir


def _check_init_from(config: TrainConfig, file: str) -> None:
    """Raise if a file is not a checkpoint with a policy, or is from a task whose policy observes different terms.

    Ranks also check whether the checkpoint fits the networks, whose sizes are known only after the envs are built.
    """
    if not Path(file).is_file():
        raise UserError(
            f"--init-from {file}: there is no such file; give a checkpoint of a run, model_<iteration>.pt, or a pack"
        )
    readable(Path(file))
    from mjlab_dist.learn import checkpoint  # imports torch

    # Networks
    content = checkpoint.load(Path(file), "cpu")
    for part in ("actor_state_dict", "critic_state_dict"):
        if not isinstance(content.get(part), dict):
            raise UserError(f"--init-from {file}: has no {part}; give a checkpoint of a run, model_<iteration>.pt")
    # Task, if the checkpoint is still in its run directory. trust=True is safe: no function of that config is called.
    run = run_of(Path(file))
    if not has_file(run, CONFIG_FILE):
        return
    trained = read_config_file(run, trust=True, uses_ssh=False)
    theirs, ours = ([*one.env.observations.get("actor", {})] for one in (trained, config))
    if trained.task != config.task and theirs != ours:
        raise UserError(
            f"--init-from {file}: is of the task {trained.task}, whose policy observes {listed(theirs)}; {config.task} "
            f"needs a policy that observes {listed(ours)}"
        )


def describe_ranks(plan: RunPlan) -> str:
    """Return the number of ranks and what they run on, such as ``2 ranks on 2 cores``."""
    if len(plan.hosts) > 1:
        places = counted(len(plan.hosts), "machine")
    elif plan.own_devices[0].device == "cpu":
        places = counted(cores(), "core")
    else:
        places = counted(plan.num_ranks, "GPU")
    return f"{counted(plan.num_ranks, 'rank')} on {places}"


def video_note(config: TrainConfig) -> str | None:
    """Return a line for the user if videos may show iterations between multiples of the interval; None otherwise."""
    interval = config.video_interval
    iterations, seconds = parse_interval(config.checkpoint.interval)
    if interval is None or (iterations is not None and interval % iterations == 0):
        return None
    unit = f"{iterations} iterations" if seconds is None else f"{seconds:g} s"
    return (
        f"Videos show checkpoints, which are written every {unit}. Each video shows the first checkpoint at or after a "
        f"multiple of {interval} iterations (--video-interval {interval}, --checkpoint.interval "
        f"{config.checkpoint.interval})."
    )
