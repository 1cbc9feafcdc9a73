"""Pack a run into one file with a model card.

The pack has no data that only further training needs, and no data about the machine.
"""

from __future__ import annotations

import dataclasses
import io
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mjlab_dist.config import ExportConfig, PackConfig, TrainConfig, registry
from mjlab_dist.config.serialization import to_plain
from mjlab_dist.errors import UserError
from mjlab_dist.runs.outputs import check_output, writing
from mjlab_dist.runs.pack_file import CARD, CHECKPOINT, MANIFEST, MAX_BYTES, ONNX, PACK_FORMAT, write_pack
from mjlab_dist.runs.provenance import read_provenance, versions
from mjlab_dist.runs.run_dir import (
    CONFIG_FILE,
    METRICS_FILE,
    PROVENANCE_FILE,
    choose_checkpoint,
    find_any_run,
    read_config_file,
    read_metrics,
    to_yaml,
)
from mjlab_dist.runs.run_files import has_file, read_file

# Contents of each file of a pack
CONTENTS = {
    CONFIG_FILE: "all fields of the run's config, except directories and addresses of the machine that trained",
    CHECKPOINT: "policy and value function with their normalizers; torch.load reads this file",
    METRICS_FILE: "one row per iteration of training",
    ONNX: "the policy with its normalizers; its metadata describes all inputs and outputs",
    PROVENANCE_FILE: "versions, commit, command line and devices of training",
    MANIFEST: "format of this file",
    CARD: "this page",
}

# Metadata for sites that list models, such as Hugging Face
CARD_METADATA = """---
library_name: mjlab_dist
tags:
- reinforcement-learning
- robotics
- mujoco
---
"""

# Entries of a checkpoint that a pack keeps: the networks with their normalizers
LEARNED = ("actor_state_dict", "critic_state_dict")

# Fields of a config that depend on the machine that trained: directories and addresses
OF_A_MACHINE = ("hosts", "ssh_config", "port_range", "log_root", "resume", "init_from", "torchrunx_log_dir")

# Fields of the provenance that depend on the machine that trained
PRIVATE = ("host", "cpu_cores")


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Contents of a pack, for its card."""

    # Name of the pack
    file: str
    config: TrainConfig
    # Name of the checkpoint, such as model_300
    checkpoint: str
    # Number of iterations of training until the checkpoint
    iteration: int
    # The run's provenance; empty if it has none
    provenance: Mapping[str, Any]
    # Rows of the run's metrics
    rows: Sequence[Mapping[str, Any]]
    # Description of the exported policy; None if it was not exported
    description: Mapping[str, Any] | None


def card(packed: Packed) -> str:
    """Return the model card: task, results, robot, training, versions, and how to use the file."""
    task = packed.config.task
    about = registry.task_summaries(task).get(task) if task in registry.task_names() else None
    missing = {ONNX: packed.description is None, METRICS_FILE: not packed.rows}
    files = [(f"`{name}`", text) for name, text in CONTENTS.items() if not missing.get(name)]
    parts = [
        f"{CARD_METADATA}\n# {task}\n",
        f"A policy for the task `{task}` of mjlab_dist, after {packed.iteration:,} iterations of PPO."
        + (f"\n\n{about}" if about else ""),
        _section("Results", ("quantity", "value"), _results(packed)),
        _section("Robot", ("", ""), _robot(packed)),
        _section("Training", ("setting", "value"), _training(packed)),
        _section("Versions", ("package", "version"), _versions(packed.provenance)),
        _use(packed),
        _section("Files", ("file", "contents"), files),
        "mjlab_dist executes no code from this file, but calls functions that the file's config names. Without "
        "`--trust`, these can only be functions of mjlab_dist, of installed task packages and of your own project.",
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _results(packed: Packed) -> Iterable[tuple[str, str]]:
    """Yield rows for the newest evaluation up to the checkpoint, and for the mean return in training."""
    rows = [row for row in packed.rows if row["iteration"] <= packed.iteration]
    evaluated = next((row for row in reversed(rows) if row.get("evaluation/return") is not None), None)
    if evaluated is not None:
        yield (
            "mean return by evaluation",
            f"{evaluated['evaluation/return']:.4g}, over {packed.config.evaluate_episodes} whole episodes without "
            f"exploration, after iteration {evaluated['iteration']:,}",
        )
        shown = ("length", "termination/", "metric/", "command/")
        for column, value in evaluated.items():
            name = column.removeprefix("evaluation/")
            if name != column and name.startswith(shown) and value is not None:
                yield f"`{name}`", f"{value:.4g}"
    trained = next((row for row in reversed(rows) if row.get("mean_return") is not None), None)
    if trained is not None:
        yield (
            "mean return in training",
            f"{trained['mean_return']:.4g}, with exploration, at iteration {trained['iteration']:,}",
        )


def _robot(packed: Packed) -> Iterable[tuple[str, str]]:
    env, about = packed.config.env, packed.description
    yield "model", f"`{env.sim.model}`"
    if about is None:
        yield "action terms", _code(env.actions)
        yield "observation terms", _code(env.observations.get("actor", {}))
        return
    yield "control step", f"{about['control_step_s']:g} s, in physics steps of {about['physics_step_s']:g} s"
    yield "actions", f"{len(about['actions'])}: {_code(one['name'] for one in about['actions'])}"
    yield "observations", ", ".join(f"`{one['name']}` ({one['width']})" for one in about["observations"])
    if about["commands"]:
        yield "commands", _code(about["commands"])


def _training(packed: Packed) -> Iterable[tuple[str, str]]:
    config, devices = packed.config, packed.provenance.get("devices") or []
    done = next((row for row in reversed(packed.rows) if row["iteration"] <= packed.iteration), {})
    if command := packed.provenance.get("command"):
        yield "command", f"`{shlex.join(map(str, command))}`"
    if devices:
        yield "devices", ", ".join(f"{devices.count(one)} x {one}" for one in dict.fromkeys(map(str, devices)))
    yield "envs", f"{config.num_envs} per rank" if config.total_num_envs is None else f"{config.total_num_envs}"
    if done.get("total_steps") is not None:
        yield "control steps", f"{done['total_steps']:,}"
    if done.get("elapsed_s") is not None:
        yield "seconds", f"{done['elapsed_s']:,.0f}"
    yield "seed", f"{config.seed}"
    for name, value in to_plain(config.agent).items():
        yield f"`{name}`", f"`{json.dumps(value)}`"


def _versions(provenance: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    commit = provenance.get("git_commit")
    if commit:
        yield "git commit", f"`{commit}`" + (" with uncommitted changes" if provenance.get("git_dirty") else "")
    if provenance.get("python"):
        yield "python", str(provenance["python"])
    for name, version in (provenance.get("versions") or {}).items():
        yield str(name), str(version)


def _use(packed: Packed) -> str:
    task, file = packed.config.task, shlex.quote(packed.file)
    deploy = f"`{ONNX}` runs without mjlab_dist, in ONNX Runtime: see docs/after-training.md of mjlab_dist."
    return f"""## Use

The package mjlab_dist and the package of the task must be installed, in the versions above or newer.

```
mjlab-dist play {task} --run {file} --viewer web
mjlab-dist evaluate {task} --run {file}
mjlab-dist export {task} --run {file}
mjlab-dist train {task} --init-from {file}
```

{deploy if packed.description is not None else ""}"""


def _section(title: str, head: tuple[str, str], rows: Iterable[tuple[str, str]]) -> str:
    """Return a section with a table; empty if there are no rows."""
    lines = [f"| {_cell(left)} | {_cell(right)} |" for left, right in rows]
    if not lines:
        return ""
    return "\n".join([f"## {title}\n", f"| {head[0]} | {head[1]} |", "|---|---|", *lines])


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A run to pack, and the file to write."""

    run_dir: Path
    config: TrainConfig
    checkpoint: Path
    output: Path


def find_source(run: str, config: PackConfig) -> Source:
    """Find a run and its checkpoint, and the name of the file to write. Imports no heavy libraries."""
    run_dir = find_any_run(config.log_root, run)
    if run_dir.is_file():
        raise UserError(f"{run}: is a pack already; name a run directory")
    train_config = read_config_file(run_dir, trust=config.trust, uses_ssh=False)
    checkpoint = choose_checkpoint(run_dir, config.checkpoint)
    # Output
    name = f"{train_config.task}_{run_dir.resolve().name}_{checkpoint.stem}.zip"
    output = Path(name if config.output is None else config.output)
    check_output("--output", str(output), [".zip"])
    _check_new(output)
    return Source(run_dir=run_dir, config=train_config, checkpoint=checkpoint, output=output)


def _check_new(output: Path) -> None:
    if output.exists() or output.is_symlink():
        raise UserError(f"--output {output}: exists; remove it, or name another file")


def pack(source: Source, config: PackConfig) -> Mapping[str, bytes]:
    """Write a pack."""
    import torch

    from mjlab_dist.learn import checkpoint as checkpoints

    content = checkpoints.load(source.checkpoint, "cpu")
    iteration = content.get("iter")
    if not isinstance(iteration, int) or not isinstance(content.get("actor_state_dict"), dict):
        raise UserError(f"checkpoint {source.checkpoint}: holds no policy; choose another one with --checkpoint")
    learned = io.BytesIO()
    torch.save({"iter": iteration, **{name: content[name] for name in LEARNED if name in content}}, learned)
    made = _exported(source) if config.onnx else None
    portable = portable_config(source.config)
    origin = portable_provenance(read_provenance(source.run_dir))
    rows = read_metrics(source.run_dir) if has_file(source.run_dir, METRICS_FILE) else []
    about = Packed(
        file=source.output.name,
        config=portable,
        checkpoint=source.checkpoint.resolve().stem,
        iteration=iteration,
        provenance=origin,
        rows=rows,
        description=made.description if made is not None else None,
    )
    manifest = {
        "format": PACK_FORMAT,
        "task": portable.task,
        "checkpoint": about.checkpoint,
        "iteration": iteration,
        "packed": versions(),
    }
    contents = {
        MANIFEST: _json(manifest),
        CARD: card(about).encode(),
        CONFIG_FILE: to_yaml(portable).encode(),
        CHECKPOINT: learned.getvalue(),
        PROVENANCE_FILE: _json(origin),
        **({METRICS_FILE: read_file(source.run_dir, METRICS_FILE)} if rows else {}),
        **({ONNX: made.contents["policy.onnx"]} if made is not None else {}),
    }
    for name, data in contents.items():
        limit = MAX_BYTES[name]
        if limit is not None and len(data) > limit:
            size = f"its {name} has {len(data):,} bytes, more than a pack can hold ({limit:,})"
            raise UserError(f"{source.run_dir}: {size}")
    # Check again, because another process may have created the file during the export
    _check_new(source.output)
    with writing("--output", str(source.output)):
        write_pack(source.output, contents)
    return contents


def portable_config(config: TrainConfig) -> TrainConfig:
    """Return a config without directories and addresses of the machine that trained."""
    defaults = {field.name: field.default for field in dataclasses.fields(TrainConfig)}
    return dataclasses.replace(config, **{name: defaults[name] for name in OF_A_MACHINE})


def portable_provenance(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return a provenance without host names, CPU cores, and directories in the command line."""
    found = {name: value for name, value in provenance.items() if name not in PRIVATE}
    if isinstance(command := found.get("command"), list):
        found["command"] = _portable_command([str(word) for word in command])
    if "resumed" in found:
        found["resumed"] = [portable_provenance(one) for one in found["resumed"] if isinstance(one, Mapping)]
    return found


def _portable_command(words: Sequence[str]) -> list[str]:
    """Return a command line without the flags in ``OF_A_MACHINE``, and with only the names of other absolute paths."""
    found: list[str] = []
    is_left_out = False
    for word in words:
        flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        if flag:
            is_left_out = flag.removeprefix("--").replace("-", "_") in OF_A_MACHINE
        if not is_left_out:
            found.append(f"{flag}{equals}{Path(value).name if value.startswith(('/', '~')) else value}")
    return found


def _exported(source: Source) -> Any:
    from mjlab_dist.policies.export import check, make  # imports torch

    export = ExportConfig()
    try:
        check(export)
        return make(source.config, source.checkpoint, export)
    except UserError as error:
        raise UserError(f"{error}; --no-onnx packs the run without {ONNX}") from error


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
