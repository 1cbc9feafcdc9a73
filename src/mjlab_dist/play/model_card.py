"""The model card of a pack, as Markdown."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mjlab_dist.config import TrainConfig, registry
from mjlab_dist.config.serialization import to_plain
from mjlab_dist.runs.pack_file import CARD, CHECKPOINT, MANIFEST, ONNX
from mjlab_dist.runs.run_dir import CONFIG_FILE, METRICS_FILE, PROVENANCE_FILE

# Contents of each file of a pack
FILES = {
    CONFIG_FILE: "all fields of the run's config, except directories and addresses of the machine that trained",
    CHECKPOINT: "policy and value function with their normalizers; torch.load reads this file",
    METRICS_FILE: "one row per iteration of training",
    ONNX: "the policy with its normalizers; its metadata describes all inputs and outputs",
    PROVENANCE_FILE: "versions, commit, command line and devices of training",
    MANIFEST: "format of this file",
    CARD: "this page",
}

# Metadata for sites that list models, such as Hugging Face
HEAD = """---
library_name: mjlab_dist
tags:
- reinforcement-learning
- robotics
- mujoco
---
"""


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
    files = [(f"`{name}`", text) for name, text in FILES.items() if not missing.get(name)]
    parts = [
        f"{HEAD}\n# {task}\n",
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
