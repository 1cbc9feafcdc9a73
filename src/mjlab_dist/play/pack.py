"""Pack a run into one file, without the data that only further training needs, and without data about the machine."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mjlab_dist.config import ExportConfig, PackConfig, TrainConfig
from mjlab_dist.errors import UserError
from mjlab_dist.play.model_card import Packed, card
from mjlab_dist.runs.outputs import check_output
from mjlab_dist.runs.pack_file import CARD, CHECKPOINT, FORMAT, LIMITS, MANIFEST, ONNX, write_pack
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

# Entries of a checkpoint that a pack keeps: the networks with their normalizers
LEARNED = ("actor_state_dict", "critic_state_dict")

# Fields of a config that depend on the machine that trained: directories and addresses
OF_A_MACHINE = ("hosts", "ssh_config", "port_range", "log_root", "resume", "init_from", "torchrunx_log_dir")

# Fields of the provenance that depend on the machine that trained
PRIVATE = ("host", "cpu_cores")


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
        "format": FORMAT,
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
        limit = LIMITS[name]
        if limit is not None and len(data) > limit:
            size = f"its {name} has {len(data):,} bytes, more than a pack can hold ({limit:,})"
            raise UserError(f"{source.run_dir}: {size}")
    # Check again, because another process may have created the file during the export
    _check_new(source.output)
    try:
        write_pack(source.output, contents)
    except OSError as error:
        raise UserError(f"--output {source.output}: cannot be written ({error.strerror}); name another file") from error
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
    from mjlab_dist.play.export import check, make  # imports torch

    export = ExportConfig()
    try:
        check(export)
        return make(source.config, source.checkpoint, export)
    except UserError as error:
        raise UserError(f"{error}; --no-onnx packs the run without {ONNX}") from error


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
