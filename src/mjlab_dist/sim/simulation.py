"""The physics of one rank's envs: MuJoCo Warp, recorded once and replayed, seen through torch without copies."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mujoco
import mujoco_warp as mjw
import torch
import warp as wp

from mjlab_dist.config import SimConfig
from mjlab_dist.errors import UserError
from mjlab_dist.events import emit
from mjlab_dist.sim import kernels

CAPTURABLE_DRIVER = (12, 4)
"""CUDA driver from which on a graph can hold the solver's loop (a conditional node)."""


BUFFER_BITS = int(mjw.OverflowType.ALL & ~(mjw.OverflowType.ITERATIONS | mjw.OverflowType.LS_ITERATIONS))
"""Overflows that drop contacts or constraints; the others say that the solver stopped at its limit of iterations."""

_INTEGRATION = (
    "qpos",
    "qvel",
    "act",
    "ctrl",
    "qacc_warmstart",
    "qfrc_applied",
    "xfrc_applied",
    "mocap_pos",
    "mocap_quat",
    "eq_active",
    "history",
    "plastic",
    "userdata",
    "time",
)
"""Fields of ``mujoco_warp.Data`` that MuJoCo calls mjSTATE_INTEGRATION: what the next step depends on."""

_CARRIED = ("cvel", "cdof_dot")
"""Further ones where there are equality constraints: connect and weld read the velocities of the substep before."""


def load_model(model: str) -> mujoco.MjModel:
    """Compile an MJCF.

    Args:
        model: A file's path, or ``package.module:file`` for a file beside a module of an installed package.

    Raises:
        UserError: If there is no such file or package, or MuJoCo refuses the file.
    """
    package, colon, name = model.rpartition(":")
    path = _folder_of(package, model) / name if colon else Path(model)
    if not path.is_file():
        raise UserError(f"--env.sim.model {model}: there is no file {path}")
    try:
        return mujoco.MjModel.from_xml_path(str(path))
    except ValueError as error:
        raise UserError(f"--env.sim.model {model}: {' '.join(str(error).split())}") from error


def _folder_of(module: str, model: str) -> Path:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise UserError(f"--env.sim.model {model}: there is no package {module}")
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    assert spec.origin is not None
    return Path(spec.origin).parent


class Simulation:
    """A batch of envs on one device.

    State tensors are views of MuJoCo Warp's own arrays: writing to them changes the simulation.

    Attributes:
        model: The MuJoCo model on the host, for names and addresses.
        num_envs: Envs in the batch (MuJoCo Warp calls them worlds).
        device: Torch's name of the device.
        dt_s: Simulated seconds per :meth:`step`.
        qpos: Joint positions, (num_envs, nq), in MuJoCo's order and units.
        qvel: Joint velocities, (num_envs, nv).
        ctrl: Actuator inputs, (num_envs, nu).
        overflow: Bits of ``mujoco_warp.OverflowType``, (num_envs,), set where a buffer was ever too small; resets leave them.
        physics: What the next step depends on, by the names of ``mujoco_warp.Data``, (num_envs, ...) each; without those that
            the model has none of.
    """

    def __init__(
        self, model: mujoco.MjModel, num_envs: int, device: str, config: SimConfig, announce: Callable[[], None]
    ) -> None:
        """Put the model on the device, compile what is missing, record the physics.

        Args:
            model: The MuJoCo model on the host.
            num_envs: Envs in the batch.
            device: ``cpu`` or ``cuda:<index>``.
            config: Sizes and options.
            announce: Called if kernels have to be compiled, which takes a while.
        """
        self.model = model
        self.num_envs = num_envs
        self.device = device
        self.dt_s = float(model.opt.timestep) * config.decimation
        self._config = config
        self._graphs: dict[Callable[[], None], wp.Graph] = {}
        self._stream = wp.stream_from_torch(device) if device != "cpu" else None
        start = mujoco.MjData(model)
        mujoco.mj_forward(model, start)
        with wp.ScopedDevice(device):
            self._warp_model = mjw.put_model(model)
            self._warp_model.opt.warn_overflow = 0  # reported by the runner, once, instead of printed by every env
            self._data = mjw.put_data(
                model,
                start,
                nworld=num_envs,
                njmax=max(config.njmax, start.nefc),
                nconmax=max(config.nconmax, start.ncon),
            )
            self._reset_mask = wp.zeros(num_envs, dtype=wp.bool)
        self._views: dict[str, torch.Tensor] = {}
        self.qpos, self.qvel, self.ctrl = self.view("qpos"), self.view("qvel"), self.view("ctrl")
        self.overflow = torch.zeros(num_envs, dtype=torch.int32, device=device)
        self._torch_mask = wp.to_torch(self._reset_mask)
        fields = _INTEGRATION + (_CARRIED if model.neq else ())
        self.physics = {name: view for name in fields if (view := self.view(name)).numel()}
        self._record(announce)

    @property
    def captured(self) -> bool:
        """Whether the physics is replayed from a recording."""
        return bool(self._graphs)

    def view(self, name: str) -> torch.Tensor:
        """A field of ``mujoco_warp.Data`` as a tensor, without a copy.

        Args:
            name: The field, such as ``xpos`` (num_envs, nbody, 3) or ``sensordata`` (num_envs, nsensordata).
        """
        if name not in self._views:
            self._views[name] = wp.to_torch(getattr(self._data, name))
        return self._views[name]

    def num_bytes(self) -> int:
        """Bytes of device memory that MuJoCo Warp's model and data hold, without what a step allocates for itself."""
        return sum(_array_bytes(self._warp_model, self._data).values())

    def step(self) -> None:
        """Advance every env by one control step: ``decimation`` substeps with the current ``ctrl``."""
        self._run(self._step)
        self.overflow |= self.view("overflow") & BUFFER_BITS

    def forward(self) -> None:
        """Recompute everything that follows from positions and velocities, in every env."""
        self._run(self._forward)

    def reset(self, mask: torch.Tensor) -> None:
        """Put envs back to the model's reference state.

        Args:
            mask: Which envs, (num_envs,) of bool, on the device.
        """
        self._torch_mask.copy_(mask)
        self._run(self._reset)
        for name in _CARRIED:
            if name in self.physics:
                self.physics[name].masked_fill_(mask.view(-1, 1, 1), 0.0)  # which MuJoCo Warp's reset leaves

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that the future of the envs depends on, by name: views, (num_envs, ...) each. Clone what is to be kept.

        Poses and sensors are not among it: a step computes them anew.
        """
        return {**(self._everything() if self._sleeps() else self.physics), "overflow": self.overflow}

    def _sleeps(self) -> bool:
        return bool(self.model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP)

    def _everything(self) -> dict[str, torch.Tensor]:
        """All that there is per env: poses of a body that sleeps are not computed anew, so that no less will do."""
        fields = [field.name for field in dataclasses.fields(mjw.Data) if _is_per_env(field)]
        return {name: view for name in fields if (view := self.view(name)).numel()}

    def _step(self) -> None:
        for _ in range(self._config.decimation):
            mjw.step(self._warp_model, self._data)

    def _forward(self) -> None:
        mjw.forward(self._warp_model, self._data)

    def _reset(self) -> None:
        mjw.reset_data(self._warp_model, self._data, reset=self._reset_mask)

    def _all(self) -> None:
        self._step()
        self._forward()
        self._reset()

    def _run(self, program: Callable[[], None]) -> None:
        # On torch's stream, so that the terms' kernels and these stay in order without a synchronization.
        graph = self._graphs.get(program)
        if graph is not None:
            wp.capture_launch(graph, stream=self._stream)
        elif self._stream is None:
            with wp.ScopedDevice(self.device):
                program()
        else:
            with wp.ScopedStream(self._stream):
                program()

    def _record(self, announce: Callable[[], None]) -> None:
        reason = self._why_not_capturable()
        with wp.ScopedDevice(self.device):
            if not reason:
                kernels.prepare(self.device, self._all, num_workers=len(os.sched_getaffinity(0)), announce=announce)
            if self._config.capture and reason:
                emit("warning", text=f"the physics is not captured, which is slower: {reason}")
            elif self._config.capture:
                self._graphs = {program: self._capture(program) for program in (self._step, self._forward, self._reset)}

    def _capture(self, program: Callable[[], None]) -> wp.Graph:
        with kernels.no_gc(), wp.ScopedCapture(device=self.device, force_module_load=False) as capture:
            program()
        assert capture.graph is not None
        return capture.graph

    def _why_not_capturable(self) -> str:
        device = wp.get_device(self.device)
        if device.is_cpu:
            return ""
        driver = wp.get_cuda_driver_version()
        if driver is None or driver < CAPTURABLE_DRIVER:
            return f"conditional graph nodes need CUDA 12.4, the NVIDIA driver has {driver}"
        if not wp.is_mempool_enabled(device):
            return "CUDA memory pools are off on this device"
        return ""


def copy_state(source: Mapping[str, torch.Tensor], target: Mapping[str, torch.Tensor]) -> None:
    """Copy tensors by name into others, in place: recorded graphs know these by their addresses.

    Args:
        source: What was saved.
        target: What it goes into.

    Raises:
        UserError: If names or shapes differ; nothing is copied then.
    """
    for name in {**source, **target}:
        there, here = (str(tuple(held[name].shape)) if name in held else "missing" for held in (source, target))
        if there != here:
            raise UserError(
                f"the saved state of the envs does not fit: {name} is {there} there, {here} here; the model, the task or the "
                "number of envs is another"
            )
    for name, tensor in target.items():
        tensor.copy_(source[name])


def _is_per_env(field: dataclasses.Field[Any]) -> bool:
    return getattr(field.type, "shape", ("",))[0] == "nworld"


def _array_bytes(*holders: Any) -> dict[int, int]:
    """Bytes by address of the Warp arrays in dataclasses, tuples and lists; several arrays may be views of one memory."""
    found: dict[int, int] = {}
    for holder in holders:
        if isinstance(holder, wp.array):
            inner = {holder.ptr: holder.capacity} if holder.ptr else {}
        elif dataclasses.is_dataclass(holder):
            inner = _array_bytes(*(getattr(holder, field.name) for field in dataclasses.fields(holder)))
        elif isinstance(holder, tuple | list):
            inner = _array_bytes(*holder)
        else:
            continue
        for pointer, size in inner.items():
            found[pointer] = max(size, found.get(pointer, 0))
    return found
