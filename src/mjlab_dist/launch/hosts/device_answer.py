"""Choose devices for the ranks of this machine. A launcher on another machine starts this module through SSH.

The module prints one line of JSON: :class:`DeviceAnswer` as plain data.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from logging.handlers import BufferingHandler
from typing import Any, Literal, Self

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import RankDevice
from mjlab_dist.errors import UserError
from mjlab_dist.machine.devices import find_gpus, logger, plan_devices

# Environment variables of the launcher that choose and order GPUs. Ranks on other machines get them too.
VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


@dataclass(frozen=True, kw_only=True)
class DeviceRequest:
    """Devices that a launcher requests from another machine."""

    gpu_ids: tuple[int, ...] | Literal["auto", "all"] | None
    cpu_ranks: int | None
    oversubscribe: bool
    # Number of ranks: the first of the chosen GPUs, or processes on the CPU; None for one rank per device
    num_ranks: int | None
    # The launcher's values of VARIABLES, without variables that are not set
    environ: Mapping[str, str]

    @classmethod
    def of(
        cls, config: TrainConfig, num_ranks: int | None, environ: Mapping[str, str], own: tuple[RankDevice, ...]
    ) -> Self:
        """Return the request of a launcher. Without GPUs, a machine has as many ranks as the launcher's by default."""
        on_cpu = own[0].device == "cpu"
        return cls(
            gpu_ids=None if on_cpu else config.gpu_ids,
            cpu_ranks=config.cpu_ranks or (len(own) if on_cpu else None),
            oversubscribe=config.oversubscribe,
            num_ranks=num_ranks,
            environ={name: environ[name] for name in VARIABLES if name in environ},
        )

    def argument(self) -> str:
        """Return this request as JSON, for the command line that starts this module."""
        return json.dumps(dataclasses.asdict(self))


@dataclass(frozen=True, kw_only=True)
class DeviceAnswer:
    """A machine's answer."""

    # Device of each rank; empty if there is an error
    devices: tuple[RankDevice, ...] = ()
    # Warnings about the machine's devices
    warnings: tuple[str, ...] = ()
    # Reason why there are no devices, with the fix
    error: str = ""

    @classmethod
    def read(cls, line: str) -> Self:
        """Return the answer that a machine printed."""
        fields = json.loads(line)
        devices = tuple(RankDevice(**device) for device in fields["devices"])
        return cls(devices=devices, warnings=tuple(fields["warnings"]), error=fields["error"])


def answer(request: DeviceRequest, environ: Mapping[str, str]) -> DeviceAnswer:
    """Choose devices."""
    collected = BufferingHandler(sys.maxsize)
    logger.addHandler(collected)
    try:
        devices = plan_devices(request, {**environ, **request.environ}, find_gpus(), request.num_ranks)
    except UserError as error:
        return DeviceAnswer(error=str(error))
    finally:
        logger.removeHandler(collected)
    # If other machines use GPUs, this machine must not fall back to its CPU
    if request.gpu_ids is not None and devices[0].device == "cpu":
        return DeviceAnswer(error="has no GPU that can be used; use --gpu-ids None to train on the CPU everywhere")
    return DeviceAnswer(devices=devices, warnings=tuple(record.getMessage() for record in collected.buffer))


def main() -> None:
    """Print the answer to the request in the first argument."""
    fields: dict[str, Any] = json.loads(sys.argv[1])
    if isinstance(fields["gpu_ids"], list):
        fields["gpu_ids"] = tuple(fields["gpu_ids"])
    print(json.dumps(dataclasses.asdict(answer(DeviceRequest(**fields), os.environ))))  # noqa: T201


if __name__ == "__main__":
    main()
